"""Scheduling policies. A policy plans one step: whom to admit, and what each seat computes.

To add one, write a function of (s, lim) in a file here and decorate it, naming the limits that it
keeps: the page, the command line, the tests and the device loop all find it in POLICIES.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from ..jit import jit
from ..state import LIMITS, STATE, Limits, State

PLAN = numba.void(STATE, LIMITS)


class Policy(NamedTuple):
    name: str
    label: str
    about: str  # the sentence that the page shows
    keeps: tuple[str, ...]  # fields of Limits
    plan: Callable[[State, Limits], None]
    paged: bool = False  # whether decodes take KV blocks as they need them
    null_blocks: int = 0  # of the pool, blocks that nobody gets
    queues_blanks: bool = False  # whether freed blocks of no known content wait for their turn
    margin: float = 0.0  # share of the pool that admission always leaves free
    ranks: str | None = None  # what its line is ordered by: a column of the workload
    radix: bool = False  # whether its prefix cache is a tree
    starts: Callable[[Limits], Limits] = lambda limits: limits  # what the engine makes of its flags
    # (prompt, limit, limits) -> (n,) why each is refused, and (n,) what its limit is cut to
    door: Callable[[np.ndarray, np.ndarray, Limits], tuple[np.ndarray, np.ndarray]] | None = None
    note: str = ""  # how the program that it stands for differs


POLICIES: dict[str, Policy] = {}

# What a limit is for a policy that does not keep it.
OFF = {
    "enable_chunked_prefill": 1,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": 0,
    "enable_prefix_caching": 0,
    "scheduler_reserve_full_isl": 0,
    "watermark": 0.0,
    "preempt_on_arrival": 0,
    "async_scheduling": 0,
}


def policy(label: str, *keeps: str, **properties: Any):
    def register(plan):
        name, about = plan.__name__, inspect.getdoc(plan) or ""
        POLICIES[name] = Policy(name, label, about, keeps, jit(PLAN)(plan), **properties)
        return plan

    return register


def in_force(policy: str, limits: Limits) -> Limits:
    """The limits as the policy has them: those that it does not keep are off."""
    p = POLICIES[policy]
    off = {name: value for name, value in OFF.items() if name not in p.keeps}
    return limits._replace(**off)


# A policy registers itself when its file is read.
from . import module08, papers, sglang, vllm, vllm_v0  # noqa: E402, F401
