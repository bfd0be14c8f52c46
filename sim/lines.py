"""Who stands where: the waiting line, the running in order of admission, seats, the decoding."""

from .jit import jit


@jit()
def goes_first(s, i, j):
    """Whether request i goes before j in an ordered line."""
    a, b = s.requests[i].rank, s.requests[j].rank
    return a < b or (a == b and i < j)


@jit()
def head(s):
    """The request at the head of the waiting line."""
    return s.waiting[s.n.head]


@jit()
def in_line(s, k):
    """The place in `waiting` of the k-th in line."""
    place = s.n.head + k
    return place if place < len(s.waiting) else place - len(s.waiting)


@jit()
def join_line(s, i):
    """Request i joins the waiting line: at its end, or where its rank belongs."""
    n = s.n
    n.waiting += 1
    if n.ordered == 0:
        place = n.head + n.waiting - 1
        s.waiting[place if place < len(s.waiting) else place - len(s.waiting)] = i
        return
    place = n.waiting - 1
    while place > 0 and goes_first(s, i, s.waiting[(place - 1) >> 1]):
        s.waiting[place] = s.waiting[(place - 1) >> 1]
        place = (place - 1) >> 1
    s.waiting[place] = i


@jit()
def rejoin_line(s, i):
    """Request i heads the waiting line again; in an ordered one it goes where its rank belongs."""
    n = s.n
    if n.ordered == 1:
        join_line(s, i)
        return
    n.head = n.head - 1 if n.head > 0 else len(s.waiting) - 1
    s.waiting[n.head] = i
    n.waiting += 1


@jit()
def leave_line(s):
    """The head of the waiting line leaves it. Returns its id."""
    n = s.n
    i = head(s)
    n.waiting -= 1
    if n.ordered == 0:
        n.head = n.head + 1 if n.head + 1 < len(s.waiting) else 0
        return i
    last, place, child = s.waiting[n.waiting], 0, 1
    while child < n.waiting:
        if child + 1 < n.waiting and goes_first(s, s.waiting[child + 1], s.waiting[child]):
            child += 1
        if not goes_first(s, s.waiting[child], last):
            break
        s.waiting[place] = s.waiting[child]
        place, child = child, 2 * child + 1
    s.waiting[place] = last
    return i


@jit()
def sit_down(s, i):
    """Request i takes the lowest free seat, as the newest of the running."""
    n = s.n
    seat = n.lowest
    while s.seats[seat] >= 0:
        seat += 1
    s.seats[seat], n.lowest = i, seat + 1
    n.running += 1
    s.requests[i].seat = seat
    _link(s, i)


@jit()
def _link(s, i):
    """Request i is the newest of the running."""
    n = s.n
    r = s.requests[i]
    r.before, r.after = n.newest, -1
    if n.newest >= 0:
        s.requests[n.newest].after = i
    else:
        n.eldest = i
    n.newest = i


@jit()
def _unlink(s, i):
    n = s.n
    r = s.requests[i]
    if r.before >= 0:
        s.requests[r.before].after = r.after
    else:
        n.eldest = r.after
    if r.after >= 0:
        s.requests[r.after].before = r.before
    else:
        n.newest = r.before


@jit()
def go_last(s, i):
    """Request i, which runs, counts as the newest of the running."""
    if s.n.newest != i:
        _unlink(s, i)
        _link(s, i)


@jit()
def stand_up(s, i):
    """Request i gives its seat back."""
    n = s.n
    r = s.requests[i]
    s.seats[r.seat] = -1
    n.lowest = min(n.lowest, r.seat)
    n.running -= 1
    _unlink(s, i)


@jit()
def _place_decoding(s, i, place):
    """Put request i into the heap of the decoding from `place` on, upwards."""
    ends = s.requests[i].ends
    while place > 0:
        parent = (place - 1) >> 1
        if s.requests[s.decoding[parent]].ends <= ends:
            break
        s.decoding[place] = s.decoding[parent]
        place = parent
    s.decoding[place] = i


@jit()
def join_decoding(s, i):
    """Request i, whose `ends` is set, decodes from now on."""
    s.n.decoding += 1
    _place_decoding(s, i, s.n.decoding - 1)


@jit()
def leave_decoding(s, place):
    """The request at `place` of the heap decodes no longer; place 0 has the one that ends first."""
    s.n.decoding -= 1
    last = s.decoding[s.n.decoding]
    if place == s.n.decoding:
        return
    ends, hole, child = s.requests[last].ends, place, 2 * place + 1
    while child < s.n.decoding:
        other = child + 1
        if (
            other < s.n.decoding
            and s.requests[s.decoding[other]].ends < s.requests[s.decoding[child]].ends
        ):
            child = other
        if s.requests[s.decoding[child]].ends >= ends:
            break
        s.decoding[hole] = s.decoding[child]
        hole, child = child, 2 * child + 1
    _place_decoding(s, last, hole)


@jit()
def leave_prefilling(s, i):
    """Request i, somewhere among the prefilling, is so no longer."""
    kept = 0
    for k in range(s.n.prefilling):
        if s.prefilling[k] != i:
            s.prefilling[kept] = s.prefilling[k]
            kept += 1
    s.n.prefilling = kept
