"""vLLM's V1 scheduler, synchronous and asynchronous, as recorded (`python -m sim golden`).

No phases: each step tries to bring what is computed of a request up to what is known of it, first
for those that run, in order of admission, then for those that wait.
"""

from ..jit import jit
from ..lines import head
from ..memory import blocks_for, cached_prefix, share
from ..state import BLOCKS, BUDGET, DECODE, HELD
from ..verbs import (
    admit,
    blocks_wanted,
    decode_from_pages,
    decode_in_vain,
    decode_one,
    grant_pages,
    is_done,
    keep_out,
    last_in_line,
    may_admit,
    preempt,
    room,
    stand_still,
    todo,
    watch_arrivals,
)
from . import policy

LIMITS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks",
    "max_model_len",
    "long_prefill_token_threshold",
    "enable_prefix_caching",
)
SINCE_0_9 = (*LIMITS, "enable_chunked_prefill")
ASYNCHRONOUS = (
    "Asynchronous, as it ships: the next step is planned while the device runs this one, so a"
    " finish shows one step later. async_scheduling 0 makes it synchronous."
)
SYNCHRONOUS = (
    "Synchronous, from its source. The product schedules a step ahead of the device by default: a"
    " finish shows about one step later there."
)
SINCE_0_33 = (
    *SINCE_0_9,
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "watermark",
    "async_scheduling",
)


