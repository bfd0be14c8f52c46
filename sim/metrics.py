"""Measures of a Run: pure functions of its columns, each with the definition shown beside it.

Percentiles are numpy's linear method over all values, never over buckets.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .run import Run, once
from .scenario import Slo
from .state import DECODE, PREEMPTED, PREFILL, STOPS


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Values, each counted `weights` times; `requests` of them are independent of each other."""

    values: np.ndarray
    weights: np.ndarray | None = None
    requests: int = 0

    @property
    def mean(self) -> float:
        if not len(self.values):
            return math.nan
        return float(np.average(self.values, weights=self.weights))

    def quantile(self, q: float) -> float:
        """By numpy's linear method over the values written out; nan where there is none."""
        return float(self.quantiles([q])[0])

    def quantiles(self, qs: Sequence[float]) -> np.ndarray:
        """The same for several at once: the values are sorted once."""
        if not len(self.values):
            return np.full(len(qs), np.nan)
        if self.weights is None:
            return np.quantile(self.values, qs)
        order = np.argsort(self.values)
        upto = self.weights[order].cumsum()
        places = (upto[-1] - 1) * np.array(qs)
        whole = np.floor(places)
        low = self.values[order[np.searchsorted(upto, whole, side="right")]]
        high = self.values[order[np.searchsorted(upto, np.ceil(places), side="right")]]
        share, step = places - whole, high - low
        # From the nearer end, as numpy does it: bit for bit the same.
        return np.where(share < 0.5, low + step * share, high - step * (1 - share))

    def supports(self, q: float) -> bool:
        """Whether the largest of so many requests bounds the quantile from above with 95 %."""
        return 1 - q**self.requests >= 0.95


class Metric(NamedTuple):
    name: str
    label: str
    unit: str
    about: str
    of: Callable[[Run], Sample]


METRICS: dict[str, Metric] = {}


def metric(label: str, unit: str = "ms"):
    def register(of):
        about = inspect.getdoc(of) or ""
        METRICS[of.__name__] = Metric(of.__name__, label, unit, about, of)
        return of

    return register


def _per_request(values: np.ndarray) -> Sample:
    values = values[np.isfinite(values)]
    return Sample(values, None, len(values))


def _gaps(end: np.ndarray, r: np.ndarray) -> Sample:
    several = r["output"] > 1
    return _per_request((end - r["first"])[several] / (r["output"][several] - 1))


@metric("TTFT")
def ttft(run: Run) -> Sample:
    """Time to first token: from arrival to the first output token."""
    return _per_request(run.served["first"] - run.served["arrival"])


@metric("TPOT")
def tpot(run: Run) -> Sample:
    """Time per output token: (last - first token) / (tokens - 1); undefined for one token."""
    return _gaps(run.served["last"], run.served)


@metric("ITL")
def itl(run: Run) -> Sample:
    """Inter-token latency: each gap between two output tokens of a request, all gaps pooled."""
    ticks = run.ticks()
    values = np.concatenate([ticks["ms"], run.gaps["ms"]])
    weights = np.concatenate([ticks["tokens"], np.ones(len(run.gaps), np.int64)])
    return Sample(values, weights, int((run.served["output"] > 1).sum()))


@metric("E2E")
def e2e(run: Run) -> Sample:
    """End to end: from arrival to release, which in a static batch is when the batch ends."""
    return _per_request(run.served["finish"] - run.served["arrival"])


def wait(run: Run) -> np.ndarray:
    """ms from the waiting line to a seat, of each request that was let in."""
    return (run.requests["start"] - run.queued)[run.requests["refused"] == 0]


@metric("Queue time")
def queue(run: Run) -> Sample:
    """From the waiting line to a seat; what the front end took before, a constant of the cost, is
    no part of it, but of TTFT."""
    return _per_request(wait(run))


