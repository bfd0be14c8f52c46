"""The requests of a window: what is measured of them is what the whole run says of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal
from strategies import cases, startable, tight

from sim.differ import parting
from sim.metrics import METRICS, figures, waits
from sim.policies import POLICIES
from sim.replicate import replicate
from sim.run import compare, serve
from sim.scenario import Scenario, Slo
from sim.state import DECODE, PREEMPTED
from sim.table import requests_table
from sim.why import longest_gap, per_request, worst
from sim.window import Windowed, counted, during, within

every_policy = pytest.mark.parametrize("policy", POLICIES)


def gaps_of(run, ids) -> list[float]:
    """Each gap between two tokens of each request, from the steps in which it decoded."""
    found = []
    for i in ids:
        own = run.segments[run.segments["request"] == i]
        r, times = run.requests[i], []
        if r["refused"]:
            continue
        for segment in own[own["phase"] == DECODE]:
            steps = run.steps[
                (run.steps["t0"] >= segment["t0"]) & (run.steps["t0"] < segment["t1"])
            ]
            for step in steps[steps["decodes"] > 0]:
                now = step["t0"]
                for _ in range(step["repeats"]):
                    now += step["ms"]
                    times.append(now)
        times += run.gaps["t"][run.gaps["request"] == i].tolist()
        found += np.diff([r["first"], *np.unique(np.round(times, 9))]).tolist()
    return found


@every_policy
@given(case=cases, window=st.tuples(st.floats(0, 60), st.floats(1, 200)))
@settings(max_examples=15, deadline=None)
def test_what_is_measured_of_a_window_is_what_its_requests_had(policy, case, window):
    limits = tight(policy, case.limits, max_model_len=80)
    run = serve(case.workload, policy, limits, case.cost)
    t0, t1 = window[0], window[0] + window[1]
    part = within(run, t0, t1)
    arrival = run.requests["arrival"]
    ids = np.flatnonzero((arrival >= t0) & (arrival < t1))
    assert requests_table(part).index.tolist() == ids.tolist()
    assert_frame_equal(requests_table(part), requests_table(run).loc[ids], check_dtype=False)
    if len(part.served) == 0:
        return
    itl = METRICS["itl"].of(part)
    assert itl.weights is not None
    assert_allclose(longest_gap(part), longest_gap(run)[ids], atol=1e-9)
    pooled = np.sort(np.repeat(itl.values, itl.weights))
    assert_allclose(pooled, np.sort(gaps_of(run, ids)), atol=1e-6)
    waited = part.served["start"] - part.served["arrival"]
    again = part.segments[part.segments["phase"] == PREEMPTED]
    if not len(again):
        assert sum(waits(part).values()) == pytest.approx(waited.sum(), abs=1e-6)


@every_policy
@given(case=cases)
@settings(max_examples=15, deadline=None)
def test_a_window_over_all_arrivals_is_the_run(policy, case):
    run = serve(case.workload, policy, startable(policy, case.limits), case.cost)
    whole = within(run, 0.0, np.inf)
    assert figures(whole, Slo()) == pytest.approx(figures(run, Slo()), nan_ok=True)


def own_steps(run, ids) -> list[tuple]:
    """(t0, ms, what each of `ids` has of its prompt, how many of them decode) of every step in
    which one of them has a part."""
    decoding = run.segments[
        (run.segments["phase"] == DECODE) & np.isin(run.segments["request"], ids)
    ]
    rows = []
    for k, step in enumerate(run.steps):
        g = run.grants[(run.grants["step0"] <= k) & (run.grants["step1"] > k)]
        g = g[np.isin(g["request"], ids)]
        prompts = tuple(sorted(zip(g["request"].tolist(), g["tokens"].tolist(), strict=True)))
        here = (decoding["t0"] <= step["t0"]) & (decoding["t1"] > step["t0"])
        decodes = int(here.sum()) if step["decodes"] else 0
        now = step["t0"]
        for _ in range(step["repeats"] if prompts or decodes else 0):
            rows.append((now, step["ms"], prompts, decodes))
            now += step["ms"]
    return rows


@pytest.mark.parametrize("policy", ["continuous", "vllm_v1", "sglang"])
@given(case=cases, window=st.tuples(st.floats(0, 60), st.floats(1, 200)))
@settings(max_examples=15, deadline=None)
def test_within_a_window_they_part_where_its_requests_are_served_otherwise(policy, case, window):
    limits = startable(policy, case.limits)
    runs = [serve(case.workload, p, limits, case.cost) for p in ("chunked", policy)]
    parts = [within(run, window[0], sum(window)) for run in runs]
    found = parting(runs[0], runs[1], (parts[0], parts[1]))
    own = [own_steps(run, part.ids) for run, part in zip(runs, parts, strict=True)]
    first = next(
        (
            k
            for k, (x, y) in enumerate(zip(*own, strict=False))
            if abs(x[0] - y[0]) > 1e-6 or x[1:] != y[1:]
        ),
        None,
    )
    assert (found is None) == (first is None)
    if found is not None and first is not None:
        for step, rows in zip(found, own, strict=True):
            assert step.t0 == pytest.approx(rows[first][0], abs=1e-7)
            assert set(rows[first][2]) <= set(step.prompts.items())  # and what else there was


@pytest.fixture(scope="module")
def opening():
    scenario = Scenario.from_url("/?duration=3&v=continuous&v=chunked:chunk=128&rate=20")[0]
    return scenario, Windowed.of(scenario, 500, 1500)


def test_a_window_is_in_the_link_and_nothing_else_changes(opening):
    scenario, part = opening
    assert part.link() == scenario.link() + "&window=500:1500"
    assert Windowed.of(Scenario(), 5, 9).link() == "/?window=5:9"
    assert Scenario.link(part) == scenario.link()
    run = compare(scenario)[0]
    assert counted(run, scenario) is run
    ids = counted(run, part).ids
    assert ids is not None
    arrival = run.requests["arrival"]
    assert_allclose(arrival[ids], arrival[(arrival >= 500) & (arrival < 1500)])
    steps = during(run, counted(run, part))
    assert steps["t0"][-1] < run.requests["finish"][ids].max()
    assert steps["t0"][1] > 500
    assert steps["decodes"].sum() > counted(run, part).steps["decodes"].sum() > 0


def test_the_worst_of_a_window_are_its_own(opening):
    scenario, part = opening
    run = compare(scenario)[0]
    ids = counted(run, part).ids
    assert ids is not None
    found = worst(run, "ttft", 0.9, ids)
    values = per_request(run, "ttft")
    assert set(found) <= set(ids)
    assert found[0] == ids[np.argmax(values[ids])]
    assert_allclose(longest_gap(counted(run, part)), longest_gap(run)[ids])


def test_seeds_count_who_arrives_in_the_window(opening):
    scenario, part = opening
    found = replicate(part, ("ttft_p95", "longest_wait"), seeds=3)
    for k, run in enumerate(compare(scenario)):
        mine = counted(run, part)
        assert found.values[k, 0, 0] == METRICS["ttft"].of(mine).quantile(0.95)
    nobody = replicate(Windowed.of(scenario, 2_999, 3_000), ("ttft_p95", "longest_wait"), seeds=3)
    assert np.isnan(nobody.values).any()
