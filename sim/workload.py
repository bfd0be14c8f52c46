"""The requests of one scenario: drawn by seed, or taken from a trace."""

import math
import random
from dataclasses import dataclass

import numpy as np

from .parameter import ScenarioError
from .traffic import Lengths, Traffic


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Columns of equal length, in order of arrival."""

    arrival: np.ndarray  # (n,) f8, ms
    prompt: np.ndarray  # (n,) i8, tokens
    output: np.ndarray  # (n,) i8, tokens that a request will really emit
    limit: np.ndarray  # (n,) i8, max_tokens that it declares
    clients: int = 0  # at most so many unfinished at once; 0: no such cap

    def __len__(self) -> int:
        return len(self.arrival)


def draw(traffic: Traffic, trace: Workload | None = None) -> Workload:
    """The requests of `traffic`; `trace` is the content of the file that it names, where it does.

    ScenarioError if the file is missing or nothing is left of it.
    """
    if "trace" in traffic.uses and trace is None:
        raise ScenarioError("the traffic comes from a trace: upload its file")
    if traffic.arrivals == "trace":
        return _window(traffic, trace)
    if traffic.arrivals == "module":
        return _module(traffic)
    rng = np.random.default_rng(traffic.seed)
    arrival = _arrivals(traffic, rng)
    if len(arrival) == 0:
        raise ScenarioError(
            f"no request arrives within {traffic.duration:g} s at {traffic.rate:g} req/s: raise either"
        )
    rows = None if trace is None else rng.integers(len(trace), size=len(arrival))
    prompt = _lengths(traffic.prompt, rng, len(arrival), None if rows is None else trace.prompt[rows])
    output = _lengths(traffic.output, rng, len(arrival), None if rows is None else trace.output[rows])
    limit = np.full(len(output), traffic.output.longest) if traffic.output.longest else output
    return Workload(
        arrival, prompt, output, limit, traffic.clients if traffic.arrivals == "closed" else 0
    )


def _arrivals(traffic: Traffic, rng: np.random.Generator) -> np.ndarray:
    """ms, ascending, below the duration; all 0 where nobody waits to send."""
    if traffic.arrivals in ("burst", "closed"):
        return np.zeros(traffic.requests)
    mean, end = 1e3 / traffic.rate, 1e3 * traffic.duration
    if traffic.arrivals == "constant":
        return np.arange(0.0, end, mean)
    shape = traffic.burstiness if traffic.arrivals == "gamma" else 1.0
    arrival = np.empty(0)
    while len(arrival) == 0 or arrival[-1] < end:
        size = math.ceil((end - arrival[-1:].sum()) / mean * 1.1) + 64
        gaps = rng.gamma(shape, mean / shape, size)
        arrival = np.append(arrival, arrival[-1:].sum() + gaps.cumsum())
    return arrival[arrival < end]


def _lengths(lengths: Lengths, rng, size: int, rows: np.ndarray | None) -> np.ndarray:
    match lengths.kind:
        case "trace":
            return rows
        case "fixed":
            return np.full(size, int(lengths["tokens"]))
        case "uniform":
            return rng.integers(lengths["low"], lengths["high"], size, endpoint=True)
    drawn = rng.lognormal(math.log(lengths["median"]), lengths["sigma"], size)
    return np.clip(drawn, lengths["low"], lengths["high"]).astype(np.int64)


def _module(traffic: Traffic) -> Workload:
    """The module's stream, number by number: per request an interval, a prompt, an output."""
    rng, now, rows = random.Random(traffic.seed), 0.0, []
    sizes = [(math.log(x["median"]), x["sigma"], x["low"], x["high"]) for x in (traffic.prompt, traffic.output)]
    while True:
        now += rng.expovariate(traffic.rate)
        if now >= traffic.duration:
            break
        rows.append((now, *(int(min(hi, max(lo, rng.lognormvariate(mu, sd)))) for mu, sd, lo, hi in sizes)))
    if not rows:
        raise ScenarioError(
            f"no request arrives within {traffic.duration:g} s at {traffic.rate:g} req/s: raise either"
        )
    arrival, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    arrival = arrival if traffic.as_printed else arrival * 1e3
    return Workload(arrival, prompt, output, np.full(len(rows), traffic.output.longest))


def _window(traffic: Traffic, trace: Workload) -> Workload:
    """The part of a trace that is asked for, from 0 ms on."""
    end = traffic.until * 1e3 if traffic.until else math.inf
    rows = np.flatnonzero((trace.arrival >= traffic.since * 1e3) & (trace.arrival < end))
    rows = rows[: traffic.first] if traffic.first else rows
    if len(rows) == 0:
        raise ScenarioError(
            f"no request of the trace lies from {traffic.since:g} s to {traffic.until:g} s:"
            f" it spans {trace.arrival[-1] / 1e3:,.0f} s"
        )
    arrival = (trace.arrival[rows] - trace.arrival[rows[0]]) / traffic.speed
    return Workload(arrival, trace.prompt[rows], trace.output[rows], trace.limit[rows])
