"""Arrivals and lengths: counts, means, spreads and bounds; the closed loop; windows of a trace."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from strategies import limits, startable

from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.run import serve
from sim.traffic import ARRIVALS, Lengths, Traffic
from sim.workload import Workload, draw

FIXED = Lengths("fixed", (7,))
COLUMNS = ("arrival", "prompt", "output", "limit")
TRACE = Workload(
    np.array([0.0, 1_000.0, 1_000.0, 2_500.0, 4_000.0]),
    np.array([10, 20, 30, 40, 50]),
    np.array([1, 2, 3, 4, 5]),
    np.array([1, 2, 3, 4, 5]),
)


def near(value: float, mean: float, error: float) -> bool:
    """Within four standard errors."""
    return abs(value - mean) < 4 * error


def assert_equal_columns(a: Workload, b: Workload):
    for name in COLUMNS:
        assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("arrivals", [a for a in ARRIVALS if a not in ("trace", "timed", "list")])
def test_the_same_seed_draws_the_same_stream_and_another_seed_another(arrivals):
    one, two, other = (
        draw(Traffic(arrivals=arrivals, seed=seed, duration=3)) for seed in (1, 1, 2)
    )
    assert_equal_columns(one, two)
    assert one.prompt[:20].tolist() != other.prompt[:20].tolist()


@pytest.mark.parametrize("arrivals", [a for a in ARRIVALS if a not in ("trace", "timed")])
def test_streams_are_sorted_start_in_the_window_and_declare_no_less_than_they_emit(arrivals):
    w = draw(Traffic(arrivals=arrivals, duration=5))
    assert np.all(np.diff(w.arrival) >= 0)
    assert 0 <= w.arrival[0] <= w.arrival[-1] < 5_000
    assert np.all(w.limit >= w.output)
    assert np.all(w.prompt >= 1)
    assert np.all(w.output >= 1)
    assert len(w) == len(w.arrival) == len(w.prompt) == len(w.output) == len(w.limit)


@pytest.mark.parametrize("arrivals", ["module", "poisson"])
def test_poisson_arrivals_have_the_rate_and_exponential_gaps(arrivals):
    w = draw(Traffic(arrivals=arrivals, rate=50, duration=400, seed=3))
    gaps = np.diff(w.arrival)
    assert near(len(w), 20_000, math.sqrt(20_000))
    assert near(gaps.mean(), 20, 20 / math.sqrt(len(gaps)))
    assert near(gaps.std() / gaps.mean(), 1, 1 / math.sqrt(len(gaps)))
    assert near((gaps > 20).mean(), math.exp(-1), 0.5 / math.sqrt(len(gaps)))


@pytest.mark.parametrize("burstiness", [0.1, 0.25, 1.0, 4.0, 100.0])
def test_gamma_gaps_vary_by_one_over_the_root_of_the_burstiness(burstiness):
    traffic = Traffic(arrivals="gamma", rate=100, duration=400, burstiness=burstiness, seed=4)
    gaps = np.diff(draw(traffic).arrival)
    cv = 1 / math.sqrt(burstiness)
    assert near(gaps.mean(), 10, 10 * cv / math.sqrt(len(gaps)))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


@given(rate=st.integers(1, 200), duration=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_a_constant_interval_gives_rate_times_duration_requests(rate, duration):
    w = draw(Traffic(arrivals="constant", rate=rate, duration=duration, prompt=FIXED))
    assert w.arrival == pytest.approx(np.arange(rate * duration) * 1e3 / rate)


def test_a_constant_interval_sends_no_request_at_the_very_end():
    w = draw(Traffic(arrivals="constant", rate=3, duration=21))
    assert len(w) == 63


def test_a_burst_arrives_all_at_once():
    w = draw(Traffic(arrivals="burst", requests=123))
    assert w.arrival.tolist() == [0.0] * 123
    assert w.clients == 0


def test_only_the_closed_loop_has_clients():
    for arrivals in set(ARRIVALS) - {"trace", "timed"}:
        w = draw(Traffic(arrivals=arrivals, requests=40, clients=9, duration=2))
        assert w.clients == (9 if arrivals == "closed" else 0)


@pytest.mark.parametrize("policy", POLICIES)
@given(clients=st.integers(1, 9), limits=limits)
@settings(max_examples=40, deadline=None)
def test_a_closed_loop_keeps_exactly_its_clients_busy_while_requests_are_left(
    policy, clients, limits
):
    traffic = Traffic(
        arrivals="closed",
        requests=30,
        clients=clients,
        prompt=Lengths("uniform", (1, 60)),
        output=Lengths("uniform", (1, 20)),
    )
    r = serve(draw(traffic), policy, startable(policy, limits), (0.2, 0.02, 0.4, 0.03)).requests
    assert r["arrival"][:clients].tolist() == [0.0] * min(clients, 30)
    # Each later request is sent the moment another one is released, one for one.
    assert r["arrival"][clients:].tolist() == sorted(r["finish"])[: max(0, 30 - clients)]
    for moment in r["arrival"]:
        unfinished = (r["arrival"] <= moment).sum() - (r["finish"] <= moment).sum()
        assert unfinished <= clients


def test_lognormal_lengths_have_the_median_and_the_clips():
    lengths = Lengths("lognormal", (700, 0.9, 64, 4096))
    for arrivals in ("module", "poisson"):
        w = draw(Traffic(arrivals=arrivals, rate=100, duration=200, prompt=lengths))
        below = (w.prompt < 700).mean()
        assert near(below, 0.5, 0.5 / math.sqrt(len(w)))
        assert (w.prompt.min(), w.prompt.max()) == (64, 4096)
        # P(drawn >= 4096) and P(drawn < 65): a clip gathers its tail in one value.
        high, low = (
            0.5 * math.erfc(math.log(x) / 0.9 / math.sqrt(2)) for x in (4096 / 700, 700 / 65)
        )
        assert near((w.prompt == 4096).mean(), high, math.sqrt(high / len(w)))
        assert near((w.prompt == 64).mean(), low, math.sqrt(low / len(w)))


def test_uniform_lengths_reach_both_ends_equally_often():
    w = draw(Traffic(arrivals="burst", requests=30_000, output=Lengths("uniform", (3, 8))))
    values, counts = np.unique(w.output, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7, 8]
    assert all(near(count, 5_000, math.sqrt(5_000)) for count in counts)
    assert set(w.limit) == {8}


def test_fixed_lengths_are_fixed():
    w = draw(Traffic(arrivals="burst", requests=50, prompt=FIXED, output=Lengths("fixed", (1,))))
    assert set(w.prompt) == {7}
    assert set(w.output) == set(w.limit) == {1}


def test_prompts_and_outputs_do_not_depend_on_each_other():
    w = draw(Traffic(arrivals="poisson", rate=100, duration=200))
    correlation = np.corrcoef(np.log(w.prompt), np.log(w.output))[0, 1]
    assert near(correlation, 0, 1 / math.sqrt(len(w)))


def test_lengths_drawn_from_a_trace_come_row_by_row():
    own = Lengths("trace")
    traffic = Traffic(arrivals="poisson", rate=100, duration=20, prompt=own, output=own, trace="x")
    w = draw(traffic, TRACE)
    assert set(zip(w.prompt.tolist(), w.output.tolist(), strict=True)) == {
        (10, 1), (20, 2), (30, 3), (40, 4), (50, 5)
    }  # fmt: skip
    assert_array_equal(w.limit, w.output)
    assert near(w.prompt.mean(), 30, math.sqrt(200 / len(w)))


def test_prompts_from_a_trace_go_with_outputs_that_are_drawn():
    traffic = Traffic(arrivals="burst", prompt=Lengths("trace"), trace="x")
    w = draw(traffic, TRACE)
    assert set(w.prompt) == {10, 20, 30, 40, 50}
    assert w.output.max() > 5
    assert set(w.limit) == {384}


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(arrivals="trace", trace="x"),
        Traffic(arrivals="poisson", prompt=Lengths("trace"), trace="x"),
    ],
    ids=["arrivals", "lengths"],
)
def test_a_trace_that_is_not_at_hand_is_asked_for(traffic):
    with pytest.raises(ScenarioError, match="comes from a trace: .* file"):
        draw(traffic)


def window(**options) -> Workload:
    return draw(Traffic(arrivals="trace", trace="x", **options), TRACE)


def test_a_whole_trace_is_taken_as_it_is():
    assert_equal_columns(window(), TRACE)


def test_a_window_takes_from_since_on_and_stops_before_until_and_begins_at_0():
    w = window(since=1.0, until=4.0)
    assert w.arrival.tolist() == [0.0, 0.0, 1_500.0]
    assert w.prompt.tolist() == [20, 30, 40]
    assert w.output.tolist() == w.limit.tolist() == [2, 3, 4]


def test_the_first_n_are_counted_within_the_window():
    assert window(since=1.0, first=2).prompt.tolist() == [20, 30]
    assert window(first=99).prompt.tolist() == TRACE.prompt.tolist()


def test_speed_divides_the_gaps_and_leaves_the_lengths():
    w = window(speed=4.0)
    assert w.arrival.tolist() == [0.0, 250.0, 250.0, 625.0, 1_000.0]
    assert_array_equal(w.prompt, TRACE.prompt)


def test_an_empty_window_is_named_with_what_the_trace_spans():
    with pytest.raises(ScenarioError, match=r"from 5 s to 6 s.*spans 4 s"):
        window(since=5.0, until=6.0)


def test_an_empty_window_without_an_end_is_not_said_to_end_at_0():
    with pytest.raises(ScenarioError, match="from 5 s") as caught:
        window(since=5.0)
    assert "to 0 s" not in str(caught.value)


@pytest.mark.parametrize("arrivals", ["module", "poisson", "gamma"])
def test_a_stream_without_requests_is_named_with_its_rate_and_duration(arrivals):
    with pytest.raises(ScenarioError, match=r"within 0\.1 s at 0\.01 req/s"):
        draw(Traffic(arrivals=arrivals, rate=0.01, duration=0.1))
