"""The requests of a window: what is measured of them is what the whole run says of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal
from strategies import cases, startable, tight

from sim.metrics import METRICS, figures, waits
from sim.policies import POLICIES
from sim.run import serve
from sim.scenario import Slo
from sim.state import DECODE, PREEMPTED
from sim.table import requests_table
from sim.window import within

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
