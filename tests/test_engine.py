"""Laws of every registered policy, its agreement with the naive twin, and timelines by hand."""

from collections import Counter

import naive
import numpy as np
import pytest
from hypothesis import example, given, settings
from numpy.testing import assert_array_equal
from strategies import Case, cases, startable, workload

from sim.costs import COSTS
from sim.engine import DONE, FULL, PAUSED, STUCK, commit, idles, open_step, simulate
from sim.metrics import itl
from sim.policies import POLICIES
from sim.run import COLUMNS, Run, opened, serve
from sim.state import (
    DECODE,
    GRANT,
    HELD,
    PHASES,
    PREFILL,
    SEGMENT,
    STALL,
    STEP,
    Limits,
    State,
    enlarged,
    new_state,
)
from sim.traffic import Lengths, Traffic
from sim.workload import draw

LINEAR = COSTS["linear"].ms
TIMES = ("arrival", "start", "first", "last", "finish")
WHAT = ("prefill", "decodes", "pad_prefill", "pad_decodes", "stop")

MODULE_COST = (0.2, 0.02, 0.4, 0.03)

# Prompts of several chunks, where start + (end - start) is not the end but a float beside it.
BEYOND, SHORT = (
    Case(workload([(arrival, prompt, 3)]), Limits(4, 8192, 80), MODULE_COST)
    for arrival, prompt in ((8.1, 710), (8.4, 711))
)

# A stalled prompt gets its first token in the event in which one before it gets its last.
RELIEVED = Case(
    workload([(0.0, 1, 7), (0.0, 60, 1), (0.0, 3, 1)]),
    Limits(max_num_seqs=3, max_num_batched_tokens=7, chunk=6),
    MODULE_COST,
)

every_policy = pytest.mark.parametrize("policy", POLICIES)
known_policy = pytest.mark.parametrize("policy", naive.POLICIES)
laws = settings(max_examples=50, deadline=None)


def served(policy: str, case: Case, **options) -> Run:
    limits = startable(policy, case.limits)
    return serve(case.workload, policy, limits, case.cost, **options)


def recording(s: State, steps: int, segments: int) -> State:
    """The same state with room to record so many of each."""
    return s._replace(
        steps=np.empty(steps, STEP).view(np.recarray),
        segments=np.empty(segments, SEGMENT).view(np.recarray),
        grants=np.empty(segments, GRANT).view(np.recarray),
    )


def state_of(policy: str, case: Case) -> State:
    """A server before its first step, with room for every step by itself."""
    w, limits = case.workload, startable(policy, case.limits)
    s = opened(w, policy, limits)
    most = int(w.prompt.sum() + w.output.sum())
    return recording(s, most, (most + 2) * 6 * limits.max_num_seqs)


def stepped(policy: str, s, case: Case):
    """Take every step by hand; yields after each plan, before time passes."""
    coef, limits = np.array(case.cost), startable(policy, case.limits)
    while s.n.finished < len(s.requests):
        open_step(s)
        POLICIES[policy].plan(s, limits)
        if s.n.prefill + s.n.decodes > 0:
            yield s
            commit(s, LINEAR(s.n, coef), 1)
        else:
            assert idles(s, LINEAR(s.n, coef), False)


def written_out(steps: np.ndarray) -> list[tuple]:
    """(t0, ms, what was in it) of every single step."""
    rows = []
    for step in steps:
        now = step["t0"]
        for _ in range(step["repeats"]):
            rows.append((now, step["ms"], *(step[name] for name in WHAT)))
            now += step["ms"]
    return rows


def spans(segments: np.ndarray, name: str) -> dict[int, np.ndarray]:
    """The segments of each seat or each request, in order."""
    ordered = segments[np.argsort(segments["t0"], kind="stable")]
    return {key: ordered[ordered[name] == key] for key in np.unique(ordered[name])}


def seat_by_seat(segments: np.ndarray) -> np.ndarray:
    """In order of seat and time: what ends within one event may be on record in any order."""
    return segments[np.lexsort((segments["t1"], segments["t0"], segments["seat"]))]


def assert_same(a: Run, b: Run):
    assert_array_equal(a.requests, b.requests)
    assert_array_equal(seat_by_seat(a.segments), seat_by_seat(b.segments))
    assert written_out(a.steps) == written_out(b.steps)
    assert a.total == b.total


