"""Asynchronous scheduling: what the host's work costs, and what an unforeseen end wastes."""

from dataclasses import replace

import naive_vllm as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_memory import Case, assert_segments_hold_the_tokens, cases, drawn, fitted, twin_of

from sim.metrics import figures, itl, waits
from sim.run import COLUMNS, Run, compare, serve
from sim.scenario import Scenario, Slo, Variant
from sim.state import Limits
from sim.traffic import Traffic
from sim.workload import Workload, draw

AHEAD = list(naive.ASYNCHRONOUS)
COST = (0.2, 0.02, 0.4, 0.03)  # a decode of one: 0.63 ms
HOST = st.sampled_from([0.0, 0.1, 0.63, 1.0, 5.0])

laws = settings(max_examples=60, deadline=None)


def lone(prompt: int, output: int) -> Workload:
    arrival, lengths = np.zeros(1), (np.array([prompt]), np.array([output]), np.array([output]))
    return Workload(arrival, *lengths)


def tokens_of(work: Workload, host_ms: float, ahead: int) -> Run:
    return serve(work, "vllm_v1", Limits(async_scheduling=ahead), COST, host_ms=host_ms)


def spacing(run: Run) -> float:
    """ms between two output tokens of the only request."""
    return itl(run).quantile(0.5)


@pytest.mark.parametrize("host_ms", [0.0, 0.1, 0.5, 0.63, 1.0, 2.0])
def test_the_hosts_work_is_paid_between_two_batches_or_hidden_behind_one(host_ms):
    decode = 0.2 + 0.4 + 0.03
    assert spacing(tokens_of(lone(50, 80), host_ms, 0)) == pytest.approx(host_ms + decode)
    assert spacing(tokens_of(lone(50, 80), host_ms, 1)) == pytest.approx(max(host_ms, decode))


def test_the_first_token_waits_for_the_host_either_way():
    for ahead in 0, 1:
        first = tokens_of(lone(50, 80), 2.0, ahead).requests["first"][0]
        assert first == pytest.approx(2.0 + 0.2 + 50 * 0.02)


def test_an_arrival_in_a_batch_is_planned_for_after_the_next_one():
    """By hand: A's prompt takes 0.2 + 50 * 0.02 = 1.2 ms, each decode 0.63 ms. B arrives at 1.3, in
    A's first decode (1.2 to 1.83), behind which the second is queued already (to 2.46)."""
    arrival, prompt, output = np.array([0.0, 1.3]), np.array([50, 10]), np.array([9, 1])
    work = Workload(arrival, prompt, output, output)
    synchronous, ahead = (tokens_of(work, 0.0, k).requests for k in (0, 1))
    mixed = 0.2 + 10 * 0.02 + 0.4 + 0.03
    assert synchronous["start"][1] == pytest.approx(1.83)
    assert synchronous["first"][1] == pytest.approx(1.83 + mixed)
    assert ahead["start"][1] == pytest.approx(1.83)
    assert ahead["first"][1] == pytest.approx(2.46 + mixed)


def test_a_seat_is_free_a_batch_later():
    arrival, ones = np.array([0.0, 0.0]), np.array([10, 10])
    work = Workload(arrival, ones, np.array([1, 1]), np.array([1, 1]))
    runs = [serve(work, "vllm_v1", Limits(1, async_scheduling=k), COST) for k in (0, 1)]
    synchronous, ahead = (run.requests["start"][1] for run in runs)
    assert synchronous == pytest.approx(0.4)
    # The batch planned while the last token was in flight is empty, and a server with nothing to do
    # sleeps 1 ms.
    assert ahead == pytest.approx(0.4 + 1.0)


def test_with_no_host_time_the_two_differ_by_little():
    runs = compare(
        Scenario(
            traffic=Traffic(rate=30, duration=20),
            variants=(Variant("vllm_v1", (("async_scheduling", 0),)), Variant("vllm_v1")),
        )
    )
    synchronous, ahead = (figures(run, Slo()) for run in runs)
    assert ahead["tpot_p50"] == pytest.approx(synchronous["tpot_p50"], rel=0.02)
    assert ahead["total_s"] == pytest.approx(synchronous["total_s"], rel=0.01)


