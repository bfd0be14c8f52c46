"""Each request's latency, split into causes: they add up, and a case is worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from strategies import cases, startable, tight, workload

from sim import worked
from sim.advice import ADVICE, OF_TTFT, advice, leading, remedy, tried
from sim.detail import events
from sim.explain import duration, why_waited
from sim.metrics import FIGURES, METRICS, waits
from sim.out import trace_events
from sim.policies import POLICIES
from sim.run import compare, serve
from sim.scenario import Scenario
from sim.state import NOTHING, Limits
from sim.table import requests_table
from sim.why import (
    AGAIN,
    ARRIVING,
    DECODING,
    FRONT,
    JOINING,
    NAMES,
    OVERHEAD,
    PARTS,
    PROMPTS,
    RECOMPUTED,
    SEAT,
    TTFT,
    Total,
    Why,
    as_text,
    longest_gap,
    per_request,
    total,
    why,
    why_variant,
    worst,
)
from sim.window import Windowed, counted
from sim.workload import draw

laws = settings(max_examples=25, deadline=None)
few_laws = settings(max_examples=5, deadline=None)
every_policy = pytest.mark.parametrize("policy", POLICIES)
MODULE_COST = (0.2, 0.02, 0.4, 0.03)
A_MILLISECOND = (1.0, 0.0, 0.0, 0.0)


def split(policy: str, case, short: bool = False, **changes) -> Why:
    limits = (tight if short else startable)(policy, case.limits)._replace(**changes)
    return why(serve(case.workload, policy, limits, case.cost), "linear", case.cost)


def split_of(policy: str, rows, limits: Limits, cost) -> Why:
    return why(serve(workload(rows), policy, limits, cost), "linear", cost)


def parts(split: Why, i: int, half: int) -> dict:
    """ms by name, what plays no part left out."""
    values = dict(zip(NAMES, split.parts[i, half].tolist(), strict=True))
    return {name: pytest.approx(ms, abs=1e-9) for name, ms in values.items() if abs(ms) > 1e-12}


@every_policy
@given(case=cases)
@laws
def test_the_parts_add_up_to_what_was_measured(policy, case):
    for short in False, True:
        limits = startable(policy, case.limits)
        if short:
            limits = tight(policy, case.limits, max_model_len=80)
        if policy == "vllm_v0" and short:
            limits = limits._replace(max_num_batched_tokens=10_000)
        front = 3.7 if short else 0.0
        run = serve(case.workload, policy, limits, case.cost, front_ms=front)
        whole = why(run, "linear", case.cost)
        r, served = run.requests, run.requests["refused"] == 0
        sums = whole.parts.sum(axis=2)[served]
        assert_allclose(sums[:, TTFT], (r["first"] - r["arrival"])[served], rtol=0, atol=1e-9)
        assert_allclose(sums[:, DECODING], (r["last"] - r["first"])[served], rtol=0, atol=1e-9)
        assert whole.parts.min() > -1e-9
        assert np.all(whole.parts[served][:, :, FRONT] == [front, 0.0])
        assert not whole.parts[~served].any()
        once = served & (r["preemptions"] == 0)
        waited = whole.parts[once, TTFT, ARRIVING:AGAIN].sum(axis=1)
        assert np.all(waited >= (r["start"] - run.queued)[once] - 1e-9)  # and for budget, seated


@every_policy
@given(case=cases)
@laws
def test_a_request_waits_for_the_step_in_progress_once_and_otherwise_for_a_limit(policy, case):
    whole = split(policy, case, True, max_model_len=80, async_scheduling=0)  # nobody naps
    longest = whole.run.steps["ms"].max()
    assert whole.parts[:, TTFT, ARRIVING].max() <= longest + 1e-9
    waits = whole.run.steps[whole.run.steps["head"] >= 0]
    first_seat = whole.run.requests["preemptions"][waits["head"]] == 0
    assert np.all(waits["stop"][first_seat] != NOTHING)


@every_policy
@given(case=cases)
@few_laws
def test_what_prompts_cost_is_shared_among_them_and_nothing_else_is(policy, case):
    whole = split(policy, case)
    for i in range(len(case.workload)):
        rows = whole.delayed_by(i)
        mine = rows["how"].str.contains("same steps")
        beside = float(np.asarray(rows.loc[mine, "ms"]).sum())
        measured = whole.parts[i, :, PROMPTS].sum()
        if not whole.run.steps["pad_prefill"].any():
            assert beside == pytest.approx(measured, abs=1e-9)
        assert i not in set(rows["request"])


@every_policy
@given(case=cases)
@laws
def test_grants_are_the_prompt_tokens_of_every_step(policy, case):
    run = split(policy, case, True, max_model_len=80).run
    tokens = np.zeros(len(run.steps) + 1, np.int64)
    np.add.at(tokens, run.grants["step0"], run.grants["tokens"])
    np.add.at(tokens, run.grants["step1"], -run.grants["tokens"])
    assert_array_equal(tokens.cumsum()[:-1], run.steps["prefill"])


def test_a_case_by_hand():
    """Two seats, a budget of 10 tokens a step, chunks of 6, 1 + 0.1 a prompt token + 0.5 a decode.

    t=0: request 0 (prompt 12, 3 outputs) and 1 (prompt 8, 2 outputs) have the seats.
    step 0, 10 tokens, to 2.0: 6 of request 0, 4 of request 1;  2 (came at 0.5) waits for a seat
    step 1, 10 tokens, to 4.0: 6 of request 0 (first token), 4 of request 1 (first token)
    step 2, 2 decodes,  to 6.0: request 1 is done
    step 3, 1 decode, 5 tokens of request 2, to 8.0: request 0 is done, 2 has its first token
    """
    _, run, whole = worked.case()
    assert run.steps["t0"].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert parts(whole, 0, TTFT) == {"overhead": 2.0, "own": 1.2, "prompts": 0.8}
    assert parts(whole, 0, DECODING) == {
        "overhead": 2.0, "own": 1.0, "decodes": 0.5, "prompts": 0.5,
    }  # fmt: skip
    assert parts(whole, 1, TTFT) == {"overhead": 2.0, "own": 0.8, "prompts": 1.2}
    assert parts(whole, 2, TTFT) == {
        "step": 1.5, "seat": 4.0, "overhead": 1.0, "own": 0.5, "decodes": 0.5,
    }  # fmt: skip
    rows = whole.delayed_by(0)
    assert rows["request"].tolist() == [1, 2]
    assert rows["tokens"].tolist() == [8, 5]
    assert rows["ms"].tolist() == [pytest.approx(0.8), pytest.approx(0.5)]


def test_the_page_tells_that_case_with_these_numbers():
    told = worked.steps()
    assert told["costs"].tolist() == [
        "1 + 10 × 0.1 = 2 ms",
        "1 + 10 × 0.1 = 2 ms",
        "1 + 2 × 0.5 = 2 ms",
        "1 + 5 × 0.1 + 1 × 0.5 = 2 ms",
    ]
    assert (
        told["holds"].tolist()[1]
        == "prompt 0: 6 tokens, prompt 1: 4 tokens, (2 waits for a free seat)"
    )
    assert worked.split().to_dict("index")["TTFT of 2"] == {
        "ms": "7.5",
        "is": "1.5 the step in progress + 4 waiting for a seat + 1 overhead of its steps"
        " + 0.5 its own tokens + 0.5 others' decodes",
    }


def test_the_front_end_is_no_wait_for_a_seat():
    """A step lasts 1 ms; the only seat is taken until 9.0. From its client at 0.5, 5 ms away."""
    limits = Limits(max_num_seqs=1)
    rows = workload([(0.0, 5, 4), (0.5, 5, 1)])
    run = serve(rows, "continuous", limits, A_MILLISECOND, front_ms=5.0)
    whole = why(run, "linear", A_MILLISECOND)
    assert parts(whole, 1, TTFT) == {"front": 5.0, "step": 0.5, "seat": 3.0, "overhead": 1.0}
    assert parts(whole, 0, TTFT) == {"front": 5.0, "overhead": 1.0}
    waited = [0.0, 3.5]  # wherever a wait is told, and from the line on
    assert METRICS["queue"].of(run).values == pytest.approx(waited)
    assert requests_table(run)["queue_ms"].to_list() == pytest.approx(waited)
    assert per_request(run, "queue") == pytest.approx(waited)
    assert FIGURES["longest_wait"].of(run, Scenario().slo) == pytest.approx(3.5)
    assert sum(waits(run).values()) == pytest.approx(3.5)
    assert why_waited(run).startswith("Request 1 waited longest, 3.5 ms; the mean was 1.8 ms")
    assert list(events(run).waiting(np.array([5.0, 5.6, 8.9, 9.1]))) == [0, 1, 1, 0]
    line = [e["args"]["waiting"] for e in trace_events([run]) if e["name"] == "requests"]
    assert line == [0, 1, 0, 0]


def test_the_head_lacks_budget_and_who_is_behind_waits_for_it():
    rows = [(0.0, 50, 9), (1.0, 60, 1), (0.0, 4, 1)]
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=60)
    whole = split_of("continuous", rows, limits, A_MILLISECOND)
    waited = 8.0  # until the decodes leave the whole budget to the prompt of 60
    assert parts(whole, 1, TTFT) == {"budget": waited, "overhead": 1.0}
    assert parts(whole, 2, TTFT) == {
        "ahead_budget": waited, "budget": 1.0, "overhead": 1.0,
    }  # fmt: skip
    ahead = whole.delayed_by(2).iloc[0]
    assert (ahead["request"], ahead["ms"]) == (1, pytest.approx(waited))


def test_who_is_preempted_waits_again_and_computes_again():
    limits = Limits(4, 64, 64, 4, 7, 64)
    whole = split_of("sarathi", [(0.0, 8, 12), (0.0, 8, 12)], limits, MODULE_COST)
    lost = int(np.argmax(whole.run.requests["preemptions"]))
    assert whole.parts[lost, DECODING, AGAIN] > 0
    assert whole.parts[lost, DECODING, RECOMPUTED] > 0
    assert whole.parts[1 - lost, :, [AGAIN, RECOMPUTED]].sum() == 0


def test_a_batch_keeps_others_out_and_a_stalled_prompt_waits_for_budget():
    static = split_of("static", [(0.0, 5, 9), (0.5, 5, 2)], Limits(4), MODULE_COST)
    assert static.parts[1, TTFT, JOINING] > 0
    limits = Limits(max_num_seqs=3, max_num_batched_tokens=7, chunk=7)
    stalled = split_of("chunked", [(0.0, 14, 2), (0.0, 5, 1)], limits, A_MILLISECOND)
    assert parts(stalled, 1, TTFT) == {"budget": 2.0, "overhead": 1.0}
    took = stalled.delayed_by(1)
    assert took["how"].tolist() == ["its prompt took the token budget"]
    assert took["ms"].tolist() == [pytest.approx(2.0)]


@pytest.fixture(scope="module")
def opening():
    scenario = Scenario.from_query({"duration": ["6"]})[0]
    return scenario, compare(scenario)


def test_the_worst_are_those_beyond_the_quantile_and_measures_are_the_metrics(opening):
    _, runs = opening
    for run in runs:
        for name in ("ttft", "tpot", "e2e", "queue", "tpot_to_release"):
            values = per_request(run, name)
            assert_array_equal(values[np.isfinite(values)], METRICS[name].of(run).values)
            found = worst(run, name, 0.9)
            assert_array_equal(found, sorted(found, key=lambda i: (-values[i], i)))
            known = values[np.isfinite(values)]
            assert len(found) == (known >= np.quantile(known, 0.9)).sum()
        assert np.nanmax(longest_gap(run)) == METRICS["itl"].of(run).quantile(1.0)


def test_the_total_says_what_to_raise_and_raising_it_helps(opening):
    scenario, runs = opening
    for run, variant in zip(runs, scenario.variants, strict=True):
        whole = why_variant(run, scenario, variant)
        t = total(whole, TTFT, 0.95)
        ttft = per_request(run, "ttft")
        assert t.parts.sum() == pytest.approx(ttft[ttft >= np.quantile(ttft, 0.95)].sum())
        assert t.shares.sum() == pytest.approx(100)
    link = "/?duration=6&max_num_seqs=16&v=continuous&v=continuous:max_num_seqs=64"
    few = Scenario.from_url(link)[0]
    scarce, ample = compare(few)
    said = advice(total(why_variant(scarce, few, few.variants[0]), TTFT, 0.95), "continuous")
    assert "waiting for a seat: raise max_num_seqs" in said
    slow, fast = (np.quantile(per_request(run, "ttft"), 0.95) for run in (scarce, ample))
    assert fast < 0.75 * slow


def test_advice_is_tried_by_a_run_and_the_sentence_says_what_came_of_it():
    few = Scenario.from_url("/?duration=6&v=continuous:max_num_seqs=16&v=static")[0]
    twice = Scenario.from_url("/?duration=6&v=continuous:max_num_seqs=32")[0]
    (scarce, batch), (ample,), work = compare(few), compare(twice), draw(few.traffic)
    t = total(why_variant(scarce, few, few.variants[0]), TTFT, 0.95)
    before, after = (np.quantile(per_request(run, "ttft"), 0.95) for run in (scarce, ample))
    said = f"TTFT p95 falls from {duration(before)} to {duration(after)}."
    assert (
        tried(t, scarce, few, few.variants[0], work) == f"With max_num_seqs 32 instead of 16 {said}"
    )
    part = Windowed.of(few, 500, 2_500)
    mine = counted(scarce, part)
    t = total(why_variant(scarce, few, few.variants[0]), TTFT, 0.95, mine.ids)
    now = np.quantile(per_request(counted(ample, part), "ttft"), 0.95)
    said = tried(t, mine, part, few.variants[0], work) or ""
    assert said.endswith(f"TTFT p95 falls from {duration(t.at)} to {duration(now)}.")
    t = total(why_variant(scarce, few, few.variants[0]), DECODING, 0.95)
    (even,) = compare(Scenario.from_url("/?duration=6&v=chunked&max_num_seqs=16")[0])
    gaps = [duration(METRICS["itl"].of(run).quantile(0.99)) for run in (scarce, even)]
    assert (tried(t, scarce, few, few.variants[0], work) or "").startswith(
        f"With chunked instead of continuous ITL p99 falls from {gaps[0]} to {gaps[1]} and"
    )
    t = total(why_variant(batch, few, few.variants[1]), TTFT, 0.95)
    assert (tried(t, batch, few, few.variants[1], work) or "").startswith(
        "With continuous instead of static TTFT p95 falls from"
    )
    alone = Scenario.from_url("/?arrivals=list&list=0:64:3&v=continuous")[0]
    (run,) = compare(alone)
    t = total(why_variant(run, alone, alone.variants[0]), TTFT, 0.95)
    assert tried(t, run, alone, alone.variants[0], draw(alone.traffic)) is None


def test_advice_that_cannot_be_followed_says_why():
    link = "/?duration=6&v=vllm_v1&max_num_seqs=64&max_num_batched_tokens=64&max_model_len=4096"
    scenario = Scenario.from_url(link + "&long_prefill_token_threshold=0&rate=60")[0]
    (run,) = compare(scenario)
    whole = why_variant(run, scenario, scenario.variants[0])
    t = total(whole, TTFT, 0.95)
    shares = np.zeros_like(t.parts)
    shares[SEAT] = 1.0
    work = draw(scenario.traffic)
    said = tried(t._replace(parts=shares), run, scenario, scenario.variants[0], work)
    assert "It can't be tried: vllm_v1:max_num_seqs=128: max_num_batched_tokens 64" in (said or "")


def test_every_part_is_named_and_the_advice_names_a_limit_that_the_policy_keeps():
    assert len(set(NAMES)) == len(PARTS) == 14
    assert (NAMES[ARRIVING], NAMES[OVERHEAD], NAMES[PROMPTS]) == ("step", "overhead", "prompts")
    for k in range(len(PARTS)):
        t = Total("TTFT", 0.95, 1, 10.0, np.eye(len(PARTS))[k])
        assert leading(t)[1] == 100.0
        for policy, p in POLICIES.items():
            for name in ("TTFT", "decode time"):
                found = remedy(t._replace(name=name), policy)
                assert found is None or found.keeps in (*p.keeps, "")
        assert (k in (FRONT, ARRIVING)) == (remedy(t, "vllm_v1") is None)
    assert set(OF_TTFT) <= set(ADVICE)


def test_in_words(opening):
    scenario, runs = opening
    whole = why_variant(runs[2], scenario, scenario.variants[2])
    i = int(worst(runs[2], "ttft")[0])
    text = as_text(whole, i)
    r = runs[2].requests[i]
    assert f"request {i}, prompt {r['prompt']:,}" in text
    assert f"{'together':<34}{r['first'] - r['arrival']:>14,.3f}" in text
    assert "its own tokens" in text
