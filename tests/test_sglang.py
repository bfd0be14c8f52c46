"""SGLang by hand: who goes first, what keeps a batch full, what is refused, and where it dies."""

import numpy as np
import pytest
import test_golden_sglang as golden
from hypothesis import given, settings
from numpy.testing import assert_array_equal
from test_memory import cases, every_radix, fitted, stepped, tree

from sim.metrics import itl
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.run import Run, door, serve
from sim.scenario import Scenario
from sim.state import ADMITTED, REFUSALS, RESERVED, SEATS, TOO_LONG_AN_INPUT, Limits
from sim.workload import Workload

laws = settings(max_examples=15, deadline=None)

# A step takes 1 ms, whatever is in it.
STEPS = (1.0, 0.0, 0.0, 0.0)
ROOMY = Limits(
    max_num_seqs=8, block_size=1, num_gpu_blocks=1_000, max_model_len=500, chunked_prefill_size=64
)


def run(policy: str, rows, limits: Limits = ROOMY, prefix=None) -> Run:
    """rows: (ms, prompt, output, limit)."""
    arrival, prompt, output, limit = (np.array(column) for column in zip(*rows, strict=True))
    work = Workload(arrival.astype(float), prompt, output, limit, prefix=prefix)
    return serve(work, policy, limits, STEPS, stretch=False)


def steps(run: Run) -> list[tuple]:
    return [(step["t0"], step["prefill"], step["decodes"]) for step in run.steps]


def test_decodes_stand_still_while_a_prompt_is_computed_and_not_beside_a_mixed_chunk():
    """
    0  R0's prompt of 10; it decodes in 1 and 2
    3  R1 came at 2.5: its prompt of 150 takes chunks of 64, 64 and 22, alone
    6  both decode, until R0 has its sixth token at 8 and R1 its third
    """
    rows = [(0, 10, 6, 6), (2.5, 150, 3, 3)]
    alone = run("sglang", rows)
    prompts = [(0, 10, 0), (1, 0, 1), (2, 0, 1), (3, 64, 0), (4, 64, 0), (5, 22, 0)]
    assert steps(alone) == [*prompts, (6, 0, 2), (7, 0, 2), (8, 0, 1)]
    assert itl(alone).quantile(1.0) == 4.0
    mixed = run("sglang", rows, ROOMY._replace(enable_mixed_chunk=1))
    assert steps(mixed) == [
        *[(0, 10, 0), (1, 0, 1), (2, 0, 1), (3, 63, 1), (4, 63, 1), (5, 24, 1)],
        *[(6, 0, 1), (7, 0, 1)],
    ]
    assert itl(mixed).quantile(1.0) == 1.0


def test_a_full_batch_lets_nobody_in_until_the_decode_after_a_finish_is_over():
    """
    0  R0 and R1 take both seats; R2 waits, and the batch is full from 1 on
    3  R0 has its third token at 3: its seat is free, but the batch is full until it is dropped
    4  R1 has decoded once more, and the batch is not full: R2's prompt
    """
    limits = ROOMY._replace(max_num_seqs=2)
    full = run("sglang", [(0, 4, 3, 3), (0, 4, 9, 9), (0, 4, 1, 1)], limits)
    assert full.requests["finish"][0] == 3
    assert full.requests["start"][2] == 4
    assert set(full.steps["stop"][:4]) == {SEATS}


def test_a_server_whose_last_decodes_are_all_done_takes_a_step_of_nothing():
    full = run("sglang", [(0, 4, 3, 3), (0, 4, 2, 2)], ROOMY._replace(max_num_seqs=1))
    assert steps(full) == [(0, 4, 0), (1, 0, 1), (2, 0, 1), (3, 0, 0), (4, 4, 0), (5, 0, 1)]


def test_a_share_of_what_the_running_may_emit_is_reserved():
    """R0 may emit 400 more, 0.7 of which is reserved: 500 - 10 - 280 leave R1's 200 + 9 + 1 no room
    of more than that, and its 199 + 9 + 1 do fit."""
    limits = ROOMY._replace(num_gpu_blocks=500, chunked_prefill_size=-1)
    kept_out = run("sglang", [(0, 10, 4, 401), (0.5, 200, 9, 9)], limits)
    assert kept_out.steps["stop"][1] == RESERVED
    assert kept_out.requests["start"][1] > 1
    let_in = run("sglang", [(0, 10, 4, 401), (0.5, 199, 9, 9)], limits)
    assert let_in.requests["start"][1] == 1


