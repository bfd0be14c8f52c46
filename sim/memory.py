"""KV memory: blocks that requests hold, and the prefix cache that remembers what is in them.

Blocks are alike until the prefix cache knows their content; so they are counted, and only a known
one is a row of its own (`entries`). A known block that nobody uses is still free: it is taken last,
the one that was released longest ago first, and forgotten then.
"""

import numpy as np

from .jit import jit
from .radix import bucket, known_at, unlock
from .state import DECODE

BLANK = np.iinfo(np.int64).min  # the identity of a block of no known content


@jit()
def blocks_for(lim, tokens):
    """Blocks that so many tokens take."""
    return -(-tokens // lim.block_size)


@jit()
def kv_of(s, i):
    """Tokens of request i whose KV is there."""
    r = s.requests[i]
    if r.phase != DECODE:
        return r.cached
    return r.prompt + r.output - (r.ends - s.n.ticks) - 1


@jit()
def blocks_of(s, i):
    """Blocks that request i holds."""
    r = s.requests[i]
    if r.phase != DECODE or s.n.block == 0:
        return r.blocks
    return -(-kv_of(s, i) // s.n.block)


@jit()
def take(s, count):
    """So many free blocks are in use now; there are as many."""
    n = s.n
    n.free -= count
    n.blank -= count
    while n.blank < 0:
        forget(s, n.oldest)
        n.blank += 1


@jit()
def give_back(s, i, count):
    """The `count` blocks that request i holds are free, the deepest first."""
    n = s.n
    r = s.requests[i]
    if len(s.entries) == 0:
        n.free += count - r.registered
        n.blank += count - r.registered
        if len(s.nodes) > 0:
            unlock(s, s.table[r.seat, 0])
        r.registered = 0
        return
    for k in range(count - 1, -1, -1):
        if k >= r.registered and n.queues_blanks == 0:
            n.free += 1
            n.blank += 1
            continue
        e = new_entry(s, BLANK) if k >= r.registered else s.table[r.seat, k]
        entry = s.entries[e]
        entry.users -= 1
        if entry.users == 0:
            n.free += 1
            entry.older, entry.newer = n.youngest, -1
            if n.youngest >= 0:
                s.entries[n.youngest].newer = e
            else:
                n.oldest = e
            n.youngest = e
    r.registered = 0


@jit()
def _unlink(s, e):
    """Entry e is no longer among the known blocks that nobody uses."""
    entry = s.entries[e]
    if entry.older >= 0:
        s.entries[entry.older].newer = entry.newer
    else:
        s.n.oldest = entry.newer
    if entry.newer >= 0:
        s.entries[entry.newer].older = entry.older
    else:
        s.n.youngest = entry.older


@jit()
def forget(s, e):
    """Entry e, used by nobody, is blank again."""
    _unlink(s, e)
    entry = s.entries[e]
    if entry.identity != BLANK:
        b = bucket(s, entry.identity)
        before, at = -1, s.buckets[b, 0]
        while at != e:
            before, at = at, s.entries[at].next
        if before >= 0:
            s.entries[before].next = entry.next
        else:
            s.buckets[b, 0] = entry.next
        if s.buckets[b, 1] == e:
            s.buckets[b, 1] = before
    s.n.entries -= 1
    s.unused[s.n.entries] = e


@jit()
def new_entry(s, identity):
    """A row of `entries` for a block that one request uses."""
    e = s.unused[s.n.entries]
    s.n.entries += 1
    entry = s.entries[e]
    entry.identity, entry.users, entry.next = identity, 1, -1
    return e


@jit()
def register(s, i, tokens):
    """The prefix cache knows request i's full blocks up to `tokens`."""
    n = s.n
    r = s.requests[i]
    full = min(tokens // n.block, s.offsets[i + 1] - s.offsets[i])
    while r.registered < full:
        identity = s.identities[s.offsets[i] + r.registered]
        e = new_entry(s, identity)
        b = bucket(s, identity)
        if s.buckets[b, 1] >= 0:
            s.entries[s.buckets[b, 1]].next = e
        else:
            s.buckets[b, 0] = e
        s.buckets[b, 1] = e
        s.table[r.seat, r.registered] = e
        r.registered += 1


@jit()
def known(s, identity):
    """The earliest registered entry of this identity, or -1."""
    e = s.buckets[bucket(s, identity), 0]
    while e >= 0 and s.entries[e].identity != identity:
        e = s.entries[e].next
    return e


@jit()
def cached_prefix(s, i):
    """(Blocks at the front of request i that the prefix cache knows, how many of them are free.)

    At least one token is always left to compute.
    """
    r = s.requests[i]
    most = min((r.prompt + r.emitted - 1) // s.n.block, s.offsets[i + 1] - s.offsets[i])
    hits, unused = 0, 0
    while hits < most:
        e = known(s, s.identities[s.offsets[i] + hits])
        if e < 0:
            break
        unused += s.entries[e].users == 0
        hits += 1
    return hits, unused


@jit()
def share(s, i, hits):
    """Request i, which has a seat, uses the first `hits` blocks that the cache knows of it."""
    r = s.requests[i]
    for k in range(hits):
        e = known(s, s.identities[s.offsets[i] + k])
        entry = s.entries[e]
        if entry.users == 0:
            _unlink(s, e)
            s.n.free -= 1
        entry.users += 1
        s.table[r.seat, k] = e
    r.registered = r.blocks = hits
    r.cached = r.mark = hits * s.n.block
    s.n.kv += r.cached


@jit()
def share_tree(s, i, node):
    """Request i, which has a seat, uses the blocks down to a node that is locked for it."""
    r = s.requests[i]
    r.registered = r.blocks = known_at(s, node)
    r.cached = r.mark = r.blocks * s.n.block
    s.table[r.seat, 0] = node
    s.n.kv += r.cached
