"""Everything a scheduler may look at or change. sim.verbs change it; policies read it.

Requests are numbered in arrival order, so the smaller id is the older one. Times are milliseconds.

Decoding requests move in lockstep: a step that decodes gives one token to each of them. So a
decode is not counted request by request: `ticks` counts decode steps, `ends` says at which tick a
request emits its last token, and `spoke` at which of every `block` ticks it needs another block of
KV. A step then costs as much as it has prompts and ends, however many decode beside them.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

# What a seat is used for. STALL: it holds a prompt that got no token in the step; HELD: its request
# is done, and static batching keeps the seat until the batch is; RECOMPUTE: prefill once more, for
# a preemption; PREEMPTED: no span but the moment at which the seat was lost.
PREFILL, STALL, DECODE, HELD, RECOMPUTE, PREEMPTED = range(6)
PHASES = ("prefill", "stalled", "decode", "padding", "recompute", "preempted")

# What kept the head of the waiting line out in a step.
NOTHING, SEATS, BUDGET, BATCH, BLOCKS, RESERVED = range(6)
STOPS = (
    "the step in progress",
    "a free seat",
    "token budget",
    "the running batch to end",
    "free KV blocks",
    "KV that is not reserved",
)

# Why a request was turned away at the door.
ADMITTED, TOO_LONG, TOO_LARGE, FAILED, TOO_LONG_AN_INPUT = range(5)
REFUSALS = (
    "let in",
    "its prompt leaves no room for a token within max_model_len",
    "prompt and declared limit need more blocks than the KV pool has",
    "it failed on the server that was measured",
    "its input exceeds the maximum allowed length: max_model_len or the KV pool, less 6 tokens",
)

# What ends a run where the real engine dies.
ALIVE, OUT_OF_MEMORY, NOTHING_TO_RETRACT = range(3)
DEATHS = (
    "",
    "Out of memory. Try to lower your batch size.",
    "Out of memory even after retracting all other requests in the decode batch.",
)

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("start", "f8"),  # seat taken, the first time
        ("first", "f8"),  # first output token
        ("last", "f8"),  # last output token
        ("finish", "f8"),  # seat given back
        ("since", "f8"),  # when its open segment began
        ("rank", "f8"),  # its place in an ordered line: the smaller goes first
        ("ends", "i8"),  # tick of its last token
        ("planned", "i8"),  # the last plan that it had a part in
        ("prompt", "i4"),
        ("output", "i4"),  # tokens that it will really emit
        ("limit", "i4"),  # max_tokens that it declared
        ("cached", "i4"),  # tokens whose KV is there, while it does not decode
        ("emitted", "i4"),  # output tokens so far, while it does not decode
        ("grant", "i4"),  # prompt tokens in the step being planned
        ("mark", "i4"),  # `cached` when its open segment began
        ("seat", "i4"),
        ("phase", "i4"),
        ("blocks", "i4"),  # of KV held, while it does not decode from pages
        ("spoke", "i4"),
        ("registered", "i4"),  # its leading blocks that the prefix cache knows
        ("before", "i4"),  # its neighbours among the running, in order of admission; -1: none
        ("after", "i4"),
        ("preemptions", "i4"),
        ("recomputed", "i4"),  # tokens
        ("refused", "i4"),
        ("opening", "i4"),  # identity of its first tokens, by which requests in line are compared
        ("granted", "i4"),  # prompt tokens a step since the row `granted_at`, not yet on record
        ("granted_at", "i4"),
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
        ("prompts", "i2"),  # that they belong to
        ("decodes", "i2"),  # output tokens of requests that were decoding already
        ("late", "i2"),  # of these, tokens whose gap stands in `gaps`
        ("pad_decodes", "i2"),  # charged as decodes, useful to nobody
        ("pad_prefill", "i4"),
        ("stop", "i2"),
        ("completed", "i2"),  # prompts whose last token is in it: each emits one
        ("head", "i4"),  # of the waiting line while the step runs; -1: nobody waits
        ("free", "i4"),  # KV blocks, once the step is planned
        ("kv", "i8"),  # tokens whose KV is there, before the step
        # what its time may depend on, of the first of the repeated steps
        ("context", "i4"),  # tokens whose KV the decodes read
        ("reread", "i4"),  # tokens of the same prompts computed earlier, whose KV is read again
        ("attended", "i8"),  # pairs of a prompt token and one that it attends to
    ],
    align=True,
)

# Prompt tokens of a request in each step of the rows [step0, step1).
GRANT = np.dtype([("request", "i4"), ("tokens", "i4"), ("step0", "i4"), ("step1", "i4")])

# The gap before a token that came late, because its request had been preempted.
GAP = np.dtype([("t", "f8"), ("ms", "f8"), ("request", "i8")])

# A KV block that the prefix cache knows.
ENTRY = np.dtype(
    [
        ("identity", "i8"),  # of its tokens and all before them
        ("users", "i4"),
        ("next", "i4"),  # in its bucket, in order of registration
        ("older", "i4"),  # among the unused, in order of release
        ("newer", "i4"),
    ],
    align=True,
)

# A node of a radix tree over KV blocks: a run of them that nothing parts.
NODE = np.dtype(
    [
        ("identity", "i8"),  # of its first block
        ("stamp", "i8"),  # when it was last walked over
        ("next", "i4"),  # in its bucket
        ("parent", "i4"),
        ("children", "i4"),
        ("owner", "i4"),  # a request whose blocks these are too
        ("depth", "i4"),  # blocks before it
        ("length", "i4"),  # blocks
        ("users", "i4"),
        ("place", "i4"),  # in the heap of the leaves that nobody uses; -1: none of them
        ("leaf", "i4"),  # the node at this row's place of that heap
    ],
    align=True,
)

COUNTERS = np.dtype(
    [
        ("now", "f8"),
        ("front_ms", "f8"),  # from a client to the waiting line
        ("sendable", "i8"),  # requests below this one may be sent: all, or what the clients allow
        ("horizon", "f8"),  # from when on no step is to begin
        ("arrived", "i8"),  # requests below this one have reached the server
        ("finished", "i8"),  # or refused
        ("ordered", "i8"),  # whether the line goes by rank
        ("head", "i8"),  # of the ring `waiting`
        ("waiting", "i8"),
        ("seats", "i8"),  # that may be taken: as many as there are, or fewer
        ("running", "i8"),  # taken
        ("eldest", "i8"),  # of the running, by admission; -1: none
        ("newest", "i8"),
        ("lowest", "i8"),  # no seat below this one is free
        ("prefilling", "i8"),
        ("decoding", "i8"),
        ("ticks", "i8"),
        ("spoke_at", "f8"),  # when the last of them was over
        ("steps", "i8"),  # rows written
        ("segments", "i8"),
        ("gaps", "i8"),
        ("grants", "i8"),
        # KV memory
        ("block", "i8"),  # tokens of a block; 0: decodes take no pages
        ("free", "i8"),  # blocks that nobody uses
        ("blank", "i8"),  # of these, blocks that the prefix cache does not know
        ("oldest", "i8"),  # of the unused that it knows; -1: none
        ("youngest", "i8"),
        ("entries", "i8"),  # rows of `entries` or `nodes` in use
        ("queues_blanks", "i8"),  # whether freed blocks of no known content queue with the others
        ("kv", "i8"),
        ("decoding_kv", "i8"),  # of it, of those who decode
        ("in_short", "i8"),  # how the identities are written
        ("stamp", "i8"),  # of the latest walk over the radix tree
        ("leaves", "i8"),  # of it, that nobody uses
        # SGLang's, from step to step
        ("batch", "i8"),  # rows of `batch` that are its running batch
        ("joining", "i8"),  # rows after these: the last prefill batch, but for who is not through
        ("partial", "i8"),  # whose prompt is not through; -1: nobody's
        ("full", "i8"),  # the stop for which nobody is let in until somebody leaves; 0: none
        ("ratio", "f8"),  # new_token_ratio
        ("ratio_at", "i8"),  # the tick up to which it has decayed
        # the step being planned
        ("begins", "f8"),  # when it will, the device being busy until then
        ("plan", "i8"),
        ("prefill", "i8"),
        ("prompts", "i8"),
        ("decodes", "i8"),
        ("late", "i8"),
        ("pad_prefill", "i8"),
        ("pad_decodes", "i8"),
        ("context", "i8"),
        ("reread", "i8"),
        ("attended", "i8"),
        ("completed", "i8"),
        ("most", "i8"),  # steps that would be planned alike, were nobody to arrive
        ("watchful", "i8"),  # whether an arrival may change the plan though somebody waits
        ("together", "i8"),  # seats are given back when all of them are done
        ("preempted", "i8"),
        ("idle", "i8"),  # whether it is a step though nobody has a token in it
        ("died", "i8"),
        ("stop", "i8"),
        # the queue of batches that are planned and not yet processed
        ("depth", "i8"),  # it holds one, or two: the next is planned while the device runs one
        ("queued", "i8"),  # whether one is in it between two plans
        ("until", "f8"),  # when the device is done with it
        ("flight", "f8"),  # ms that it takes there
        ("host", "f8"),  # ms of work between two batches, hidden where the device is busy
        ("nap", "f8"),  # ms between two looks at a server that has nothing to do
        ("leaving", "i8"),  # requests whose last token is in it
        ("leaver", "i8"),  # one of them, or -1
        ("surprises", "i8"),  # whether an end before the limit is one to the scheduler
        ("unforeseen", "i8"),  # how many of `leaving` it doesn't know to be done
        ("flush", "i8"),  # somebody has left since the last plan
        ("asked", "i8"),  # whether there was anybody to plan for
        ("promised", "f8"),  # SGLang's tokens for outputs and prompts to come
        ("claimed", "i8"),  # of these, prompts and decodes of this step
        ("spent", "i8"),  # of the chunk
        ("states", "i8"),  # rows of `batch` in which outputs to come are written out
    ]
)


LONGEST_SORTED = 128  # requests in SGLang's line, above which it is not sorted by prefix


class Limits(NamedTuple):
    """What the server may do at once. Names are the engines' own flags where they have one."""

    max_num_seqs: int = 32  # requests that hold a seat
    max_num_batched_tokens: int = 8192  # tokens computed in one step
    chunk: int = 512  # prompt tokens of one request in one step
    block_size: int = 16  # tokens of a KV block
    num_gpu_blocks: int = 4000
    max_model_len: int = 8192  # prompt and output of one request
    enable_chunked_prefill: int = 1
    long_prefill_token_threshold: int = 0  # prompt tokens of one request in one step; 0: off
    long_prefill_token_threshold_adaptive: int = 0
    enable_prefix_caching: int = 0
    scheduler_reserve_full_isl: int = 1  # admit only whose whole prompt fits the free blocks
    watermark: float = 0.0  # share of the blocks that admission leaves free
    preempt_on_arrival: int = 0
    async_scheduling: int = 1  # plan the next step while the device runs this one
    chunked_prefill_size: int = 8192  # prompt tokens in one step, of all requests; -1: off
    max_prefill_tokens: int = 16384
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: int = 0
    ignore_eos: int = 0  # all outputs are as long as their limits, and admission knows


