"""Policies as the papers have them, none pinned to a program."""

from ..jit import jit
from ..lines import head
from ..memory import blocks_for
from ..state import BLOCKS, BUDGET
from ..verbs import (
    admit,
    decode,
    grant,
    grant_pages,
    keep_out,
    last_in_line,
    may_admit,
    preempt,
    reserve,
    room,
    todo,
    watch_arrivals,
)
from . import policy
from .vllm import run

RESERVING = ("max_num_seqs", "block_size", "num_gpu_blocks", "max_model_len")
BUDGETED = (*RESERVING, "max_num_batched_tokens")


@jit()
def admit_whole(s, lim, tokens_of):
    """Whole prompts join while their reservation fits: prompt and limit, or max_model_len."""
    decode(s)
    while may_admit(s, True, BLOCKS):
        r = s.requests[head(s)]
        tokens = tokens_of if tokens_of > 0 else min(r.prompt + r.limit, lim.max_model_len)
        if blocks_for(lim, tokens) > s.n.free:
            keep_out(s, BLOCKS)
            return
        i = admit(s)
        reserve(s, lim, i, tokens)
        grant(s, i, todo(s, i))


@policy("Orca", *RESERVING)
def orca(s, lim):
    """Who joins reserves memory for prompt and declared limit in one piece; no budget of tokens."""
    admit_whole(s, lim, 0)


@policy("Orca, max_model_len reserved", *RESERVING)
def orca_max(s, lim):
    """As Orca, but each reserves memory for the longest request that there could be."""
    admit_whole(s, lim, lim.max_model_len)


@jit()
def chunk_by_chunk(s, lim, by_rank, preempted):
    """All decodes, then the prompts begun, then new ones in what the budget leaves."""
    run(s, lim, lim.max_num_batched_tokens, by_rank, False)
    while s.n.preempted == preempted and may_admit(s, room(s, lim) > 0, BUDGET):
        if blocks_for(lim, todo(s, head(s))) > s.n.free:
            keep_out(s, BLOCKS)
            return
        i = admit(s)
        reserve(s, lim, i, todo(s, i))
        grant_pages(s, lim, i, min(todo(s, i), room(s, lim)))
    if s.n.preempted > preempted:  # who takes KV from the running lets nobody in
        keep_out(s, BLOCKS)


@policy("Sarathi", *BUDGETED, paged=True)
def sarathi(s, lim):
    """All decodes, then prompts begun, then new ones, in chunks of what the token budget leaves."""
    chunk_by_chunk(s, lim, False, 0)


@policy("Shortest job first", *BUDGETED, paged=True, ranks="limit")
def sjf(s, lim):
    """As Sarathi, but the line goes by declared limit: the long ones may starve."""
    watch_arrivals(s)
    chunk_by_chunk(s, lim, True, 0)


@policy("Priority", *BUDGETED, "preempt_on_arrival", paged=True, ranks="priority")
def priority(s, lim):
    """As Sarathi, but the line goes by priority; the urgent may take a seat from who ranks last."""
    watch_arrivals(s)
    if lim.preempt_on_arrival == 1 and s.n.waiting > 0 and s.n.running >= s.n.seats:
        i = last_in_line(s)
        if s.requests[head(s)].rank < s.requests[i].rank:
            preempt(s, i)
    chunk_by_chunk(s, lim, True, s.n.preempted)
