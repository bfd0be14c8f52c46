"""One step: arrive, plan, time passes, commit. A device differs only in how time passes."""

import numba
import numpy as np

from .costs import COST
from .jit import jit
from .policies import PLAN
from .state import (
    DECODE,
    HELD,
    LIMITS,
    NOTHING,
    PREFILL,
    STALL,
    STATE,
    begin_decoding,
    end_decoding,
    join_line,
    note,
    release,
    todo,
)

DONE, PAUSED, FULL, STUCK = range(4)
FOREVER = np.iinfo(np.int64).max


@jit(numba.void(STATE))
def open_step(s):
    """Let in whoever has arrived by now, and begin a blank plan."""
    n = s.n
    while n.arrived < n.sendable and s.requests[n.arrived].arrival <= n.now:
        join_line(s, n.arrived)
        n.arrived += 1
    n.prefill = n.decodes = n.pad_prefill = n.pad_decodes = n.together = 0
    n.most, n.stop = FOREVER, NOTHING


@jit()
def pass_time(s, ms, most):
    """Steps of `ms` follow each other while the same would be planned. Returns how many."""
    n = s.n
    # Somebody who waits now waits for a seat or for tokens: only an empty line looks at the clock.
    watched = n.waiting == 0 and n.arrived < n.sendable
    arrival = s.requests[n.arrived].arrival if watched else np.inf
    row = s.steps[n.steps]
    row.t0, row.ms, row.stop = n.now, ms, n.stop
    row.prefill, row.decodes = n.prefill, n.decodes
    row.pad_prefill, row.pad_decodes = n.pad_prefill, n.pad_decodes
    n.steps += 1
    now, repeats = n.now, 0
    while repeats < most:
        now += ms
        repeats += 1
        if arrival <= now:
            break
    n.now, row.repeats = now, repeats
    return repeats


@jit()
def advance_prompts(s, began, repeats):
    """Prompts take their grants; whoever has all of it emits a first token."""
    n, rows, kept = s.n, s.n.prefilling, 0
    for k in range(rows):
        i = s.prefilling[k]
        r = s.requests[i]
        phase = PREFILL if r.grant > 0 else STALL
        if phase != r.phase:
            note(s, i, r.phase, began, r.cached - r.mark)
            r.phase, r.mark = phase, r.cached
        r.cached += r.grant * repeats
        r.grant = 0
        if todo(s, i) == 0:
            # Of a step padded to its longest prompt, each prompt's own share comes first.
            useful = (
                (r.cached - r.mark) * rows / (n.prefill + n.pad_prefill) if n.pad_prefill else 1
            )
            note(s, i, PREFILL, r.since + useful * (n.now - r.since), r.cached - r.mark)
            note(s, i, HELD, n.now, 0)
            r.first = n.now
            begin_decoding(s, i)
        else:
            s.prefilling[kept] = i
            kept += 1
    n.prefilling = kept


@jit()
def let_go(s):
    """Whoever has emitted the last token leaves; from a batch that leaves together, all at once."""
    n = s.n
    while n.decoding > 0 and s.requests[s.decoding[0]].ends <= n.ticks:
        i = end_decoding(s)
        r = s.requests[i]
        r.last, r.phase = n.now, HELD
        note(s, i, DECODE, n.now, r.output - 1)
        if n.together == 0:
            release(s, i)
    if n.together == 1 and n.decoding + n.prefilling == 0:
        for seat in range(len(s.seats)):
            i = s.seats[seat]
            if i >= 0:
                note(s, i, HELD, n.now, 0)
                release(s, i)


@jit(numba.int64(STATE, numba.float64, numba.int64))
def commit(s, ms, most):
    """The planned step took `ms`, and was taken again up to `most` times while nothing changed."""
    began = s.n.now
    repeats = pass_time(s, ms, most)
    if s.n.decodes > 0:
        s.n.ticks += repeats
    advance_prompts(s, began, repeats)
    let_go(s)
    return repeats


@jit(
    numba.int64(
        numba.types.FunctionType(PLAN),
        numba.types.FunctionType(COST),
        numba.float64[::1],
        STATE,
        LIMITS,
        numba.boolean,
        numba.int64,
    )
)
def simulate(plan, cost, coef, s, lim, stretch, steps):
    """Serve until all are finished (DONE), for that many steps (PAUSED) or while there is room to
    record (FULL); call again to go on. STUCK: somebody waits whom nothing will ever let in."""
    n = s.n
    margin = 4 * len(s.seats)  # at most four segments a seat end in one step
    while steps > 0:
        if n.finished == len(s.requests):
            return DONE
        if n.steps == len(s.steps) or n.segments + margin > len(s.segments):
            return FULL
        open_step(s)
        plan(s, lim)
        if n.prefill + n.decodes > 0:
            steps -= commit(s, cost(n, coef), min(n.most, steps) if stretch else 1)
        elif n.arrived < n.sendable:
            n.now = s.requests[n.arrived].arrival
        else:
            return STUCK
    return PAUSED