@pytest.mark.parametrize("host_ms", [1.0, 2.0])
def test_host_time_is_why_the_default_is_asynchronous(host_ms):
    runs = compare(
        Scenario(
            traffic=Traffic(rate=30, duration=20),
            variants=(Variant("vllm_v1", (("async_scheduling", 0),)), Variant("vllm_v1")),
            host_ms=host_ms,
        )
    )
    synchronous, ahead = (figures(run, Slo()) for run in runs)
    assert ahead["tpot_p50"] < synchronous["tpot_p50"]
    assert ahead["itl_p50"] < synchronous["itl_p50"] - 0.5 * host_ms


def endings(stop_tokens: bool, ahead: int, **limits) -> Run:
    work = replace(draw(Traffic(rate=36, duration=10)), stop_tokens=stop_tokens)
    return serve(work, "vllm_v1", Limits(async_scheduling=ahead, **limits), COST)


def test_an_unforeseen_end_wastes_one_decode_entry_and_a_foreseen_one_none():
    run = endings(True, 1)
    early = (run.requests["output"] < run.requests["limit"]).sum()
    assert early > 100
    assert run.steps["pad_decodes"].sum() == early
    assert endings(False, 1).steps["pad_decodes"].sum() == 0
    assert endings(True, 0).steps["pad_decodes"].sum() == 0


def test_the_wasted_entries_are_charged():
    surprised, foreseen = endings(True, 1), endings(False, 1)
    assert surprised.requests["last"].mean() > foreseen.requests["last"].mean()


@pytest.mark.parametrize("policy", AHEAD)
@given(case=cases(), host_ms=HOST)
@laws
def test_stretched_equals_step_by_step_with_host_time(policy, case, host_ms):
    case = fitted(policy, case._replace(limits=case.limits._replace(async_scheduling=1)))
    given_ = (case.workload, policy, case.limits, case.cost)
    stretched = serve(*given_, host_ms=host_ms)
    single = serve(*given_, host_ms=host_ms, stretch=False)
    for name in COLUMNS:
        assert_array_equal(stretched.requests[name], single.requests[name], err_msg=name)
    assert_array_equal(stretched.segments, single.segments)
    assert_segments_hold_the_tokens(stretched)
    assert (stretched.steps["repeats"] * stretched.steps["pad_decodes"]).sum() == single.steps[
        "pad_decodes"
    ].sum()


@pytest.mark.parametrize("policy", AHEAD)
@given(case=cases(), host_ms=HOST)
@laws
def test_times_with_host_time_are_the_naive_twins(policy, case, host_ms):
    case = fitted(policy, case._replace(limits=case.limits._replace(async_scheduling=1)))
    run = serve(case.workload, policy, case.limits, case.cost, host_ms=host_ms)
    twin = twin_of(policy, case, host_ms)
    let_in = [r for r in twin.requests if r.id not in twin.refused]
    for name in ("preemptions", "recomputed"):
        assert run.served[name].tolist() == [getattr(r, name) for r in let_in], name
    for name in ("arrival", "start", "first", "last", "finish"):
        assert_allclose(run.served[name], [getattr(r, name) for r in let_in], atol=1e-9)


def test_whoever_ends_with_a_token_in_flight_waits_no_more():
    finished_while_preempted = 0
    for seed in range(6):
        case = fitted("vllm_v1", drawn(seed, async_scheduling=1))
        run = serve(case.workload, "vllm_v1", case.limits, case.cost)
        twin = twin_of("vllm_v1", case)
        waited = sum(r.waited for r in twin.requests)
        assert sum(waits(run).values()) == pytest.approx(waited, rel=1e-9)
        for entry in twin.log:
            finished_while_preempted += len({*entry.get("st", [])} & {*entry.get("fin", [])})
    assert finished_while_preempted > 3


def test_the_gaps_of_a_busy_run_with_host_time_are_the_naive_twins():
    for seed in range(3):
        case = fitted("vllm_v1", drawn(seed, async_scheduling=1))
        case = Case(replace(case.workload, stop_tokens=True), case.limits, case.cost)
        run = serve(case.workload, "vllm_v1", case.limits, case.cost, host_ms=0.5)
        pooled = itl(run)
        assert pooled.weights is not None
        ours = sorted(np.repeat(pooled.values, pooled.weights))
        gaps = sorted(gap for r in twin_of("vllm_v1", case, 0.5).requests for gap in r.gaps)
        assert ours == pytest.approx(gaps, rel=1e-9)