def assert_recorded(run: Run, s: State):
    """The state's own record, in whatever pieces, is that of the run."""
    for name in COLUMNS:
        assert_array_equal(run.requests[name], s.requests[name])
    own = s.segments[: s.n.segments].view(np.ndarray)
    assert_array_equal(seat_by_seat(run.segments), seat_by_seat(own))
    assert written_out(run.steps) == written_out(s.steps[: s.n.steps])


@every_policy
@given(case=cases)
@laws
def test_each_request_finishes_in_order_of_its_events(policy, case):
    run = served(policy, case)
    for before, after in zip(TIMES, TIMES[1:], strict=False):
        assert np.all(run.requests[before] <= run.requests[after])
    assert np.all(run.requests["start"] < run.requests["first"])
    assert run.requests["finish"].max() == run.total


@every_policy
@given(case=cases)
@laws
def test_tokens_are_conserved(policy, case):
    run = served(policy, case)
    tokens = np.zeros((len(case.workload), len(PHASES)), int)
    np.add.at(tokens, (run.segments["request"], run.segments["phase"]), run.segments["tokens"])
    assert_array_equal(tokens[:, PREFILL], case.workload.prompt)
    assert_array_equal(tokens[:, DECODE], case.workload.output - 1)
    assert not tokens[:, [STALL, HELD]].any()
    repeats = run.steps["repeats"]
    assert (run.steps["prefill"] * repeats).sum() == case.workload.prompt.sum()
    assert (run.steps["decodes"] * repeats).sum() == (case.workload.output - 1).sum()


@every_policy
@given(case=cases)
@example(case=BEYOND)
@example(case=SHORT)
@laws
def test_a_request_fills_its_seat_from_start_to_finish_without_a_gap(policy, case):
    run = served(policy, case)
    for request, own in spans(run.segments, "request").items():
        assert own["t0"][0] == run.requests["start"][request]
        assert own["t1"][-1] == run.requests["finish"][request]
        assert_array_equal(own["t0"][1:], own["t1"][:-1])
        assert len(set(own["seat"])) == 1
    assert len(spans(run.segments, "request")) == len(case.workload)


@every_policy
@given(case=cases)
@example(case=BEYOND)
@example(case=SHORT)
@laws
def test_a_seat_holds_one_request_at_a_time(policy, case):
    run = served(policy, case)
    assert set(run.segments["seat"]) <= set(range(case.limits.max_num_seqs))
    assert np.all(run.segments["t0"] < run.segments["t1"])
    for seat in spans(run.segments, "seat").values():
        assert np.all(seat["t1"][:-1] <= seat["t0"][1:])


@every_policy
@given(case=cases)
@example(case=BEYOND)
@example(case=SHORT)
@laws
def test_only_a_policy_that_pads_or_keeps_seats_has_padding(policy, case):
    run = served(policy, case)
    kept = (run.requests["last"] < run.requests["finish"]).any()
    if not (run.steps["pad_prefill"].any() or kept):
        assert HELD not in run.segments["phase"]


@every_policy
@given(case=cases)
@laws
def test_every_step_keeps_the_limits_that_the_policy_declares(policy, case):
    keeps, limits = POLICIES[policy].keeps, startable(policy, case.limits)
    for s in stepped(policy, state_of(policy, case), case):
        seated = s.seats[s.seats >= 0]
        assert len(set(seated)) == len(seated) == s.n.running <= len(s.seats)
        granted = np.flatnonzero(s.requests["grant"])
        assert s.requests["grant"].sum() == s.n.prefill
        assert set(granted) <= set(seated)
        if "max_num_batched_tokens" in keeps:
            room = max(0, limits.max_num_batched_tokens - s.n.decodes)
            lone = len(seated) == 1 and s.n.decodes == 0
            assert s.n.prefill <= room or lone
        if "chunk" in keeps:
            assert s.requests["grant"].max() <= limits.chunk
        if "chunked_prefill_size" in keeps:
            assert s.n.prefill <= limits.chunked_prefill_size


@every_policy
def test_every_policy_keeps_seats_and_names_limits_that_exist(policy):
    assert "max_num_seqs" in POLICIES[policy].keeps
    assert set(POLICIES[policy].keeps) <= set(Limits._fields)


@every_policy
@given(case=cases)
@laws
def test_time_never_runs_back(policy, case):
    run = served(policy, case)
    rows = written_out(run.steps)
    ends = [t0 + ms for t0, ms, *_ in rows]
    assert all(ms > 0 for _, ms, *_ in rows)
    assert all(end <= row[0] for end, row in zip(ends, rows[1:], strict=False))
    assert ends[-1] == run.total


