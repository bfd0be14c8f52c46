"""How much a variant can take: the highest load at which a share of requests keeps the SLO.

Each seed is bisected by itself, and every variant meets the same seeds, so that the capacities are
paired: their mean has an interval, and so has the difference of two variants.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .parameter import ScenarioError
from .points import WARM_UP, Point
from .scenario import MAX_REQUESTS, PARAMETERS, Scenario, Variant
from .sweep import SEEDS, SHARE, GoOn, Rows, complete, name_of, seeds_of, workers
from .workload import Workload

PRECISION = 1.01  # between the highest load that holds and the lowest that does not
WIDER = 1.25  # the first step while only one of the two is known; each further one is its square
FEWEST = 100  # requests of the shortest run that a share is taken of
TOO_SHORT = 0.02  # of what arrives: a growth that runs should exclude
ALONE = 0.05  # of what arrives: a growth that a single run shows
Bisection = Generator[float, bool, tuple[float, float]]
LOADS = {"rate": "req/s", "speed": "times"}  # what capacity can be a value of


@cache
def student(q: float, freedom: int) -> float:
    """The quantile q of Student's t: its density by angle is a power of the cosine."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
    density = np.cos(angle) ** (freedom - 1)
    upto = np.append(0.0, (density[1:] + density[:-1]).cumsum())
    return math.sqrt(freedom) * math.tan(float(np.interp(q, upto / upto[-1], angle)))


def interval(values: Sequence[float], q: float = 0.975) -> tuple[float, float]:
    """The mean over seeds and how far its 95 % interval reaches to either side.

    q=0.95: to one side alone. inf where one value says nothing of how far.
    """
    x = np.asarray(values, float)
    if len(x) < 2:
        return float(x.mean()), math.inf
    return float(x.mean()), student(q, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))


class Growth(NamedTuple):
    """Whether the unfinished requests become more while requests arrive, over all seeds."""

    mean: float  # requests a second
    most: float  # what the seeds do not exclude, one-sided 95 %
    arriving: float  # requests a second
    seconds: float  # for which requests arrive
    runs: int
    grows: bool
    short: bool  # it does not, but the runs are too short to exclude TOO_SHORT of what arrives

    @property
    def told(self) -> float:
        """The least growth that would have shown, requests a second."""
        return self.most - self.mean


def growth_of(rows: Sequence[dict]) -> Growth:
    """The test of stability: is the mean slope over the seeds above 0 with 95 %?"""
    mean, reach = interval([row["growth"] for row in rows], 0.95)
    arriving = float(np.mean([row["offered"] for row in rows]))
    seconds = float(np.mean([row["arrived"] for row in rows])) / arriving
    if len(rows) < 2:
        reach = ALONE * arriving
    grows = (
        mean > reach and mean * (1 - WARM_UP) * seconds >= 1
    )  # the saw-teeth of whole batches are none
    short = not grows and not mean + reach <= TOO_SHORT * arriving
    return Growth(mean, mean + reach, arriving, seconds, len(rows), grows, short)


