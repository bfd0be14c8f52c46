"""The running batch and its reservations, as SGLang keeps them.

It has an order of its own: the last prefill batch joins at its end, a mixed one brings the new to
its front, a retraction sorts it. Who is done stays in it until the next decode drops them.
"""

from .jit import jit
from .lines import go_last, in_line
from .memory import blocks_for
from .radix import known_at, make_blank, walk
from .state import DECODE, LONGEST_SORTED
from .verbs import blocks_wanted, grant, retract

CLIP = 4096  # tokens of an output to come that are reserved at most
AHEAD = 20  # tokens that each request kept is to have after a retraction
SHARED = 32  # tokens, in the cache or with another in line, from which prompts count as alike


@jit()
def has_left(s, i):
    return s.requests[i].finish >= 0


@jit()
def emitted_by(s, i):
    """Output tokens of request i so far."""
    r = s.requests[i]
    return r.output - (r.ends - s.n.ticks) if r.phase == DECODE else r.emitted


@jit()
def reset_ratio(s, lim):
    s.n.ratio = min(0.7 * lim.schedule_conservativeness, 1.0)


@jit()
def decay_ratio(s, lim):
    """Of outputs to come a share is reserved, which each decode lowers."""
    n = s.n
    if n.plan == 1:
        reset_ratio(s, lim)
    first = min(0.7 * lim.schedule_conservativeness, 1.0)
    least = first * 0.14
    decay = (first - least) / 600
    while n.ratio_at < n.ticks and n.ratio > least:
        n.ratio = max(n.ratio - decay, least)
        n.ratio_at += 1
    n.ratio_at = n.ticks


@jit()
def keep_ratio(s):
    """It does not decay for the decode of this step."""
    s.n.ratio_at = s.n.ticks + 1


@jit()
def _keep_undone(s, first, last):
    """Of these rows of the batch, those of who is not done, from `first` on. Returns the end."""
    kept = first
    for k in range(first, last):
        if not has_left(s, s.batch[k, 0]):
            s.batch[kept, 0] = s.batch[k, 0]
            kept += 1
    return kept


@jit()
def join_batch(s, drops):
    """Who was in the last prefill batch runs on, unless it is done and the batch drops these.

    Returns whether anybody was dropped.
    """
    n = s.n
    last = n.batch + n.joining
    kept = _keep_undone(s, n.batch, last) if drops else last
    for k in range(n.batch, kept):
        if not has_left(s, s.batch[k, 0]):
            go_last(s, s.batch[k, 0])
    n.batch, n.joining = kept, 0
    return kept < last


@jit()
def drop_done(s):
    """Who is done leaves the running batch. Returns whether anybody is."""
    n = s.n
    if n.batch + n.joining == n.running - (n.partial >= 0):
        return False
    last, end = n.batch, n.batch + n.joining
    n.batch = _keep_undone(s, 0, last)
    for k in range(last, end):
        s.batch[n.batch + k - last, 0] = s.batch[k, 0]
    return n.batch < last


@jit()
def mix_batch(s):
    """The running batch is part of this step's, behind the prompts."""
    n = s.n
    for k in range(n.batch):
        s.batch[k, 1] = s.batch[k, 0]
    for k in range(n.joining):
        s.batch[k, 0] = s.batch[n.batch + k, 0]
    for k in range(n.batch):
        s.batch[n.joining + k, 0] = s.batch[k, 1]
    n.joining += n.batch
    n.batch = 0


@jit()
def put_in_batch(s, i, tokens, whole):
    """`tokens` of request i's prompt are in this step's batch: all that are left, or a part."""
    n = s.n
    grant(s, i, tokens)
    if whole:
        s.batch[n.batch + n.joining, 0] = i
        n.joining += 1
        n.partial = -1 if n.partial == i else n.partial
    else:
        n.partial = i


@jit()
def left_in_all(s):
    """Tokens of the pool that neither this step nor a promise claims."""
    return s.n.free * s.n.block - s.n.promised


@jit()
def left_now(s):
    """Tokens of the pool that this step does not claim."""
    return s.n.free * s.n.block - s.n.claimed


@jit()
def charge(s, lim, tokens, outputs, slack):
    """The batch claims so many tokens, in whole pages, and promises so many."""
    whole = blocks_for(lim, tokens) * s.n.block
    s.n.promised += whole + outputs + slack
    s.n.claimed += whole + slack
    s.n.spent += whole


@jit()
def promise(s, lim):
    """The books of a prefill batch begin with what the running batch is promised, in its order."""
    n = s.n
    promised = 0.0
    for k in range(n.batch):
        i = s.batch[k, 0]
        promised += min(s.requests[i].limit - emitted_by(s, i), CLIP) * n.ratio
    n.claimed = n.spent = n.batch if lim.enable_mixed_chunk == 1 else 0
    n.promised = n.claimed + promised
    n.states = -1