SHARING = np.array([0, 1, 1, 0]), np.full(4, 100)
IN_LINE = [(0, 110, 2, 2), (0.2, 110, 2, 2), (0.4, 110, 2, 2), (0.6, 110, 2, 2)]
ONE_SEAT = ROOMY._replace(max_num_seqs=1, chunked_prefill_size=256, enable_prefix_caching=1)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("sglang", [0, 1, 2, 3]),
        # Request 3 has 100 tokens in the cache; of the other two the second is like the first.
        ("sglang_lpm", [0, 3, 1, 2]),
        ("sglang_0_4_0", [0, 3, 1, 2]),
        ("sglang_0_4_0_fcfs", [0, 1, 2, 3]),
    ],
)
def test_longest_prefix_match_goes_by_what_is_cached(policy, order):
    served = run(policy, IN_LINE, ONE_SEAT, SHARING)
    assert np.argsort(served.requests["start"], kind="stable").tolist() == order


def test_who_is_like_another_in_line_is_passed_by_who_is_like_nobody_but_not_at_0_4_0():
    """R0 decodes, two seats are free. Of the like R1 and R2, neither in the cache, R2 gives way to
    R3, which takes what R1 leaves of the chunk."""
    rows = [(0, 40, 3, 3), (0.2, 110, 2, 2), (0.2, 110, 2, 2), (0.4, 110, 2, 2)]
    prefix = np.array([-1, 0, 0, 1]), np.array([0, 100, 100, 100])
    limits = ONE_SEAT._replace(max_num_seqs=3, chunked_prefill_size=112, num_gpu_blocks=2_000)
    starts = {p: run(p, rows, limits, prefix).requests["start"] for p in ("sglang_lpm", "sglang")}
    assert starts["sglang_lpm"][3] < starts["sglang_lpm"][2]
    assert starts["sglang"][2] < starts["sglang"][3]
    old = run("sglang_0_4_0", rows, limits, prefix).requests["start"]
    assert old[2] < old[3]


def test_a_prompt_begun_goes_on_with_every_batch():
    """R1's prompt of 40 in chunks of 16: decodes of R0 wait for all three, R2's prompt shares the
    last."""
    limits = ROOMY._replace(chunked_prefill_size=16)
    rows = [(0, 8, 4, 4), (0.5, 40, 1, 1), (0.6, 8, 1, 1)]
    begun = run("sglang", rows, limits)
    assert steps(begun)[:5] == [(0, 8, 0), (1, 16, 0), (2, 16, 0), (3, 16, 0), (4, 0, 1)]
    assert begun.requests["first"].tolist() == [1, 4, 4]


@pytest.mark.parametrize(("prompt", "refused"), [(493, ADMITTED), (494, TOO_LONG_AN_INPUT)])
def test_an_input_is_refused_from_six_tokens_below_the_model_or_the_pool_on(prompt, refused):
    for limits in ROOMY, ROOMY._replace(num_gpu_blocks=500, max_model_len=9_000):
        work = Workload(np.zeros(1), np.array([prompt]), np.array([1]), np.array([1]))
        assert door(work, "sglang", limits).tolist() == [refused]
    assert "maximum allowed length" in REFUSALS[TOO_LONG_AN_INPUT]


def test_a_limit_is_cut_to_what_fits_model_and_pool_and_the_output_ends_there():
    long = run("sglang", [(0, 480, 100, 100)])
    assert long.requests["output"].tolist() == [500 - 2 - 480]
    pool = run("sglang", [(0, 480, 100, 100)], ROOMY._replace(num_gpu_blocks=490))
    assert pool.requests["output"].tolist() == [490 - 480 - 1 - 1]


DYING = {
    "page_size": 1,
    "max_total_num_tokens": 300,
    "context_len": 700,
    "chunked_prefill_size": 16,
    "max_prefill_tokens": 16_384,
    "schedule_conservativeness": 0.02,
    "enable_mixed_chunk": True,
    "disable_radix_cache": True,
    "max_running_requests": 12,
}


@pytest.fixture(scope="module")
def dying() -> dict:
    """A run of the naive twin in which mixed chunks have taken all memory."""
    made = golden.recording("step", 54, 30, 1, 200, **DYING)
    assert made["end"] == "Out of memory. Try to lower your batch size."
    return made


def test_where_the_real_engine_dies_the_replay_ends_alike(tmp_path, capsys, dying):
    assert golden.replayed(tmp_path, capsys, dying=dying) == (0, "1 of 1 equal\n")
    survived = dying | {"end": "drained"}
    code, out = golden.replayed(tmp_path, capsys, survived=survived)
    assert code == 1
    assert "end: Out of memory." in out