class NoLoad(ScenarioError):
    """The traffic has no rate that could be raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The capacity of every variant of a scenario."""

    scenario: Scenario
    share: float = SHARE.default  # % of the requests
    seeds: int = int(SEEDS.default)

    @property
    def load(self) -> str:
        """The parameter that is searched. NoLoad if there is none."""
        traffic = self.scenario.traffic
        for name in LOADS:
            if name in traffic.uses:
                return name
        raise NoLoad(
            f"arrivals {traffic.arrivals} come at no rate, so that there is none to search: use"
            " arrivals poisson or a trace"
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest load to try."""
        parameter, traffic = PARAMETERS[self.load], self.scenario.traffic
        if self.load == "speed":
            return parameter.low, parameter.high
        low = max(parameter.low, FEWEST / traffic.duration)
        return digits(low), min(parameter.high, digits(0.99 * MAX_REQUESTS / traffic.duration))

    @property
    def numbers(self) -> range:
        return seeds_of(self.scenario, self.seeds)

    @property
    def name(self) -> str:
        query = self.scenario.to_query()
        return name_of({"capacity": self.share, "scenario": query, "seeds": self.seeds})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Of one variant. Loads are values of `load`."""

    variant: Variant
    load: str
    by_seed: tuple[float, ...]  # the highest load that holds; 0: none does
    value: float  # the mean; 0: none
    reach: float  # of its 95 % interval, to either side
    bound: str  # "slo", "growth": the queue grows above it, "range": nothing above was tried
    growth: Growth | None  # at `value`
    runs: int
    lowest: float  # that was to be tried
    best: dict[str, float]  # where none holds: figures at the lowest

    @property
    def label(self) -> str:
        return self.variant.label

    @property
    def unit(self) -> str:
        return LOADS[self.load]


def digits(load: float) -> float:
    """Three digits: as much as a capacity is known to, and as a person can say."""
    return float(f"{load:.3g}")


def bisection(start: float, lowest: float, highest: float) -> Bisection:
    """Yields a load and is sent whether it holds, until both sides are within PRECISION.

    Returns the highest that held (0: none) and the lowest that did not (inf: none).
    """
    good, bad, wider = 0.0, math.inf, WIDER
    load = min(max(digits(start), lowest), highest)
    while True:
        if (yield load):
            good = load
        else:
            bad = load
        if good >= highest or bad <= lowest:
            return good, bad
        if good > 0 and bad < math.inf:
            load = digits(math.sqrt(good * bad))
            if bad <= PRECISION * good or not good < load < bad:
                return good, bad
        else:
            load = max(lowest, digits(bad / wider)) if good == 0 else good * wider
            load = min(highest, digits(load))
            wider **= 2


def lockstep(
    searches: dict[Any, Bisection], probe: Callable[[dict[Any, float]], dict[Any, bool]]
) -> dict[Any, tuple[float, float]]:
    """All of them to their end, the next questions of all answered at once."""
    found, asked = {}, {key: next(search) for key, search in searches.items()}
    while asked:
        answers, asked = probe(asked), {}
        for key, answer in answers.items():
            try:
                asked[key] = searches[key].send(answer)
            except StopIteration as end:
                found[key] = end.value
    return found


class _Runs:
    """The runs that a search takes, counted by variant."""

    def __init__(self, search: Search, rows: Rows, trace: Workload | None, go_on: GoOn):
        self.search, self.rows, self.trace, self.go_on = search, rows, trace, go_on
        self.taken: dict[Variant, set[tuple]] = {v: set() for v in search.scenario.variants}
        self.expected = 10 * len(search.scenario.variants) * len(search.numbers)

    def __call__(self, asked: Iterable[tuple[Variant, int, float]]) -> list[dict]:
        """A row for each (variant, seed, load). ScenarioError if one can't be run."""
        load, points = self.search.load, []
        for variant, seed, value in asked:
            points.append(Point(((load, value),), variant, seed))
            self.taken[variant].add(points[-1].key)
        done = sum(map(len, self.taken.values())) - len(points)

        def go_on(now: int, _: int) -> None:
            self.go_on(done + now, max(self.expected, done + len(points)))

        complete(self.search.scenario, points, self.rows, self.trace, go_on)
        rows = [self.rows.by_key[point.key] for point in points]
        for row in rows:
            if row["problem"]:
                raise ScenarioError(row["problem"])
        return rows


def find(
    search: Search,
    trace: Workload | None = None,
    *,
    here: bool = False,
    go_on: GoOn = lambda done, of: None,
) -> list[Capacity]:
    """The capacity of each variant, in their order. What was run before is not run again.

    ScenarioError if the scenario can't be run, or has no load to search.
    """
    search.scenario.traffic.check()
    lowest, highest = search.bounds
    if lowest >= highest:
        raise ScenarioError(
            f"duration {search.scenario.traffic.duration:g} leaves no rate to search between"
            f" {FEWEST} requests and {MAX_REQUESTS:,}: change it, or raise SLOTSCOPE_MAX_REQUESTS"
        )
    runs = _Runs(search, Rows(search.name), trace, go_on)
    with workers(here):
        return _find(search, runs, lowest, highest)


def _find(search: Search, runs: _Runs, lowest: float, highest: float) -> list[Capacity]:
    variants, numbers = search.scenario.variants, search.numbers
    start = search.scenario.value(search.load)

    def kept(asked: dict[tuple[Variant, int], float]) -> dict[tuple[Variant, int], bool]:
        rows = runs((v, seed, load) for (v, seed), load in asked.items())
        return {k: row["attainment"] >= search.share for k, row in zip(asked, rows, strict=True)}

    def growths(asked: dict[Variant, float]) -> dict[Variant, Growth]:
        rows = iter(runs((v, seed, load) for v, load in asked.items() for seed in numbers))
        return {v: growth_of([next(rows) for _ in numbers]) for v in asked}

    def steady(asked: dict[Variant, float]) -> dict[Variant, bool]:
        return {v: not growth.grows for v, growth in growths(asked).items()}

    pairs = [(v, seed) for v in variants for seed in numbers]
    found = lockstep({pair: bisection(start, lowest, highest) for pair in pairs}, kept)
    by_seed = {v: [found[v, seed][0] for seed in numbers] for v in variants}
    value = {v: digits(float(np.mean(loads))) for v, loads in by_seed.items()}
    grow = growths({v: load for v, load in value.items() if load >= lowest})
    again = {v: bisection(value[v] / WIDER, lowest, value[v]) for v, g in grow.items() if g.grows}
    limits = lockstep(again, steady)
    for v, (good, _) in limits.items():
        by_seed[v] = [min(load, good) for load in by_seed[v]]
        value[v] = digits(float(np.mean(by_seed[v])))
    grow |= growths({v: value[v] for v in limits if value[v] >= lowest})
    none = {v: lowest for v in variants if value[v] < lowest}
    rows = iter(runs((v, seed, load) for v, load in none.items() for seed in numbers))
    best = {v: _best([next(rows) for _ in numbers]) for v in none}
    capacities = []
    for v in variants:
        mean, reach = interval(by_seed[v])
        if v in limits:  # known no better than its last step, and than what the test tells apart
            told = value[v] * grow[v].told / grow[v].arriving if v in grow else 0.0
            reach = max(reach, limits[v][1] - limits[v][0], told)
        bound = "growth" if v in limits else "range" if value[v] >= highest else "slo"
        capacities.append(
            Capacity(
                variant=v,
                load=search.load,
                by_seed=tuple(by_seed[v]),
                value=value[v] if v not in none else 0.0,
                reach=reach,
                bound=bound,
                growth=grow.get(v) if v not in none else None,
                runs=len(runs.taken[v]),
                lowest=lowest,
                best=best.get(v, {}),
            )
        )
    return capacities


def _best(rows: Sequence[dict]) -> dict[str, float]:
    names = ("attainment", "within_ttft", "within_tpot", "ttft_p99", "tpot_p99")
    return {name: float(np.mean([row[name] for row in rows])) for name in names}


def difference(one: Capacity, other: Capacity) -> tuple[float, float]:
    """How much more `one` carries, and how far the 95 % interval of that reaches: by seed."""
    return interval(np.subtract(one.by_seed, other.by_seed).tolist())
