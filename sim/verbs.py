"""What a policy may do, each verb with all of its bookkeeping or none.

Work left is `todo` = prompt + emitted - cached: a prompt, a chunk of it, and recomputation after a
preemption are one case.
"""

from .jit import jit
from .lines import (
    goes_first,
    join_decoding,
    join_line,
    leave_decoding,
    leave_line,
    leave_prefilling,
    rejoin_line,
    sit_down,
    stand_up,
)
from .memory import blocks_for, blocks_of, give_back, kv_of, register, take
from .state import DECODE, HELD, PREEMPTED, PREFILL, SEATS, STALL


@jit()
def todo(s, i):
    """Tokens of request i, which does not decode, to compute before it emits its next one."""
    r = s.requests[i]
    return r.prompt + r.emitted - r.cached


@jit()
def room(s, lim):
    """Tokens that the step's budget still has."""
    return lim.max_num_batched_tokens - s.n.prefill - s.n.decodes - s.n.pad_decodes


@jit()
def keep_out(s, why):
    """Whoever waits now is kept out by `why`: put on record."""
    if s.n.waiting > 0:
        s.n.stop = why


@jit()
def may_admit(s, fits, otherwise):
    """Whether somebody waits and a seat is free and `fits`, or else who waits is kept out."""
    seated = s.n.running < s.n.seats
    if seated and fits:
        return s.n.waiting > 0
    keep_out(s, otherwise if seated else SEATS)
    return False


@jit()
def note(s, i, phase, until, tokens):
    """Put request i's open segment on record, and open the next one."""
    r = s.requests[i]
    if until > r.since or phase == PREEMPTED:
        row = s.segments[s.n.segments]
        row.t0, row.t1, row.request, row.tokens = r.since, until, i, tokens
        row.seat, row.phase = r.seat, phase
        s.n.segments += 1
    r.since = until


@jit()
def note_grant(s, i, until):
    """Put request i's prompt tokens a step, up to the row `until`, on record."""
    r = s.requests[i]
    if r.granted > 0:
        row = s.grants[s.n.grants]
        row.request, row.tokens, row.step0, row.step1 = i, r.granted, r.granted_at, until
        s.n.grants += 1
    r.granted = 0


@jit()
def admit(s):
    """The head of the waiting line takes the lowest free seat. Returns its id."""
    i = leave_line(s)
    sit_down(s, i)
    s.prefilling[s.n.prefilling] = i
    s.n.prefilling += 1
    r = s.requests[i]
    r.since, r.mark, r.phase = s.n.now, r.cached, STALL  # until the step begins
    if r.preemptions == 0:
        r.start = s.n.now
    return i


