"""The requests of one scenario: drawn by seed, or taken from a trace."""

import math
import random
from dataclasses import dataclass, replace

import numpy as np

from .parameter import ScenarioError
from .traffic import LONGEST, Lengths, Traffic

OPENING = 32  # tokens by which SGLang compares prompts in line


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Columns of equal length, in order of arrival."""

    arrival: np.ndarray  # (n,) f8, ms
    prompt: np.ndarray  # (n,) i8, tokens
    output: np.ndarray  # (n,) i8, tokens that a request will really emit
    limit: np.ndarray  # (n,) i8, max_tokens that it declares
    clients: int = 0  # at most so many unfinished at once; 0: no such cap
    priority: np.ndarray | None = None  # (n,) the smaller goes first; None: all alike
    # (n,) which shared prefix a prompt begins with (-1: none), and how many tokens of it.
    prefix: tuple[np.ndarray, np.ndarray] | None = None
    # Of all full blocks of all requests, and where each request's begin (n + 1,): equal where all
    # tokens up to the block's end are.
    identities: tuple[np.ndarray, np.ndarray] | None = None
    stop_tokens: bool = False  # whether a scheduler can't foresee an end before the limit
    # Ids of the prompts' blocks as a trace has them, where each request's begin (n + 1,), and how
    # many tokens an id stands for: equal where all tokens up to the block's end are.
    hashes: tuple[np.ndarray, np.ndarray, int] | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    def rows(self, ids: np.ndarray) -> "Workload":
        """The requests `ids` alone; itself if these are all."""
        if len(ids) == len(self):
            return self

        def of_these(flat, offsets):
            sizes = np.diff(offsets)
            kept = np.repeat(np.isin(np.arange(len(self)), ids), sizes)
            return flat[kept], np.append(0, sizes[ids].cumsum())

        identities = self.identities and of_these(*self.identities)
        hashes = self.hashes and (*of_these(*self.hashes[:2]), self.hashes[2])
        priority = None if self.priority is None else self.priority[ids]
        prefix = None if self.prefix is None else (self.prefix[0][ids], self.prefix[1][ids])
        return Workload(
            self.arrival[ids],
            self.prompt[ids],
            self.output[ids],
            self.limit[ids],
            self.clients,
            priority,
            prefix,
            identities,
            self.stop_tokens,
            hashes,
        )

    def blocks(self, block_size: int) -> tuple[np.ndarray, np.ndarray]:
        """`identities` for blocks of that size: as recorded, or from hashes or shared prefixes."""
        sizes = (self.prompt + self.output) // block_size
        if self.identities:
            flat, offsets = self.identities
            if offsets[0] != 0 or offsets[-1] != len(flat):
                raise ScenarioError(
                    f"prefix ids go from {offsets[0]} to {offsets[-1]} and there are {len(flat)}:"
                    " give where each request's begin, and where the last one's end"
                )
            given = np.diff(offsets)
            for i in np.flatnonzero(given != sizes if len(given) == len(self) else [True])[:1]:
                raise ScenarioError(
                    f"request {i} has {given[i] if i < len(given) else 0} prefix ids where its"
                    f" {self.prompt[i] + self.output[i]} tokens fill {sizes[i]} blocks of"
                    f" {block_size}: give one a full block"
                )
            return np.unique(flat, return_inverse=True)[1].astype(np.int32), offsets
        pairs, offsets = self.prefixes(block_size)
        flat = np.arange(offsets[-1], dtype=np.int32)
        if self.hashes is not None:
            return self._rehashed(block_size, flat, offsets), offsets
        begins, shared = pairs.reshape(-1, 2).T
        for k in range(int(shared.max(initial=0))):
            rows = np.flatnonzero(shared > k)
            flat[offsets[rows] + k] = -1 - (begins[rows] + k)
        return flat, offsets

    def prefixes(self, block_size: int) -> tuple[np.ndarray, np.ndarray]:
        """The same in short: of each request where its shared prefix begins among all prefixes'

        blocks, and how many blocks it has of it; and `offsets`.
        """
        sizes = (self.prompt + self.output) // block_size
        offsets = np.append(0, sizes.cumsum())
        pairs = np.zeros((len(self), 2), np.int32)
        if self.prefix is not None:
            which, tokens = self.prefix
            if not len(which) == len(tokens) == len(self):
                raise ScenarioError(
                    f"{len(which)} shared prefixes of {len(tokens)} lengths, {len(self)} requests:"
                    " give each its own"
                )
            shared = np.where(which < 0, 0, np.minimum(tokens // block_size, sizes))
            which = np.unique(which, return_inverse=True)[1]
            deepest = np.zeros(which.max(initial=-1) + 1, np.int64)
            np.maximum.at(deepest, which, shared)
            begins = np.cumsum(deepest) - deepest
            pairs[:, 0], pairs[:, 1] = begins[which], shared
        return pairs.ravel(), offsets

    def openings(self, block_size: int) -> np.ndarray:
        """(n,) identity of each request's first OPENING tokens; -1: nobody else's."""
        if self.identities is None and self.hashes is None:
            which, tokens = self.prefix if self.prefix else (np.zeros(0), np.zeros(0))
            return np.where(tokens >= OPENING, which, -1) if len(which) else np.full(len(self), -1)
        if OPENING % block_size:
            raise ScenarioError(
                f"prefix ids of blocks of {block_size} do not tell the first {OPENING} tokens: give"
                " them for a block size that divides these"
            )
        flat, offsets = self.blocks(block_size)
        last = offsets[:-1] + OPENING // block_size - 1
        opening = np.full(len(self), -1)
        opening[last < offsets[1:]] = flat[last[last < offsets[1:]]]
        return opening

    def _rehashed(self, block_size: int, flat: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """`flat` with the trace's ids in the blocks that prompts fill, whatever size those are of.

        A block that ends within the trace's block j is known by j's id, and by which of ours that
        end in j it is: the id stands for all tokens up to there.
        """
        ids, begins, tokens = self.hashes  # pyright: ignore[reportGeneralTypeIssues]
        filled = np.where(np.diff(begins) > 0, self.prompt // block_size, 0)
        within = np.append(0, filled.cumsum())
        k = np.arange(within[-1]) - np.repeat(within[:-1], filled)  # our block of its request
        j = ((k + 1) * block_size - 1) // tokens  # the trace's block that it ends in
        nth = k - np.maximum(0, -(-(j * tokens + 1) // block_size) - 1)
        names, dense = np.unique(ids, return_inverse=True)
        each = -(-tokens // block_size)
        if len(names) * each >= 2**31 or offsets[-1] >= 2**31:
            raise ScenarioError(
                f"the trace's prompts fill too many blocks of {block_size}: raise block_size, or"
                " take fewer requests"
            )
        place = np.arange(within[-1]) + np.repeat(offsets[:-1] - within[:-1], filled)
        known = dense[np.repeat(begins[:-1], filled) + j] * each + nth
        flat[place] = -1 - known
        return flat


def draw(traffic: Traffic, trace: Workload | None = None) -> Workload:
    """The requests of `traffic`; `trace` is the content of the file that it names, where it does.

    ScenarioError if the file is missing or nothing is left of it.
    """
    if "trace" in traffic.uses and trace is None:
        raise ScenarioError("the traffic comes from a trace: give its file")
    if traffic.arrivals in ("trace", "timed") and trace is not None:
        return _window(traffic, trace)
    if traffic.arrivals == "module":
        return _module(traffic)
    if traffic.arrivals == "list":
        return _written_out(traffic)
    rng = np.random.default_rng(traffic.seed)
    arrival = _arrivals(traffic, rng)
    _somebody(len(arrival), traffic)
    rows = rng.integers(len(trace), size=len(arrival)) if trace is not None else None

    def lengths(of: Lengths, recorded: str) -> np.ndarray:
        if of.kind == "trace":
            return getattr(trace, recorded)[rows]
        return _lengths(of, rng, len(arrival))

    prompt, output = lengths(traffic.prompt, "prompt"), lengths(traffic.output, "output")
    clients = traffic.clients if traffic.arrivals == "closed" else 0
    return _mixed(traffic, arrival, prompt, output, clients)


def _mixed(traffic: Traffic, arrival, prompt, output, clients: int = 0) -> Workload:
    """With the limits that the requests declare, their priorities and the prefixes that they share.

    Each is drawn from a generator of its own, so that none changes the others or the lengths.
    """
    rows, longest = len(arrival), traffic.output.longest
    limit = np.full(rows, longest) if longest else output
    if traffic.limit_factor > 0:
        limit = np.maximum(output, np.ceil(output * traffic.limit_factor)).astype(np.int64)
    priority = prefix = None
    if traffic.urgent > 0:
        rng = np.random.default_rng([traffic.seed, 1])
        priority = np.where(rng.random(rows) < traffic.urgent, 0.0, 1.0)
    if traffic.prefixes > 0:
        rng = np.random.default_rng([traffic.seed, 2])
        prefix = (
            rng.integers(traffic.prefixes, size=rows),
            np.minimum(prompt, traffic.prefix_tokens),
        )
    stops = traffic.stop_tokens == 1
    return Workload(arrival, prompt, output, limit, clients, priority, prefix, stop_tokens=stops)


def _written_out(traffic: Traffic) -> Workload:
    """`arrival ms:prompt:output[:priority]`, a semicolon between."""
    rows = []
    for text in traffic.list.split(";"):
        try:
            row = [float(part) for part in text.split(":")]
        except ValueError:
            row = []
        good = len(row) in (3, 4) and all(map(math.isfinite, row)) and row[0] >= 0
        if not (good and all(1 <= x <= LONGEST and x % 1 == 0 for x in row[1:3])):
            raise ScenarioError(
                f"list has {text[:40]!r}, which is no request: write arrival_ms:prompt:output or"
                " arrival_ms:prompt:output:priority"
            )
        rows.append([*row, 0.0][:4])
    rows.sort(key=lambda row: row[0])
    arrival, prompt, output, priority = np.array(rows).T
    prompt, output = prompt.astype(np.int64), output.astype(np.int64)
    return Workload(arrival, prompt, output, output, 0, priority)


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
        return np.arange(math.ceil(traffic.rate * traffic.duration - 1e-9)) * mean
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

    def drawn(of: Lengths):
        median, sigma, low, high = of.numbers
        mu, normal = math.log(median), rng.lognormvariate
        return lambda: int(min(high, max(low, normal(mu, sigma))))

    prompt, output = drawn(traffic.prompt), drawn(traffic.output)
    while (now := now + rng.expovariate(traffic.rate)) < traffic.duration:
        rows.append((now, prompt(), output()))
    _somebody(len(rows), traffic)
    arrival, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    arrival = arrival if traffic.as_printed else arrival * 1e3
    return _mixed(traffic, arrival, prompt, output)


def _window(traffic: Traffic, trace: Workload) -> Workload:
    """The part of a trace that is asked for, from 0 ms on."""
    if np.isnan(trace.arrival[0]):
        raise ScenarioError(
            "the file has lengths and no arrivals: choose arrivals poisson and a rate, with prompt"
            " trace and output trace"
        )
    if traffic.arrivals == "trace" and trace.prompt[0] == 0:
        raise ScenarioError("the file has arrivals and no lengths: choose arrivals timed")
    end = traffic.until * 1e3 if traffic.until else math.inf
    rows = np.flatnonzero((trace.arrival >= traffic.since * 1e3) & (trace.arrival < end))
    rows = rows[: traffic.first] if traffic.first else rows
    if len(rows) == 0:
        raise ScenarioError(
            f"no request of the trace lies from {traffic.since:g} s"
            + (f" to {traffic.until:g} s" if traffic.until else " on")
            + f": it spans {trace.arrival[-1] / 1e3:,.0f} s"
        )
    arrival = trace.arrival[rows] - trace.arrival[rows[0]]
    arrival = (spread(arrival) if traffic.spread else arrival) / traffic.speed
    if traffic.arrivals == "trace":
        return replace(trace.rows(rows), arrival=arrival)
    rng = np.random.default_rng(traffic.seed)
    prompt, output = (_lengths(x, rng, len(rows)) for x in (traffic.prompt, traffic.output))
    return _mixed(traffic, arrival, prompt, output)


def spread(arrival: np.ndarray) -> np.ndarray:
    """Those that come at one time, evenly over the interval to the next time that anybody comes.

    After the last such time the interval is the median one.
    """
    times, first, count = np.unique(arrival, return_index=True, return_counts=True)
    gaps = np.diff(times)
    gaps = np.append(gaps, np.median(gaps) if len(gaps) else 0.0)
    nth = np.arange(len(arrival)) - np.repeat(first, count)
    return arrival + np.repeat(gaps / count, count) * nth