@metric("TPOT to release")
def tpot_to_release(run: Run) -> Sample:
    """The course module's TPOT: (release - first token) / (tokens - 1), with the seat held idly."""
    return _gaps(run.served["finish"], run.served)


class Figure(NamedTuple):
    """One number of a run."""

    name: str
    label: str
    unit: str
    better: int  # -1: less is better, 1: more is
    about: str
    of: Callable[[Run, Slo], float]
    metric: str = ""  # the metric and the quantile that it is of, where it is
    q: float = 0.0


QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


def useful_share(run: Run, of_held: bool) -> float:
    """% of seat time spent on prefill and decode: of all seats to the end, or while held."""
    length = run.segments["t1"] - run.segments["t0"]
    useful = length[np.isin(run.segments["phase"], (PREFILL, DECODE))].sum()
    whole = length.sum() if of_held else run.seats * run.lasted
    return 100 * float(useful / whole)


def kept_limits(run: Run, slo: Slo) -> tuple[np.ndarray, np.ndarray]:
    """Which requests keep the TTFT limit, and which the TPOT limit, as all without a TPOT do."""
    r = run.requests
    tpot = (r["last"] - r["first"]) / np.maximum(r["output"] - 1, 1)
    return r["first"] - r["arrival"] <= slo.ttft_slo, tpot <= slo.tpot_slo


def attained(run: Run, slo: Slo) -> np.ndarray:
    """Which requests keep both limits."""
    in_time, in_step = kept_limits(run, slo)
    return in_time & in_step


@once
def longest_wait(run: Run) -> int:
    """The request that waited longest for a seat."""
    k = int(np.nanargmax(run.requests["start"] - run.queued))
    return k if run.ids is None else int(run.ids[k])


@once
def waits(run: Run) -> dict[int, float]:
    """ms that all requests together waited for a seat, by what kept the head of the line out.

    A step's cause counts for everybody who waits while it runs; NOTHING: they came during the step.
    """
    edges = np.append(run.steps["t0"], run.total)

    def passed(times):  # ms that the first `edge` ms hold after each of `times`, summed
        times = np.sort(times)
        before = np.searchsorted(times, edges)
        return edges * before - np.append(0.0, times.cumsum())[before]

    lost, back = again(run)
    queued = run.queued[run.requests["refused"] == 0]
    within = passed(queued) - passed(run.served["start"]) + passed(lost) - passed(back)
    sums = np.bincount(run.steps["stop"], weights=np.diff(within), minlength=len(STOPS))
    return {stop: float(sums[stop]) for stop in range(len(STOPS))}


