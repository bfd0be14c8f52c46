"""A prefix cache as a radix tree, SGLang's: a node is a run of KV blocks, children go on from it.

A block in the tree is free while no request uses its node, and blank once the node is evicted: a
whole leaf that nobody uses, the one walked over longest ago first. Identities are of a block and
all before it, so that a node is found by its first block wherever it hangs.
"""

import numba
import numpy as np

from .jit import jit
from .state import STATE

ROOT = 0


@jit()
def bucket(s, identity):
    """Where what is known by this identity is listed."""
    return (((np.int64(identity) & 0x7FFFFFFF) * 0x9E3779B1) >> 8) & (len(s.buckets) - 1)


@jit()
def identity_of(s, i, block):
    """Of request i's tokens up to the end of that block."""
    if s.n.in_short == 0:
        return np.int64(s.identities[s.offsets[i] + block])
    if block < s.identities[2 * i + 1]:
        return -1 - (np.int64(s.identities[2 * i]) + block)
    return s.offsets[i] + block


@jit()
def _child(s, identity):
    """The node that begins with this block, or -1."""
    node = s.buckets[bucket(s, identity), 0]
    while node >= 0 and s.nodes[node].identity != identity:
        node = s.nodes[node].next
    return node


@jit()
def _list(s, node):
    b = bucket(s, s.nodes[node].identity)
    s.nodes[node].next, s.buckets[b, 0] = s.buckets[b, 0], node


@jit()
def _unlist(s, node):
    b = bucket(s, s.nodes[node].identity)
    before, at = -1, s.buckets[b, 0]
    while at != node:
        before, at = at, s.nodes[at].next
    if before >= 0:
        s.nodes[before].next = s.nodes[node].next
    else:
        s.buckets[b, 0] = s.nodes[node].next


@jit()
def _seat_leaf(s, place, node):
    s.nodes[place].leaf = node
    s.nodes[node].place = place


@jit()
def _up(s, node, place):
    """Put a leaf into the heap from `place` on, upwards."""
    while place > 0:
        above = s.nodes[(place - 1) >> 1].leaf
        if s.nodes[above].stamp <= s.nodes[node].stamp:
            break
        _seat_leaf(s, place, above)
        place = (place - 1) >> 1
    _seat_leaf(s, place, node)


@jit()
def _down(s, node, place):
    """The same, downwards."""
    leaves, child = s.n.leaves, 2 * place + 1
    while child < leaves:
        if (
            child + 1 < leaves
            and s.nodes[s.nodes[child + 1].leaf].stamp < s.nodes[s.nodes[child].leaf].stamp
        ):
            child += 1
        below = s.nodes[child].leaf
        if s.nodes[below].stamp >= s.nodes[node].stamp:
            break
        _seat_leaf(s, place, below)
        place, child = child, 2 * child + 1
    _seat_leaf(s, place, node)


@jit()
def _offer(s, node):
    """The node may be evicted now, if it is a leaf that nobody uses."""
    r = s.nodes[node]
    if node != ROOT and r.children == 0 and r.users == 0 and r.place < 0:
        s.n.leaves += 1
        _up(s, node, s.n.leaves - 1)


@jit()
def _withdraw(s, node):
    """The node may be evicted no longer."""
    place = s.nodes[node].place
    if place < 0:
        return
    s.nodes[node].place = -1
    s.n.leaves -= 1
    last = s.nodes[s.n.leaves].leaf
    if last != node:
        _down(s, last, place)
        _up(s, last, s.nodes[last].place)


@jit()
def _new_node(s, parent, owner, depth, length):
    """A node that nobody uses and that was walked over just now."""
    n = s.n
    node = s.unused[n.entries]
    n.entries += 1
    n.stamp += 1
    r = s.nodes[node]
    r.identity, r.stamp = identity_of(s, owner, depth), n.stamp
    r.parent, r.owner, r.depth, r.length = parent, owner, depth, length
    r.children = r.users = 0
    r.place = -1
    _list(s, node)
    return node


