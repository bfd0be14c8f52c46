"""Measures against their definitions: numpy, arithmetic by hand, and laws over workloads."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, startable, workload

from sim.explain import change, duration, verdict, verdicts, why_waited
from sim.metrics import (
    FIGURES,
    METRICS,
    QUANTILES,
    Sample,
    attained,
    e2e,
    figures,
    itl,
    longest_wait,
    queue,
    tpot,
    tpot_to_release,
    ttft,
    unsupported,
    useful_share,
    waits,
)
from sim.policies import POLICIES
from sim.run import Run, compare, serve
from sim.scenario import Scenario, Slo
from sim.state import BATCH, BLOCKS, BUDGET, GAP, NOTHING, RESERVED, SEATS, SEGMENT, STEP, Limits
from sim.traffic import Traffic
from sim.workload import draw

every_policy = pytest.mark.parametrize("policy", POLICIES)
laws = settings(max_examples=50, deadline=None)

A_MILLISECOND_A_STEP = (1.0, 0.0, 0.0, 0.0)
COLUMNS = ("arrival", "prompt", "output", "start", "first", "last", "finish")
NONE = ("preemptions", "recomputed", "refused")


def run_of(*rows) -> Run:
    """A run with these requests (COLUMNS) and nothing else on record."""
    dtype = [(name, "i8" if name in ("prompt", "output") else "f8") for name in COLUMNS]
    requests = np.array([(*row, 0, 0, 0) for row in rows], dtype + [(name, "i8") for name in NONE])
    total = float(requests["finish"].max())
    steps, segments, gaps = (np.empty(0, dtype) for dtype in (STEP, SEGMENT, GAP))
    return Run("by hand", "simulated", 2, 0, 16, total, requests, steps, segments, gaps)


BY_HAND = run_of(
    # arrival, prompt, output, start, first, last, finish
    (0.0, 10, 5, 0.0, 10.0, 30.0, 50.0),  # TTFT 10, TPOT 5, E2E 50, waits 0
    (5.0, 10, 1, 15.0, 35.0, 35.0, 50.0),  # TTFT 30, no TPOT, E2E 45, waits 10
    (20.0, 10, 3, 20.0, 40.0, 100.0, 100.0),  # TTFT 20, TPOT 30, E2E 80, waits 0
)


@given(
    pairs=st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 9)), min_size=1, max_size=30),
    q=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_weighted_quantile_and_mean_are_numpys_over_the_values_written_out(pairs, q):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    sample, written_out = Sample(values, weights), np.repeat(values, weights)
    assert sample.quantile(q) == pytest.approx(np.quantile(written_out, q), rel=1e-12)
    assert sample.mean == pytest.approx(written_out.mean(), rel=1e-12)
    assert Sample(written_out).quantile(q) == np.quantile(written_out, q)


def test_a_sample_of_nothing_has_no_mean_and_no_quantile():
    nothing = Sample(np.empty(0), np.empty(0, np.int64))
    assert math.isnan(nothing.mean)
    assert math.isnan(nothing.quantile(0.5))
    assert not nothing.supports(0.5)


@pytest.mark.parametrize(("q", "enough"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_quantile_needs_so_many_requests_for_an_upper_bound(q, enough):
    assert Sample(np.empty(0), requests=enough).supports(q)
    assert not Sample(np.empty(0), requests=enough - 1).supports(q)


@pytest.mark.parametrize(("requests", "marked"), [(298, True), (299, False)])
def test_p99_of_298_requests_is_marked_and_of_299_is_not(requests, marked):
    row = (0.0, 10, 5, 0.0, 10.0, 30.0, 50.0)
    names = unsupported(run_of(*[row] * requests))
    assert ("ttft_p99" in names) is marked
    assert ("e2e_p99" in names) is marked
    assert "ttft_p95" not in names


def test_a_thousand_tokens_of_few_requests_support_no_p99_of_itl():
    run = serve(workload([(0.0, 5, 1000)] * 3), "continuous", Limits(), (0.2, 0.02, 0.4, 0.03))
    weights = itl(run).weights
    assert weights is not None
    assert weights.sum() == 3 * 999
    assert {"itl_p50", "itl_p99"} <= unsupported(run)


def test_each_metric_follows_its_definition():
    assert ttft(BY_HAND).values.tolist() == [10, 30, 20]
    assert queue(BY_HAND).values.tolist() == [0, 10, 0]
    assert e2e(BY_HAND).values.tolist() == [50, 45, 80]
    assert tpot(BY_HAND).values.tolist() == [(30 - 10) / 4, (100 - 40) / 2]
    assert tpot_to_release(BY_HAND).values.tolist() == [(50 - 10) / 4, (100 - 40) / 2]


def test_tpot_of_one_token_is_undefined_and_not_zero():
    lone = run_of((0.0, 10, 1, 0.0, 10.0, 10.0, 10.0))
    assert len(tpot(lone).values) == len(tpot_to_release(lone).values) == 0
    every = figures(serve(workload([(0.0, 10, 1)]), "static", Limits(), (1, 0, 0, 0)), Slo())
    for name in ("tpot_mean", "tpot_p95", "itl_mean", "itl_p99", "tpot_to_release_p50"):
        assert math.isnan(every[name])


def test_attainment_and_goodput_count_who_keeps_both_limits():
    kept = attained(BY_HAND, Slo(ttft_slo=20, tpot_slo=10))
    assert kept.tolist() == [True, False, False]  # the second waits 30, the third takes 30 a token
    assert attained(BY_HAND, Slo(ttft_slo=30, tpot_slo=10)).tolist() == [True, True, False]
    assert attained(BY_HAND, Slo(ttft_slo=30, tpot_slo=30)).all()  # a limit may be reached


def test_figures_by_hand():
    run = serve(workload([(0.0, 1, 3), (0.5, 1, 2)]), "continuous", Limits(1), A_MILLISECOND_A_STEP)
    # 0 to 3: the first request; the second, which came at 0.5, from 3 to 5.
    every = figures(run, Slo(ttft_slo=2.0, tpot_slo=1.0, max_wait=2.4))
    assert every["total_s"] == 0.005
    assert every["tok_s"] == 5 / 0.005
    assert every["req_s"] == 2 / 0.005
    assert every["attainment"] == 50
    assert every["goodput"] == 1 / 0.005
    assert every["longest_wait"] == 2.5
    assert every["starved"] == 1
    assert every["use_all"] == every["use_held"] == 100
    assert every["ttft_mean"] == (1 + 3.5) / 2
    assert every["ttft_p95"] == pytest.approx(1 + 0.95 * 2.5)
    assert every["itl_p99"] == every["itl_mean"] == every["tpot_p50"] == 1
    assert longest_wait(run) == 1


def test_static_batching_of_one_long_and_seven_short_uses_14_7_percent_of_its_slots():
    """
    Eight seats, one millisecond a step. R0 emits 2000 tokens, R1 to R7 emit 50: the batch holds
    8 x 2000 seat-steps, of which 2000 + 7 x 50 = 2350 are of use: 14.69 %.
    """
    rows = [(0.0, 1, 2000)] + [(0.0, 1, 50)] * 7
    static = serve(workload(rows), "static", Limits(8), A_MILLISECOND_A_STEP)
    assert static.total == 2000
    assert useful_share(static, of_held=False) == useful_share(static, of_held=True)
    assert useful_share(static, of_held=False) == pytest.approx(100 * 2350 / 16_000)
    continuous = serve(workload(rows), "continuous", Limits(8), A_MILLISECOND_A_STEP)
    assert useful_share(continuous, of_held=True) == 100
    assert useful_share(continuous, of_held=False) == pytest.approx(100 * 2350 / 16_000)


@every_policy
@given(case=cases)
@laws
def test_waits_by_cause_add_up_to_the_time_in_the_queue(policy, case):
    run = serve(case.workload, policy, startable(policy, case.limits), case.cost)
    by_cause = waits(run)
    assert sum(by_cause.values()) == pytest.approx(queue(run).values.sum(), rel=1e-9, abs=1e-6)
    assert min(by_cause.values()) > -1e-6
    if not {"max_num_batched_tokens", "chunked_prefill_size"} & set(POLICIES[policy].keeps):
        assert by_cause[BUDGET] == 0


@pytest.mark.parametrize(
    ("policy", "limits", "prompt", "cause"),
    [
        ("continuous", Limits(1), 1, SEATS),
        ("chunked", Limits(1), 1, SEATS),
        ("continuous", Limits(2, 10), 10, BUDGET),
        ("chunked", Limits(2, 1), 10, BUDGET),
        ("static", Limits(2), 10, BATCH),
    ],
)
def test_a_wait_is_laid_to_what_kept_the_head_of_the_line_out(policy, limits, prompt, cause):
    """R0 runs from 0 to 3, a millisecond a step; R1 comes at 0.5 and is let in at 3."""
    run = serve(workload([(0.0, 1, 3), (0.5, prompt, 1)]), policy, limits, A_MILLISECOND_A_STEP)
    assert run.requests["start"].tolist() == [0.0, 3.0]
    nobody = dict.fromkeys((SEATS, BUDGET, BATCH, BLOCKS, RESERVED), 0.0)
    assert waits(run) == nobody | {NOTHING: 0.5, cause: 2.0}


@every_policy
@given(case=cases)
@laws
def test_figures_stay_within_what_they_can_be(policy, case):
    every = figures(serve(case.workload, policy, startable(policy, case.limits), case.cost), Slo())
    assert set(every) == set(FIGURES)
    for name in METRICS:
        quantiles = [every[f"{name}_{key}"] for key in QUANTILES]
        assert quantiles == sorted(quantiles) or all(map(math.isnan, quantiles))
    for name in ("use_all", "use_held", "attainment"):
        assert 0 <= every[name] <= 100 + 1e-9
    assert every["use_all"] <= every["use_held"] + 1e-9
    assert every["goodput"] <= every["req_s"]


def test_static_batching_holds_seats_for_nothing_and_continuous_never():
    workload = draw(Traffic(duration=3))
    static, continuous = (
        useful_share(serve(workload, policy, Limits(), Scenario().cost), of_held=True)
        for policy in ("static", "continuous")
    )
    assert static < 50
    assert continuous == pytest.approx(100)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda m: m.name)
def test_every_metric_says_what_it_is(metric):
    assert metric.label
    assert metric.about.endswith(".")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (71.1, 17.2, "cuts ITL p99 from 71 to 17 ms"),
        (17.2, 71.1, "raises ITL p99 from 17 to 71 ms"),
        (100.0, 113.0, "raises ITL p99 by 13 %"),
        (100.0, 87.0, "cuts ITL p99 by 13 %"),
        (100.0, 100.3, "leaves ITL p99 as it is"),
        (100.0, 100.0, "leaves ITL p99 as it is"),
        (0.0, 0.0, "leaves ITL p99 as it is"),
        (506.0, 64_100.0, "raises ITL p99 from 506 ms to 64.1 s"),
        (0.0, 5.0, "raises ITL p99 from 0 to 5 ms"),
    ],
)
def test_a_change_is_said_as_a_person_would(before, after, said):
    assert " ".join(change("ITL p99", before, after)) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [(71.1, "71 ms"), (1.234, "1.2 ms"), (9.96, "10 ms"), (9_949, "9,949 ms"), (21_300, "21.3 s")],
)
def test_a_duration_has_the_digits_that_count(ms, said):
    assert duration(ms) == said


def test_the_opening_scenario_says_what_chunking_gains_and_costs():
    static, continuous, chunked = compare(Scenario())
    assert verdict(chunked, continuous) == (
        "chunked 128 cuts ITL p99 from 71 to 17 ms and raises TTFT p95 by 13 % against continuous."
    )
    assert verdict(continuous, continuous).startswith("continuous leaves ITL p99 as it is and ")
    assert verdicts([static, continuous, chunked], 1) == [
        verdict(chunked, continuous),
        verdict(static, continuous),
    ]


def test_outputs_of_one_token_leave_only_ttft_to_speak_of():
    rows = [(0.0, 10, 1)] * 3
    one, two = (serve(workload(rows), "continuous", Limits(n), (1, 0, 0, 0)) for n in (1, 3))
    assert "ITL" not in verdict(one, two)
    assert "TTFT p95" in verdict(one, two)


def test_one_sentence_says_who_waited_and_for_what():
    run = serve(workload([(0.0, 1, 3), (0.5, 1, 2)]), "continuous", Limits(1), A_MILLISECOND_A_STEP)
    assert why_waited(run) == (
        "Request 1 waited longest, 2.5 ms; the mean was 1.2 ms, 80 % of it for a free seat."
    )


@every_policy
def test_nobody_waits_where_nobody_does(policy):
    run = serve(workload([(0.0, 1, 3), (50.0, 1, 2)]), policy, Limits(), A_MILLISECOND_A_STEP)
    assert why_waited(run) == "Nobody waited for a seat."


def test_a_gap_counts_the_prompts_that_ran_alone_before_anybody_decoded():
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64)
    rows = [(0.0, 8, 2), (0.5, 8, 1)]
    run = serve(workload(rows), "vllm_v0", limits, A_MILLISECOND_A_STEP)
    assert run.requests["first"].tolist() == [1.0, 2.0]
    assert run.requests["last"].tolist() == [3.0, 2.0]
    sample = itl(run)
    assert sample.weights is not None
    assert (sample.values.tolist(), sample.weights.tolist()) == ([2.0], [1])
