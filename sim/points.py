"""One run of a sweep, in figures: what a worker does, here or on a cluster."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .jit import SOURCES
from .metrics import figures, kept_limits
from .parameter import ScenarioError, written
from .run import Run, serve_variant
from .scenario import Scenario, Variant
from .state import BATCH, BLOCKS, BUDGET, NOTHING, SEATS
from .workload import Workload, draw

# What the time of a run goes to: a limit keeps the head of the line out, or only the step in
# progress does (compute), or there is nothing to do.
BINDING = {"seats": SEATS, "blocks": BLOCKS, "budget": BUDGET, "batch": BATCH, "compute": NOTHING}
WARM_UP = 1 / 3  # of the arrivals' time, left out where growth is measured
LOOKS = 64  # at the number of unfinished requests


class Point(NamedTuple):
    """One run: what differs from the scenario."""

    values: tuple[tuple[str, float], ...]  # of swept parameters, by name
    variant: Variant
    seed: int

    @property
    def key(self) -> tuple:
        return (str(self.variant), self.seed, *(float(value) for _, value in self.values))


def at(
    scenario: Scenario,
    values: Sequence[tuple[str, float]],
    seed: int | None = None,
    variants: Sequence[Variant] | None = None,
) -> Scenario:
    """The scenario with these values, for its variants too. ScenarioError if it can't be run."""
    names = dict(values)
    query = scenario.to_query()
    query["v"] = [str(_with(v, names, scenario)) for v in variants or scenario.variants]
    if variants is not None:
        query.pop("baseline", None)
    query |= {name: [written(value)] for name, value in names.items()}
    if seed is not None and "seed" in scenario.traffic.uses:
        query["seed"] = [str(seed)]
    asked, problems = Scenario.from_query(query)
    if problems:
        raise ScenarioError(problems[0])
    return asked


def _with(variant: Variant, values: dict[str, float], scenario: Scenario) -> Variant:
    """The variant without values of its own for these; an engine with them, where its version's
    default would go before the scenario's. Its pool follows the scenario's as it is."""
    kept = tuple(c for c in variant.changes if c[0] not in values)
    usual = variant.preset.limits(scenario.limits, {}) if variant.preset else {}
    own = tuple((n, v) for n, v in values.items() if n in usual and n != "num_gpu_blocks")
    return replace(variant, changes=(*kept, *own))


def measure(
    scenario: Scenario, points: Sequence[Point], trace: Workload | None, sources: str = SOURCES
) -> tuple[Sequence[Point], list[dict]]:
    """The points, and a row for each. What can't be run has a `problem`, and no figure.

    ScenarioError where this simulator is not the one that asks.
    """
    if sources != SOURCES:
        raise ScenarioError(
            f"a worker has other sources ({SOURCES[:12]}) than this process ({sources[:12]}): give"
            " the cluster the same checkout"
        )
    rows, traffic, workload = [], None, None
    for point in points:
        row = {"variant": str(point.variant), "seed": point.seed, **dict(point.values)}
        try:
            asked = at(scenario, point.values, point.seed, [point.variant])
            if asked.traffic != traffic or workload is None:
                traffic, workload = asked.traffic, draw(asked.traffic, trace)
            asked.check(len(workload))
            row |= measured(serve_variant(asked, asked.variants[0], workload), asked)
            row["problem"] = ""
        except ScenarioError as error:
            row["problem"] = str(error)
        rows.append(row)
    return points, rows


def measured(run: Run, scenario: Scenario) -> dict[str, float]:
    """Every figure of a run, and what a sweep asks besides."""
    in_time, in_step = kept_limits(run, scenario.slo)
    return {
        **figures(run, scenario.slo),
        "arrived": len(run.requests),
        "offered": offered(run),
        "within_ttft": 100 * float(in_time.mean()),
        "within_tpot": 100 * float(in_step.mean()),
        "growth": growth(run),
        **{f"time_{name}": share for name, share in time_shares(run).items()},
    }


def offered(run: Run) -> float:
    """Requests a second that arrive, from the first to the last; nan where all come at once."""
    span = float(np.ptp(run.requests["arrival"]))
    return (len(run.requests) - 1) / span * 1e3 if span > 0 else math.nan


def growth(run: Run) -> float:
    """Requests a second by which the unfinished become more while requests arrive.

    The slope, by least squares, of their number after the first third; nan where all come at once.
    """
    end = float(run.served["arrival"].max())
    if end <= 0:
        return math.nan
    times = np.linspace(WARM_UP * end, end, LOOKS)
    came = np.searchsorted(np.sort(run.served["arrival"]), times, side="right")
    gone = np.searchsorted(np.sort(run.served["finish"]), times, side="right")
    away = times - times.mean()
    return float((away * (came - gone)).sum() / (away**2).sum() * 1e3)


def time_shares(run: Run) -> dict[str, float]:
    """% of the run's time by what kept the head of the line out in it; the rest is `idle`."""
    length = run.steps["ms"] * run.steps["repeats"]
    sums = np.bincount(run.steps["stop"], weights=length, minlength=len(BINDING))
    shares = {name: 100 * float(sums[stop]) / run.total for name, stop in BINDING.items()}
    return shares | {"idle": max(0.0, 100 - sum(shares.values()))}