@every_policy
def test_the_same_seed_gives_the_same_bits(policy):
    traffic = Traffic(
        arrivals="gamma",
        rate=60,
        duration=3,
        seed=5,
        prompt=Lengths("uniform", (1, 900)),
        output=Lengths("uniform", (1, 60)),
    )
    one, two = (
        served(policy, Case(draw(traffic), Limits(8, 512, 64), MODULE_COST)) for _ in range(2)
    )
    for table in ("requests", "steps", "segments"):
        assert_array_equal(getattr(one, table), getattr(two, table))


@every_policy
@given(case=cases)
@example(case=RELIEVED)
@laws
def test_stretched_equals_step_by_step(policy, case):
    assert_same(served(policy, case, stretch=True), served(policy, case, stretch=False))


@every_policy
@given(case=cases)
@example(case=RELIEVED)
@laws
def test_steps_driven_from_python_give_the_same_run(policy, case):
    run, s = served(policy, case), state_of(policy, case)
    for _ in stepped(policy, s, case):
        pass
    assert_recorded(run, s)


@every_policy
@given(case=cases)
@laws
def test_a_record_that_fills_up_is_enlarged_and_loses_nothing(policy, case):
    run, s = served(policy, case), state_of(policy, case)
    s = recording(s, 1, 6 * len(s.seats) + 1)
    plan, coef = POLICIES[policy].plan, np.array(case.cost)
    while (
        simulate(plan, LINEAR, coef, s, startable(policy, case.limits), True, 10**6, np.inf) == FULL
    ):
        s = enlarged(s)
    assert s.n.finished == len(case.workload)
    assert_recorded(run, s)


@every_policy
@given(case=cases)
@laws
def test_a_run_paused_after_any_step_or_moment_goes_on_as_if_it_had_not_been(policy, case):
    run, s = served(policy, case, stretch=False), state_of(policy, case)
    plan, coef = POLICIES[policy].plan, np.array(case.cost)
    for steps, until in ((1, np.inf), (3, np.inf), (10**6, 9.0), (2, 30.0), (10**6, np.inf)):
        limits = startable(policy, case.limits)
        state = simulate(plan, LINEAR, coef, s, limits, True, steps, until)
        assert state in (DONE, PAUSED)
    assert_recorded(run, s)


def test_a_policy_that_lets_nobody_in_is_stuck_instead_of_endless():
    s = new_state([0.0], [3], [1], [1], Limits(1))
    s.n.running = 1  # somebody who holds the only seat and computes nothing
    coef = np.array((1.0, 0.0, 0.0, 0.0))
    assert simulate(POLICIES["chunked"].plan, LINEAR, coef, s, Limits(), True, 10, np.inf) == STUCK


@known_policy
@given(case=cases)
@laws
def test_all_times_equal_the_naive_twins(policy, case):
    run = served(policy, case)
    twin = naive.Server(case.rows, case.limits, case.cost, case.workload.clients).run(policy)
    for name in TIMES:
        assert run.requests[name].tolist() == [getattr(r, name) for r in twin.requests]
    assert [row[:4] for row in written_out(run.steps)] == [
        (step.t0, step.ms, step.prefill, step.decodes) for step in twin.steps
    ]
    seats = {request: own["seat"][0] for request, own in spans(run.segments, "request").items()}
    assert seats == {r.id: r.seat for r in twin.requests}


@known_policy
@given(case=cases)
@laws
def test_the_pooled_itl_are_the_naive_twins_gaps_between_tokens(policy, case):
    pooled = itl(served(policy, case))
    twin = naive.Server(case.rows, case.limits, case.cost, case.workload.clients).run(policy)
    gaps = sorted(gap for r in twin.requests for gap in r.gaps)
    assert pooled.weights is not None
    # A gap is a difference of two clock readings, a step's ms is what was added to the clock.
    assert sorted(np.repeat(pooled.values, pooled.weights)) == pytest.approx(gaps, rel=1e-9)


@known_policy
@given(case=cases)
@laws
def test_a_prompts_segments_hold_the_tokens_of_their_steps(policy, case):
    run = served(policy, case)
    rows = written_out(run.steps)
    for own in spans(run.segments[run.segments["phase"] == PREFILL], "request").values():
        for segment in own:
            within = sum(r[2] for r in rows if segment["t0"] <= r[0] < segment["t1"])
            assert 0 < segment["tokens"] <= within


