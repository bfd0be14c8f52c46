"""Laws of KV memory for every policy that keeps a pool, and agreement with the naive twin."""

from dataclasses import replace
from typing import Any, NamedTuple

import naive_sglang
import naive_vllm as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_compiled import printed

from sim.costs import COSTS
from sim.engine import commit, idles, is_full, open_step
from sim.memory import blocks_of, kv_of
from sim.metrics import Sample, figures, itl, waits
from sim.policies import POLICIES, in_force
from sim.run import COLUMNS, Run, opened, pool, serve
from sim.scenario import Slo
from sim.state import (
    ADMITTED,
    DECODE,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    TOO_LARGE,
    TOO_LONG,
    Limits,
    enlarged,
)
from sim.workload import Workload

KEEPERS = [name for name, p in POLICIES.items() if "num_gpu_blocks" in p.keeps]
PREEMPTING = [name for name in KEEPERS if POLICIES[name].paged]
CACHING = [name for name in KEEPERS if "enable_prefix_caching" in POLICIES[name].keeps]
RADIX = [name for name in KEEPERS if POLICIES[name].radix]
BLOCKWISE = [name for name in CACHING if name not in RADIX]
TWINS = naive.POLICIES | naive_sglang.POLICIES
LINEAR = COSTS["linear"].ms
LONGEST = 64  # prompt and limit of the cases below

every_usual_door = pytest.mark.parametrize(
    "policy", [name for name in KEEPERS if POLICIES[name].door is None]
)
every_radix = pytest.mark.parametrize("policy", RADIX)
every_keeper = pytest.mark.parametrize("policy", KEEPERS)
laws = settings(max_examples=40, deadline=None)


class Case(NamedTuple):
    workload: Workload
    limits: Limits
    cost: tuple[float, ...]


# ms since the one before, prompt, output, limit beyond it, priority, shared prefix or -1
ROW = st.tuples(
    st.one_of(st.just(0.0), st.integers(0, 4).map(float), st.floats(0, 8), st.floats(50, 500)),
    st.integers(1, 30),
    st.integers(1, 20),
    st.integers(0, 10),
    st.integers(0, 2),
    st.integers(-1, 2),
)
COST = st.sampled_from(
    [(0.2, 0.02, 0.4, 0.03), (1.0, 0.0, 0.0, 0.0), (0.0, 0.1, 0.3, 0.7), (0.1, 0.05, 0.0, 0.2)]
)


def workload(rows, prefix_tokens: int, clients: int = 0) -> Workload:
    gaps, prompt, output, beyond, priority, which = (np.array(c) for c in zip(*rows, strict=True))
    prefix = which, np.minimum(prompt, prefix_tokens)
    arrival = np.cumsum(gaps, dtype=float)
    return Workload(
        arrival, prompt, output, output + beyond, clients, priority.astype(float), prefix
    )