@jit()
def _split(s, node, length):
    """The first `length` blocks of the node are a node of their own now: returns that one."""
    r = s.nodes[node]
    _unlist(s, node)
    upper = _new_node(s, r.parent, r.owner, r.depth, length)
    s.nodes[upper].users, s.nodes[upper].children = r.users, 1
    r.parent = upper
    r.depth += length
    r.length -= length
    r.identity = identity_of(s, r.owner, r.depth)
    _list(s, node)
    return upper


@jit()
def _in_common(s, node, i, most):
    """Of the node's first `most` blocks, those that request i has there too: one at least."""
    r = s.nodes[node]
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) >> 1
        at = r.depth + middle - 1
        if identity_of(s, r.owner, at) == identity_of(s, i, at):
            low = middle
        else:
            high = middle - 1
    return low


@jit(numba.int64(STATE, numba.int64, numba.int64, numba.boolean))
def walk(s, i, blocks, touch):
    """The node that ends the longest known prefix of request i's first `blocks`.

    Splits the node within which it ends. touch: the nodes walked over are the latest used.
    """
    s.n.stamp += touch
    stamp = s.n.stamp
    node, at = ROOT, 0
    while at < blocks:
        child = _child(s, identity_of(s, i, at))
        if child < 0:
            break
        r = s.nodes[child]
        if touch:
            r.stamp = stamp
            if r.place >= 0:
                _down(s, child, r.place)
        most = min(r.length, blocks - at)
        last = at + most - 1
        alike = identity_of(s, r.owner, last) == identity_of(s, i, last)
        common = most if alike else _in_common(s, child, i, most)
        at += common
        if common < r.length:
            return _split(s, child, common)
        node = child
    return node


@jit()
def known_at(s, node):
    """Blocks from the root to the node's end."""
    return s.nodes[node].depth + s.nodes[node].length


@jit(numba.void(STATE, numba.int64))
def lock(s, node):
    """One more request uses the node and all above it."""
    while node != ROOT:
        r = s.nodes[node]
        if r.users == 0:
            s.n.free -= r.length
            _withdraw(s, node)
        r.users += 1
        node = r.parent


@jit(numba.void(STATE, numba.int64))
def unlock(s, node):
    """One request fewer does."""
    while node != ROOT:
        r = s.nodes[node]
        r.users -= 1
        if r.users == 0:
            s.n.free += r.length
            _offer(s, node)
        node = r.parent


@jit(numba.void(STATE, numba.int64))
def evict(s, blocks):
    """Whole leaves are blank again until so many blocks are, or nobody's is left."""
    n = s.n
    while blocks > 0 and n.leaves > 0:
        node = s.nodes[ROOT].leaf
        r = s.nodes[node]
        _withdraw(s, node)
        _unlist(s, node)
        n.entries -= 1
        s.unused[n.entries] = node
        n.blank += r.length
        blocks -= r.length
        s.nodes[r.parent].children -= 1
        _offer(s, r.parent)


@jit()
def make_blank(s, blocks):
    """Evict until so many blocks are blank, or nobody's is left in the tree."""
    if s.n.blank < blocks:
        evict(s, blocks - s.n.blank)


@jit(numba.void(STATE, numba.int64))
def remember(s, i):
    """The full blocks of request i, which has a seat, are in the tree from now on.

    Those that were there already are blank again. Unless it is done, it uses the tree's.
    """
    n = s.n
    r = s.requests[i]
    full = r.cached // n.block
    node = walk(s, i, full, True)
    known = known_at(s, node)
    n.free += known - r.registered
    n.blank += known - r.registered
    if known < full:
        leaf = _new_node(s, node, i, known, full - known)
        s.nodes[node].children += 1
        _withdraw(s, node)
        _offer(s, leaf)
        n.free += full - known
    r.registered = full
    if r.emitted < r.output:
        node = walk(s, i, full, True)
        lock(s, node)
        unlock(s, s.table[r.seat, 0])
        s.table[r.seat, 0] = node
