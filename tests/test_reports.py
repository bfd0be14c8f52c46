"""Public reports, restated as scenarios in a link, with the figures that they must come to."""

import numpy as np
import pytest

from pages.ui.links import LINKS
from sim.metrics import figures, itl, tpot
from sim.run import Run, compare
from sim.scenario import Scenario, Slo
from sim.state import DECODE, PREEMPTED, RECOMPUTE


def runs(query: str) -> list[Run]:
    scenario, problems = Scenario.from_url(f"http://localhost:8501/?{query}")
    assert problems == []
    return compare(scenario)


def tokens_only(ms_per_token: float) -> str:
    """A step costs its tokens and nothing else."""
    cost = f"prefill_ms_per_token={ms_per_token!r}&decode_ms_per_seq={ms_per_token!r}"
    return f"&overhead_ms=0&decode_base_ms=0&{cost}&arrivals=list"


def ttft_s(run: Run) -> list[float]:
    return ((run.requests["first"] - run.requests["arrival"]) / 1e3).tolist()


def decode_rate(run: Run, since: float, until: float) -> float:
    """Output tokens a second of those who decoded in [since, until) ms."""
    steps = run.steps[(run.steps["t0"] >= since) & (run.steps["t0"] < until)]
    span = (steps["ms"] * steps["repeats"]).sum()
    return float((steps["decodes"] * steps["repeats"]).sum() / span * 1e3)


# D4, vllm-project/vllm#18115: 8 running at 239.2 tok/s, a pool of about 683,000 tokens at 91.9 %.

POOL_BLOCKS = 683_000 // 16
STEP_MS = 8 / 239.2 * 1e3


@pytest.fixture(scope="module")
def collapse() -> Run:
    prompt = int(0.919 * 683_000) // 8
    everybody = ";".join([f"0:{prompt}:9000"] * 8)
    return runs(
        f"arrivals=list&list={everybody}&v=vllm_v1&max_num_seqs=8&num_gpu_blocks={POOL_BLOCKS + 1}"
        f"&max_model_len=100000&max_num_batched_tokens=1000000&overhead_ms={STEP_MS!r}"
        "&prefill_ms_per_token=0.05&decode_base_ms=0&decode_ms_per_seq=0"
    )[0]


def first_loss(run: Run) -> float:
    return float(run.segments["t0"][run.segments["phase"] == PREEMPTED].min())


def test_a_pool_that_fills_lasts_231_s_before_the_first_preemption(collapse):
    full_from = collapse.requests["first"].max()
    assert (first_loss(collapse) - full_from) / 1e3 == pytest.approx(231, rel=0.01)


