"""What happened. A Run is columns; where they came from, simulator or device, is only a label."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .costs import COSTS
from .engine import DONE, FULL, STUCK, simulate
from .parameter import ScenarioError
from .policies import POLICIES, in_force
from .scenario import MAX_MEMORY_MB, Scenario, Variant
from .state import (
    ADMITTED,
    BLOCKS,
    BUDGET,
    DEATHS,
    DECODE,
    GRANT,
    REFUSALS,
    REQUEST,
    RESERVED,
    SEATS,
    STOPS,
    TOO_LARGE,
    TOO_LONG,
    TOO_LONG_AN_INPUT,
    Limits,
    State,
    enlarged,
    new_state,
)
from .workload import Workload, draw

COLUMNS = ["arrival", "prompt", "output", "limit", "start", "first", "last", "finish"]
COLUMNS += ["preemptions", "recomputed", "refused"]
SLICE = 20_000_000  # steps between two looks at whether to go on: a fraction of a second

# Intervals at whose ends decoding requests had a token each: `repeats` of `ms`, `tokens` in all.
TICK = np.dtype([("t0", "f8"), ("ms", "f8"), ("repeats", "i8"), ("tokens", "i8")])


_made: WeakKeyDictionary = WeakKeyDictionary()


def once(make: Callable) -> Any:
    """make(run, …), made once for each run and the rest of what is given, and dropped with the run.

    What is made must not refer to the run.
    """

    @wraps(make)
    def given(run, *rest):
        own = _made.setdefault(run, {})
        if (make, *rest) not in own:
            own[make, *rest] = make(run, *rest)
        return own[make, *rest]

    return given


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Run:
    """Times in ms. Tables are structured arrays: sim.state has REQUEST, STEP, SEGMENT, GAP, GRANT.

    A request that was turned away at the door has no times; `refused` says why.
    """

    label: str
    source: str  # "simulated", or the device's name
    seats: int
    blocks: int  # of KV; 0: not accounted
    block_size: int
    total: float  # ms, from 0 to the last release
    requests: np.ndarray  # (n,) COLUMNS, by id
    steps: np.ndarray  # (events,) STEP, by time
    segments: np.ndarray  # (k,) SEGMENT, by event; what ends within one is in no order
    gaps: np.ndarray  # (g,) GAP: tokens that came late for a preemption
    # (m,) GRANT: prompt tokens, step by step; by when they ended
    grants: np.ndarray = field(default_factory=lambda: np.empty(0, GRANT))
    ids: np.ndarray | None = None  # of the requests, where they are not all of them
    begin: float = 0.0  # ms, from when on figures a second count
    front_ms: float = 0.0  # from a request's client to the waiting line, where that is known

    @property
    def lasted(self) -> float:
        """ms from its begin to the last release."""
        return self.total - self.begin

    @property
    def queued(self) -> np.ndarray:
        """(n,) ms at which each request stood in the waiting line."""
        r = self.requests
        if not self.front_ms:
            return r["arrival"]
        times = r["arrival"] + self.front_ms
        return np.where(abs(r["start"] - times) < 1e-9, r["start"], times)  # there, back: rounding

    @property
    def served(self) -> np.ndarray:
        """The requests that were let in."""
        refused = self.requests["refused"]
        return self.requests[refused == 0] if refused.any() else self.requests

    @once
    def ticks(self) -> np.ndarray:
        """(m,) TICK: from one token of the decoding requests to their next.

        Where steps without decodes came between (prompts that run alone), the interval spans them,
        and who began to decode meanwhile has an interval of its own.
        """
        rows = np.flatnonzero(self.steps["decodes"] > 0)
        steps = self.steps[rows]
        ticks = np.zeros(len(rows), TICK)
        for name in ("t0", "ms", "repeats"):
            ticks[name] = steps[name]
        ticks["tokens"] = steps["decodes"].astype(np.int64) * steps["repeats"] - steps["late"]
        stalls = np.flatnonzero(np.diff(rows, prepend=-1) > 1)
        if len(stalls) == 0:
            return ticks
        # When the tick before was over; before the first one was none.
        over = self.steps["t0"][(rows[stalls - 1] + 1) % len(self.steps)]
        before = np.where(stalls > 0, over, -1.0)
        began, ms = steps["t0"][stalls], steps["ms"][stalls]
        ends = began + ms
        decoding = (self.segments["phase"] == DECODE) & (self.segments["tokens"] > 0)
        joined = np.sort(self.segments["t0"][decoding])
        low = np.searchsorted(joined, before, side="right")
        high = np.maximum(low, np.searchsorted(joined, began))
        now = np.searchsorted(joined, began, side="right") - high  # the late ones among them
        now = np.where(before < began, now, steps["late"][stalls])
        own = np.zeros(int((high - low).sum()), TICK)
        own["t0"] = joined[
            np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)])
        ]
        own["ms"] = np.repeat(ends, high - low) - own["t0"]
        own["repeats"] = own["tokens"] = 1
        fresh, spanning = ticks[stalls].copy(), ticks[stalls].copy()
        fresh["repeats"], fresh["tokens"] = 1, now - steps["late"][stalls]
        spanning["t0"], spanning["ms"], spanning["repeats"] = before, ends - before, 1
        spanning["tokens"] = steps["decodes"][stalls] - now - (high - low)
        ticks["t0"][stalls] = ends
        ticks["repeats"][stalls] -= 1
        ticks["tokens"][stalls] = steps["decodes"][stalls] * ticks["repeats"][stalls]
        every = np.concatenate([ticks, spanning, fresh, own])
        every = every[every["tokens"] > 0]
        return every[np.argsort(every["t0"], kind="stable")]


def door(workload: Workload, policy: str, limits: Limits) -> np.ndarray:
    """(n,) why each request is turned away before it queues: ADMITTED, TOO_LONG or TOO_LARGE."""
    limits = in_force(policy, limits)
    if own := POLICIES[policy].door:
        return own(workload.prompt, workload.limit, limits)[0]
    keeps, reasons = POLICIES[policy].keeps, np.full(len(workload), ADMITTED, np.int32)
    if "num_gpu_blocks" in keeps:
        tokens = np.minimum(workload.prompt + workload.limit, limits.max_model_len)
        blocks = -(-tokens // limits.block_size)
        margin = int(POLICIES[policy].margin * limits.num_gpu_blocks)
        reasons[blocks > pool(policy, limits) - margin] = TOO_LARGE
    if "max_model_len" in keeps:
        reasons[workload.prompt >= limits.max_model_len] = TOO_LONG
    return reasons


def pool(policy: str, limits: Limits) -> int:
    """KV blocks that requests can have; 0 where the policy does not account for them."""
    p = POLICIES[policy]
    return limits.num_gpu_blocks - p.null_blocks if "num_gpu_blocks" in p.keeps else 0


def opened(
    workload: Workload, policy: str, limits: Limits, host_ms: float = 0.0, front_ms: float = 0.0
) -> State:
    """A server under `policy` before its first step.

    host_ms: work of the host for a step; front_ms: from a request's client to the waiting line.
    """
    p = POLICIES[policy]
    limits = in_force(policy, limits)
    rank = getattr(workload, p.ranks) if p.ranks else None
    if p.ranks and rank is None:
        rank = np.zeros(len(workload))
    for i in np.flatnonzero(np.isnan(rank) if rank is not None else [])[:1]:
        raise ScenarioError(f"request {i} has {p.ranks} nan, which orders nothing: give a number")
    caches = limits.enable_prefix_caching == 1
    in_short = p.radix and workload.identities is None and workload.hashes is None
    identities = workload.prefixes if in_short else workload.blocks
    output, limit = workload.output, workload.limit
    if p.door:
        longest = p.door(workload.prompt, limit, limits)[1]
        output, limit = np.minimum(output, longest), np.minimum(limit, longest)
    elif "max_model_len" in p.keeps:  # an output ends there, whatever it would have been
        longest = np.maximum(1, limits.max_model_len - workload.prompt)
        output, limit = np.minimum(output, longest), np.minimum(limit, longest)
    return new_state(
        workload.arrival,
        workload.prompt,
        output,
        limit,
        limits,
        clients=workload.clients,
        rank=rank,
        paged=p.paged,
        free=pool(policy, limits),
        queues_blanks=p.queues_blanks,
        host_ms=host_ms,
        stop_tokens=workload.stop_tokens,
        front_ms=front_ms,
        identities=identities(limits.block_size) if caches else None,
        radix=p.radix and caches,
        in_short=in_short,
        openings=workload.openings(limits.block_size) if p.radix and caches else None,
    )


def serve(
    workload: Workload,
    policy: str,
    limits: Limits,
    coefficients: Sequence[float],
    *,
    cost: str = "linear",
    host_ms: float = 0.0,
    front_ms: float = 0.0,
    label: str = "",
    stretch: bool = True,
    go_on: Callable[[float], object] = lambda done: None,
) -> Run:
    """Simulate `workload` to its end.

    go_on(share of requests finished) is called a few times a second; what it raises ends the run.
    cost: a key of COSTS, which `coefficients` belong to. front_ms: what a request takes from its
    client to the waiting line; arrivals are the client's.
    stretch=False takes every step by itself: the same times, and a longer record.
    """
    refused = door(workload, policy, limits)
    inside = np.flatnonzero(refused == ADMITTED)
    limits = in_force(policy, limits)
    s = opened(workload.rows(inside), policy, limits, host_ms, front_ms)
    plan, ms, coef = POLICIES[policy].plan, COSTS[cost].ms, np.array(coefficients, float)
    stretch = stretch and COSTS[cost].steady
    while (state := simulate(plan, ms, coef, s, limits, stretch, SLICE, np.inf)) != DONE:
        if state == FULL:
            if s.steps.nbytes > 1e6 * MAX_MEMORY_MB / 4:
                raise ScenarioError(
                    f"{policy} records {s.n.steps:,} steps for {s.n.finished:,} requests of"
                    f" {len(s.requests):,}: ask for fewer, or raise SLOTSCOPE_MAX_MEMORY_MB above"
                    f" {MAX_MEMORY_MB:,}"
                )
            s = enlarged(s)
        elif state == STUCK:
            raise ScenarioError(stuck(s, policy, inside))
        go_on(s.n.finished / len(workload))
    return recorded(s, workload, policy, limits, refused, label)


def recorded(
    s: State,
    workload: Workload,
    policy: str,
    limits: Limits,
    refused: np.ndarray,
    label: str = "",
    source: str = "simulated",
) -> Run:
    """What `s` has on record of the workload, of which the door refused some."""
    inside = np.flatnonzero(refused == ADMITTED)
    requests = _requests(s, workload, inside)
    requests["refused"] = refused
    segments = s.segments[: s.n.segments].view(np.ndarray)
    gaps = s.gaps[: s.n.gaps].view(np.ndarray)
    grants = s.grants[: s.n.grants].view(np.ndarray)
    steps = s.steps[: s.n.steps].view(np.ndarray)
    if len(inside) < len(workload):
        for table in (segments, gaps, grants):
            table["request"] = inside[table["request"]]
        steps["head"] = np.where(steps["head"] < 0, -1, inside[steps["head"]])
    over = s.n.finished == len(s.requests)
    return Run(
        label or POLICIES[policy].label,
        source,
        limits.max_num_seqs,
        pool(policy, limits),
        limits.block_size,
        float(np.nanmax(requests["finish"], initial=0.0) if over else s.n.now),
        requests,
        steps,
        segments,
        gaps,
        grants,
        front_ms=float(s.n.front_ms),
    )


def _requests(s: State, workload: Workload, inside: np.ndarray) -> np.ndarray:
    """COLUMNS of all requests, those that were not let in without times."""
    dtype = np.dtype([(name, REQUEST[name]) for name in COLUMNS])
    requests = np.empty(len(workload), dtype)
    if len(inside) == len(workload):
        for name in COLUMNS:
            requests[name] = s.requests[name]
        requests["arrival"] -= s.n.front_ms
        requests["limit"] = workload.limit
        return requests
    requests[:] = np.zeros(1, dtype)
    for name in ("start", "first", "last", "finish"):
        requests[name] = np.nan
    for name in ("arrival", "prompt", "output", "limit"):
        requests[name] = getattr(workload, name)
    for name in COLUMNS:
        if name != "limit":
            requests[name][inside] = s.requests[name]
    requests["arrival"][inside] -= s.n.front_ms
    return requests


def stuck(s: State, policy: str, ids: np.ndarray) -> str:
    """Who waits for ever, for what, and the way out."""
    waiting = [
        int(ids[s.waiting[(s.n.head + k) % len(s.waiting)]]) for k in range(min(3, s.n.waiting))
    ]
    names = ", ".join(map(str, waiting)) + (" and more" if s.n.waiting > 3 else "")
    if s.n.died:
        return (
            f"{policy} dies {s.n.now:,.0f} ms into the run, as the real engine does, with"
            f" {s.n.finished:,} of {len(s.requests):,} requests served: {DEATHS[s.n.died]!r}: raise"
            " num_gpu_blocks or schedule_conservativeness, or lower max_num_seqs"
        )
    limit = {
        BLOCKS: "num_gpu_blocks",
        RESERVED: "num_gpu_blocks",
        BUDGET: "max_num_batched_tokens"
        if "max_num_batched_tokens" in POLICIES[policy].keeps
        else "chunked_prefill_size",
        SEATS: "max_num_seqs",
    }
    way_out = f"raise {limit[s.n.stop]}" if s.n.stop in limit else "change its limits"
    return f"{policy} never lets request {names} in: {STOPS[s.n.stop]} will not come: {way_out}"


def compare(
    scenario: Scenario,
    trace: Workload | None = None,
    go_on: Callable[[float], object] = lambda done: None,
) -> list[Run]:
    """The same requests under each variant of the scenario."""
    scenario.check()
    workload = draw(scenario.traffic, trace)
    scenario.check(len(workload))
    return [serve_variant(scenario, variant, workload, go_on) for variant in scenario.variants]


def serve_variant(
    scenario: Scenario, variant: Variant, workload: Workload, go_on=lambda done: None
) -> Run:
    """The workload under one variant. ScenarioError if it lets nobody in."""
    limits, cost = scenario.limits_of(variant), scenario.cost_of(variant)
    refused = door(workload, variant.policy, limits)
    if (refused != ADMITTED).all():
        by_model = limits.max_model_len <= limits.num_gpu_blocks * limits.block_size
        by_length = refused[0] == TOO_LONG or (refused[0] == TOO_LONG_AN_INPUT and by_model)
        raise ScenarioError(
            f"{variant} refuses every request at the door, since {REFUSALS[refused[0]]}: raise"
            f" {'max_model_len' if by_length else 'num_gpu_blocks'}"
        )
    return serve(
        workload,
        variant.policy,
        limits,
        cost.coefficients,
        cost=cost.cost,
        front_ms=cost.front_ms,
        host_ms=scenario.host_of(variant),
        label=variant.label,
        go_on=go_on,
    )
