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
        raise ScenarioError("the traffic comes from a trace: give its file")
    if traffic.arrivals == "trace" and trace is not None:
        return _window(traffic, trace)
    if traffic.arrivals == "module":
        return _module(traffic)
    rng = np.random.default_rng(traffic.seed)
    arrival = _arrivals(traffic, rng)
    _somebody(len(arrival), traffic)
    rows = rng.integers(len(trace), size=len(arrival)) if trace is not None else None

    def lengths(of: Lengths, recorded: str) -> np.ndarray:
        if of.kind == "trace":
            return getattr(trace, recorded)[rows]
        return _lengths(of, rng, len(arrival))

    prompt, output = lengths(traffic.prompt, "prompt"), lengths(traffic.output, "output")
    limit = np.full(len(output), traffic.output.longest) if traffic.output.longest else output
    clients = traffic.clients if traffic.arrivals == "closed" else 0
    return Workload(arrival, prompt, output, limit, clients)


def _somebody(requests: int, traffic: Traffic) -> None:
    if requests == 0:
        raise ScenarioError(
            f"nobody arrives within {traffic.duration:g} s at {traffic.rate:g} req/s: raise either"
        )


def _arrivals(traffic: Traffic, rng: np.random.Generator) -> np.ndarray:
    """ms, ascending, below the duration; all 0 where nobody waits to send."""
    if traffic.arrivals in ("burst", "closed"):
        return np.zeros(traffic.requests)
    mean, end = 1e3 / traffic.rate, 1e3 * traffic.duration
    if traffic.arrivals == "constant":
        return np.arange(0.0, end, mean)
    shape = traffic.burstiness if traffic.arrivals == "gamma" else 1.0
    arrival, last = np.empty(0), 0.0
    while last < end:
        gaps = rng.gamma(shape, mean / shape, math.ceil((end - last) / mean * 1.1) + 64)
        arrival = np.append(arrival, last + gaps.cumsum())
        last = arrival[-1]
    return arrival[arrival < end]


def _lengths(lengths: Lengths, rng: np.random.Generator, size: int) -> np.ndarray:
    if lengths.kind == "fixed":
        return np.full(size, int(lengths["tokens"]))
    if lengths.kind == "uniform":
        return rng.integers(int(lengths["low"]), int(lengths["high"]), size, endpoint=True)
    drawn = rng.lognormal(math.log(lengths["median"]), lengths["sigma"], size)
    return np.clip(drawn, lengths["low"], lengths["high"]).astype(np.int64)


def _module(traffic: Traffic) -> Workload:
    """The module's stream, number by number: per request an interval, a prompt, an output."""
    rng, now, rows = random.Random(traffic.seed), 0.0, []

    def length(of: Lengths) -> int:
        drawn = rng.lognormvariate(math.log(of["median"]), of["sigma"])
        return int(min(of["high"], max(of["low"], drawn)))

    while (now := now + rng.expovariate(traffic.rate)) < traffic.duration:
        rows.append((now, length(traffic.prompt), length(traffic.output)))
    _somebody(len(rows), traffic)
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