def test_where_the_real_engine_dies_a_run_says_so_and_how_far_it_came(dying):
    rows = [(r["arrival_step"], r["prompt_len"], r["out_len"]) for r in dying["workload"]]
    arrival, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    limit = np.array([r.get("max_new", r["out_len"]) for r in dying["workload"]])
    limits = golden.limits_of(dying["config"])
    roomy = limits._replace(num_gpu_blocks=5_000)
    work = Workload(arrival.astype(float), prompt, output, limit)
    assert serve(work, "sglang", roomy, STEPS).total > 0
    with pytest.raises(ScenarioError) as error:
        serve(work, "sglang", limits, STEPS)
    said = str(error.value)
    assert said.startswith("sglang dies ")
    assert "as the real engine does" in said
    assert "of 30 requests served: 'Out of memory. Try to lower your batch size.'" in said
    assert "\n" not in said


@every_radix
@given(case=cases())
@laws
def test_the_tree_is_one_and_counts_its_users_and_its_leaves(policy, case):
    case = fitted(policy, case)
    case = case._replace(limits=case.limits._replace(enable_prefix_caching=1))
    for s, blocks, _ in stepped(policy, case):
        users, children, nodes = (np.zeros(len(s.nodes), int) for _ in range(3))
        for i in blocks:
            node = s.table[s.requests[i].seat, 0]
            while node:
                users[node] += 1
                node = s.nodes["parent"][node]
        for node in tree(s):
            row = s.nodes[node]
            nodes[node] = 1
            children[row["parent"]] += 1
            assert row["length"] > 0
            above = s.nodes[row["parent"]]
            assert row["depth"] == above["depth"] + above["length"]
            assert row["stamp"] < s.n.stamp + 1
        assert_array_equal(users * nodes, s.nodes["users"] * nodes)
        assert_array_equal((children * nodes)[1:], (s.nodes["children"] * nodes)[1:])
        free = sum(s.nodes["length"][node] for node in tree(s) if users[node] == 0)
        assert free == s.n.free - s.n.blank
        leaves = s.nodes["leaf"][: s.n.leaves].tolist()
        assert sorted(leaves) == [n for n in tree(s) if users[n] == children[n] == 0]
        stamps = s.nodes["stamp"][leaves]
        assert all(stamps[(k - 1) // 2] < stamps[k] for k in range(1, len(stamps)))


def test_prefixes_in_short_are_the_same_as_written_out():
    rng = np.random.default_rng(3)
    prompt, output = rng.integers(1, 90, 60), rng.integers(1, 40, 60)
    prefix = rng.integers(-1, 4, 60), np.minimum(prompt, 50)
    work = Workload(np.sort(rng.uniform(0, 200, 60)), prompt, output, output, prefix=prefix)
    limits = ROOMY._replace(num_gpu_blocks=90, block_size=4, enable_prefix_caching=1)
    flat = Workload(work.arrival, prompt, output, output, prefix=prefix, identities=work.blocks(4))
    for policy in "sglang", "sglang_lpm":
        one, two = (serve(w, policy, limits, STEPS) for w in (work, flat))
        assert_array_equal(one.requests, two.requests)
        assert_array_equal(one.steps, two.steps)


@pytest.mark.parametrize("name", ["sglang_0_4_0", "sglang_0_4_0_fcfs"])
def test_the_older_version_says_that_it_is_not_recorded(name):
    assert "From its source, not recorded" in POLICIES[name].note


def test_a_variant_of_each_version_runs_from_a_link():
    link = "/?v=sglang-0.5.18-h100-api&v=sglang-0.4.0-h100-api&duration=2&prefixes=3"
    scenario, problems = Scenario.from_url(link)
    assert problems == []
    assert {v.policy for v in scenario.variants} == {"sglang", "sglang_0_4_0"}


def test_retraction_takes_who_has_fewest_outputs_and_sends_it_to_the_end_of_the_line():
    """Three prompts of 10 in a pool of 60: each holds 10 + its outputs when the pool is short."""
    limits = ROOMY._replace(num_gpu_blocks=60, schedule_conservativeness=0.0, max_model_len=60)
    rows = [(0, 10, 20, 20), (1.5, 10, 20, 20), (3.5, 10, 20, 20), (5.5, 10, 1, 1)]
    short = run("sglang", rows, limits)
    assert short.requests["preemptions"].tolist() == [0, 0, 1, 0]