@once
def again(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """When seats were lost to preemption, and when their requests had one again; ms, sorted.

    Whoever ended all the same, with a token that was in flight, waited no more.
    """
    marks = run.segments["phase"] == PREEMPTED
    lost = run.segments[marks]
    if len(lost) == 0:
        return np.zeros(0), np.zeros(0)
    spans = np.sort(run.segments[~marks], order=["request", "t0"])
    keys = spans["request"] + 1j * spans["t0"]  # complex numbers sort by request, then by time
    place = np.searchsorted(keys, lost["request"] + 1j * lost["t0"])
    came = spans[np.minimum(place, len(spans) - 1)]["request"] == lost["request"]
    came &= place < len(spans)
    return np.sort(lost["t0"][came]), np.sort(spans["t0"][place[came]])


@once
def quantile(run: Run, name: str, q: float) -> float:
    """Of the metric of that name."""
    return METRICS[name].of(run).quantile(q)


def _figures() -> list[Figure]:
    rows = []
    for m in METRICS.values():
        rows.append(
            Figure(
                f"{m.name}_mean",
                f"{m.label} mean",
                m.unit,
                -1,
                m.about,
                lambda run, _, m=m: m.of(run).mean,
                m.name,
            )
        )
        rows += [
            Figure(
                f"{m.name}_{key}",
                f"{m.label} {key}",
                m.unit,
                -1,
                m.about,
                lambda run, _, m=m, q=q: quantile(run, m.name, q),
                m.name,
                q,
            )
            for key, q in QUANTILES.items()
        ]

    rows += [
        Figure(
            "tok_s",
            "Output",
            "tok/s",
            1,
            "Output tokens of all requests / time to the last release.",
            lambda run, _: float(run.served["output"].sum() / run.lasted * 1e3),
        ),
        Figure(
            "req_s",
            "Requests",
            "req/s",
            1,
            "Requests / time to the last release.",
            lambda run, _: len(run.served) / run.lasted * 1e3,
        ),
        Figure(
            "total_s",
            "Time to the last release",
            "s",
            -1,
            "From 0 to when the last seat is given back.",
            lambda run, _: run.lasted / 1e3,
        ),
        Figure(
            "use_all",
            "Slot use, all seats",
            "%",
            1,
            "Seat time spent on prefill and decode, of all seats over the whole run.",
            lambda run, _: useful_share(run, False),
        ),
        Figure(
            "use_held",
            "Slot use, held seats",
            "%",
            1,
            "The same, of the time that seats are held.",
            lambda run, _: useful_share(run, True),
        ),
        Figure(
            "attainment",
            "SLO attainment",
            "%",
            1,
            "Requests that keep the TTFT and the TPOT limit; one token has no TPOT and keeps it.",
            lambda run, slo: 100 * float(attained(run, slo).mean()),
        ),
        Figure(
            "goodput",
            "Goodput",
            "req/s",
            1,
            "Requests that keep both limits / time to the last release.",
            lambda run, slo: float(attained(run, slo).sum()) / run.lasted * 1e3,
        ),
        Figure(
            "good_tok_s",
            "Good output",
            "tok/s",
            1,
            "Output tokens of the requests that keep both limits / time to the last release.",
            lambda run, slo: (
                float(run.requests["output"][attained(run, slo)].sum()) / run.total * 1e3
            ),
        ),
        Figure(
            "longest_wait",
            "Longest wait for a seat",
            "ms",
            -1,
            "From the waiting line to a seat, of the request that waited longest.",
            lambda run, _: float(wait(run).max()),
        ),
        Figure(
            "starved",
            "Starved",
            "requests",
            -1,
            "Requests that waited in the line for a seat beyond the limit.",
            lambda run, slo: int((wait(run) > slo.max_wait).sum()),
        ),
        Figure(
            "preemptions",
            "Preemptions",
            "times",
            -1,
            "How often a running request lost seat and KV, and had to compute its tokens again.",
            lambda run, _: int(run.served["preemptions"].sum()),
        ),
        Figure(
            "recomputed",
            "Recomputed",
            "tokens",
            -1,
            "Tokens whose KV was lost to preemption; they are no output.",
            lambda run, _: int(run.served["recomputed"].sum()),
        ),
        Figure(
            "refused",
            "Refused",
            "requests",
            -1,
            "Requests turned away at the door, since they could never be served.",
            lambda run, _: len(run.requests) - len(run.served),
        ),
    ]
    return rows


FIGURES: dict[str, Figure] = {f.name: f for f in _figures()}


@once
def figures(run: Run, slo: Slo) -> dict[str, float]:
    """Every figure of the run, by name."""
    values = {}
    for m in METRICS.values():
        sample = m.of(run)
        values[f"{m.name}_mean"] = sample.mean
        names = [f"{m.name}_{key}" for key in QUANTILES]
        values |= zip(names, sample.quantiles(list(QUANTILES.values())).tolist(), strict=True)
    return {n: values[n] if n in values else f.of(run, slo) for n, f in FIGURES.items()}


@once
def unsupported(run: Run) -> set[str]:
    """Figures whose quantile the sample is too small for: no upper bound with 95 % exists."""
    return {
        name
        for name, f in FIGURES.items()
        if 0 < f.q < 1 and not METRICS[f.metric].of(run).supports(f.q)
    }
