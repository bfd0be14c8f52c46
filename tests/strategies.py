"""Workloads and limits for hypothesis, small enough that every limit binds now and then."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from sim.policies import POLICIES
from sim.state import Limits
from sim.workload import Workload

GAPS = st.one_of(
    st.just(0.0),
    st.integers(0, 4).map(float),
    st.floats(0.0, 8.0, allow_subnormal=False),
    st.floats(50.0, 500.0),
)
ROWS = st.lists(st.tuples(GAPS, st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=14)

limits = st.builds(
    lambda seqs, tokens, chunk: Limits(seqs, tokens, chunk),
    st.integers(1, 5),
    st.integers(1, 64),
    st.integers(1, 32),
)


def startable(policy: str, limits: Limits) -> Limits:
    """The same, or larger where the engine of that policy would not start."""
    if "chunked_prefill_size" in POLICIES[policy].keeps:
        return limits._replace(
            block_size=1, num_gpu_blocks=64_000, chunked_prefill_size=limits.chunk
        )
    if not {"num_gpu_blocks", "max_num_batched_tokens"} <= set(POLICIES[policy].keeps):
        return limits
    least = limits.max_num_seqs if policy != "vllm_v0" else 10_000
    tokens = max(least, limits.max_num_batched_tokens)
    return limits._replace(max_num_batched_tokens=tokens, max_model_len=10_000)


def tight(policy: str, limits: Limits, blocks: int = 12, block_size: int = 8, **changes) -> Limits:
    """The same with a small pool, where the policy can do with one at all: SGLang's dies of it."""
    limits = startable(policy, limits)._replace(**changes)
    if "chunked_prefill_size" in POLICIES[policy].keeps:
        return limits
    return limits._replace(num_gpu_blocks=blocks, block_size=block_size)


# The module's; steps of a whole millisecond, which end when somebody arrives; and uneven ones.
costs = st.sampled_from(
    [(0.2, 0.02, 0.4, 0.03), (1.0, 0.0, 0.0, 0.0), (0.0, 0.1, 0.3, 0.7), (0.1, 0.05, 0.0, 0.2)]
)


def workload(rows, clients: int = 0) -> Workload:
    """rows: (ms since the one before, prompt, output)."""
    gaps, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    return Workload(np.cumsum(gaps, dtype=float), prompt, output, output, clients)


workloads = st.builds(workload, ROWS, st.one_of(st.just(0), st.integers(1, 6)))


class Case(NamedTuple):
    workload: Workload
    limits: Limits
    cost: tuple[float, ...]

    @property
    def rows(self) -> list[tuple[float, int, int]]:
        """(arrival, prompt, output) of each request."""
        columns = (self.workload.arrival, self.workload.prompt, self.workload.output)
        return list(zip(*(column.tolist() for column in columns), strict=True))


cases = st.builds(Case, workloads, limits, costs)
