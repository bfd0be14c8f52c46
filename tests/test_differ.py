"""What differs between two runs, worked by hand and against every step written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import cases, startable, workload

from sim.differ import balance, gains, in_words, one_of, parting, same_requests
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.replicate import Difference, replicate
from sim.run import Run, compare, serve
from sim.scenario import Scenario, Variant
from sim.state import DECODE, Limits
from sim.why import per_request

A_MILLISECOND = (1.0, 0.0, 0.0, 0.0)


def of(link: str) -> Scenario:
    scenario, problems = Scenario.from_url(link)
    assert not problems
    return scenario


def written_out(run: Run) -> list[tuple]:
    """(t0, ms, prompts, decodes) of every single step."""
    rows = []
    for k, step in enumerate(run.steps):
        g = run.grants[(run.grants["step0"] <= k) & (run.grants["step1"] > k)]
        prompts = sorted(zip(g["request"].tolist(), g["tokens"].tolist(), strict=True))
        now = step["t0"]
        for _ in range(step["repeats"]):
            rows.append((now, step["ms"], prompts, step["decodes"] + step["pad_decodes"]))
            now += step["ms"]
    return rows


@pytest.mark.parametrize("policy", POLICIES)
@given(case=cases)
@settings(max_examples=15, deadline=None)
def test_they_part_at_the_first_step_that_differs(policy, case):
    limits = startable(policy, case.limits)
    a = serve(case.workload, "chunked", limits, case.cost)
    b = serve(case.workload, policy, limits, case.cost)
    pairs = zip(written_out(a), written_out(b), strict=False)
    first = next(
        (k for k, (x, y) in enumerate(pairs) if abs(x[0] - y[0]) > 1e-6 or x[1:] != y[1:]), None
    )
    found = parting(a, b)
    if first is None:
        assert found is None
        return
    assert found is not None
    for step, run in zip(found, (a, b), strict=True):
        t0, ms, prompts, _ = written_out(run)[first]
        assert (step.t0, step.ms) == (pytest.approx(t0, abs=1e-7), ms)
        assert sorted(step.prompts.items()) == prompts


def test_where_chunking_parts_from_whole_prompts():
    work, limits = workload([(0.0, 4, 9), (2.5, 10, 2)]), Limits(4, 64, 5)
    whole, chunks = (serve(work, p, limits, A_MILLISECOND) for p in ("continuous", "chunked"))
    found = parting(whole, chunks)
    assert found is not None
    assert [step.t0 for step in found] == [3.0, 3.0]
    assert [dict(step.prompts) for step in found] == [{1: 10}, {1: 5}]
    assert [step.decodes for step in found] == [(0,), (0,)]
    assert "prompts 1 (5) beside 1 decode" in found[1].words


def test_a_run_never_parts_from_itself_however_it_is_recorded():
    work, limits = workload([(3.0 * k, 9 + k, 4) for k in range(9)]), Limits(2, 16, 6)
    runs = [serve(work, "chunked", limits, A_MILLISECOND, stretch=s) for s in (True, False)]
    assert parting(runs[0], runs[1]) is None


@pytest.fixture(scope="module")
def opening() -> tuple[Scenario, list[Run]]:
    scenario = of("/?duration=4")
    return scenario, compare(scenario)


def test_winners_and_losers_are_the_ends_of_all_changes(opening):
    _, (_, continuous, chunked) = opening
    change = per_request(chunked, "ttft") - per_request(continuous, "ttft")
    table = gains(continuous, chunked, "ttft", most=3)
    assert table["change"].is_monotonic_increasing
    assert table.index[0] == np.argmin(change)
    assert table.index[-1] == np.argmax(change)
    assert len(table) == 6
    said = balance(continuous, chunked, "ttft")
    assert said.startswith(f"{(change < 0).sum()} requests have a shorter TTFT under chunked 128")
    assert same_requests(continuous, chunked)


def test_a_difference_in_words():
    a, b = of("/?v=chunked"), of("/?v=chunked:chunk=128&rate=20")
    c512, c128 = a.variants[0], b.variants[0]
    assert in_words(a, c512, a, c128) == "chunk 512 -> 128, everything else equal."
    assert in_words(a, c512, b, c128) == "rate 36 -> 20, chunk 512 -> 128, everything else equal."
    assert in_words(a, c512, a, c512) == "Nothing differs."
    said = in_words(a, Variant("static"), a, c512)
    assert said.startswith("policy static -> chunked, ")
    assert "chunk unused -> 512" in said


def test_another_link_gives_its_baseline():
    alone, variant, run = one_of(of("/?v=static&v=chunked:chunk=64&baseline=1&duration=1"))
    assert str(variant) == run.label.replace(" ", ":chunk=") == "chunked:chunk=64"
    assert alone.variants == (variant,)
    with pytest.raises(ScenarioError, match="trace"):
        one_of(of("/?arrivals=trace&trace=x"))


def test_an_interval_covers_the_mean_of_what_it_was_drawn_from():
    rng = np.random.default_rng(5)
    covered = [Difference.of(rng.normal(0.3, 1.0, 20)) for _ in range(200)]
    share = np.mean([d.low <= 0.3 <= d.high for d in covered])
    assert 0.85 < share < 0.98  # of so few seeds, a percentile interval is a little narrow
    assert not Difference.of(np.array([-1.0, 1.0, -2.0, 2.0])).is_real
    assert Difference.of(np.array([1.0, 1.2, 0.9])).is_real
    assert Difference.of(np.array([np.nan])).seeds == 0


def test_seeds_are_paired_and_the_first_is_the_scenarios_own():
    scenario = of("/?duration=2&v=continuous&v=chunked:chunk=128&v=continuous:max_num_seqs=33")
    found = replicate(scenario, ("itl_p99", "ttft_p95"), seeds=6)
    for k, run in enumerate(compare(scenario)):
        assert found.values[k, 1, 0] == np.quantile(per_request(run, "ttft"), 0.95)
    assert np.ptp(found.values[0, 0]) > 0
    gained = found.difference(1, 0, "itl_p99")
    assert gained.is_real
    assert gained.mean == pytest.approx((found.values[1, 0] - found.values[0, 0]).mean())
    assert not found.difference(2, 0, "itl_p99").is_real
    with pytest.raises(ScenarioError, match="seed plays no part"):
        replicate(of("/?arrivals=list"), ("itl_p99",))


def test_so_many_requests_are_refused_before_the_first_run():
    large = of("/?arrivals=poisson&rate=100&duration=10000&v=static&v=chunked")
    with pytest.raises(ScenarioError, match="ask for at most 500,000 of each"):
        replicate(large, ("itl_p99",), seeds=60, go_on=lambda done, of: pytest.fail("it ran"))
    told = []
    replicate(of("/?duration=1"), (), seeds=2, go_on=lambda done, of: told.append((done, of)))
    assert told == [(k, 6) for k in range(1, 7)]


def test_decodes_of_a_step_are_those_that_decode(opening):
    _, runs = opening
    found = parting(runs[1], runs[2])
    assert found is not None
    for step, run in zip(found, runs[1:], strict=True):
        s = run.segments[run.segments["phase"] == DECODE]
        mine = s["request"][(s["t0"] <= step.t0 + 1e-9) & (s["t1"] > step.t0 + 1e-9)]
        assert sorted(step.decodes) == sorted(mine.tolist())