class State(NamedTuple):
    requests: np.ndarray  # REQUEST
    waiting: np.ndarray  # ring of ids from n.head on; ordered, a heap by rank
    prefilling: np.ndarray  # ids in order of admission
    decoding: np.ndarray  # heap of ids, the one that ends first on top
    seats: np.ndarray  # id of who sits there, or -1
    spokes: np.ndarray  # how many decoding requests have each spoke
    identities: np.ndarray  # of all requests' full blocks, one request after the other; or in short
    offsets: np.ndarray  # where each request's identities begin
    entries: np.ndarray  # ENTRY
    unused: np.ndarray  # rows of `entries`; from n.entries on, those that stand for nothing
    buckets: np.ndarray  # first and last entry of each, or -1
    table: np.ndarray  # (seats, blocks): entry of each registered block of who sits there
    nodes: np.ndarray  # NODE; the root, whose place is not in the tree, comes first
    batch: np.ndarray  # (rows, 3): who runs, in order; and two columns to work in
    steps: np.ndarray  # STEP, what happened
    segments: np.ndarray  # SEGMENT, who held which seat
    gaps: np.ndarray  # GAP
    grants: np.ndarray  # GRANT
    n: np.record  # COUNTERS


def _rows(rows: int, dtype: np.dtype) -> Any:
    return np.zeros(rows, dtype).view(np.recarray)


