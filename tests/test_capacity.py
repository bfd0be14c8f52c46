"""Capacity: known answers, laws of the search, and the words for it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import capacity, sweep
from sim.answer import about, amount, sentence, sentences, whether_real
from sim.capacity import (
    LOADS,
    PRECISION,
    Capacity,
    NoLoad,
    Search,
    bisection,
    difference,
    digits,
    find,
    growth_of,
    interval,
    lockstep,
    student,
)
from sim.curves import points
from sim.scenario import Scenario, Slo, Variant
from sim.state import Limits
from sim.sweep import Axis, Sweep, run
from sim.traffic import Lengths, Traffic

LENIENT = Slo(ttft_slo=1e9, tpot_slo=1e9)
ONE = Variant("continuous")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "CACHE", tmp_path / "sweeps")
    monkeypatch.delenv("SLOTSCOPE_CLUSTER", raising=False)


def fixed(prompt: int, output: int, **traffic) -> Traffic:
    lengths = Lengths("fixed", (prompt,)), Lengths("fixed", (output,))
    return Traffic(arrivals="poisson", prompt=lengths[0], output=lengths[1], **traffic)


def test_one_seat_and_constant_lengths_wait_as_in_an_md1_queue():
    """Pollaczek and Khinchine: a service of D ms at load r waits r D / (2 (1 - r)) on average."""
    service = 5.0 * 20  # a step of 5 ms for each of 20 tokens
    scenario = Scenario(
        traffic=fixed(100, 20, duration=1_000.0),
        variants=(ONE,),
        baseline=0,
        limits=Limits(max_num_seqs=1),
        cost=(5.0, 0.0, 0.0, 0.0),
    )
    swept = Sweep(scenario=scenario, axes=(Axis.parse("rate:3,5,7"),), seeds=20)
    table = run(swept)
    for rate in (3, 5, 7):
        load = rate * service / 1e3
        mean, reach = interval(table.loc[table["rate"] == rate, "queue_mean"].tolist())
        assert mean - reach <= load * service / (2 * (1 - load)) <= mean + reach, rate
        assert reach < 0.1 * mean


def test_the_modules_static_batch_of_8_carries_0_78_a_second_at_2000_tokens(monkeypatch):
    """2,000 steps of 5.1 ms serve eight."""
    monkeypatch.setattr(capacity, "MAX_REQUESTS", 20_000)  # nothing above 2.5 req/s is tried
    search = Search(
        scenario=Scenario(
            traffic=fixed(1000, 2000, rate=0.7, duration=8_000.0),
            variants=(Variant("static"),),
            baseline=0,
            limits=Limits(max_num_seqs=8),
            cost=(5.1, 0.0, 0.0, 0.0),
            slo=LENIENT,
        ),
        seeds=8,
    )
    (found,) = find(search)
    assert found.bound == "growth"
    assert found.value - found.reach <= 8 / 10.2 <= found.value + found.reach
    assert found.reach <= 0.03
    assert "above it the queue grows" in about(found, 99, LENIENT)


def test_capacity_rises_with_seats_and_with_the_pool():
    seats = tuple(Variant("continuous", (("max_num_seqs", n),)) for n in (4, 8, 16, 32))
    pools = tuple(
        Variant("vllm_v1", (("max_num_seqs", 64), ("num_gpu_blocks", n))) for n in (600, 1200, 2400)
    )
    for variants in (seats, pools):
        scenario = Scenario(traffic=Traffic(duration=20.0), variants=variants, baseline=0)
        found = find(Search(scenario=scenario, seeds=3))
        values = [c.value for c in found]
        assert values == sorted(values)
        assert values[-1] > 1.2 * values[0]
        for less, more in zip(found, found[1:], strict=False):
            mean, reach = difference(more, less)
            assert mean >= -reach


def test_the_load_found_holds_and_the_next_does_not():
    scenario = Scenario(traffic=Traffic(duration=10.0), variants=(ONE,), baseline=0)
    (found,) = find(Search(scenario=scenario, share=95.0, seeds=2))
    for seed, load in zip((1234, 1235), found.by_seed, strict=True):
        for rate, holds in ((load, True), (digits(load * PRECISION * 1.005), False)):
            one = replace(scenario, traffic=Traffic(duration=10.0, rate=rate, seed=seed))
            table = run(Sweep(scenario=one, axes=(Axis.parse("max_num_seqs:32"),), seeds=1))
            assert (table["attainment"][0] >= 95.0) is np.bool_(holds), (seed, rate)


def test_a_second_search_runs_nothing(monkeypatch):
    search = Search(scenario=Scenario(traffic=Traffic(duration=3.0)), seeds=2)
    told = []
    found = find(search, go_on=lambda done, of: told.append((done, of)))
    assert sum(c.runs for c in found) == told[-1][0]
    assert all(done <= of for done, of in told)
    monkeypatch.setattr(sweep, "_attempt", None)
    assert find(search) == found
    assert replace(search, share=98.0).name != search.name


def test_a_limit_that_nothing_meets_is_answered_by_how_close():
    slo = Slo(ttft_slo=1.0)
    found = find(Search(scenario=Scenario(slo=slo, traffic=Traffic(duration=5.0)), seeds=2))
    assert [c.value for c in found] == [0, 0, 0]
    said = sentence(found, 99, slo)
    assert said.startswith("None carries even 20 req/s: at that, ")
    assert said.endswith(" comes closest to 99 % within TTFT 1 ms and TPOT 50 ms, with 0 %")
    assert "0 % TTFT 1 ms (p99 " in about(found[1], 99, slo)
    assert "100 % TPOT 50 ms" in about(found[1], 99, slo)
    assert amount(found[0]) == "none"


def test_an_end_of_the_range_that_holds_is_said_to_be_no_end(monkeypatch):
    monkeypatch.setattr(capacity, "MAX_REQUESTS", 300)
    scenario = Scenario(traffic=Traffic(duration=10.0, rate=20.0), variants=(ONE,), baseline=0)
    (found,) = find(Search(scenario=replace(scenario, slo=LENIENT), seeds=2))
    assert found.bound == "range"
    assert found.value == 29.7
    assert "at least 29.7 req/s" in sentence([found], 99, LENIENT)


def test_a_trace_is_searched_by_its_speed_and_a_burst_not_at_all():
    assert Search(scenario=Scenario(traffic=Traffic(arrivals="trace"))).load == "speed"
    with pytest.raises(NoLoad, match="arrivals burst come at no rate"):
        _ = Search(scenario=Scenario(traffic=Traffic(arrivals="burst"))).load


@pytest.mark.parametrize(
    ("q", "freedom", "expected"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.95, 7, 1.895), (0.975, 30, 2.042), (0.5, 3, 0.0)],
)
def test_students_quantiles_are_those_of_the_tables(q, freedom, expected):
    assert student(q, freedom) == pytest.approx(expected, abs=6e-4)


def test_an_interval_is_students_and_one_value_has_none():
    mean, reach = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert reach == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert interval([5.0]) == (5.0, math.inf)


@given(st.floats(0.5, 9_000), st.floats(1, 5_000), st.floats(1, 100), st.floats(200, 9_000))
def test_a_bisection_ends_with_what_holds_and_what_does_not(bound, start, low, high):
    low, high = digits(low), digits(high)
    asked = []

    def probe(loads):
        asked.append(loads["only"])
        return {"only": loads["only"] <= bound}

    good, bad = lockstep({"only": bisection(start, low, high)}, probe)["only"]
    assert len(asked) == len(set(asked)) <= 25
    assert all(low <= load <= high for load in asked)
    if bound >= high:
        assert (good, bad) == (high, math.inf)
    elif bound < low:
        assert (good, bad) == (0.0, low)
    else:
        assert good <= bound < bad
        assert bad <= PRECISION * good or digits(math.sqrt(good * bad)) in (good, bad)


def rows(*growths: float, offered: float = 10.0, arrived: int = 3_000) -> list[dict]:
    return [{"growth": g, "offered": offered, "arrived": arrived} for g in growths]


@pytest.mark.parametrize(
    ("growths", "grows", "short"),
    [
        ((0.5, 0.6, 0.4, 0.5), True, False),
        ((0.01, -0.02, 0.03, -0.01), False, False),
        ((3.0, -2.0, 4.0, -3.0), False, True),  # may well grow, and may not
        ((0.001, 0.001, 0.001), False, False),  # less than a request in the whole run
        ((-0.5, -0.6, -0.4), False, False),
        ((0.6,), True, False),
        ((0.1,), False, True),  # one run alone does not tell
    ],
)
def test_the_queue_grows_where_the_seeds_agree_that_it_does(growths, grows, short):
    found = growth_of(rows(*growths))
    assert (found.grows, found.short) == (grows, short)


def held(label: str, *by_seed: float, load: str = "rate") -> Capacity:
    mean, reach = interval(by_seed)
    return Capacity(
        variant=Variant(label),
        load=load,
        by_seed=by_seed,
        value=mean,
        reach=reach,
        bound="slo",
        growth=growth_of(rows(0.0, 0.01, -0.01)),
        runs=9,
        lowest=1.0,
        best={},
    )


def test_a_difference_is_real_where_it_exceeds_its_interval():
    one, other = held("chunked", 40.0, 42.0, 41.0), held("continuous", 33.0, 34.0, 34.0)
    assert sentence([other, one], 99, Slo()) == "chunked carries 41 req/s, continuous 33.6667 req/s"
    assert whether_real([other, one]).startswith(
        "The difference is real: chunked carries 7.3 req/s"
    )
    near = held("sarathi", 41.0, 40.0, 41.5)
    assert whether_real([near, one]).startswith("The difference may be chance: chunked carries")
    assert "on one run" in whether_real([held("chunked", 40.0), held("sarathi", 30.0)])
    assert whether_real([one]) == ""
    fast = held("chunked", 1.5, load="speed")
    assert sentence([fast], 99, Slo()) == "chunked carries 1.5 times the trace's speed"
    assert set(LOADS) == {"rate", "speed"}


def test_all_is_said_in_the_order_in_which_it_is_needed():
    scenario = Scenario(traffic=Traffic(duration=10.0))
    swept = Sweep(scenario=scenario, axes=(Axis.parse("rate:10:50:10"),), seeds=2)
    frame = points(run(swept), ["rate"], 99.0)
    found = find(Search(scenario=scenario, seeds=2))
    said = sentences(found, frame, ["rate"], 99.0, scenario.slo)
    assert " carries " in said[0]
    assert said[1].startswith("The difference ")
    assert [line.partition(":")[0] for line in said[2:5]] == ["static", "continuous", "chunked 128"]
    assert "the seats bind under" in said[5]