@jit()
def threshold(s, lim, spares_a_lone_one):
    """Tokens that one prompt may have in this step."""
    present, cap = s.n.running + s.n.waiting, lim.long_prefill_token_threshold
    if cap == 0:
        return lim.max_num_batched_tokens
    watch_arrivals(s)
    if spares_a_lone_one and present <= 1:
        return lim.max_num_batched_tokens
    if lim.long_prefill_token_threshold_adaptive == 1:
        return max(cap, lim.max_num_batched_tokens // present)
    return cap


@jit()
def next_tokens(s, lim, i, cap):
    return 1 if s.requests[i].phase == DECODE else min(todo(s, i), cap, room(s, lim))


@jit()
def schedule(s, lim, i, tokens):
    if s.requests[i].phase == DECODE:
        return decode_one(s, i)
    if s.requests[i].phase == HELD:
        return decode_in_vain(s, i)
    return grant_pages(s, lim, i, tokens)


@jit()
def all_fit(s, lim, cap):
    """Whether the blocks that the running want for this step are free, whoever gets them first."""
    if len(s.entries) > 0 or s.n.unforeseen > 0:  # the prefix cache minds the order
        return False
    wanted, left = blocks_wanted(s), lim.max_num_batched_tokens - s.n.decoding
    for k in range(s.n.prefilling):
        i = s.prefilling[k]
        r = s.requests[i]
        tokens = max(0, min(todo(s, i), cap, left))
        left -= tokens
        wanted += max(0, blocks_for(lim, r.cached + tokens) - r.blocks)
    return wanted <= s.n.free


@jit()
def run_all(s, lim, cap):
    decode_from_pages(s)
    k = 0
    while k < s.n.prefilling and room(s, lim) > 0:
        i, before = s.prefilling[k], s.n.prefilling
        grant_pages(s, lim, i, next_tokens(s, lim, i, cap))
        k += s.n.prefilling == before


@jit()
def run_in_order(s, lim, cap, by_rank, a_victim_ends_it):
    """Whoever lacks a block takes those of the last: the newest, or the one that ranks last."""
    i = s.n.eldest
    while i >= 0 and room(s, lim) > 0:
        after, gave_way = i, False
        tokens = next_tokens(s, lim, i, cap)
        while not (gave_way or is_done(s, i) or schedule(s, lim, i, tokens)):
            victim = last_in_line(s) if by_rank else s.n.newest
            after, gave_way = s.requests[i].after, victim == i
            preempt(s, victim)
        if gave_way and a_victim_ends_it:
            while after >= 0:
                if s.requests[after].phase == DECODE:
                    stand_still(s, after)
                after = s.requests[after].after
            return
        i = after if gave_way else s.requests[i].after


@jit()
def fits(s, lim, i, hits, unused, tokens):
    """Whether the blocks for `tokens` of request i are free, some of them hits, and a margin."""
    margin = int(lim.watermark * lim.num_gpu_blocks) if s.n.running > 0 else 0
    return blocks_for(lim, tokens) - hits + unused + margin <= s.n.free


@jit()
def admit_in_order(s, lim, cap):
    """The line in its order while tokens, seats and blocks last; nobody is skipped."""
    while may_admit(s, room(s, lim) > 0, BUDGET):
        i, hits, unused = head(s), 0, 0
        if len(s.entries) > 0:
            hits, unused = cached_prefix(s, i)
        left = todo(s, i) - hits * lim.block_size
        tokens = min(left, cap)
        if lim.enable_chunked_prefill == 0 and tokens > room(s, lim):
            keep_out(s, BUDGET)
            return
        tokens = min(tokens, room(s, lim))
        asked = left if lim.scheduler_reserve_full_isl == 1 else tokens
        if not fits(s, lim, i, hits, unused, hits * lim.block_size + asked):
            keep_out(s, BLOCKS)
            return
        admit(s)
        share(s, i, hits)
        grant_pages(s, lim, i, tokens)


@jit()
def run_then_admit(s, lim, cap, by_rank, a_victim_ends_it):
    run(s, lim, cap, by_rank, a_victim_ends_it)
    if s.n.preempted == 0:
        admit_in_order(s, lim, cap)
    else:  # who takes KV from the running lets nobody in
        keep_out(s, BLOCKS)


@jit()
def run(s, lim, cap, by_rank, a_victim_ends_it):
    if all_fit(s, lim, cap):
        run_all(s, lim, cap)
    else:
        run_in_order(s, lim, cap, by_rank, a_victim_ends_it)


@policy("vLLM 0.33.0", *SINCE_0_33, paged=True, null_blocks=1, note=ASYNCHRONOUS)
def vllm_v1(s, lim):
    """The running first, then the line in order; who lacks KV takes it from the newest."""
    run_then_admit(s, lim, threshold(s, lim, True), False, True)


@policy(
    "vLLM 0.33.0, priority",
    *SINCE_0_33,
    paged=True,
    null_blocks=1,
    ranks="priority",
    note=ASYNCHRONOUS,
)
def vllm_v1_priority(s, lim):
    """The line goes by priority; who lacks KV takes it from the one that ranks last."""
    watch_arrivals(s)
    run_then_admit(s, lim, threshold(s, lim, True), True, False)


@policy("vLLM 0.17.1", *SINCE_0_9, paged=True, null_blocks=1, queues_blanks=True, note=SYNCHRONOUS)
def vllm_v1_0_17_1(s, lim):
    """Before the gate for whole prompts: admitted on its first chunk, a long prompt may run dry."""
    run_then_admit(s, lim, threshold(s, lim, False), False, True)


@policy(
    "vLLM 0.17.1, priority",
    *SINCE_0_9,
    paged=True,
    null_blocks=1,
    queues_blanks=True,
    ranks="priority",
    note=SYNCHRONOUS,
)
def vllm_v1_0_17_1_priority(s, lim):
    """As 0.33.0's, but who ranks last and lacks KV itself ends the step's round of the running."""
    watch_arrivals(s)
    run_then_admit(s, lim, threshold(s, lim, False), True, True)


@policy("vLLM 0.8.5", *LIMITS, paged=True, null_blocks=1, queues_blanks=True)
def vllm_v1_0_8_5(s, lim):
    """The first release with V1 by default: first come, first served, and always in chunks."""
    run_then_admit(s, lim, threshold(s, lim, False), False, True)