def new_state(
    arrival,
    prompt,
    output,
    limit,
    limits: Limits,
    *,
    clients: int = 0,
    rank=None,
    paged: bool = False,
    free: int = 0,
    queues_blanks: bool = False,
    host_ms: float = 0.0,
    stop_tokens: bool = False,
    front_ms: float = 0.0,
    identities: tuple[np.ndarray, np.ndarray] | None = None,
    radix: bool = False,
    in_short: bool = False,
    openings=None,
) -> State:
    """A server before its first step.

    arrival: (n,) ms, sorted; prompt, output, limit: (n,) tokens; rank: (n,), for an ordered line.
    clients: at most so many requests are unfinished at once and the next is sent when one finishes;
    0: they come as they come. free: KV blocks; paged: decodes take them as they need them;
    queues_blanks: a freed one of no known content is taken in its turn, not first.
    host_ms: work of the host for a step; stop_tokens: an end before the limit is not foreseen.
    front_ms: what a request takes from its client to the line; `arrival` is when it is in the line.
    identities: of all full blocks of all requests, and where each request's begin (n + 1,), for
    prefix caching; in_short: see Workload.prefixes; radix: in a tree whose table has, for each
    seat, the node where the shared part ends. openings: (n,) identity of each one's first tokens.
    """
    rows, seats = len(arrival), limits.max_num_seqs
    requests = np.zeros(rows, REQUEST)
    requests["arrival"], requests["prompt"] = np.asarray(arrival, float) + front_ms, prompt
    requests["output"], requests["limit"] = output, limit
    requests["rank"] = 0.0 if rank is None else rank
    requests["opening"] = -1 if openings is None else openings
    for name in ("start", "first", "last", "finish"):
        requests[name] = np.nan
    counters = _rows(1, COUNTERS)
    counters["front_ms"] = front_ms
    counters["sendable"] = min(rows, clients) if clients else rows
    counters["horizon"] = np.inf
    counters["ordered"] = rank is not None
    counters["seats"] = seats
    for name in ("eldest", "newest", "oldest", "youngest", "partial"):
        counters[name] = -1
    counters["free"] = counters["blank"] = free
    counters["depth"] = 1 + limits.async_scheduling
    counters["surprises"] = stop_tokens
    counters["host"], counters["nap"] = host_ms, 1.0
    counters["queues_blanks"] = queues_blanks and identities is not None
    counters["block"] = limits.block_size if paged else 0
    counters["in_short"] = in_short
    flat, offsets = identities if identities else (np.zeros(0, np.int32), np.zeros(1, np.int64))
    cache = free if identities else 0
    longest = 1 if radix else int(np.diff(offsets).max(initial=0)) + 1
    nodes = _rows(cache + 1 if radix else 0, NODE)
    nodes["place"] = -1
    return State(
        requests.view(np.recarray),
        np.zeros(rows, np.int64),
        np.zeros(seats, np.int64),
        np.zeros(seats, np.int64),
        np.full(seats, -1, np.int64),
        np.zeros(limits.block_size if paged else 1, np.int64),
        flat,
        offsets,
        _rows(0 if radix else cache, ENTRY),
        np.arange(cache) + radix,
        np.full((1 << max(1, 2 * cache).bit_length(), 2) if cache else (1, 2), -1, np.int64),
        np.zeros((seats, longest) if cache else (1, 1), np.int32),
        nodes,
        np.zeros((max(seats + 2, LONGEST_SORTED), 3), np.int64),
        np.empty(2 * rows + 64, STEP).view(np.recarray),
        np.empty(3 * rows + 12 * seats, SEGMENT).view(np.recarray),
        np.empty(2 * seats, GAP).view(np.recarray),
        np.empty(2 * rows + 8 * seats, GRANT).view(np.recarray),
        counters[0],
    )


def enlarged(s: State) -> State:
    """The same server with twice the room to record what may not fit any more in one step."""

    def twice(rows: np.ndarray, used: int, needed: int) -> Any:
        if used + needed <= len(rows):
            return rows
        more = np.empty(2 * len(rows), rows.dtype)
        more[: len(rows)] = rows
        return more.view(np.recarray)

    seats, n = len(s.seats), s.n
    return s._replace(
        steps=twice(s.steps, n.steps, 1),
        segments=twice(s.segments, n.segments, 6 * seats),
        gaps=twice(s.gaps, n.gaps, seats),
        grants=twice(s.grants, n.grants, 3 * seats),
    )


LIMITS = numba.typeof(Limits())
STATE = numba.typeof(new_state([0.0], [1], [1], [1], Limits()))
