"""What a step is made of, what it costs, and what a fit finds again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, startable, tight, workload
from test_engine import LINEAR, every_policy, laws

from sim import calibrate
from sim.costs import COSTS, Features, features, planned
from sim.engine import commit, idles, is_full, open_step
from sim.hardware import DEVICES, LLMS
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.pricing import StepCost
from sim.roofline import Knobs, coefficients
from sim.run import opened, serve
from sim.state import DECODE, HELD, Limits, State, enlarged

ALL = (
    0.5,
    0.013,
    0.4,
    0.21,
    0.3,
    0.7,
    0.011,
    0.007,
    0.0013,
    0.17,
)  # `calibrated`: each feature counts


def expected(s: State, policy: str) -> dict[str, int]:
    """The counters of the planned step, one request after the other."""
    r: Any = s.requests
    n = s.n
    prompts = [i for i in s.prefilling[: n.prefilling] if r.grant[i] > 0]
    counted = (DECODE, HELD) if policy == "static" else (DECODE,)
    kept = [i for i in s.seats if i >= 0 and r.phase[i] in counted]

    def kv(i):
        decoding = r.phase[i] == DECODE
        return r.prompt[i] + r.output[i] - (r.ends[i] - n.ticks) - 1 if decoding else r.cached[i]

    return {
        "prefill": sum(int(r.grant[i]) for i in prompts),
        "prompts": len(prompts),
        "context": sum(int(kv(i)) for i in kept) if n.decodes else 0,
        "reread": sum(int(r.cached[i]) for i in prompts),
        "attended": sum(
            sum(range(int(r.cached[i]) + 1, int(r.cached[i]) + int(r.grant[i]) + 1))
            for i in prompts
        ),
        "completed": sum(
            bool(r.cached[i] + r.grant[i] == r.prompt[i] + r.emitted[i]) for i in prompts
        ),
    }


@every_policy
@given(case=cases, blocks=st.sampled_from([16, 40, 4_000]))
@laws
def test_the_counters_of_a_step_are_those_of_its_requests(policy, case, blocks):
    limits = tight(policy, case.limits, blocks, max_model_len=96, async_scheduling=0)
    s = opened(case.workload, policy, limits)
    for _ in range(3_000):
        if s.n.finished == len(s.requests):
            break
        s = enlarged(s) if is_full(s) else s
        open_step(s)
        POLICIES[policy].plan(s, limits)
        assert {name: s.n[name] for name in expected(s, policy)} == expected(s, policy)
        ms = LINEAR(s.n, np.array(case.cost))
        if s.n.prefill + s.n.decodes > 0:
            commit(s, ms, 1)
        else:
            assert idles(s, ms, False)
    assert s.n.finished == len(s.requests)
    assert s.n.kv == s.n.decoding_kv == 0


def test_a_step_of_a_chunk_and_two_decodes_by_hand():
    n = planned(prefill=8, prompts=1, decodes=2, context=300, reread=16, attended=8 * 16 + 36)
    assert features(n) == Features(1.0, 8.0, 1.0, 1.0, 1.0, 2.0, 300.0, 16.0, 164.0, 1.0)
    assert LINEAR(n, np.array([0.2, 0.02, 0.4, 0.03])) == pytest.approx(0.82)
    assert COSTS["calibrated"].ms(n, np.array(ALL)) == pytest.approx(
        0.5
        + 8 * 0.013
        + 0.4
        + 0.21
        + 0.3
        + 2 * 0.7
        + 300 * 0.011
        + 16 * 0.007
        + 164 * 0.0013
        + 0.17
    )
    #       overhead weights kv     gemm  pair   net   host  mixed overlap
    coef = [1.0, 5.0, 0.01, 0.02, 0.001, 0.03, 0.04, 0.5, 0.25]
    memory, compute = 5.0 + 316 * 0.01, 10 * 0.02 + 464 * 0.001
    rest = 1.0 + 10 * 0.03 + 3 * 0.04 + 0.5
    assert COSTS["roofline"].ms(n, np.array(coef)) == pytest.approx(
        rest + memory + compute - 0.25 * min(memory, compute)
    )


def test_the_rooflines_coefficients_by_hand():
    knobs = Knobs(mbu=0.5, mfu=0.5, overlap=0, overhead_ms=1, host_ms=0, hop_ms=0.01, tp=2)
    named = dict(
        zip(
            (c.name for c in COSTS["roofline"].coefficients),
            coefficients(LLMS["module-8b"], DEVICES["h100-sxm"], knobs),
            strict=True,
        )
    )
    assert named["weights_ms"] == pytest.approx(16e9 / 3.35e12 / 0.5 / 2 * 1e3)
    assert named["kv_ms_per_token"] == pytest.approx(131_072 / 3.35e12 / 0.5 / 2 * 1e3)
    assert named["gemm_ms_per_token"] == pytest.approx(16e9 / 989.4e12 / 0.5 / 2 * 1e3)
    assert named["attention_ms_per_pair"] == pytest.approx(4 * 32 * 4096 / 989.4e12 / 0.5 / 2 * 1e3)
    assert named["overhead_ms"] == pytest.approx(1 + 64 * 0.01)
    assert named["network_ms_per_token"] == pytest.approx(64 * 4096 * 2 / 450e9 * 1e3)


LOADS = ("prefill", "prompts", "decodes", "context", "reread", "attended", "completed")
counts = st.fixed_dictionaries({name: st.integers(0, 5_000) for name in LOADS})


@pytest.mark.parametrize("cost", COSTS)
@given(load=counts, name=st.sampled_from(LOADS), more=st.integers(1, 5_000))
def test_a_step_never_gets_shorter_by_more_load(cost, load, name, more):
    coef = {
        "linear": (0.2, 0.02, 0.4, 0.03),
        "calibrated": ALL,
        "roofline": StepCost.parse("roofline/h100-sxm/llama-3.1-8b").pricing(()).coefficients,
    }[cost]
    ms = COSTS[cost].ms
    before, after = planned(**load), planned(**load | {name: load[name] + more})
    assert ms(after, np.array(coef)) >= ms(before, np.array(coef))


@every_policy
@given(case=cases)
@laws
def test_a_cost_that_grows_takes_the_same_time_however_it_is_run(policy, case):
    limits = startable(policy, case.limits)
    a, b = (
        serve(case.workload, policy, limits, ALL, cost="calibrated", stretch=stretch)
        for stretch in (True, False)
    )
    assert a.total == b.total
    assert (a.requests == b.requests).all() or np.isnan(a.requests["finish"]).any()
    assert (a.steps["repeats"] == 1).all()


@pytest.mark.parametrize(
    ("cost", "coef"), [("linear", (0.2, 0.02, 0.4, 0.03)), ("calibrated", ALL)]
)
def test_a_fit_of_steps_that_a_cost_model_clocked_finds_its_coefficients(cost, coef):
    rows = [(0.0, 400, 2), (1e6, 1, 1)]  # in the middle of a lone prompt nothing is emitted
    rows += [(7.0 * (k % 5), 20 + 37 * k % 400, 3 + 11 * k % 60) for k in range(120)]
    limits = Limits(max_num_seqs=12, max_num_batched_tokens=256, chunk=64)
    run = serve(workload(rows), "chunked", limits, coef, cost=cost, stretch=False)
    found = calibrate.fit(cost, calibrate.features_of(run.steps), run.steps["ms"])
    assert found.coefficients == pytest.approx(coef, rel=1e-9, abs=1e-10)
    assert np.abs(found.errors).max() < 1e-11


def test_a_step_log_is_read_fitted_and_used_in_a_link():
    lines = ["ms,prefill,decodes,context"]
    lines += [
        f"{5 + 0.02 * p + 0.1 * d + 0.001 * c},{p},{d},{c}"
        for p, d, c in ((k * 7 % 90, k % 13, k * 31 % 700) for k in range(60))
    ]
    x, ms = calibrate.read_steps("\n".join(lines).encode())
    found = calibrate.fit("calibrated", x, ms, only=("step", "prefill", "decodes", "context"))
    cost = found.step_cost()
    assert StepCost.parse(str(cost)) == cost
    assert dict(cost.numbers)["decodes_ms"] == pytest.approx(0.1)
    assert cost.ranges["decodes"] == 12
    assert len(found.deciles()) == 10
    assert max(found.deciles()["worst |error|, %"]) < 1e-9


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n", "columns a, b"),
        (b"ms,prefill\n1,x\n", "row 1"),
        (b"ms,prefill\n1,-3\n", "0 to"),
        (b"ms,prefill\n-1,3\n", "no positive time"),
        (b"ms,prefill\n", "0 rows"),
        (b"", "no CSV"),
    ],
)
def test_a_step_log_that_cannot_be_used_gets_a_sentence(content, said):
    with pytest.raises(ScenarioError, match=said):
        calibrate.read_steps(content)


def test_a_log_that_counts_no_context_does_not_bound_it():
    lines = ["ms,prefill,decodes", *(f"{5 + 0.1 * d},{0},{d}" for d in range(1, 30))]
    found = calibrate.fit("calibrated", *calibrate.read_steps("\n".join(lines).encode()))
    assert dict(found.step_cost().numbers)["step_ms"] == pytest.approx(5)
    assert found.step_cost().ranges == {"prefill": 0, "decodes": 29}


def test_a_front_end_is_felt_by_ttft_alone():
    rows = [(50.0, 30, 8)] * 6
    plain, fronted = (
        serve(workload(rows), "chunked", Limits(), (1.0, 0.1, 0.0, 0.0), front_ms=ms)
        for ms in (0.0, 16.0)
    )
    a, b = plain.requests, fronted.requests
    assert b["arrival"] == pytest.approx(a["arrival"])
    assert b["first"] - b["arrival"] == pytest.approx(a["first"] - a["arrival"] + 16)
    assert b["last"] - b["first"] == pytest.approx(a["last"] - a["first"])


def test_a_client_waits_for_the_front_end_before_it_sends_again():
    rows = [(0.0, 10, 2)] * 3
    run = serve(workload(rows, clients=1), "chunked", Limits(), (1.0, 0, 0, 0), front_ms=5.0)
    assert run.requests["arrival"].tolist() == [0, 7, 14]
    assert run.requests["first"].tolist() == [6, 13, 20]
