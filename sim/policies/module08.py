"""The three policies of the course module, float for float (`python -m sim golden`)."""

from ..lines import head
from ..state import BATCH, BUDGET
from ..verbs import (
    admit,
    decode,
    grant,
    keep_out,
    leave_together,
    may_admit,
    pad,
    pad_with_the_done,
    room,
    todo,
)
from . import policy


@policy("Static batching", "max_num_seqs")
def static(s, lim):
    """A batch starts together, padded to its longest prompt, and leaves when all of it is done."""
    decode(s)
    pad_with_the_done(s)
    longest, begins = 0, s.n.running == 0
    while may_admit(s, begins, BATCH):
        i = admit(s)
        grant(s, i, todo(s, i))
        longest = max(longest, todo(s, i))
    pad(s, longest * s.n.prefilling - s.n.prefill, 0)
    keep_out(s, BATCH)
    leave_together(s)


@policy("Continuous batching", "max_num_seqs", "max_num_batched_tokens")
def continuous(s, lim):
    """Whoever is done leaves at once; whole prompts join the decodes' step while they fit."""
    decode(s)
    while may_admit(s, todo(s, head(s)) <= room(s, lim), BUDGET):
        i = admit(s)
        grant(s, i, todo(s, i))
    if s.n.running == 0 and s.n.waiting > 0:  # a prompt above the budget runs alone
        i = admit(s)
        grant(s, i, todo(s, i))


@policy("Chunked prefill", "max_num_seqs", "max_num_batched_tokens", "chunk")
def chunked(s, lim):
    """Decodes never wait; each prompt takes a chunk a step of what the budget leaves."""
    decode(s)
    while may_admit(s, room(s, lim) > 0, BUDGET):
        admit(s)
    for k in range(s.n.prefilling):
        i = s.prefilling[k]
        tokens = min(lim.chunk, todo(s, i), room(s, lim))
        if tokens > 0:
            grant(s, i, tokens)
