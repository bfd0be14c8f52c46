"""vLLM's first scheduler, from its description: prompts and decodes are two model calls."""

from ..jit import jit
from ..lines import head
from ..memory import blocks_for
from ..state import BLOCKS, BUDGET
from ..verbs import (
    admit,
    blocks_wanted,
    decode_from_pages,
    decode_one,
    grant_pages,
    keep_out,
    may_admit,
    preempt,
    room,
    todo,
)
from . import policy

KEEPS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_gpu_blocks", "max_model_len")


@jit()
def append_in_order(s):
    """A free block is asked for before each token, needed or not; the newest gives it."""
    i = s.n.eldest
    while i >= 0:
        while s.n.free == 0 and s.n.newest != i:
            preempt(s, s.n.newest)
        after = s.requests[i].after
        if s.n.free == 0:
            preempt(s, i)
        else:
            decode_one(s, i)
        i = after


@policy("vLLM 0.6.6 (V0)", *KEEPS, paged=True, margin=0.01)
def vllm_v0(s, lim):
    """Prompts first and alone, whole ones while they fit; decodes stand still meanwhile."""
    margin = lim.num_gpu_blocks // 100
    while may_admit(s, todo(s, head(s)) <= room(s, lim), BUDGET):
        if blocks_for(lim, todo(s, head(s))) + margin > s.n.free:
            keep_out(s, BLOCKS)
            break
        i = admit(s)
        grant_pages(s, lim, i, todo(s, i))
    n = s.n
    if n.prefill > 0 or n.decoding == 0:
        return
    if n.decoding <= n.free:
        n.most = 1 + (n.free - blocks_wanted(s)) // n.decoding
        decode_from_pages(s)
    else:
        append_in_order(s)
