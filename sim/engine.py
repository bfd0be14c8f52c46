"""One step: arrive, plan, time passes, commit. A device differs only in how time passes."""

import numba
import numpy as np

from .costs import COST
from .jit import jit
from .lines import head, join_line
from .memory import kv_of, register, take
from .policies import PLAN
from .radix import remember
from .state import DECODE, HELD, LIMITS, NOTHING, PREFILL, RECOMPUTE, STALL, STATE
from .verbs import begin_decoding, end_decoding, is_done, note, note_grant, release, todo

DONE, PAUSED, FULL, STUCK = range(4)
FOREVER = np.iinfo(np.int64).max


@jit(numba.void(STATE))
def open_step(s):
    """Let in whoever has arrived by now, and begin a blank plan."""
    n = s.n
    while n.arrived < n.sendable and s.requests[n.arrived].arrival <= n.now:
        join_line(s, n.arrived)
        n.arrived += 1
    n.asked = n.waiting + n.running + n.flush > 0
    n.flush = 0
    n.begins = max(n.now, n.until)
    n.plan += 1
    n.prefill = n.prompts = n.decodes = n.late = n.pad_prefill = n.pad_decodes = 0
    n.context = n.reread = n.attended = n.completed = 0
    n.together = n.watchful = n.preempted = n.idle = 0
    n.most, n.stop = FOREVER, NOTHING


@jit()
def host_ms(n):
    """ms of the host's work that the device has to wait for: while it is busy, only the rest."""
    return max(0.0, n.host - n.flight) if n.queued == 1 else n.host


@jit()
def pass_time(s, ms, host, most):
    """Steps of `ms` on the device, each after `host` ms of waiting for its plan, follow each other
    while the same would be planned. Returns how many."""
    n = s.n
    # Somebody who waits now waits for a seat, tokens or memory: most plans look at the clock only
    # while nobody does.
    watched = (n.waiting == 0 or n.watchful == 1) and n.arrived < n.sendable
    ends = min(s.requests[n.arrived].arrival, n.horizon) if watched else n.horizon
    step = host + ms
    if n.depth > 1 and host != max(0.0, n.host - ms):
        most = 1
    row = s.steps[n.steps]
    row.t0, row.ms, row.stop = n.begins, step, n.stop
    row.prefill, row.decodes, row.late = n.prefill, n.decodes, n.late
    row.pad_prefill, row.pad_decodes = n.pad_prefill, n.pad_decodes
    row.free, row.kv = n.free, n.kv
    row.prompts, row.context, row.reread, row.attended = n.prompts, n.context, n.reread, n.attended
    row.completed = n.completed
    row.head = head(s) if n.waiting > 0 else -1
    n.steps += 1
    until, planned, repeats = n.begins, n.now, 0
    while repeats < most:
        if repeats > 0 and n.block > 0:
            wanted = s.spokes[(n.ticks + repeats) % n.block] if n.decodes > 0 else 0
            if wanted > n.free:
                break
            take(s, wanted)
        begins = until + host
        until += step
        planned = begins if n.depth > 1 else until  # when the next one will be
        repeats += 1
        if ends <= planned:
            break
    n.until, n.now, n.flight, row.repeats = until, planned, ms, repeats
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
        if r.grant != r.granted:
            note_grant(s, i, n.steps - 1)
            r.granted, r.granted_at = r.grant, n.steps - 1
        r.cached += r.grant * repeats
        n.kv += r.grant * repeats
        r.grant = 0
        if todo(s, i) > 0:
            s.prefilling[kept] = i
            kept += 1
            continue
        note_grant(s, i, n.steps)
        tokens, until = r.cached - r.mark, n.until
        if n.pad_prefill > 0:  # of a step padded to its longest prompt, its own share comes first
            share = min(1.0, tokens * rows / (n.prefill + n.pad_prefill))
            until = n.until if share == 1.0 else r.since + share * (n.until - r.since)
        note(s, i, working, until, tokens)
        note(s, i, HELD, n.until, 0)
        r.emitted += 1
        if r.emitted == 1:
            r.first = n.until
        else:
            row = s.gaps[n.gaps]
            row.t, row.ms, row.request = n.until, n.until - r.last, i
            n.gaps += 1
        if len(s.nodes) > 0:
            remember(s, i)
        begin_decoding(s, i)
    n.prefilling = kept


@jit()
def advance_decodes(s, repeats):
    """Each decoding request has its next tokens, the late ones after a gap of their own."""
    n = s.n
    if n.decodes == 0:
        return
    n.ticks += repeats
    n.spoke_at = n.until
    n.kv += n.decodes * repeats
    n.decoding_kv += n.decodes * repeats
    for k in range(n.gaps - n.late, n.gaps):
        row = s.gaps[k]
        row.t, row.ms = n.until, n.until - row.ms


