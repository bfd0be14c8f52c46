"""Everything a scheduler may look at or change, and the verbs that keep its books.

Requests are numbered in arrival order, so the smaller id is the older one. Times are milliseconds.

Decoding requests move in lockstep: a step that decodes gives one token to each of them. So a
decode is not counted request by request: `ticks` counts decode steps, and `ends` says at which
tick a request emits its last token. A step then costs as much as it has prompts and ends, however
many decode beside them. A prompt's progress stands in `cached`; its work left is `todo`.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from .jit import jit

# What a seat is used for. STALL: it holds a prompt that got no token in the step; HELD: its request
# is done, and static batching keeps the seat until the batch is.
PREFILL, STALL, DECODE, HELD = range(4)
PHASES = ("prefill", "stalled", "decode", "padding")

# What kept the head of the waiting line out in a step.
NOTHING, SEATS, BUDGET, BATCH = range(4)
STOPS = ("the step in progress", "a free seat", "token budget", "the running batch to end")

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("start", "f8"),  # seat taken
        ("first", "f8"),  # first output token
        ("last", "f8"),  # last output token
        ("finish", "f8"),  # seat given back
        ("since", "f8"),  # when its open segment began
        ("prompt", "i8"),
        ("output", "i8"),  # tokens that it will really emit
        ("limit", "i8"),  # max_tokens that it declared
        ("cached", "i8"),  # prompt tokens computed
        ("grant", "i8"),  # prompt tokens in the step being planned
        ("mark", "i8"),  # `cached` when its open segment began
        ("ends", "i8"),  # tick of its last token
        ("seat", "i4"),
        ("phase", "i4"),
    ],
    align=True,
)

SEGMENT = np.dtype(
    [
        ("t0", "f8"),
        ("t1", "f8"),
        ("request", "i4"),
        ("tokens", "i4"),
        ("seat", "i2"),
        ("phase", "i1"),
    ],
    align=True,
)

STEP = np.dtype(
    [
        ("t0", "f8"),
        ("ms", "f8"),
        ("repeats", "i4"),  # this many such steps, one after the other
        ("prefill", "i4"),  # prompt tokens
        ("decodes", "i4"),  # output tokens of requests that were decoding already
        ("pad_prefill", "i4"),  # charged as prefill, useful to nobody
        ("pad_decodes", "i4"),
        ("stop", "i4"),
    ],
    align=True,
)

COUNTERS = np.dtype(
    [
        ("now", "f8"),
        ("sendable", "i8"),  # requests below this one may be sent: all, or what the clients allow
        ("arrived", "i8"),  # requests below this one have reached the server
        ("finished", "i8"),
        ("head", "i8"),  # of the ring `waiting`
        ("waiting", "i8"),
        ("running", "i8"),  # seats taken
        ("lowest", "i8"),  # no seat below this one is free
        ("prefilling", "i8"),
        ("decoding", "i8"),
        ("ticks", "i8"),
        ("steps", "i8"),  # rows written
        ("segments", "i8"),
        # the step being planned
        ("prefill", "i8"),
        ("decodes", "i8"),
        ("pad_prefill", "i8"),
        ("pad_decodes", "i8"),
        ("most", "i8"),  # steps that would be planned alike, were nobody to arrive
        ("together", "i8"),  # seats are given back when all of them are done
        ("stop", "i8"),
    ]
)


class Limits(NamedTuple):
    """What the server may do at once."""

    max_num_seqs: int = 32  # requests that hold a seat
    max_num_batched_tokens: int = 8192  # tokens computed in one step
    chunk: int = 512  # prompt tokens of one request in one step


class State(NamedTuple):
    requests: np.ndarray  # REQUEST
    waiting: np.ndarray  # ring of ids, from n.head on
    prefilling: np.ndarray  # ids in order of admission
    decoding: np.ndarray  # heap of ids, the one that ends first on top
    seats: np.ndarray  # id of who sits there, or -1
    steps: np.ndarray  # STEP, what happened
    segments: np.ndarray  # SEGMENT, who held which seat
    n: np.record  # COUNTERS


def new_state(arrival, prompt, output, limit, max_num_seqs: int, clients: int = 0) -> State:
    """A server before its first step.

    arrival: (n,) ms, sorted; prompt, output, limit: (n,) tokens. clients: at most so many requests
    are unfinished at once and the next is sent when one finishes; 0: they come as they come.
    """
    rows = len(arrival)
    requests = np.zeros(rows, REQUEST)
    requests["arrival"], requests["prompt"] = arrival, prompt
    requests["output"], requests["limit"] = output, limit
    for name in ("start", "first", "last", "finish"):
        requests[name] = np.nan
    counters = np.zeros(1, COUNTERS)
    counters["sendable"] = min(rows, clients) if clients else rows
    return State(
        requests.view(np.recarray),
        np.zeros(rows, np.int64),
        np.zeros(max_num_seqs, np.int64),
        np.zeros(max_num_seqs, np.int64),
        np.full(max_num_seqs, -1, np.int64),
        np.empty(2 * rows + 64, STEP).view(np.recarray),
        np.empty(3 * rows + 8 * max_num_seqs, SEGMENT).view(np.recarray),
        counters.view(np.recarray)[0],
    )


def enlarged(s: State) -> State:
    """The same server with twice the room for what it records."""

    def twice(rows: np.ndarray) -> Any:
        more = np.empty(2 * len(rows), rows.dtype)
        more[: len(rows)] = rows
        return more.view(np.recarray)

    return s._replace(steps=twice(s.steps), segments=twice(s.segments))


LIMITS = numba.typeof(Limits())
STATE = numba.typeof(new_state([0.0], [1], [1], [1], 1))


@jit()
def todo(s, i):
    """Prompt tokens of request i that are still to be computed."""
    return s.requests[i].prompt - s.requests[i].cached


@jit()
def room(s, lim):
    """Tokens that the step's budget still has."""
    return lim.max_num_batched_tokens - s.n.prefill - s.n.decodes


