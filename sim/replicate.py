"""Is a difference real? The same comparison under many seeds, paired, with a bootstrap interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .metrics import FIGURES
from .parameter import ScenarioError
from .run import serve_variant
from .scenario import Scenario
from .window import counted
from .workload import Workload, draw

SEEDS = 20
MOST = 60_000_000  # requests of all runs: three variants of a million each
RESAMPLES = 10_000
BOOTSTRAP_SEED = 20  # so that the same runs give the same interval


@dataclass(frozen=True, slots=True, eq=False)
class Replicates:
    """Figures of each variant under each seed."""

    labels: tuple[str, ...]
    names: tuple[str, ...]
    values: np.ndarray  # (variants, figures, seeds)

    def difference(self, k: int, base: int, name: str) -> "Difference":
        """Of variant k against variant `base`, seed by seed."""
        j = self.names.index(name)
        return Difference.of(self.values[k, j] - self.values[base, j])


@dataclass(frozen=True, slots=True)
class Difference:
    mean: float
    low: float  # of the mean, the 95 % percentile bootstrap interval
    high: float
    seeds: int

    @property
    def is_real(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    @classmethod
    def of(cls, pairs: np.ndarray) -> "Difference":
        """pairs: (seeds,) differences; seeds under which a figure does not exist are left out."""
        pairs = pairs[np.isfinite(pairs)]
        if not len(pairs):
            return cls(np.nan, np.nan, np.nan, 0)
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        means = pairs[rng.integers(0, len(pairs), (RESAMPLES, len(pairs)))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        return cls(float(pairs.mean()), float(low), float(high), len(pairs))


def replicate(
    scenario: Scenario,
    names: Sequence[str],
    trace: Workload | None = None,
    seeds: int = SEEDS,
    go_on: Callable[[int, int], object] = lambda done, of: None,
) -> Replicates:
    """The scenario under its own seed and the `seeds - 1` after it. ScenarioError if none plays, or
    if they serve more than MOST requests.

    A run that serves nobody of those who count has no figures. go_on(runs done, of) is called after
    each run; what it raises ends the work.
    """
    if "seed" not in scenario.traffic.uses:
        raise ScenarioError(
            f"seed plays no part in arrivals {scenario.traffic.arrivals}: choose arrivals that are"
            " drawn"
        )
    runs = seeds * len(scenario.variants)
    values = np.full((len(scenario.variants), len(names), seeds), np.nan)
    for s in range(seeds):
        drawn = replace(scenario, traffic=replace(scenario.traffic, seed=scenario.traffic.seed + s))
        workload = draw(drawn.traffic, trace)
        scenario.check(len(workload))
        if (count := runs * len(workload)) > MOST:
            raise ScenarioError(
                f"{count:,} requests, of {len(scenario.variants)} variants under {seeds} seeds, are"
                f" over the cap of {MOST:,}: ask for at most {MOST // runs:,} of each"
            )
        for k, variant in enumerate(scenario.variants):
            run = counted(serve_variant(drawn, variant, workload), scenario)
            if len(run.served):
                values[k, :, s] = [FIGURES[name].of(run, scenario.slo) for name in names]
            go_on(s * len(scenario.variants) + k + 1, runs)
    return Replicates(tuple(v.label for v in scenario.variants), tuple(names), values)
