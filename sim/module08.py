"""The course module's own interface to its scheduler exercise (08.1)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .run import serve
from .scenario import Scenario
from .state import Limits
from .workload import Workload

POLICIES = ("static", "continuous", "chunked")


@dataclass
class Req:
    """One request; lengths in tokens, times in ms from the start of the simulation."""

    rid: int
    arrival: float
    prompt_len: int
    out_len: int
    prefill_done: int = 0
    generated: int = 0
    first_tok: float | None = None
    finish: float | None = None


def simulate(
    policy: str,
    requests: Sequence[Req],
    *,
    max_num_seqs: int = 32,
    max_num_batched_tokens: int = 8192,
    chunk: int = 512,
) -> tuple[Sequence[Req], float]:
    """Fill `first_tok` and `finish` of the same objects; returns them and the total, in ms.

    `requests` are sorted by arrival. ValueError says which value can't be served.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r} is unknown: use one of {', '.join(POLICIES)}")
    limits = Limits(max_num_seqs, max_num_batched_tokens, chunk)
    for name in ("max_num_seqs", "max_num_batched_tokens", "chunk"):
        if (value := getattr(limits, name)) < 1:
            raise ValueError(f"{name} {value} serves nobody: give 1 or more")
    for r in requests:
        if not math.isfinite(r.arrival):
            raise ValueError(f"request {r.rid} arrives at {r.arrival} ms: give a time")
    for before, after in zip(requests, requests[1:], strict=False):
        if after.arrival < before.arrival:
            raise ValueError(
                f"request {after.rid} arrives at {after.arrival} ms, before request {before.rid} at"
                f" {before.arrival} ms: sort the requests by arrival"
            )
    for r in requests:
        if r.prompt_len < 1 or r.out_len < 1:
            raise ValueError(
                f"request {r.rid} has prompt_len {r.prompt_len} and out_len {r.out_len}:"
                " give at least one token of each"
            )
    if not requests:
        return requests, 0.0
    arrival, prompt, output = (
        np.array([getattr(r, name) for r in requests])
        for name in ("arrival", "prompt_len", "out_len")
    )
    run = serve(Workload(arrival, prompt, output, output), policy, limits, Scenario().cost)
    for r, first, finish in zip(
        requests, run.requests["first"], run.requests["finish"], strict=True
    ):
        r.first_tok, r.finish = float(first), float(finish)
        r.prefill_done, r.generated = r.prompt_len, r.out_len
    return requests, run.total