@jit()
def count_prompt(s, i, sign):
    """The step computes request i's grant (1), or does not after all (-1)."""
    n = s.n
    before, tokens = int(s.requests[i].cached), int(s.requests[i].grant)
    n.prefill += sign * tokens
    n.prompts += sign
    n.reread += sign * before
    n.attended += sign * (tokens * before + tokens * (tokens + 1) // 2)
    n.completed += sign * int(tokens == todo(s, i))


@jit()
def grant(s, i, tokens):
    """Put `tokens` of request i's prompt into this step."""
    r = s.requests[i]
    r.grant, r.planned = tokens, s.n.plan
    count_prompt(s, i, 1)
    s.n.most = min(s.n.most, todo(s, i) // tokens)


@jit()
def decode(s):
    """One token for each decoding request."""
    n = s.n
    n.decodes, n.context = n.decoding, n.decoding_kv
    if n.decoding > 0:
        n.most = min(n.most, s.requests[s.decoding[0]].ends - n.ticks)


@jit()
def pad(s, prefill, decodes):
    """Charge the step for tokens that are of use to nobody."""
    s.n.pad_prefill += prefill
    s.n.pad_decodes += decodes


@jit()
def pad_with_the_done(s):
    """Whoever is done is computed on beside the decodes."""
    pad(s, 0, s.n.running - s.n.decoding)
    s.n.context += s.n.kv - s.n.decoding_kv


@jit()
def leave_together(s):
    """Whoever is done keeps the seat until everybody is."""
    s.n.together = 1


@jit()
def watch_arrivals(s):
    """Somebody who arrives may change this plan, though others wait."""
    s.n.watchful = 1


@jit()
def reserve(s, lim, i, tokens):
    """Request i holds the blocks for `tokens` from now on. False, changing nothing, if short."""
    need = blocks_for(lim, tokens)
    if need > s.n.free:
        return False
    take(s, need)
    s.requests[i].blocks = need
    return True


@jit()
def blocks_wanted(s):
    """Blocks that the decoding requests together need for their next token."""
    return s.spokes[s.n.ticks % s.n.block]


@jit()
def decode_from_pages(s):
    """One token for each decoding request, whose blocks are there."""
    decode(s)
    take(s, blocks_wanted(s))


@jit()
def grant_pages(s, lim, i, tokens):
    """Put `tokens` more of request i, which does not decode yet, into this step.

    False, changing nothing, if the blocks for them are not free. The last token before the next
    output of a request that had some already is a decode.
    """
    r = s.requests[i]
    need = max(0, blocks_for(lim, r.cached + tokens) - r.blocks)
    if need > s.n.free:
        return False
    if r.emitted > 0 and todo(s, i) == 1:
        note(s, i, r.phase, s.n.begins, r.cached - r.mark)
        surplus = r.blocks - blocks_for(lim, r.cached)
        s.n.free += surplus
        s.n.blank += surplus
        note_grant(s, i, s.n.steps)
        leave_prefilling(s, i)
        begin_decoding(s, i)
        expect_late(s, i)
        return decode_one(s, i)
    take(s, need)
    r.blocks += need
    grant(s, i, tokens)
    s.n.most = 1
    if len(s.entries) > 0:
        register(s, i, r.cached + tokens)
    return True


@jit()
def expect_late(s, i):
    """Request i's next token comes in this step, after a gap that began at its last one."""
    row = s.gaps[s.n.gaps]
    row.ms, row.request = s.requests[i].last, i  # `commit` turns the moment into a gap
    s.n.gaps += 1
    s.n.late += 1


@jit()
def expect_late_no_more(s, i):
    """Undo it, where it was expected. Returns whether it was."""
    n = s.n
    for k in range(n.gaps - n.late, n.gaps):
        if s.gaps[k].request == i:
            last = s.gaps[n.gaps - 1]
            s.gaps[k].ms, s.gaps[k].request = last.ms, last.request
            n.gaps -= 1
            n.late -= 1
            return True
    return False


@jit()
def decode_one(s, i):
    """One token for request i, which decodes. False, changing nothing, if it lacks a block."""
    r = s.requests[i]
    if s.n.ticks % s.n.block == r.spoke:
        if s.n.free == 0:
            return False
        take(s, 1)
    in_flight = s.n.queued == 1 and r.planned == s.n.plan - 1  # a token whose value is unknown
    r.planned = s.n.plan
    s.n.decodes += 1
    s.n.context += kv_of(s, i)
    s.n.most = 1
    if len(s.entries) > 0:
        register(s, i, kv_of(s, i) + 1 - in_flight)
    return True


@jit()
def is_done(s, i):
    """Whether the scheduler knows that request i has no token to come."""
    r = s.requests[i]
    return r.phase == HELD and (s.n.surprises == 0 or r.output == r.limit)


@jit()
def decode_in_vain(s, i):
    """One token more of request i, which is done, unknown to the scheduler. False if it lacks a
    block."""
    r = s.requests[i]
    wanted = r.cached + 1 > r.blocks * s.n.block
    if wanted > s.n.free:
        return False
    take(s, wanted)
    r.blocks += wanted
    r.planned = s.n.plan
    pad(s, 0, 1)
    s.n.context += r.cached
    s.n.most = 1
    return True


@jit()
def begin_decoding(s, i):
    """Request i, of whose tokens all but the last have their KV, decodes from now on."""
    n = s.n
    r = s.requests[i]
    r.ends, r.phase, r.mark = n.ticks + r.output - r.emitted, DECODE, r.emitted
    if n.block > 0:
        r.spoke = (n.ticks - r.cached) % n.block
        s.spokes[r.spoke] += 1
    n.decoding_kv += r.cached
    join_decoding(s, i)


@jit()
def end_decoding(s, place):
    """The request at `place` of the decoding is one no longer, and knows its own progress again."""
    n = s.n
    i = s.decoding[place]
    r = s.requests[i]
    blocks, r.cached = blocks_of(s, i), kv_of(s, i)
    n.decoding_kv -= r.cached
    r.emitted = r.output - (r.ends - n.ticks)
    leave_decoding(s, place)
    if n.block > 0:
        s.spokes[r.spoke] -= 1
        r.blocks = blocks
    r.phase = PREFILL
    return i


@jit()
def stand_still(s, i):
    """Request i, which decodes, has no token in this step, unlike others that do."""
    n = s.n
    place = 0
    while s.decoding[place] != i:
        place += 1
    r = s.requests[i]
    r.last = max(r.since, n.spoke_at)
    end_decoding(s, place)
    note(s, i, DECODE, n.begins, r.emitted - r.mark)
    r.mark = r.cached
    n.prefilling, j = 0, n.eldest
    while j >= 0:
        if s.requests[j].phase != DECODE:
            s.prefilling[n.prefilling] = j
            n.prefilling += 1
        j = s.requests[j].after


@jit()
def prefill_pages(s, lim):
    """Blocks for all prompt tokens of this step. False, changing nothing, if they are not free."""
    n = s.n
    need = 0
    for k in range(n.prefilling):
        r = s.requests[s.prefilling[k]]
        if r.grant > 0:
            need += blocks_for(lim, r.cached + r.grant) - r.blocks
    if need > n.free:
        return False
    take(s, need)
    for k in range(n.prefilling):
        r = s.requests[s.prefilling[k]]
        if r.grant > 0:
            r.blocks = blocks_for(lim, r.cached + r.grant)
    return True


@jit()
def idle_once(s):
    """Whoever waits is looked at again only after a step of nothing."""
    s.n.idle = 1


@jit()
def die(s, why):
    """The real engine ends here, and so does the run."""
    n = s.n
    n.died = why
    n.prefill = n.decodes = n.preempted = n.idle = 0


@jit()
def lets_go_of_memory(s, i):
    """The KV of request i is gone, and its blocks are free."""
    r = s.requests[i]
    give_back(s, i, r.blocks)
    s.n.kv -= r.cached
    r.blocks = r.cached = 0


@jit()
def last_in_line(s):
    """Of the running, the one that ranks last."""
    i = worst = s.n.newest
    while i >= 0:
        if goes_first(s, worst, i):
            worst = i
        i = s.requests[i].before
    return worst


@jit()
def preempt(s, i):
    """Request i, which runs, loses seat and KV and heads the line; its tokens so far are kept."""
    if lose_seat(s, i):
        rejoin_line(s, i)


@jit()
def retract(s, i):
    """The same, but it goes to the end of the line."""
    if lose_seat(s, i):
        join_line(s, i)


@jit()
def lose_seat(s, i):
    """Request i, which runs, has neither seat nor KV any longer; its tokens so far are kept.

    Returns whether any are to come.
    """
    n = s.n
    r = s.requests[i]
    in_plan = r.planned == n.plan
    r.preemptions += 1
    n.preempted += 1
    n.most = 1
    if r.phase == HELD:  # its last token is in flight, and ends it all the same
        n.pad_decodes -= in_plan
        note(s, i, PREEMPTED, n.begins, 0)
        n.leaver = -1
        release(s, i, n.until)
        return False
    if r.phase == DECODE:
        took = in_plan and n.block > 0 and n.ticks % n.block == r.spoke
        place = 0
        while s.decoding[place] != i:
            place += 1
        spoke_at = max(r.since, n.spoke_at)
        end_decoding(s, place)
        note(s, i, DECODE, n.begins, r.emitted - r.mark)
        r.blocks += took
        n.decodes -= in_plan
        n.context -= in_plan * r.cached
        if not expect_late_no_more(s, i):
            r.last = spoke_at
    else:
        leave_prefilling(s, i)
        note_grant(s, i, n.steps)
        note(s, i, r.phase, n.begins, r.cached - r.mark)
        if r.grant > 0:
            count_prompt(s, i, -1)
        r.grant = 0
    note(s, i, PREEMPTED, n.begins, r.cached)
    r.recomputed += r.cached
    lets_go_of_memory(s, i)
    stand_up(s, i)
    r.planned = 0
    return True


@jit()
def release(s, i, now):
    """Request i is done: seat and memory are free, and its client may send the next request."""
    n = s.n
    r = s.requests[i]
    r.finish = now
    lets_go_of_memory(s, i)
    stand_up(s, i)
    n.finished += 1
    n.leaving -= 1
    n.flush = 1
    send_next(s, now)


@jit()
def send_next(s, now):
    """Of a closed loop: a client whose request is done sends the next one."""
    n = s.n
    if n.sendable < len(s.requests):
        sent = s.requests[n.sendable]
        sent.arrival = max(sent.arrival, now + n.front_ms)
        n.sendable += 1