# Coefficients that are exact in binary, so that every time below is exact.
BY_HAND = (1.0, 0.5, 2.0, 0.25)


def timeline(policy: str, limits: Limits, rows) -> Run:
    return served(policy, Case(workload(rows), limits, BY_HAND))


def bars(run: Run) -> Counter:
    """(request, seat, phase, t0, t1) of every segment."""
    names = ("request", "seat", "phase", "t0", "t1")
    return Counter(tuple(segment[name] for name in names) for segment in run.segments)


def test_a_static_batch_pads_its_prompts_and_holds_its_seats_to_the_end():
    """
    0     R0 (prompt 4) and R1 (8) start; two padded to 8: 1 + 0.5 * 16 = 9. R2 finds no seat.
    9     both emit the first token; each step now costs 1 + 2 + 0.25 * 2 = 3.5, whoever is done
    16    R0 emits its third and last token, and keeps its seat
    23    R1 emits its fifth; both leave, R2 (prompt 2) starts: 1 + 0.5 * 2 = 2
    25    R2 emits its only token
    """
    run = timeline("static", Limits(max_num_seqs=2), [(0.0, 4, 3), (0.0, 8, 5), (0.0, 2, 1)])
    r = run.requests
    assert r["start"].tolist() == [0, 0, 23]
    assert r["first"].tolist() == [9, 9, 25]
    assert r["last"].tolist() == [9 + 2 * 3.5, 9 + 4 * 3.5, 25]
    assert r["finish"].tolist() == [23, 23, 25]
    assert run.total == 25
    assert bars(run) == Counter(
        [
            (0, 0, PREFILL, 0.0, 4.5),  # 4 of the 8 charged for it
            (0, 0, HELD, 4.5, 9.0),
            (0, 0, DECODE, 9.0, 16.0),
            (0, 0, HELD, 16.0, 23.0),
            (1, 1, PREFILL, 0.0, 9.0),
            (1, 1, DECODE, 9.0, 23.0),
            (2, 0, PREFILL, 23.0, 25.0),
        ]
    )


LONG_PROMPT = [(0.0, 2, 6), (5.0, 16, 2)]


def test_a_long_prompt_stalls_decodes_under_continuous_batching():
    """
    0      R0's prompt of 2: 1 + 0.5 * 2 = 2
    2      R0 decodes alone: 1 + 2 + 0.25 = 3.25
    5.25   R1 came at 5: its 16 tokens beside the decode: 1 + 0.5 * 16 + 2 + 0.25 = 11.25
    16.5   R1's first token; both decode: 1 + 2 + 0.25 * 2 = 3.5
    20     R1 is done; R0 goes on alone: 3.25 twice
    """
    run = timeline("continuous", Limits(max_num_seqs=2), LONG_PROMPT)
    assert [row[:2] for row in written_out(run.steps)] == [
        (0.0, 2.0),
        (2.0, 3.25),
        (5.25, 11.25),
        (16.5, 3.5),
        (20.0, 3.25),
        (23.25, 3.25),
    ]
    assert run.requests["first"].tolist() == [2.0, 16.5]
    assert run.requests["finish"].tolist() == [26.5, 20.0]
    assert itl(run).quantile(1.0) == 11.25


def test_the_same_prompt_in_chunks_never_stalls_them_and_waits_longer_itself():
    """
    5.25   R1's prompt takes four chunks of 4, each beside R0's decode:
           1 + 0.5 * 4 + 2 + 0.25 = 5.25; the last ends at 5.25 + 4 * 5.25 = 26.25
    26.25  R0 is done with its sixth token; R1's first is out, and it decodes alone: 3.25
    """
    run = timeline("chunked", Limits(max_num_seqs=2, chunk=4), LONG_PROMPT)
    assert [row[:2] for row in written_out(run.steps)] == [
        (0.0, 2.0),
        (2.0, 3.25),
        (5.25, 5.25),
        (10.5, 5.25),
        (15.75, 5.25),
        (21.0, 5.25),
        (26.25, 3.25),
    ]
    assert run.requests["first"].tolist() == [2.0, 26.25]
    assert run.requests["finish"].tolist() == [26.25, 29.5]
    assert itl(run).quantile(1.0) == 5.25