@jit()
def end_outputs(s):
    """Whoever has emitted the last token decodes no longer, and leaves once that is processed."""
    n = s.n
    while n.decoding > 0 and s.requests[s.decoding[0]].ends <= n.ticks:
        i = end_decoding(s, 0)
        r = s.requests[i]
        r.last, r.phase = n.until, HELD
        note(s, i, DECODE, n.until, r.emitted - r.mark)
        n.leaving += 1
        n.unforeseen += not is_done(s, i)
        n.leaver = i


@jit()
def settle(s):
    """The output of the batch that the device is done with is processed: whoever had the last token
    leaves, in order of admission; from a batch that leaves together, all at once."""
    n = s.n
    n.now = max(n.now, n.until)
    n.queued = n.unforeseen = 0
    if n.together == 1:
        if n.decoding + n.prefilling == 0:
            for seat in range(len(s.seats)):
                i = s.seats[seat]
                if i >= 0:
                    note(s, i, HELD, n.now, 0)
                    release(s, i, n.now)
        return
    learns = n.depth > 1 and len(s.entries) > 0  # what the new tokens are: the prefix cache minds
    i = n.leaver if n.leaving == 1 and n.leaver >= 0 and not learns else n.eldest
    while n.leaving > 0 or (learns and i >= 0):
        after = s.requests[i].after
        if learns:
            register(s, i, kv_of(s, i))
        if s.requests[i].phase == HELD:
            if len(s.nodes) > 0 and s.requests[i].planned < n.plan:
                remember(s, i)
            release(s, i, n.now)
        i = after


@jit(numba.int64(STATE, numba.float64, numba.int64))
def commit(s, ms, most):
    """The planned step, `ms` on the device, was taken, and again up to `most` times while nothing
    changed. With a queue of two, what the step before brought is processed only now."""
    n = s.n
    began, host = n.begins, host_ms(n)
    if n.queued == 1:
        if n.leaving > 0 and n.waiting > 0:  # the next plan knows of the seats that get free
            most = 1
        settle(s)
    repeats = pass_time(s, ms, host, most)
    advance_decodes(s, repeats)
    advance_prompts(s, began, repeats)
    end_outputs(s)
    n.queued = 1
    if n.depth == 1:
        settle(s)
    return repeats


@jit(numba.boolean(STATE))
def is_full(s):
    """Whether a step may write more than there is room for.

    Of a seat, that is six segments, a gap and three grants.
    """
    seats, n = len(s.seats), s.n
    roomy = n.segments + 6 * seats <= len(s.segments) and n.gaps + seats <= len(s.gaps)
    roomy = roomy and n.grants + 3 * seats <= len(s.grants)
    return not roomy or n.steps == len(s.steps)


@jit()
def naps(s, to_come, stretch):
    """With a queue of two: an empty batch, which takes no time, pushes the one before it out of the
    queue; whoever finds nothing to do looks again after a nap."""
    n = s.n
    still = n.preempted + n.leaving + n.flush == 0
    stuck = still and n.waiting > 0 and not to_come
    if n.asked == 0 and n.queued == 0:
        n.now = max(n.now, s.requests[n.arrived].arrival)
        return True
    goes_on = n.asked == 1 and (n.queued == 1 or n.waiting + n.running > 0)
    if n.queued == 1:
        settle(s)
    n.queued = goes_on
    n.flight = 0.0
    if n.waiting + n.running + n.flush > 0:
        left = s.requests[n.arrived].arrival - n.now if to_come and still and stretch else n.nap
        n.now += max(1.0, np.ceil(left / n.nap)) * n.nap
    return not stuck


@jit(numba.boolean(STATE, numba.float64, numba.boolean))
def idles(s, ms, stretch):
    """Nobody could be given a token: an empty step after preemptions, or the wait for who comes.

    False: somebody waits whom nothing will ever let in.
    """
    n = s.n
    to_come = n.arrived < n.sendable
    if n.depth > 1:
        return naps(s, to_come, stretch)
    if n.preempted + n.idle > 0:
        if ms > 0:
            commit(s, ms, 1)
    elif to_come and n.died == 0:
        n.now = s.requests[n.arrived].arrival
    else:
        return False
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
        numba.float64,
    )
)
def simulate(plan, cost, coef, s, lim, stretch, steps, until):
    """Serve until all are finished (DONE), for that many steps or with every step that begins
    before `until` ms (PAUSED), or while there is room to record (FULL); call again to go on. STUCK:
    somebody waits whom nothing will ever let in."""
    n = s.n
    n.horizon = until
    while steps > 0 and n.now < until:
        if n.finished == len(s.requests):
            return DONE
        if is_full(s):
            return FULL
        open_step(s)
        plan(s, lim)
        if n.prefill + n.decodes + n.pad_decodes > 0:
            steps -= commit(s, cost(n, coef), min(n.most, steps) if stretch else 1)
        elif not idles(s, cost(n, coef), stretch):
            return STUCK
    return PAUSED