@st.composite
def cases(draw) -> Case:
    block, seats = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    most = -(-50 // block)  # blocks of the longest request
    limits = Limits(
        max_num_seqs=seats,
        max_num_batched_tokens=draw(st.integers(seats, 48)),
        block_size=block,
        num_gpu_blocks=draw(st.integers(max(2, most // 2), 2 * most)),
        max_model_len=LONGEST,
        enable_chunked_prefill=draw(st.integers(0, 1)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 5, 16])),
        long_prefill_token_threshold_adaptive=draw(st.integers(0, 1)),
        enable_prefix_caching=draw(st.integers(0, 1)),
        scheduler_reserve_full_isl=draw(st.integers(0, 1)),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        preempt_on_arrival=draw(st.integers(0, 1)),
        async_scheduling=draw(st.integers(0, 1)),
        chunked_prefill_size=block * draw(st.sampled_from([-1, 1, 3, 12])),
        max_prefill_tokens=draw(st.sampled_from([16, 48, 1024])),
        schedule_conservativeness=draw(st.sampled_from([0.05, 0.3, 1.0, 2.0])),
        enable_mixed_chunk=draw(st.integers(0, 1)),
        ignore_eos=draw(st.integers(0, 1)),
    )
    rows = draw(st.lists(ROW, min_size=1, max_size=14))
    clients = draw(st.sampled_from([0, 0, 0, 1, 3, 6]))
    work = workload(rows, draw(st.integers(1, 24)), clients)
    return Case(replace(work, stop_tokens=draw(st.booleans())), limits, draw(COST))


def fitted(policy: str, case: Case) -> Case:
    """The case as `policy` can be asked for it: what an engine would refuse to start is mended."""
    w, limits = case.workload, case.limits
    if policy == "orca_max":  # its reservation must fit the pool
        longest = max(2, min(LONGEST, limits.num_gpu_blocks * limits.block_size))
        prompt = np.minimum(w.prompt, longest - 1)
        limit = np.minimum(w.limit, longest - prompt)
        assert w.prefix is not None
        output, prefix = np.minimum(w.output, limit), (w.prefix[0], np.minimum(w.prefix[1], prompt))
        w = replace(w, prompt=prompt, output=output, limit=limit, prefix=prefix)
        limits = limits._replace(max_model_len=longest)
    whole = "enable_chunked_prefill" in POLICIES[policy].keeps and not limits.enable_chunked_prefill
    if whole or policy == "vllm_v0":
        budget = max(limits.max_num_batched_tokens, limits.max_model_len)
        limits = limits._replace(max_num_batched_tokens=budget)
    if POLICIES[policy].radix:
        blocks, chunk = limits.num_gpu_blocks, limits.chunked_prefill_size
        if "0_4_0" in policy:  # outputs that were there already are reserved again
            blocks = max(blocks, -(-128 // limits.block_size))
        if limits.enable_mixed_chunk:
            blocks *= 4  # where it dies for want of memory is a test of its own
            chunk += limits.block_size * limits.max_num_seqs * (chunk > 0)
        if limits.ignore_eos:
            w = replace(w, output=w.limit)
        limits = limits._replace(num_gpu_blocks=blocks, chunked_prefill_size=max(-1, chunk))
        limits = POLICIES[policy].starts(limits)
    return Case(w, limits, case.cost)


def drawn(seed: int, *, requests: int = 60, blocks: int = 40, **limits) -> Case:
    """A burst of requests that is too much for the pool."""
    rng = np.random.default_rng(seed)
    rows = [
        (
            float(rng.exponential(2.0)),
            int(rng.integers(1, 31)),
            int(rng.integers(1, 21)),
            int(rng.integers(0, 11)),
            int(rng.integers(0, 3)),
            int(rng.integers(-1, 3)),
        )
        for _ in range(requests)
    ]
    given: dict[str, Any] = {
        "max_num_seqs": 12,
        "max_num_batched_tokens": LONGEST,
        "max_model_len": LONGEST,
    }
    given |= {"block_size": 2, "num_gpu_blocks": blocks, "schedule_conservativeness": 0.05}
    return Case(workload(rows, 12), Limits(**given | limits), (0.2, 0.02, 0.4, 0.03))


def served(policy: str, case: Case, **options) -> Run:
    return serve(case.workload, policy, case.limits, case.cost, **options)


def twin_of(policy: str, case: Case, host_ms: float = 0.0) -> naive.Server:
    w, rows = case.workload, []
    assert w.priority is not None
    block = case.limits.block_size
    flat, offsets = w.blocks(block)
    openings = w.openings(block) if policy in RADIX else offsets
    caching = policy in CACHING and case.limits.enable_prefix_caching
    for i in range(len(w)):
        ids = flat[offsets[i] : offsets[i + 1]].tolist() if caching else []
        columns = (w.arrival, w.prompt, w.output, w.limit, w.priority)
        arrival, prompt, output, limit, priority = (column[i].item() for column in columns)
        rows.append(naive.Request(i, arrival, prompt, output, limit, priority, ids))
        rows[-1].opening = openings[i] if openings[i] >= 0 else i - len(w)
        if w.stop_tokens:
            rows[-1].foreseen = min(limit, case.limits.max_model_len - prompt)
    ahead = case.limits.async_scheduling and policy in naive.ASYNCHRONOUS
    kind = (naive.ASYNCHRONOUS if ahead else TWINS)[policy]
    twin = kind(rows, case.limits, case.cost, w.clients)
    twin.host = host_ms
    twin.run()
    assert not twin.unfinished
    return twin


def written_out(sample: Sample) -> np.ndarray:
    assert sample.weights is not None
    return np.repeat(sample.values, sample.weights)


def inside(policy: str, case: Case) -> Workload:
    """The requests that the door lets in."""
    refused = served(policy, case).requests["refused"]
    return case.workload.rows(np.flatnonzero(refused == ADMITTED))


def running(s) -> list[int]:
    return s.seats[s.seats >= 0].tolist()


def stepped(policy: str, case: Case):
    """Every step by itself: (state, blocks held by each, whether it is planned or committed)."""
    limits, coef = in_force(policy, case.limits), np.array(case.cost)
    s = opened(inside(policy, case), policy, limits)

    def held(planned: bool) -> dict[int, int]:
        blocks = {i: int(blocks_of(s, i)) for i in running(s)}
        if planned and s.n.block and s.n.decodes:  # the next token of who decodes has its place
            for i in blocks:
                if s.requests[i].phase == DECODE:
                    blocks[i] = -(-(int(kv_of(s, i)) + 1) // limits.block_size)
        return blocks

    while s.n.finished < len(s.requests):
        if is_full(s):
            s = enlarged(s)
        open_step(s)
        POLICIES[policy].plan(s, limits)
        yield s, held(True), True
        if s.n.prefill + s.n.decodes + s.n.pad_decodes > 0:
            commit(s, LINEAR(s.n, coef), 1)
        else:
            assert idles(s, LINEAR(s.n, coef), False)
        yield s, held(False), False
    assert s.n.running == s.n.waiting == s.n.kv == 0
    assert s.n.free == pool(policy, limits)
    known = s.n.entries if len(s.nodes) == 0 else sum(s.nodes["length"][node] for node in tree(s))
    assert s.n.blank + known == s.n.free
    assert_array_equal(s.requests["emitted"], s.requests["output"])


def tree(s) -> list[int]:
    """The nodes of the radix tree but its root."""
    return np.setdiff1d(np.arange(1, len(s.nodes)), s.unused[s.n.entries :]).tolist()


def in_use(s, blocks: dict[int, int]) -> int:
    """Blocks that the running hold, a shared one counted once."""
    registered = {i: int(s.requests[i].registered) for i in blocks}
    if len(s.nodes) > 0:
        used = sum(s.nodes["length"][node] for node in tree(s) if s.nodes["users"][node])
        return used + sum(blocks[i] - registered[i] for i in blocks)
    if len(s.entries) == 0:
        return sum(blocks.values())
    known = {int(e) for i in blocks for e in s.table[s.requests[i].seat, : registered[i]]}
    return len(known) + sum(blocks[i] - registered[i] for i in blocks)


def assert_same_requests(one: Run, two: Run):
    for name in COLUMNS:
        assert_array_equal(one.requests[name], two.requests[name], err_msg=name)


def assert_segments_hold_the_tokens(run: Run):
    segments, repeats = run.segments, run.steps["repeats"]
    prompts = np.isin(segments["phase"], (PREFILL, RECOMPUTE))
    assert segments["tokens"][prompts].sum() == (run.steps["prefill"] * repeats).sum()
    decodes = segments["tokens"][segments["phase"] == DECODE].sum()
    assert decodes == (run.steps["decodes"] * repeats).sum()
    assert (segments["phase"] == PREEMPTED).sum() == run.requests["preemptions"].sum()


def single_steps(run: Run) -> list[tuple]:
    """(t0, ms, prefill, decodes) of every single step, and the free blocks of a recorded one."""
    rows = []
    for step in run.steps:
        now = step["t0"]
        for k in range(step["repeats"]):
            free = int(step["free"]) if k == 0 else None
            decodes = int(step["decodes"]) + int(step["pad_decodes"])
            rows.append((now, step["ms"], int(step["prefill"]), decodes, free))
            now += step["ms"]
    return rows


@every_keeper
@given(case=cases())
@laws
def test_blocks_are_conserved_after_every_plan_and_every_commit(policy, case):
    case = fitted(policy, case)
    for s, blocks, _ in stepped(policy, case):
        assert s.n.free >= 0
        assert s.n.free + in_use(s, blocks) == pool(policy, case.limits)


@every_keeper
@given(case=cases())
@laws
def test_the_running_hold_the_blocks_that_their_kv_needs_within_seats_and_budget(policy, case):
    case = fitted(policy, case)
    keeps, limits = POLICIES[policy].keeps, case.limits
    for s, blocks, _ in stepped(policy, case):
        assert s.n.running == len(blocks) <= limits.max_num_seqs
        for i, held in blocks.items():
            assert held * limits.block_size >= kv_of(s, i)
        assert s.n.kv == sum(kv_of(s, i) for i in blocks)
        if "max_num_batched_tokens" in keeps:
            assert s.n.prefill + s.n.decodes <= limits.max_num_batched_tokens


@every_keeper
@given(case=cases())
@laws
def test_a_step_that_decodes_has_a_token_for_all_who_decode(policy, case):
    for s, _, planned in stepped(policy, fitted(policy, case)):
        if planned:
            assert s.n.decodes in (0, s.n.decoding)


@pytest.mark.parametrize("policy", BLOCKWISE)
@given(case=cases())
@laws
def test_each_known_block_counts_its_users_and_the_unused_stand_in_one_line(policy, case):
    case = fitted(policy, case)
    case = case._replace(limits=case.limits._replace(enable_prefix_caching=1))
    for s, blocks, _ in stepped(policy, case):
        users = np.zeros(len(s.entries), int)
        for i in blocks:
            users[s.table[s.requests[i].seat, : s.requests[i].registered]] += 1
        known = np.setdiff1d(np.arange(len(s.entries)), s.unused[s.n.entries :])
        assert_array_equal(users[known], s.entries["users"][known])
        line, e = [], s.n.oldest
        while e >= 0:
            line.append(int(e))
            e = s.entries["newer"][e]
        assert sorted(line) == known[users[known] == 0].tolist()
        assert s.n.blank == s.n.free - len(line) >= 0


@every_keeper
@given(case=cases())
@laws
def test_each_request_in_the_door_gets_its_output_and_each_other_is_counted(policy, case):
    case = fitted(policy, case)
    run = served(policy, case)
    assert len(run.requests) == len(case.workload)
    tokens = np.zeros(len(run.requests), int)
    spoke = run.segments["phase"] == DECODE
    np.add.at(tokens, run.segments["request"][spoke], run.segments["tokens"][spoke])
    for r, decoded in zip(run.requests, tokens, strict=True):
        if r["refused"] != ADMITTED:
            assert np.isnan(r["finish"])
            assert decoded == 0
            continue
        # Each computation of a prompt, the first and those after preemptions, emits one as well.
        assert r["output"] - 1 - r["preemptions"] <= decoded <= r["output"] - 1
        assert r["arrival"] <= r["start"] < r["first"] <= r["last"] == r["finish"] <= run.total
    assert len(written_out(itl(run))) == (run.served["output"] - 1).sum()


@every_keeper
@given(case=cases())
@laws
def test_the_segments_hold_the_tokens_of_the_steps(policy, case):
    assert_segments_hold_the_tokens(served(policy, fitted(policy, case)))


@every_keeper
@given(case=cases())
@laws
def test_stretched_equals_step_by_step_in_every_column_and_figure(policy, case):
    case = fitted(policy, case)
    stretched, single = served(policy, case), served(policy, case, stretch=False)
    assert_same_requests(stretched, single)
    assert_array_equal(stretched.segments, single.segments)
    assert [row[:4] for row in single_steps(stretched)] == [r[:4] for r in single_steps(single)]
    if len(single.served):
        ours, theirs = figures(stretched, Slo()), figures(single, Slo())
        assert ours == pytest.approx(theirs, rel=1e-12, nan_ok=True)


@every_keeper
@given(case=cases())
@laws
def test_times_preemptions_and_free_blocks_are_the_naive_twins(policy, case):
    case = fitted(policy, case)
    run, twin = served(policy, case, stretch=False), twin_of(policy, case)
    assert set(np.flatnonzero(run.requests["refused"])) == set(twin.refused)
    let_in = [r for r in twin.requests if r.id not in twin.refused]
    for name in ("preemptions", "arrival", "start", "first", "last", "finish", "recomputed"):
        assert run.served[name].tolist() == [getattr(r, name) for r in let_in], name
    steps = [(s.t0, s.ms, s.prefill, s.decodes, s.free) for s in twin.steps if s.ms > 0]
    assert [row for row in single_steps(run) if row[1] > 0] == steps


@every_keeper
@given(case=cases())
@laws
def test_the_pooled_itl_are_the_naive_twins_gaps_between_tokens(policy, case):
    case = fitted(policy, case)
    pooled = itl(served(policy, case))
    gaps = sorted(gap for r in twin_of(policy, case).requests for gap in r.gaps)
    # A gap is a difference of two clock readings, a step's ms is what was added to the clock.
    assert sorted(written_out(pooled)) == pytest.approx(gaps, rel=1e-9)


@every_keeper
@given(case=cases())
@laws
def test_the_waits_by_cause_add_up_to_the_time_that_requests_waited(policy, case):
    case = fitted(policy, case)
    run, twin = served(policy, case), twin_of(policy, case)
    if len(run.served):
        waited = sum(r.waited for r in twin.requests)
        assert sum(waits(run).values()) == pytest.approx(waited, rel=1e-9, abs=1e-6)


@every_keeper
def test_a_limit_that_a_policy_does_not_keep_changes_nothing(policy):
    case = drawn(3, num_gpu_blocks=60, long_prefill_token_threshold=9)
    plain = served(policy, case)
    others = {
        "chunk": 3,
        "enable_chunked_prefill": 0,
        "long_prefill_token_threshold": 4,
        "long_prefill_token_threshold_adaptive": 1,
        "enable_prefix_caching": 1,
        "scheduler_reserve_full_isl": 0,
        "watermark": 0.3,
        "preempt_on_arrival": 1,
    }
    for name in set(others) - set(POLICIES[policy].keeps):
        changed = served(policy, case._replace(limits=case.limits._replace(**{name: others[name]})))
        assert_same_requests(changed, plain)
        assert_array_equal(changed.segments, plain.segments, err_msg=name)


SHORT_OF_MEMORY = [
    {},
    {"long_prefill_token_threshold": 3},
    {"max_num_batched_tokens": 12, "scheduler_reserve_full_isl": 0},
]


@pytest.mark.parametrize("policy", PREEMPTING)
@pytest.mark.parametrize("caching", [0, 1])
@pytest.mark.parametrize("limits", SHORT_OF_MEMORY, ids=str)
def test_small_pools_do_make_it_preempt_and_it_still_equals_the_twin(policy, caching, limits):
    total = 0
    for seed in range(6):
        case = fitted(policy, drawn(seed, enable_prefix_caching=caching, **limits))
        run, twin = served(policy, case), twin_of(policy, case)
        total += run.requests["preemptions"].sum()
        for name in ("preemptions", "recomputed", "finish"):
            assert run.requests[name].tolist() == [getattr(r, name) for r in twin.requests], name
        pooled, gaps = itl(run), sorted(gap for r in twin.requests for gap in r.gaps)
        assert sorted(written_out(pooled)) == pytest.approx(gaps, rel=1e-9)
        assert_segments_hold_the_tokens(run)
    assert total > (2 if policy in RADIX else 20)  # what reservations do not prevent


def test_no_time_passes_where_a_seat_is_lost_in_a_step_that_costs_nothing():
    rows = [(0.0, 10, 6, 0, 0, -1), (1000.0, 1, 1, 0, 0, -1)]
    limits = Limits(4, 64, block_size=4, num_gpu_blocks=4, max_model_len=64)
    case = Case(workload(rows, 1), limits, (0.0, 0.1, 0.3, 0.7))
    run = served("vllm_v0", case)
    assert run.requests["preemptions"][0] > 0
    assert run.requests["finish"].tolist() == [r.finish for r in twin_of("vllm_v0", case).requests]
    assert run.requests["finish"][0] < 10


@pytest.mark.parametrize("policy", ["orca", "orca_max"])
def test_who_reserved_memory_for_all_its_tokens_is_never_preempted(policy):
    for seed in range(6):
        assert not served(policy, drawn(seed)).requests["preemptions"].any()


@pytest.mark.parametrize("policy", CACHING)
def test_shared_prefixes_are_computed_once_where_the_cache_knows_them(policy):
    case = drawn(5, blocks=400, max_num_seqs=4)
    cached = case._replace(limits=case.limits._replace(enable_prefix_caching=1))
    plain, shared = ((served(policy, c).steps) for c in (case, cached))
    assert shared["prefill"].sum() < 0.9 * plain["prefill"].sum()


@pytest.mark.parametrize("policy", [name for name in PREEMPTING if name not in RADIX])
def test_who_may_be_longer_than_the_model_stops_at_its_length(policy):
    rows = [(0.0, 20, 60, 0, 0, -1), (0.0, 20, 12, 0, 0, -1)]
    limits = Limits(4, 64, block_size=4, num_gpu_blocks=24, max_model_len=40)
    run = served(policy, Case(workload(rows, 1), limits, (1.0, 0.0, 0.0, 0.0)))
    assert len(written_out(itl(run))) == 19 + 11
    assert run.requests["finish"].tolist() == [20.0, 12.0]


def test_shared_prefixes_have_identities_of_their_own_however_many_there_are():
    prompt = np.array([4 * 2**17, 4 * 2**17])
    ones = np.ones(2, int)
    w = Workload(np.zeros(2), prompt, ones, ones, prefix=(np.array([0, 2**15]), prompt))
    flat, offsets = w.blocks(4)
    assert len(np.intersect1d(flat[: offsets[1]], flat[offsets[1] :])) == 0


# At the door. `blocks` are those that requests can have.

DOOR = Limits(4, 64, block_size=4, max_model_len=40)


def at_the_door(policy: str, rows, blocks: int, clients: int = 0) -> Run:
    limits = DOOR._replace(num_gpu_blocks=blocks + POLICIES[policy].null_blocks)
    return served(policy, Case(workload(rows, 1, clients), limits, (1.0, 0.0, 0.0, 0.0)))


NEVER_FIT = [(0.0, 30, 6, 0, 0, -1), (0.0, 10, 6, 10, 0, -1), (1.0, 40, 1, 0, 0, -1)]
FIT = [(0.0, 8, 8, 0, 0, -1), (2.0, 12, 4, 0, 0, -1)]


@every_usual_door
def test_who_never_fits_is_refused_with_the_reason_and_the_others_are_served(policy):
    blocks = 10 if policy == "orca_max" else 4
    run = at_the_door(policy, NEVER_FIT + FIT, blocks)
    large = ADMITTED if policy == "orca_max" else TOO_LARGE
    assert run.requests["refused"].tolist() == [large, large, TOO_LONG, ADMITTED, ADMITTED]
    refused = run.requests["refused"] != ADMITTED
    assert_array_equal(np.isnan(run.requests["finish"]), refused)
    assert not set(run.segments["request"]) & set(np.flatnonzero(refused))
    assert figures(run, Slo())["refused"] == refused.sum()
    assert figures(run, Slo())["tok_s"] == run.requests["output"][~refused].sum() / run.total * 1e3


@every_usual_door
def test_a_request_that_just_fits_is_let_in_and_one_token_more_is_not(policy):
    blocks = 10 if policy == "orca_max" else 4
    longest = 39 if policy == "orca_max" else 4 * blocks
    just = [(0.0, longest - 3, 3, 0, 0, -1)]
    assert at_the_door(policy, just, blocks).total > 0
    if policy != "orca_max":
        more = [(0.0, longest - 3, 3, 1, 0, -1), *just]
        run = at_the_door(policy, more, blocks)
        assert run.requests["refused"].tolist() == [TOO_LARGE, ADMITTED]


@every_usual_door
def test_everybody_refused_is_a_run_in_which_nothing_happens(policy):
    run = at_the_door(policy, [(0.0, 40, 1, 0, 0, -1)] * 3, 10)
    assert run.requests["refused"].tolist() == [TOO_LONG] * 3
    assert np.isnan(run.requests["finish"]).all()
    assert run.total == len(run.steps) == len(run.segments) == len(run.served) == 0


@every_usual_door
def test_a_closed_loop_goes_on_past_a_refusal(policy):
    blocks = 10 if policy == "orca_max" else 4
    too_long = (0.0, 40, 1, 0, 0, -1)
    run = at_the_door(policy, [FIT[0], too_long, FIT[0], too_long, too_long, FIT[0]], blocks, 1)
    assert run.requests["refused"].astype(bool).tolist() == [False, True, False, True, True, False]
    assert run.served["arrival"].tolist() == [0.0, *run.served["finish"][:-1]]


SCRIPT = """
import numba
from sim.run import serve
from sim.state import Limits
from sim.traffic import Lengths, Traffic
from sim.workload import draw

print(numba.config.DISABLE_JIT)
traffic = Traffic(
    arrivals="gamma", rate=200, duration=0.5, seed=3, urgent=0.3, prefixes=2, prefix_tokens=40,
    prompt=Lengths("uniform", (1, 100)), output=Lengths("uniform", (1, 60)), limit_factor=1.2,
)
for caching in 0, 1:
    limits = Limits(
        12, 128, block_size=4, num_gpu_blocks=48, max_model_len=128, enable_prefix_caching=caching
    )
    for policy in "vllm_v1", "vllm_v1_priority", "sarathi":
        run = serve(draw(traffic), policy, limits, (0.2, 0.02, 0.4, 0.03))
        print(policy, "seats lost", run.requests["preemptions"].sum())
        for table in run.requests, run.steps, run.segments, run.gaps:
            for name in table.dtype.names:
                print(policy, name, table[name].tobytes().hex())
"""


def test_compiled_and_plain_python_give_the_same_bits_with_preemption_and_caching():
    (compiled_off, compiled), (plain_off, plain) = printed(SCRIPT, "0"), printed(SCRIPT, "1")
    assert (compiled_off, plain_off) == ("0", "1")
    assert compiled == plain
    assert "seats lost 0" not in compiled