@jit()
def _expect(s, i, late):
    """Write request i's output to come among the others', by length."""
    n = s.n
    left = s.requests[i].limit - emitted_by(s, i)
    if left <= 0:
        return
    place = 0
    while place < n.states and (
        s.batch[place, 1] < left or (not late and s.batch[place, 1] == left)
    ):
        place += 1
    if late and place == n.states:  # the engine's own quirk: the longest goes before the last
        place = max(0, n.states - 1)
    for k in range(n.states, place, -1):
        s.batch[k, 1], s.batch[k, 2] = s.batch[k - 1, 1], s.batch[k - 1, 2]
    s.batch[place, 1], s.batch[place, 2] = left, s.requests[i].prompt + emitted_by(s, i)
    n.states += 1


@jit()
def ends_in_time(s, i, room, margin, by_next):
    """Whether `room` tokens last until each of the batch ends, whose tokens the next ones use.

    margin: tokens for each that have to be left; by_next: the steps are those of who ends next.
    """
    n = s.n
    if n.states >= 0:
        _expect(s, i, True)
    else:
        n.states = 0
        _expect(s, i, False)
        for k in range(n.batch + n.joining):
            _expect(s, s.batch[k, 0], False)
        if n.partial >= 0:
            _expect(s, n.partial, False)
    for k in range(n.states):
        rest = n.states - k
        steps = s.batch[min(k + by_next, n.states - 1), 1]
        if room - steps * rest <= margin * rest:
            return False
        room += s.batch[k, 2]
    return True


@jit()
def sort_by_prefix(s, shy, compares):
    """The line goes by what the cache knows of each, the most first; only while it is short.

    shy: tokens at the end not to look for; compares: who is like another in line, and hardly in
    the cache, goes last, since that one brings it there. Returns whether it was looked at.
    """
    n = s.n
    if len(s.nodes) == 0 or n.waiting > LONGEST_SORTED:
        return False
    for k in range(n.waiting):
        i = s.waiting[in_line(s, k)]
        r = s.requests[i]
        known = r.prompt + r.emitted
        hit = known_at(s, walk(s, i, (known - shy) // n.block, True)) * n.block
        r.rank = -min(hit, known - 1)
        s.batch[k, 1] = r.opening if compares and hit <= SHARED <= known else -1
        for like in range(k if s.batch[k, 1] >= 0 else 0):
            if s.batch[like, 1] == s.batch[k, 1]:
                r.rank, s.batch[k, 1] = 1.0, -1
                break
    for k in range(1, n.waiting):
        i, place = s.waiting[in_line(s, k)], k
        while place > 0:
            j = s.waiting[in_line(s, place - 1)]
            if s.requests[j].rank <= s.requests[i].rank:
                break
            s.waiting[in_line(s, place)] = j
            place -= 1
        s.waiting[in_line(s, place)] = i
    return True


@jit()
def _outranks(s, i, j):
    """Whether a retraction spares request i rather than j."""
    a, b = emitted_by(s, i), emitted_by(s, j)
    return a > b or (a == b and s.requests[i].prompt < s.requests[j].prompt)


@jit()
def sort_for_retraction(s):
    """The running batch goes by outputs, the most first, then by prompts, the shortest first."""
    n = s.n
    for k in range(1, n.batch):
        i, place = s.batch[k, 0], k
        while place > 0 and _outranks(s, i, s.batch[place - 1, 0]):
            s.batch[place, 0] = s.batch[place - 1, 0]
            place -= 1
        s.batch[place, 0] = i
    for k in range(n.batch):
        go_last(s, s.batch[k, 0])


@jit()
def retract_last(s, lim):
    """The last of the running batch is to be computed again, and the rest gets room to go on."""
    s.n.batch -= 1
    retract(s, s.batch[s.n.batch, 0])
    make_blank(s, blocks_for(lim, AHEAD * s.n.batch))


@jit()
def raise_ratio(s, one):
    """What a retraction makes of the ratio, from who is kept."""
    n = s.n
    emitted, limits = 0, 0
    for k in range(n.batch):
        i = s.batch[k, 0]
        emitted += emitted_by(s, i)
        limits += s.requests[i].limit
    n.ratio = min(1.0, (emitted + AHEAD * n.batch) / (limits + one))


@jit()
def decode_is_blank(s):
    """Whether the blocks for the batch's next tokens are there, those in the tree let go for it."""
    make_blank(s, blocks_wanted(s))
    return s.n.blank >= blocks_wanted(s)


@jit()
def steps_without_eviction(s):
    """Decodes in a row, this one planned, that each find a blank block for each request."""
    n = s.n
    if n.blank == n.free:  # nothing to evict
        return n.most
    return 1 if n.blank < n.batch else 2 + (n.blank - n.batch) // n.batch * n.block