@jit()
def head(s):
    """The request at the head of the waiting line."""
    return s.waiting[s.n.head]


@jit()
def keep_out(s, why):
    """Whoever waits now is kept out by `why`: put on record."""
    if s.n.waiting > 0:
        s.n.stop = why


@jit()
def may_admit(s, fits, otherwise):
    """Whether somebody waits and a seat is free and `fits`, or else who waits is kept out."""
    seated = s.n.running < len(s.seats)
    if seated and fits:
        return s.n.waiting > 0
    keep_out(s, otherwise if seated else SEATS)
    return False


@jit()
def join_line(s, i):
    """Request i goes to the end of the waiting line."""
    place = s.n.head + s.n.waiting
    s.waiting[place if place < len(s.waiting) else place - len(s.waiting)] = i
    s.n.waiting += 1


@jit()
def admit(s):
    """The head of the waiting line takes the lowest free seat. Returns its id."""
    i = head(s)
    s.n.head = s.n.head + 1 if s.n.head + 1 < len(s.waiting) else 0
    s.n.waiting -= 1
    seat = s.n.lowest
    while s.seats[seat] >= 0:
        seat += 1
    s.seats[seat], s.n.lowest = i, seat + 1
    s.n.running += 1
    s.prefilling[s.n.prefilling] = i
    s.n.prefilling += 1
    r = s.requests[i]
    r.seat, r.start, r.since, r.phase = seat, s.n.now, s.n.now, PREFILL
    return i


@jit()
def grant(s, i, tokens):
    """Put `tokens` of request i's prompt into this step."""
    s.requests[i].grant = tokens
    s.n.prefill += tokens
    s.n.most = min(s.n.most, todo(s, i) // tokens)


@jit()
def decode(s):
    """One token for each decoding request."""
    s.n.decodes = s.n.decoding
    if s.n.decoding > 0:
        s.n.most = min(s.n.most, s.requests[s.decoding[0]].ends - s.n.ticks)


@jit()
def pad(s, prefill, decodes):
    """Charge the step for tokens that are of use to nobody."""
    s.n.pad_prefill += prefill
    s.n.pad_decodes += decodes


@jit()
def leave_together(s):
    """Whoever is done keeps the seat until everybody is."""
    s.n.together = 1


@jit()
def note(s, i, phase, until, tokens):
    """Put request i's open segment on record, and open the next one."""
    r = s.requests[i]
    if until > r.since:
        row = s.segments[s.n.segments]
        row.t0, row.t1, row.request, row.tokens = r.since, until, i, tokens
        row.seat, row.phase = r.seat, phase
        s.n.segments += 1
    r.since = until


@jit()
def release(s, i):
    """Request i gives its seat back, and its client may send the next request."""
    r = s.requests[i]
    r.finish = s.n.now
    s.seats[r.seat] = -1
    s.n.lowest = min(s.n.lowest, r.seat)
    s.n.running -= 1
    s.n.finished += 1
    if s.n.sendable < len(s.requests):
        sent = s.requests[s.n.sendable]
        sent.arrival = max(sent.arrival, s.n.now)
        s.n.sendable += 1


@jit()
def begin_decoding(s, i):
    """Request i, its first token just out, joins the decoding ones."""
    ends = s.n.ticks + s.requests[i].output - 1
    s.requests[i].ends = ends
    place = s.n.decoding
    s.n.decoding += 1
    while place > 0:
        parent = (place - 1) >> 1
        if s.requests[s.decoding[parent]].ends <= ends:
            break
        s.decoding[place] = s.decoding[parent]
        place = parent
    s.decoding[place] = i


@jit()
def end_decoding(s):
    """The decoding request that ends first leaves the others. Returns its id."""
    i = s.decoding[0]
    s.n.decoding -= 1
    last = s.decoding[s.n.decoding]
    ends = s.requests[last].ends
    place, child = 0, 1
    while child < s.n.decoding:
        other = child + 1
        if (
            other < s.n.decoding
            and s.requests[s.decoding[other]].ends < s.requests[s.decoding[child]].ends
        ):
            child = other
        if s.requests[s.decoding[child]].ends >= ends:
            break
        s.decoding[place] = s.decoding[child]
        place, child = child, 2 * child + 1
    s.decoding[place] = last
    return i
