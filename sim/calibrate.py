"""Measured steps -> coefficients of a cost model, with their residuals and the range they cover."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from . import steplog
from .costs import COSTS, Features, fill
from .parameter import ScenarioError
from .pricing import RANGES, StepCost
from .state import STEP

COUNTED = ("prefill", "prompts", "decodes", "context", "reread", "attended", "completed",
           "pad_prefill", "pad_decodes")  # fmt: skip
MAX_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A cost model's coefficients, least squares over measured steps; none is negative."""

    cost: str  # a key of COSTS
    coefficients: np.ndarray  # in the model's order
    predicted: np.ndarray  # (n,) ms
    measured: np.ndarray  # (n,) ms
    highest: Features  # of each feature that was measured

    @property
    def errors(self) -> np.ndarray:
        """(n,) predicted / measured - 1."""
        return self.predicted / self.measured - 1

    def deciles(self) -> pd.DataFrame:
        """The error of each tenth of the steps, from the shortest to the longest."""
        parts = np.array_split(np.argsort(self.measured, kind="stable"), 10)
        rows = [
            {
                "from, ms": self.measured[part].min(),
                "to, ms": self.measured[part].max(),
                "steps": len(part),
                "mean error, %": 100 * self.errors[part].mean(),
                "median |error|, %": 100 * float(np.median(np.abs(self.errors[part]))),
                "worst |error|, %": 100 * np.abs(self.errors[part]).max(),
            }
            for part in parts
            if len(part)
        ]
        return pd.DataFrame(rows)

    def step_cost(self) -> StepCost:
        """The same for a scenario's link. ScenarioError unless it is of `calibrated`."""
        if self.cost != "calibrated":
            raise ScenarioError(f"{self.cost} has its coefficients in the scenario: set them there")
        names = (c.name for c in COSTS["calibrated"].coefficients)
        numbers = [
            (name, float(c)) for name, c in zip(names, self.coefficients, strict=True) if c > 0
        ]
        tops = self.highest._asdict()
        reached = {name: float(tops[name.removesuffix("_max")]) for name in RANGES}
        counted = ("prefill_max", "decodes_max")  # by every log; none of what another leaves out
        numbers += [(name, top) for name, top in reached.items() if top or name in counted]
        numbers.append(("error", float(f"{100 * np.median(np.abs(self.errors)):.3g}")))
        return StepCost("calibrated", numbers=tuple(numbers))


def features_of(steps: np.ndarray) -> np.ndarray:
    """(n, len(Features._fields)) of recorded steps (STEP)."""
    x = np.zeros((len(steps), len(Features._fields)))
    fill(np.ascontiguousarray(steps), x)
    return x


def fit(cost: str, x: np.ndarray, ms: np.ndarray, only: Sequence[str] = ()) -> Fit:
    """Of a cost model each of whose coefficients multiplies one feature.

    x: (n, features) of `features_of`; ms: (n,). only: features to use; all of the model's by
    default. A term that would be negative is left out. ScenarioError if nothing can be fitted.
    """
    named = COSTS[cost].features
    if len(set(named)) < len(named) or "" in named:
        raise ScenarioError(f"{cost} is derived, not fitted: fit linear or calibrated")
    columns = [Features._fields.index(name) for name in named]
    use = [k for k, name in enumerate(named) if not only or name in only]
    good = np.isfinite(ms) & (ms > 0)
    x, ms = x[good], ms[good]
    use = _telling(x, columns, use)
    if len(ms) < len(use):
        raise ScenarioError(f"{len(ms)} steps can't fit {len(use)} coefficients: give more")
    coefficients = np.zeros(len(named))
    while use:
        a = x[:, [columns[k] for k in use]]
        scale = np.abs(a).max(axis=0)
        scale[scale == 0] = 1.0
        found = np.linalg.lstsq(a / scale, ms, rcond=None)[0] / scale
        if (found >= 0).all():
            coefficients[use] = found
            break
        use.pop(int(np.argmin(found * scale)))
    top = Features(*(float(v) for v in x.max(axis=0)))
    return Fit(cost, coefficients, x[:, columns] @ coefficients, ms, top)


def _telling(x: np.ndarray, columns: Sequence[int], use: Sequence[int]) -> list[int]:
    """Those of `use` whose column is not empty, and not equal to an earlier one's."""
    kept: list[int] = []
    for k in use:
        column = x[:, columns[k]]
        if column.any() and not any(np.array_equal(column, x[:, columns[o]]) for o in kept):
            kept.append(k)
    return kept


def read_steps(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """(features, ms) of an engine's log (sim.steplog), a recorded run, or a CSV with a column `ms`
    (or `seconds`) and any of COUNTED, one row a step.

    ScenarioError says what is wrong.
    """
    if logged := steplog.read(content):
        steps, ms = logged
        return features_of(steps), ms
    try:
        table = pd.read_csv(io.BytesIO(content), comment="#")
    except (ValueError, UnicodeDecodeError) as error:
        raise ScenarioError(
            f"the step log is no CSV ({error}) and no engine's log that is known here: give one row"
            " a step"
        ) from None
    clock = next((name for name in ("ms", "seconds") if name in table), None)
    present = [name for name in COUNTED if name in table]
    if clock is None or not {"prefill", "decodes"} & set(present):
        raise ScenarioError(
            f"the step log has columns {', '.join(map(str, table.columns[:8]))}: give ms (or"
            f" seconds), and of {', '.join(COUNTED)} what was counted"
        )
    if not 1 <= len(table) <= MAX_STEPS:
        raise ScenarioError(f"the step log has {len(table):,} rows: give 1 to {MAX_STEPS:,}")
    numbers = pd.DataFrame(table[[clock, *present]]).apply(pd.to_numeric, errors="coerce")
    for bad in np.flatnonzero(numbers.isna().any(axis=1))[:1]:
        raise ScenarioError(f"row {bad + 1} of the step log is not all numbers: mend or drop it")
    steps = np.zeros(len(table), STEP)
    for name in present:
        high = np.iinfo(STEP[name]).max
        values = np.asarray(numbers[name], float)
        if (values < 0).any() or (values > high).any():
            raise ScenarioError(f"{name} of the step log goes beyond 0 to {high:,}: mend it")
        steps[name] = values
    ms = np.asarray(numbers[clock], float) * (1e3 if clock == "seconds" else 1.0)
    if not (np.isfinite(ms) & (ms > 0)).any():
        raise ScenarioError(f"{clock} of the step log has no positive time: give measured steps")
    return features_of(steps), ms