def test_nobody_is_preempted_before_the_pool_is_full(collapse):
    last = collapse.steps[collapse.steps["t0"] < first_loss(collapse)][-1]
    tokens_of_each = (last["kv"] + 8 * last["repeats"]) // 8
    blocks = 8 * -(-tokens_of_each // 16)
    assert POOL_BLOCKS - 8 < blocks <= POOL_BLOCKS  # the next token of all of them does not fit
    assert not collapse.requests["refused"].any()


def test_generated_tokens_a_second_fall_after_the_first_preemption(collapse):
    lost, full_from = first_loss(collapse), collapse.requests["first"].max()
    assert decode_rate(collapse, full_from, lost) == pytest.approx(239.2, rel=1e-6)
    assert decode_rate(collapse, lost, lost + 30e3) < 0.9 * 239.2


def test_recomputed_tokens_are_counted_apart_and_never_as_output(collapse):
    found = figures(collapse, Scenario().slo)
    share = 683_000 / 8
    preemptions = collapse.requests["preemptions"].sum()
    assert found["preemptions"] == preemptions > 0
    assert found["recomputed"] == pytest.approx(preemptions * share, rel=0.1)
    assert found["tok_s"] == pytest.approx(8 * 9000 / collapse.total * 1e3)
    again = collapse.segments["tokens"][collapse.segments["phase"] == RECOMPUTE].sum()
    assert again == found["recomputed"] + preemptions  # and the token that had no KV yet


# D5, vllm#28981, vllm#33109, verl#7626, unsloth-zoo#1211; vllm#39976 was a false refusal.

TRUTH = [
    (2_048, 40_960, 0, False),
    (8_192, 131_072, 0, False),
    (8_192, 9_216, 1, True),
    (8_192, 8_192, 0, True),
    (16_384, 8_192, 0, True),
    (16_384, 8_192, 1, True),
]


@pytest.mark.parametrize("policy", ["vllm_v1", "vllm_v1_priority", "vllm_v1_0_17_1"])
@pytest.mark.parametrize(("budget", "longest", "chunked", "good"), TRUTH)
def test_a_budget_below_the_model_length_is_refused_without_chunking(
    policy, budget, longest, chunked, good
):
    numbers = {"max_num_batched_tokens": budget, "max_model_len": longest}
    numbers |= {"enable_chunked_prefill": chunked}
    query = {"v": [policy]} | {name: [str(value)] for name, value in numbers.items()}
    _, problems = Scenario.from_query(query)
    assert bool(problems) != good
    for said in [f"{budget:,}", f"{longest:,}", "raise the budget", "turn chunking on"]:
        assert good or said in problems[0]


# D6, blazux/qwen3.8-Flash-DGX#9: one stream, two cold 72,000-token prompts; prefill 2,400 tok/s.

MS = 1e3 / 2_400


@pytest.fixture(scope="module")
def two_prompts() -> list[Run]:
    listed = f"list=0:16:500;{280 * MS!r}:72000:1;{280 * MS!r}:72000:1"
    small = "vllm_v1:max_num_batched_tokens=2048"
    limits = "max_num_batched_tokens=8192&num_gpu_blocks=20000&max_model_len=80000&max_num_seqs=8"
    return runs(f"v=vllm_v1&v={small}&{limits}&{listed}{tokens_only(MS)}")


def gaps_of_the_stream(run: Run) -> np.ndarray:
    """ms between its tokens: it is the only one that has several."""
    pooled = itl(run)
    assert pooled.weights is not None
    return np.repeat(pooled.values, pooled.weights)


def test_two_cold_prompts_hold_one_stream_at_a_token_in_3_41_s_for_60_s(two_prompts):
    gaps = np.sort(gaps_of_the_stream(two_prompts[0]))[::-1]
    assert len(gaps) == 499
    assert gaps[:17] == pytest.approx(np.full(17, 3413.3), abs=0.1)
    stalled = gaps[gaps > 2 * MS]
    assert len(stalled) == 18
    assert stalled.sum() / 1e3 == pytest.approx(60.0, abs=0.05)
    assert pytest.approx(0.29, abs=0.005) == 1 / 3.4133


def test_a_budget_of_2048_makes_the_gap_0_85_s_and_the_total_stays(two_prompts):
    large, small = two_prompts
    assert gaps_of_the_stream(small).max() / 1e3 == pytest.approx(0.85, abs=0.005)
    assert ttft_s(small)[2] == pytest.approx(ttft_s(large)[2], rel=1e-3)
    assert small.total == pytest.approx(large.total, rel=1e-3)


def test_the_p99_itl_of_the_stream_shows_what_the_mean_hardly_does(two_prompts):
    large, small = (figures(run, Scenario().slo) for run in two_prompts)
    assert large["itl_p99"] / 1e3 == pytest.approx(3.41, abs=0.005)
    assert large["itl_p50"] == pytest.approx(MS, rel=1e-6)
    assert large["itl_mean"] < 0.04 * large["itl_p99"]
    assert large["itl_mean"] == pytest.approx(small["itl_mean"], rel=2e-3)
    assert tpot(two_prompts[0]).values[0] == pytest.approx(large["itl_mean"], rel=1e-9)


# D7, vllm#21495: 512 tokens at 1 s behind 131,072 at 0; budget 2,048; 20,000 tok/s.


def test_a_short_prompt_behind_a_long_one_waits_unless_a_threshold_caps_it():
    plain, capped = runs(
        "v=vllm_v1&v=vllm_v1:long_prefill_token_threshold=1024&max_num_batched_tokens=2048"
        f"&num_gpu_blocks=20000&max_model_len=140000&list=0:131072:1;1000:512:1{tokens_only(0.05)}"
        "&async_scheduling=0"
    )
    assert ttft_s(plain) == pytest.approx([6.554, 5.579], abs=0.0005)
    assert ttft_s(capped) == pytest.approx([6.579, 0.101], abs=0.0005)
    assert capped.total == pytest.approx(plain.total)
    assert 1e3 * (ttft_s(capped)[0] - ttft_s(plain)[0]) == pytest.approx(26, abs=0.5)


# D8, vllm#45561, #40004, #19057: four seats taken, memory half empty, somebody urgent at 1 s.

TEN_MS = "&overhead_ms=10&prefill_ms_per_token=0&decode_base_ms=0&decode_ms_per_seq=0"
SEATED = ";".join(["0:200:1000:5"] * 4)


def urgent(listed: str, *variants: str) -> list[Run]:
    which = "&".join(f"v={v}" for v in variants)
    return runs(f"{which}&max_num_seqs=4&num_gpu_blocks=1000&arrivals=list&list={listed}{TEN_MS}")


ON_ARRIVAL = "priority:preempt_on_arrival=1"


@pytest.mark.parametrize("policy", ["priority", "vllm_v1_priority"])
def test_the_urgent_wait_9_s_for_a_seat_where_only_memory_preempts(policy):
    (run,) = urgent(f"{SEATED};1000:200:10:0&async_scheduling=0", policy)
    assert run.requests["start"][4] == 10_000
    assert ttft_s(run)[4] == pytest.approx(9.0, abs=0.02)
    assert not run.requests["preemptions"].any()


def test_preempted_on_arrival_the_latest_of_the_highest_number_gives_its_seat_at_once():
    (run,) = urgent(f"{SEATED};1000:200:10:0", ON_ARRIVAL)
    assert ttft_s(run)[4] <= 0.02
    assert run.requests["preemptions"].tolist() == [0, 0, 0, 1, 0]
    again = run.segments[run.segments["phase"] == RECOMPUTE]
    assert again["request"].tolist() == [3]
    assert again["tokens"].tolist() == [200 + 100]
    assert run.requests["recomputed"][3] == 200 + 99  # the last of its tokens had no KV yet
    decoded = run.segments[(run.segments["phase"] == DECODE) & (run.segments["request"] == 3)]
    assert decoded["tokens"].sum() == 1000 - 2  # two came from prompts


def test_the_victim_is_of_the_highest_number_even_if_others_came_later():
    listed = "0:200:1000:5;0:200:1000:7;0:200:1000:5;0:200:1000:5;1000:200:10:0"
    (run,) = urgent(listed, ON_ARRIVAL)
    assert run.requests["preemptions"].tolist() == [0, 1, 0, 0, 0]


def test_equal_priority_never_preempts():
    (run,) = urgent(f"{SEATED};1000:200:10:5", ON_ARRIVAL)
    assert not run.requests["preemptions"].any()
    assert ttft_s(run)[4] == pytest.approx(9.0, abs=0.02)


def test_whoever_is_less_urgent_waits():
    (run,) = urgent(f"{SEATED};1000:200:10:9", ON_ARRIVAL)
    assert not run.requests["preemptions"].any()


@pytest.mark.parametrize("name", LINKS)
def test_every_link_of_the_page_is_a_scenario_that_runs(name):
    for run in runs(LINKS[name]):
        assert len(run.served) > 0
        assert np.isfinite(run.served["finish"]).all()


@pytest.mark.parametrize("name", LINKS)
def test_every_link_of_the_page_is_given_back_as_the_same_scenario(name):
    scenario, _ = Scenario.from_url(f"/?{LINKS[name]}")
    assert Scenario.from_url(scenario.link()) == (scenario, [])


def link(name: str) -> list[Run]:
    return runs(LINKS[name])


def test_the_pages_links_to_the_reports_show_what_they_are_for():
    large, small = (
        figures(r, Scenario().slo) for r in link("One stream against two cold 72k prompts")
    )
    assert large["itl_p99"] / 1e3 == pytest.approx(3.41, abs=0.01)
    assert small["itl_max"] / 1e3 == pytest.approx(0.85, abs=0.01)
    plain, capped = (ttft_s(run)[1] for run in link("Short prompt behind a 131k prompt"))
    assert (plain, capped) == pytest.approx((5.579, 0.101), abs=0.002)
    waits, takes = (ttft_s(run)[4] for run in link("Urgent, and every seat taken"))
    assert (waits, takes) == pytest.approx((9.0, 0.02), abs=0.02)
    full = link("A pool that fills, then collapses")[0]
    assert full.requests["preemptions"].sum() > 0
    budgets = link("Which budget? vLLM, an 8B, an H100, chat")
    kept = [
        (f["ttft_p95"] <= Slo().ttft_slo, f["tpot_p95"] <= Slo().tpot_slo)
        for f in (figures(run, Slo()) for run in budgets)
    ]
    assert kept == [(False, True), (True, True), (True, False)]
    starved = link("Shortest job first starves")
    slowest = [figures(run, Scenario().slo)["longest_wait"] for run in starved]
    assert slowest[1] > 1.5 * slowest[0]
    plain, cached = link("Shared prefixes, cached and not")
    assert cached.steps["prefill"].sum() < plain.steps["prefill"].sum()
