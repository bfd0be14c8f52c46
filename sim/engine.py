"""One step: arrive, plan, time passes, commit. A device differs only in how time passes."""

import numba
import numpy as np

from .costs import COST
from .jit import jit
from .lines import join_line
from .memory import take
from .policies import PLAN
from .state import DECODE, HELD, LIMITS, NOTHING, PREFILL, RECOMPUTE, STALL, STATE
from .verbs import begin_decoding, end_decoding, note, release, todo

DONE, PAUSED, FULL, STUCK = range(4)
FOREVER = np.iinfo(np.int64).max


@jit(numba.void(STATE))
def open_step(s):
    """Let in whoever has arrived by now, and begin a blank plan."""
    n = s.n
    while n.arrived < n.sendable and s.requests[n.arrived].arrival <= n.now:
        join_line(s, n.arrived)
        n.arrived += 1
    n.plan += 1
    n.prefill = n.decodes = n.late = n.pad_prefill = n.pad_decodes = 0
    n.together = n.watchful = n.preempted = 0
    n.most, n.stop = FOREVER, NOTHING


@jit()
def pass_time(s, ms, most):
    """Steps of `ms` follow each other while the same would be planned. Returns how many."""
    n = s.n
    # Somebody who waits now waits for a seat, tokens or memory: most plans look at the clock only
    # while nobody does.
    watched = (n.waiting == 0 or n.watchful == 1) and n.arrived < n.sendable
    arrival = s.requests[n.arrived].arrival if watched else np.inf
    row = s.steps[n.steps]
    row.t0, row.ms, row.stop = n.now, ms, n.stop
    row.prefill, row.decodes, row.late = n.prefill, n.decodes, n.late
    row.pad_prefill, row.pad_decodes = n.pad_prefill, n.pad_decodes
    row.free, row.kv = n.free, n.kv
    n.steps += 1
    now, repeats = n.now, 0
    while repeats < most:
        if repeats > 0 and n.block > 0:
            wanted = s.spokes[(n.ticks + repeats) % n.block] if n.decodes > 0 else 0
            if wanted > n.free:
                break
            take(s, wanted)
        now += ms
        repeats += 1
        if arrival <= now:
            break
    n.now, row.repeats = now, repeats
    return repeats


@jit()
def advance_prompts(s, began, repeats):
    """Prompts take their grants; whoever has all of it emits a token and decodes from now on."""
    n, rows, kept = s.n, s.n.prefilling, 0
    for k in range(rows):
        i = s.prefilling[k]
        r = s.requests[i]
        working = RECOMPUTE if r.preemptions > 0 else PREFILL
        phase = working if r.grant > 0 else STALL
        if phase != r.phase:
            note(s, i, r.phase, began, r.cached - r.mark)
            r.phase, r.mark = phase, r.cached
        r.cached += r.grant * repeats
        n.kv += r.grant * repeats
        r.grant = 0
        if todo(s, i) > 0:
            s.prefilling[kept] = i
            kept += 1
            continue
        tokens, until = r.cached - r.mark, n.now
        if n.pad_prefill > 0:  # of a step padded to its longest prompt, its own share comes first
            share = min(1.0, tokens * rows / (n.prefill + n.pad_prefill))
            until = n.now if share == 1.0 else r.since + share * (n.now - r.since)
        note(s, i, working, until, tokens)
        note(s, i, HELD, n.now, 0)
        r.emitted += 1
        if r.emitted == 1:
            r.first = n.now
        else:
            row = s.gaps[n.gaps]
            row.t, row.ms, row.request = n.now, n.now - r.last, i
            n.gaps += 1
        begin_decoding(s, i)
    n.prefilling = kept


@jit()
def advance_decodes(s, repeats):
    """Each decoding request has its next tokens, the late ones after a gap of their own."""
    n = s.n
    if n.decodes == 0:
        return
    n.ticks += repeats
    n.spoke_at = n.now
    n.kv += n.decodes * repeats
    for k in range(n.gaps - n.late, n.gaps):
        row = s.gaps[k]
        row.t, row.ms = n.now, n.now - row.ms


@jit()
def let_go(s):
    """Whoever has emitted the last token leaves; from a batch that leaves together, all at once."""
    n, done, i = s.n, 0, -1
    while n.decoding > 0 and s.requests[s.decoding[0]].ends <= n.ticks:
        i = end_decoding(s, 0)
        r = s.requests[i]
        r.last, r.phase = n.now, HELD
        note(s, i, DECODE, n.now, r.emitted - r.mark)
        done += 1
    if n.together == 0:
        if done > 1:  # in order of admission: the prefix cache remembers who left first
            i = n.eldest
        while done > 0:
            after = s.requests[i].after
            if s.requests[i].phase == HELD:
                release(s, i)
                done -= 1
            i = after
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
    advance_decodes(s, repeats)
    advance_prompts(s, began, repeats)
    let_go(s)
    return repeats


@jit(numba.boolean(STATE))
def is_full(s):
    """Whether a step may write more than there is room for: six segments and a gap a seat."""
    seats, n = len(s.seats), s.n
    roomy = n.segments + 6 * seats <= len(s.segments) and n.gaps + seats <= len(s.gaps)
    return not roomy or n.steps == len(s.steps)


@jit()
def idles(s, ms):
    """Nobody could be given a token: an empty step after preemptions, or the wait for who comes.

    False: somebody waits whom nothing will ever let in.
    """
    n = s.n
    if n.preempted > 0:
        commit(s, ms, 1)
    elif n.arrived == n.sendable:
        return False
    else:
        n.now = s.requests[n.arrived].arrival
    return True


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
    while steps > 0:
        if n.finished == len(s.requests):
            return DONE
        if is_full(s):
            return FULL
        open_step(s)
        plan(s, lim)
        if n.prefill + n.decodes > 0:
            steps -= commit(s, cost(n, coef), min(n.most, steps) if stretch else 1)
        elif not idles(s, cost(n, coef)):
            return STUCK
    return PAUSED
