"""SGLang's scheduler: 0.5.18 as recorded (`python -m sim golden`), 0.4.0 from its source.

Prompts go first and alone, as many as may join without the outputs that are promised exceeding the
pool; while there are none, all decode. What is promised is a share of what the limits allow.
"""

import numba
import numpy as np

from ..batch import (
    CLIP,
    charge,
    decay_ratio,
    decode_is_blank,
    drop_done,
    ends_in_time,
    join_batch,
    keep_ratio,
    left_in_all,
    left_now,
    mix_batch,
    promise,
    put_in_batch,
    raise_ratio,
    reset_ratio,
    retract_last,
    sort_by_prefix,
    sort_for_retraction,
    steps_without_eviction,
)
from ..jit import jit
from ..lines import head
from ..memory import blocks_for, share_tree
from ..radix import ROOT, evict, known_at, lock, make_blank, remember, unlock, walk
from ..state import (
    ADMITTED,
    BLOCKS,
    BUDGET,
    LIMITS,
    NOTHING,
    NOTHING_TO_RETRACT,
    OUT_OF_MEMORY,
    RESERVED,
    SEATS,
    STATE,
    TOO_LARGE,
    TOO_LONG_AN_INPUT,
    Limits,
)
from ..verbs import (
    admit,
    blocks_wanted,
    decode_from_pages,
    die,
    idle_once,
    keep_out,
    prefill_pages,
    todo,
)
from . import policy

KEEPS = (
    "max_num_seqs",
    "block_size",
    "num_gpu_blocks",
    "max_model_len",
    "enable_prefix_caching",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "schedule_conservativeness",
    "enable_mixed_chunk",
    "ignore_eos",
)
GO = NOTHING


@jit()
def take_up_last_batch(s, old):
    """Who goes on joins the running batch, which may be full no more."""
    n = s.n
    partial = n.partial >= 0 and s.requests[n.partial].planned == n.plan - 1
    if partial and len(s.nodes) > 0:
        remember(s, n.partial)
    replaced = n.batch == 0 and n.joining > 0
    dropped = join_batch(s, partial or not old)
    if partial or (not old and (dropped or replaced)):
        n.full = 0


@jit()
def next_stop(s, lim):
    """Whether one more may be offered a place in the batch, or why not."""
    if left_in_all(s) <= 0 or left_now(s) <= 0:
        return RESERVED
    chunked = lim.chunked_prefill_size > 0
    if lim.max_prefill_tokens <= s.n.spent or (chunked and lim.chunked_prefill_size <= s.n.spent):
        return BUDGET
    return GO


@jit()
def go_on(s, lim, old, slack):
    """The prompt begun goes first, and is never left out."""
    i = s.n.partial
    most = left = todo(s, i)
    if lim.chunked_prefill_size > 0:
        chunk = lim.chunked_prefill_size - s.n.spent
        total = int(left_in_all(s))
        most = chunk if old or total <= 0 else min(chunk, total)
    tokens = min(left, most)
    put_in_batch(s, i, tokens, tokens == left)
    charge(s, lim, tokens, min(s.requests[i].limit, CLIP) if tokens == left else 0, slack)


