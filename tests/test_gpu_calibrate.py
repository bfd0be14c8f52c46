"""Fitted on a run whose clock is a cost model, the coefficients come back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import workload
from test_loop import Simulated

from gpu_probe.calibrate import calibrate, cost_of, features_of, said_of, written
from gpu_probe.loop import Server
from sim.costs import COSTS, Features
from sim.parameter import ScenarioError
from sim.pricing import StepCost
from sim.record import Record
from sim.state import Limits

VARIED = Limits(max_num_seqs=8, max_num_batched_tokens=64, chunk=24)
FITTED = ("linear", "calibrated")


def recorded(cost: str, coefficients, seed: int = 0):
    """A run of steps of every kind, each as long as the cost model says."""
    rng = np.random.default_rng(seed)
    rows = zip(
        rng.choice([0, 0, 60], 60), rng.integers(1, 90, 60), rng.integers(1, 40, 60), strict=True
    )
    assert len(coefficients) == len(COSTS[cost].coefficients)  # none is read past the end
    device = Simulated(coefficients, cost)
    alone = (0.0, 90, 2), (1e6, 1, 1)  # so that some step has a prompt's middle and emits nothing
    asked = workload([*alone, *((float(g), int(p), int(o)) for g, p, o in rows)])
    server = Server(asked, "chunked", VARIED)
    for _ in server.steps(device.forward, device.clock):
        pass
    return server.run("paper")


@pytest.mark.parametrize("cost", FITTED)
@given(data=st.data(), seed=st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_the_coefficients_come_back(cost, data, seed):
    """To 1e-12, where each feature has about its share of the time."""
    run = recorded(cost, [1.0] * len(COSTS[cost].coefficients), seed)
    most = dict(zip(Features._fields, features_of(run.steps).max(0), strict=True))
    shares = data.draw(st.tuples(*[st.floats(0.1, 3.0)] * len(most)))
    wanted = [share / most[f] for share, f in zip(shares, COSTS[cost].features, strict=False)]
    fit = calibrate(recorded(cost, wanted, seed), cost)
    np.testing.assert_allclose(fit.coefficients, wanted, rtol=1e-12)
    assert np.abs(fit.errors).max() < 1e-12


def test_a_model_that_lacks_a_feature_does_not_explain_the_steps():
    run = recorded("calibrated", [1.0, 0.02, 0.1, 0.1, 0.2, 0.1, 0.01, 0.01, 0.001, 0.1])
    assert np.median(np.abs(calibrate(run, "linear").errors)) > 0.01
    assert np.abs(calibrate(run).errors).max() < 1e-12


def test_a_fit_says_what_it_was_fitted_on_and_stands_in_a_link():
    run = recorded("calibrated", [1.0, 0.02, 0.1, 0.1, 0.2, 0.1, 0.01, 0.01, 0.001, 0.1])
    about = {"device": "paper", "date": "1999-12-31T00:00"}
    said = json.loads(written(said_of(calibrate(run), Record(run, about, {}))))
    assert said["name"] == "measured on paper, 1999-12-31"
    assert said["highest"]["decodes"] == run.steps["decodes"].max()
    assert len(said["deciles"]) == 10
    parsed = StepCost.parse(said["cost"])
    assert (str(parsed), parsed.label) == (said["cost"], said["name"])
    again = parsed.pricing(()).coefficients
    np.testing.assert_allclose(again, calibrate(run).coefficients, rtol=1e-15)


def test_a_device_of_any_name_stands_in_a_link_and_no_link_names_it_with_anything():
    run = recorded("linear", [1.0, 0.02, 0.1, 0.2])
    about = {"device": "Xeon(R) @ 2.2GHz/[x](http://y)" + "z" * 90, "date": "1999-12-31T00:00"}
    cost = cost_of(calibrate(run), Record(run, about, {}))
    assert cost.label.startswith("measured on Xeon(R) 2.2GHz x (http: y)")
    assert StepCost.parse(str(cost)) == cost
    for name in ("", "a<b>", "x" * 81):
        with pytest.raises(ScenarioError, match="can't be shown"):
            StepCost.parse(f"calibrated/name={name}/step_ms=1")


def test_what_cannot_be_fitted_is_said():
    run = recorded("linear", [1.0, 0.02, 0.1, 0.2])
    with pytest.raises(ScenarioError, match="roofline is derived, not fitted"):
        calibrate(run, "roofline")
    with pytest.raises(ScenarioError, match="3 measured steps are too few"):
        calibrate(replace(run, steps=run.steps[:3]))
