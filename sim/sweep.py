"""One or two parameters over ranges, with seeds as replicates: run in parallel, kept on disk.

A sweep is named by the hash of its definition. What has been run of it is kept under that name, so
that a second call, or one after an interruption, runs only what is missing.
"""

import hashlib
import json
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import joblib
import pandas as pd
from joblib.externals.loky.process_executor import BrokenProcessPool
from pyarrow import ArrowInvalid

from .jit import SOURCES
from .parameter import Parameter, ScenarioError, written
from .points import Point, measure
from .policies import POLICIES
from .scenario import LIMITS, PARAMETERS, TRAFFIC, Scenario, Variant
from .workload import Workload

MAX_RUNS = int(os.environ.get("SLOTSCOPE_MAX_SWEEP", 50_000))
CACHE = Path(os.environ.get("SLOTSCOPE_CACHE", Path(__file__).parents[1] / ".sweeps"))
MAX_CACHE_MB = int(os.environ.get("SLOTSCOPE_CACHE_MB", 500))
CLUSTER = "SLOTSCOPE_CLUSTER"
ANSWERS_WITHIN = 5  # seconds, a cluster
SILENCE = 300  # seconds without any task done, after which a cluster's work is given up
BATCH = 20_000  # requests that a worker serves between two results: a tenth of a second or two
SAVE_EVERY = 5.0  # seconds
TRIES = 3  # of the same tasks, where each time workers died and none was done

SEEDS = Parameter("seeds", 5, 1, 200, "seeds", "Seeds: replicates of each point")
SHARE = Parameter("share", 99.0, 1.0, 100.0, "%", "Share of requests that keep the SLO, %")
LOADS = ("rate", "speed", "clients", "requests")  # what makes a traffic heavier

GoOn = Callable[[int, int], object]  # (runs done, runs in all); what it raises ends the sweep