@jit()
def offer(s, lim, touch, old, slack):
    """The head of the line joins if its tokens, and all that it may emit, exceed no promise."""
    n, i = s.n, head(s)
    r = s.requests[i]
    node = walk(s, i, (todo(s, i) - 1) // n.block, touch) if len(s.nodes) > 0 else ROOT
    hit = known_at(s, node) * n.block if len(s.nodes) > 0 else 0
    tokens = todo(s, i) - hit
    whole = blocks_for(lim, tokens) * n.block
    total = tokens + slack + min(r.limit if old else max(r.limit - r.emitted, 0), CLIP)
    if total >= left_in_all(s):
        return RESERVED
    chunked, left = lim.chunked_prefill_size > 0, lim.max_prefill_tokens - n.spent
    if n.prefill > 0 and (whole > left if old else not chunked and whole >= left):
        return BUDGET
    if len(s.nodes) > 0:
        lock(s, node)
    chunk, all_of_it = lim.chunked_prefill_size - n.spent, tokens
    if chunked and whole > chunk:
        tokens = (chunk // n.block * n.block + hit) // n.block * n.block - hit
    over = total > left_in_all(s) or (total == left_in_all(s) and not old)
    if over or tokens <= 0:
        if len(s.nodes) > 0:
            unlock(s, node)
        return RESERVED if over else BUDGET
    admit(s)
    if len(s.nodes) > 0:
        share_tree(s, i, node)
    put_in_batch(s, i, tokens, tokens == all_of_it)
    charge(s, lim, tokens, min(r.limit, CLIP) if tokens == all_of_it else 0, slack)
    return next_stop(s, lim)


@jit()
def offer_to_the_end(s, lim, old, slack):
    """Where outputs are as long as their limits: the head joins if memory lasts until each ends."""
    n, i = s.n, head(s)
    r = s.requests[i]
    tokens = todo(s, i)
    whole = blocks_for(lim, tokens) * n.block
    if not old and whole > min(left_now(s), left_in_all(s)):
        return RESERVED
    room = left_now(s) - (r.prompt if old else whole)
    if not ends_in_time(s, i, room, 0 if old else 1, 1 if old else 0):
        return RESERVED
    chunk = lim.chunked_prefill_size - n.spent
    all_of_it = lim.chunked_prefill_size <= 0 or tokens <= chunk
    if not all_of_it and chunk <= 0:
        return BUDGET
    tokens = tokens if all_of_it else chunk
    admit(s)
    put_in_batch(s, i, tokens, all_of_it)
    charge(s, lim, tokens, min(r.limit, CLIP) if all_of_it else 0, slack)
    return next_stop(s, lim)


@jit()
def prefill(s, lim, by_prefix, old):
    """Whether there is a batch of prompts: the one begun, then the line in its order."""
    n = s.n
    if n.partial < 0 and (n.full > 0 or n.waiting == 0):
        return False
    seats = lim.max_num_seqs - (n.batch if old else max(n.batch, n.running))
    if seats <= 0 and (old or n.partial < 0):
        n.full = SEATS
        return False
    touch = not (by_prefix and sort_by_prefix(s, 1 if old else 0, not old) and old)
    promise(s, lim)
    slack = 0 if old else n.block
    if n.partial >= 0:
        go_on(s, lim, old, slack)
    why = GO
    while n.waiting > 0 and why == GO:
        if n.joining + (n.partial >= 0) >= seats:
            why = SEATS
        elif lim.ignore_eos == 1 and len(s.nodes) == 0:
            why = offer_to_the_end(s, lim, old, slack)
        else:
            why = offer(s, lim, touch, old, slack)
    if why in (SEATS, RESERVED):
        n.full = why
    keep_out(s, why)
    return n.prefill > 0


@jit()
def take_prefill_pages(s, lim):
    n = s.n
    pages = n.prefill
    if n.block > 1:
        pages = blocks_for(lim, n.prefill + n.block * (n.joining + (n.partial >= 0)))
    make_blank(s, pages)
    n.most = 1
    if not prefill_pages(s, lim):
        die(s, OUT_OF_MEMORY)


@jit()
def decode_beside(s):
    """The running decode in the same step."""
    drop_done(s)
    if s.n.batch > 0:
        make_blank(s, s.n.batch)
        if blocks_wanted(s) > s.n.free:
            die(s, OUT_OF_MEMORY)
            return
        decode_from_pages(s)
        keep_ratio(s)
    mix_batch(s)


@jit()
def fits(s, old):
    """Whether all may decode."""
    if old and s.n.blank < s.n.batch:
        evict(s, s.n.batch)
    return decode_is_blank(s)


@jit()
def retract_some(s, lim, old):
    """Fewest outputs first, until the rest may go on; at 0.4.0 until it may for twenty tokens."""
    n = s.n
    sort_for_retraction(s)
    short = True
    while short and n.batch > 1:
        retract_last(s, lim)
        short = n.blank < 20 * n.batch if old else not decode_is_blank(s)
    if blocks_wanted(s) > n.blank:
        die(s, NOTHING_TO_RETRACT)
    raise_ratio(s, 0 if old else 1)
    keep_ratio(s)


@jit()
def decode_all(s, lim, old):
    """Who is done leaves, and the others have a token each, for which some may be retracted."""
    n = s.n
    why = n.full if n.full > 0 else n.stop
    shrank = drop_done(s)
    if shrank:
        n.full = 0
    if n.batch > 0:
        if not fits(s, old):
            why = BLOCKS
            retract_some(s, lim, old)
            n.full = 0
        if n.died == 0:
            make_blank(s, n.batch)
            decode_from_pages(s)
            n.most = min(n.most, steps_without_eviction(s))
    elif shrank and n.waiting > 0:
        idle_once(s)
    if n.full == 0 and n.waiting > 0:
        n.most = 1
    keep_out(s, why)


@jit(numba.void(STATE, LIMITS, numba.boolean, numba.boolean))
def schedule(s, lim, by_prefix, old):
    n = s.n
    decay_ratio(s, lim)
    take_up_last_batch(s, old)
    if prefill(s, lim, by_prefix, old):
        take_prefill_pages(s, lim)
        if n.died == 0 and lim.enable_mixed_chunk == 1:
            decode_beside(s)
        return
    decode_all(s, lim, old)
    if n.decodes == 0 and (old or n.waiting == 0):
        reset_ratio(s, lim)


def door(prompt, limit, limits: Limits):
    """What SGLang refuses, and what it cuts a declared limit to, so that it fits the pool alone."""
    page, pool = limits.block_size, limits.num_gpu_blocks * limits.block_size
    longest = min(limits.max_model_len, pool)
    most = np.minimum(longest - 2 - prompt, pool - -(-prompt // page) * page - page - 1)
    refused = np.where(most < 1, TOO_LARGE, ADMITTED).astype(np.int32)
    refused[prompt >= longest - 6] = TOO_LONG_AN_INPUT
    return refused, np.minimum(limit, np.maximum(most, 1))


def starts(limits: Limits) -> Limits:
    pool = limits.num_gpu_blocks * limits.block_size
    return limits._replace(max_num_seqs=max(1, min(limits.max_num_seqs, pool // 2)))


def starts_0_4_0(limits: Limits) -> Limits:
    pool = limits.num_gpu_blocks * limits.block_size
    return starts(limits._replace(block_size=1, num_gpu_blocks=pool))


AS_RECORDED = {
    "paged": True,
    "radix": True,
    "door": door,
    "starts": starts,
    "note": "Synchronous, as recorded. The product overlaps by default: a batch is chosen before"
    " the last one is through, so that a finish shows a step later there.",
}
FROM_SOURCE = AS_RECORDED | {
    "starts": starts_0_4_0,
    "note": "From its source, not recorded. Memory is counted in tokens, not in pages.",
}


@policy("SGLang 0.5.18", *KEEPS, **AS_RECORDED)
def sglang(s, lim):
    """Prompts first and alone while promises last, in order of arrival; decodes stand still."""
    schedule(s, lim, False, False)


@policy("SGLang 0.5.18, lpm", *KEEPS, **AS_RECORDED)
def sglang_lpm(s, lim):
    """As SGLang, but who has most in the prefix cache goes first, and who may have it soon last."""
    schedule(s, lim, True, False)


@policy("SGLang 0.4.0", *KEEPS, **FROM_SOURCE)
def sglang_0_4_0(s, lim):
    """Longest prefix match, the default then; a full batch keeps even a begun prompt waiting."""
    schedule(s, lim, True, True)


@policy("SGLang 0.4.0, fcfs", *KEEPS, **FROM_SOURCE)
def sglang_0_4_0_fcfs(s, lim):
    """The same in order of arrival."""
    schedule(s, lim, False, True)