@dataclass(frozen=True, slots=True)
class Axis:
    """A parameter and its values, ascending."""

    name: str
    values: tuple[float, ...]
    text: str = field(compare=False, default="")  # as it was asked for

    def __str__(self) -> str:
        return self.text or f"{self.name}:{','.join(map(written, self.values))}"

    @property
    def label(self) -> str:
        return PARAMETERS[self.name].label.partition(":")[0].partition(",")[0]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Read `name:low:high:step`, `name:low:high:xFACTOR` or `name:value,value`.

        ScenarioError where it can't be had, said before any value is made.
        """
        name, _, rest = text.partition(":")
        if name not in PARAMETERS or name == "seed":
            raise ScenarioError(
                f"{text[:60]!r} sweeps no parameter: write NAME:LOW:HIGH:STEP, NAME:LOW:HIGH:x2 or"
                f" NAME:VALUE,VALUE with one of {', '.join(n for n in PARAMETERS if n != 'seed')}"
            )
        parameter, parts = PARAMETERS[name], rest.split(":")
        if len(parts) == 1:
            texts = [t for t in parts[0].split(",") if t]
            _few(len(texts), text)
            values = [parameter.parse(t) for t in texts]
        elif len(parts) == 3:
            low, high, step = parts
            spread = _spread(parameter, low, high, step, text)
            values = [parameter.parse(written(v)) for v in spread]
        else:
            raise ScenarioError(
                f"{text[:60]!r} is no range: write {name}:LOW:HIGH:STEP, {name}:LOW:HIGH:x2 or"
                f" {name}:VALUE,VALUE"
            )
        if not values:
            raise ScenarioError(f"{text[:60]!r} is empty: give it a value")
        return cls(name, tuple(sorted(set(values))), text)


def _few(count: float, text: str) -> None:
    if count > MAX_RUNS:
        raise ScenarioError(
            f"{text[:60]!r} has {count:,.0f} values, over the cap of {MAX_RUNS:,} runs: take a"
            " wider step, or raise SLOTSCOPE_MAX_SWEEP"
        )


def _spread(parameter: Parameter, low: str, high: str, step: str, text: str) -> list[float]:
    """From low to high, both included where the steps meet it."""
    first, last = parameter.parse(low), parameter.parse(high)
    times = step.startswith("x")
    by = Parameter("step", 1.0, 1e-9, 1e12, "", "").parse(step.removeprefix("x"))
    if first > last:
        raise ScenarioError(f"{text[:60]!r} is empty, {low} is above {high}: swap them")
    if times and (by <= 1 or first <= 0):
        raise ScenarioError(f"{text[:60]!r} never gets from {low} to {high}: use a factor above 1")
    reach = math.log(last / first) / math.log(by) if times else (last - first) / by
    count = math.floor(reach + 1e-9) + 1
    _few(count, text)
    ways = range(count)
    values = (first * by**k if times else first + k * by for k in ways)
    return [float(f"{v:.12g}") for v in values]


def sweepable(scenario: Scenario) -> list[str]:
    """The parameters that play a part in the scenario."""
    keeps = {n for v in scenario.variants for n in POLICIES[v.policy].keeps}
    uses = [n for n in TRAFFIC if n in scenario.traffic.uses and n != "seed"]
    rest = (n for n in PARAMETERS if n not in TRAFFIC and (n not in LIMITS or n in keeps))
    return [*uses, *rest]


def usual_axis(scenario: Scenario, name: str) -> Axis:
    """A dozen steps of a load around what the scenario has; doublings of anything else."""
    now, parameter = scenario.value(name), PARAMETERS[name]
    if parameter.high == 1 and isinstance(parameter.default, int):
        return Axis.parse(f"{name}:0,1")
    whole = isinstance(parameter.default, int)
    if name in LOADS:
        step = max(float(f"{now / 9:.1g}"), 1 if whole else parameter.low)
        high = min(float(f"{14 * step:.6g}"), parameter.high)
        return Axis.parse(f"{name}:{written(step)}:{written(high)}:{written(step)}")
    now = now or parameter.default or 1
    low, high = max(now // 8 if whole else now / 8, parameter.low, 1 if whole else 0), 8 * now
    return Axis.parse(f"{name}:{written(low)}:{written(min(high, parameter.high))}:x2")


def default_axis(scenario: Scenario) -> Axis:
    """The traffic's load, or the seats where it has none."""
    names = (n for n in (*LOADS, "max_num_seqs") if n in sweepable(scenario))
    return usual_axis(scenario, next(names, "ttft_slo"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One or two axes; every point under every variant of the scenario and every seed."""

    scenario: Scenario
    axes: tuple[Axis, ...]
    seeds: int = int(SEEDS.default)
    share: float = SHARE.default  # %, of the answer and the link: the runs are the same

    def check(self) -> None:
        """ScenarioError if it can't be run."""
        if not 1 <= len(self.axes) <= 2 or len({a.name for a in self.axes}) < len(self.axes):
            raise ScenarioError(
                f"{' and '.join(map(str, self.axes)) or 'nothing'} can't be swept: give one"
                " parameter, or two different ones"
            )
        possible = sweepable(self.scenario)
        for axis in self.axes:
            if axis.name not in possible:
                where = f"arrivals {self.scenario.traffic.arrivals}"
                if axis.name in LIMITS:
                    where = " and ".join(v.label for v in self.scenario.variants)
                raise ScenarioError(
                    f"{axis.name} plays no part in {where}: sweep one of {', '.join(possible)}"
                )
        if self.runs > MAX_RUNS:
            raise ScenarioError(
                f"{self.runs:,} runs are over the cap of {MAX_RUNS:,}: take wider steps or fewer"
                " seeds, or raise SLOTSCOPE_MAX_SWEEP"
            )
        first = tuple((axis.name, axis.values[0]) for axis in self.axes)
        alike = [str(v) for v in stripped(self.scenario.variants, dict(first))]
        for text in alike:
            if alike.count(text) > 1:
                raise ScenarioError(
                    f"with {' and '.join(dict(first))} swept, two variants are both {text}: remove"
                    " one"
                )

    @property
    def runs(self) -> int:
        points = math.prod(len(axis.values) for axis in self.axes)
        return points * len(self.scenario.variants) * len(self.numbers)

    @property
    def numbers(self) -> range:
        """The seeds."""
        return seeds_of(self.scenario, self.seeds)

    def points(self) -> list[Point]:
        """Every run, seed by seed, so that the first ones show the whole range already.

        Those of the same requests stand together.
        """
        names = [axis.name for axis in self.axes]
        variants = stripped(self.scenario.variants, dict.fromkeys(names, 0.0))
        return [
            Point(tuple(zip(names, values, strict=True)), variant, seed)
            for seed in self.numbers
            for values in product(*(axis.values for axis in self.axes))
            for variant in variants
        ]

    def definition(self) -> dict:
        swept = {name: str(axis) for name, axis in zip("xy", self.axes, strict=False)}
        return {"scenario": self.scenario.to_query(), **swept, "seeds": self.seeds}

    @property
    def name(self) -> str:
        return name_of(self.definition())

    def to_query(self) -> dict[str, list[str]]:
        """The scenario's, and what of the sweep is not as usual."""
        query = self.scenario.to_query()
        if self.axes != (default_axis(self.scenario),):
            query |= {n: [str(axis)] for n, axis in zip("xy", self.axes, strict=False)}
        if self.seeds != SEEDS.default:
            query["seeds"] = [str(self.seeds)]
        if self.share != SHARE.default:
            query["share"] = [written(self.share)]
        return query

    @property
    def traffic(self):
        return self.scenario.traffic

    def link(self) -> str:
        """What follows the host in the address of the page Capacity."""
        query = urlencode(self.to_query(), doseq=True, safe=":=,")
        return f"/capacity?{query}" if query else "/capacity"


def stripped(variants: Iterable[Variant], names: Mapping[str, object]) -> tuple[Variant, ...]:
    """The variants without a value of their own for what is swept."""
    return tuple(
        replace(v, changes=tuple(c for c in v.changes if c[0] not in names)) for v in variants
    )


def seeds_of(scenario: Scenario, seeds: int) -> range:
    """`seeds` numbers from the scenario's own on; that one where nothing is drawn."""
    first = scenario.traffic.seed
    return range(first, first + (seeds if "seed" in scenario.traffic.uses else 1))


def name_of(definition: dict) -> str:
    text = json.dumps(definition, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Rows:
    """Finished runs by key, in memory and on disk."""

    def __init__(self, name: str):
        # Other sources may find other figures: they keep a file of their own.
        self.path = CACHE / f"{name}-{SOURCES[:12]}.parquet"
        self.problem = ""  # why nothing can be kept, if so
        self.by_key: dict[tuple, dict] = {}
        try:
            table = pd.read_parquet(self.path)
        except (OSError, ArrowInvalid):  # none yet, or one that a crash cut short
            table = pd.DataFrame()
        names = list(takewhile(lambda n: n in PARAMETERS, table.columns[2:]))
        for row in table.to_dict("records"):
            values = tuple((name, row[name]) for name in names)
            self.by_key[(row["variant"], row["seed"], *map(float, dict(values).values()))] = row
        self.saved = len(self.by_key)

    def add(self, points: Iterable[Point], rows: Iterable[dict]) -> None:
        self.by_key |= {point.key: row for point, row in zip(points, rows, strict=True)}

    def missing(self, points: Iterable[Point]) -> list[Point]:
        return [p for p in points if p.key not in self.by_key]

    def table(self, points: Iterable[Point]) -> pd.DataFrame:
        """A row a run, in the order of `points`; those that are not done are left out."""
        rows = dict(self.by_key)  # another thread may add to them
        return pd.DataFrame([rows[p.key] for p in points if p.key in rows])

    def save(self) -> None:
        """On disk, whole or not at all; `problem` where that fails."""
        if len(self.by_key) == self.saved:
            return
        draft = self.path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame(list(self.by_key.values())).to_parquet(draft)
            draft.replace(self.path)
            self.saved = len(self.by_key)
            _prune()
        except OSError as error:
            self.problem = f"what was run is not kept: {self.path.parent}: {error.strerror}"


def _prune() -> None:
    """Remove what was written longest ago, until the rest fits."""
    room = MAX_CACHE_MB * 1e6
    for path in sorted(CACHE.glob("*.parquet"), key=lambda p: p.stat().st_mtime, reverse=True):
        room -= path.stat().st_size
        if room < 0:
            path.unlink(missing_ok=True)


@contextmanager
def workers(here: bool = False) -> Iterator[None]:
    """Within it, joblib runs on this machine's processors, or on the cluster of SLOTSCOPE_CLUSTER.

    here=True: on this machine in any case. ScenarioError where no cluster answers, or one with
    other sources.
    """
    address = os.environ.get(CLUSTER)
    if here or not address:
        with joblib.parallel_config(backend="loky"):
            yield
        return
    client = _client(address)
    try:
        with joblib.parallel_config(backend="dask", client=client):
            yield
    finally:
        client.close()


def _client(address: str):
    """Connected, and its workers known to compute as this process does."""
    here = f"or unset {CLUSTER} to run here"
    try:
        from distributed import Client
    except ImportError:
        raise ScenarioError(
            f"{CLUSTER} is set and distributed is not installed: pip install distributed, {here}"
        ) from None
    try:
        client = Client(address, timeout=ANSWERS_WITHIN, set_as_default=False)
    except (OSError, ValueError):
        raise ScenarioError(
            f"no cluster answers at {CLUSTER}={address[:80]}: start it, {here}"
        ) from None
    try:
        client.wait_for_workers(1, timeout=ANSWERS_WITHIN)
        found = set(dict(client.run(sources)).values())  # pyright: ignore
    except OSError:
        client.close()
        raise ScenarioError(
            f"the cluster at {address[:80]} has no workers: start some, {here}"
        ) from None
    except ImportError:
        client.close()
        raise ScenarioError(
            f"the workers at {address[:80]} can't import sim: start them in this folder, {here}"
        ) from None
    if found != {SOURCES}:
        client.close()
        raise ScenarioError(
            f"the workers at {address[:80]} have other sources than this process: give them the"
            f" same checkout, {here}"
        )
    return client


def sources() -> str:
    """Which sources a worker has."""
    return SOURCES


def complete(
    scenario: Scenario,
    points: Sequence[Point],
    rows: Rows,
    trace: Workload | None = None,
    go_on: GoOn = lambda done, of: None,
) -> None:
    """Run what `rows` lacks of `points`, within `workers`.

    go_on(done, of) is called after each few runs; what it raises ends the work, and what is done
    by then stays in `rows`. Where a worker dies, its task is run again.
    """
    missing, deaths = rows.missing(points), 0
    while missing:
        before = len(missing)
        with suppress(BrokenProcessPool):
            _attempt(scenario, missing, rows, trace, go_on, len(points))
        missing = rows.missing(missing)
        deaths = 0 if len(missing) < before else deaths + 1
        if deaths == TRIES:
            raise ScenarioError(
                f"workers died {TRIES} times over {missing[0].variant} with"
                f" {dict(missing[0].values)}: free some memory, or ask for fewer requests"
            )


def _attempt(scenario, missing, rows, trace, go_on, of: int) -> None:
    stop, kept, sent = False, time.monotonic(), of - len(missing)
    jobs = joblib.effective_n_jobs()

    def tasks():
        for batch in batches(scenario, missing, jobs):
            if stop:
                return
            yield joblib.delayed(measure)(scenario, batch, trace, SOURCES)

    pool = joblib.Parallel(
        n_jobs=-1,
        return_as="generator_unordered",
        pre_dispatch="1.5 * n_jobs",
        batch_size=1,  # pyright: ignore[reportArgumentType]
        timeout=SILENCE if jobs > 1 else None,
    )
    results: Iterator[Any] = iter(pool(tasks()) or ())
    try:
        for points, found in results:
            rows.add(points, found)
            sent += len(points)
            if time.monotonic() > kept + SAVE_EVERY:
                rows.save()
                kept = time.monotonic()
            go_on(sent, of)
    except BrokenProcessPool:
        raise
    except multiprocessing.TimeoutError:
        raise ScenarioError(
            f"no worker has answered for {SILENCE} s: ask for fewer requests, or look after the"
            " cluster"
        ) from None
    except BaseException:
        stop = True  # what runs already comes to its end: others may have work on these processes
        for points, found in results:
            rows.add(points, found)
        raise
    finally:
        rows.save()


def batches(scenario: Scenario, points: Sequence[Point], jobs: int) -> Iterator[list[Point]]:
    """Runs that a worker takes at once: enough to be worth sending, and a few for each."""
    most = max(1, math.ceil(len(points) / (4 * jobs)))
    batch, weight = [], 0.0
    for point in points:
        values = {n: v for n, v in point.values if n in TRAFFIC}
        weight += replace(scenario.traffic, **values).expected if values else 0.0
        weight += 0.0 if values else scenario.traffic.expected
        batch.append(point)
        if weight >= BATCH or len(batch) >= most:
            yield batch
            batch, weight = [], 0.0
    if batch:
        yield batch


def run(
    sweep: Sweep,
    trace: Workload | None = None,
    rows: Rows | None = None,
    *,
    here: bool = False,
    go_on: GoOn = lambda done, of: None,
) -> pd.DataFrame:
    """Run what `rows`, by default those on disk, lack of the sweep.

    Returns a row a run, whose columns are variant, seed, what is swept, every figure of
    sim.metrics, what sim.points measures besides, and `problem`, why a run could not be.

    ScenarioError as `Sweep.check`, or if none of its points can be run.
    """
    sweep.check()
    rows, points = rows or Rows(sweep.name), sweep.points()
    if rows.missing(points):
        with workers(here):
            complete(sweep.scenario, points, rows, trace, go_on)
    table = rows.table(points)
    if all(problems := table["problem"].tolist()):
        raise ScenarioError(problems[0])
    return table
