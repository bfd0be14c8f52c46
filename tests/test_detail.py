"""What a window of a run holds is the same at every level of detail: shares, rows, counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import cases, tight

from pages.ui.timeline import SHARE, _grid
from sim.detail import OF_STEPS, events, index, most
from sim.policies import POLICIES
from sim.run import Run, serve
from sim.state import PHASES, PREEMPTED

every_policy = pytest.mark.parametrize("policy", POLICIES)
laws = settings(max_examples=15, deadline=None)
windows = st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 40), st.integers(1, 5))


def run_of(policy: str, case) -> Run:
    """With preemptions, where the policy knows any."""
    limits = tight(policy, case.limits, max_model_len=80)
    if policy == "vllm_v0":
        limits = limits._replace(max_num_batched_tokens=10_000)
    return serve(case.workload, policy, limits, case.cost)


def of(run: Run, window) -> tuple[float, float, int, int]:
    low, high, columns, rows = window
    t0, t1 = (run.total * edge for edge in sorted((low, high)))
    if t1 - t0 < 0.1:
        t0, t1 = 0.0, run.total + 1.0
    return t0, t1, columns, min(rows, index(run).seats)


def brute(run: Run, t0: float, t1: float, columns: int) -> np.ndarray:
    """(phases, seats, columns) ms of each phase, segment by segment."""
    edges = np.linspace(t0, t1, columns + 1)
    ms = np.zeros((len(PHASES), index(run).seats, columns))
    for s in run.segments:
        within = np.minimum(s["t1"], edges[1:]) - np.maximum(s["t0"], edges[:-1])
        ms[s["phase"], s["seat"]] += within.clip(0)
    return ms


@every_policy
@given(case=cases, window=windows)
@laws
def test_shares_are_those_of_the_segments_and_add_up_to_all_the_time(policy, case, window):
    run = run_of(policy, case)
    t0, t1, columns, rows = of(run, window)
    truth, exact = brute(run, t0, t1, columns), index(run)
    width = (t1 - t0) / columns
    assert not truth[[k for k in range(len(PHASES)) if k not in exact.phases]].any()
    shares = exact.shares(t0, t1, columns)
    assert_allclose(shares, truth[exact.phases] / width, rtol=0, atol=1e-9)
    whole = brute(run, t0, t1, 1)[exact.phases, :, 0]
    assert_allclose(shares.sum(axis=2) * width, whole, rtol=0, atol=1e-9 * (t1 - t0))
    # Lines of several seats are the mean of theirs.
    lines = np.linspace(0, exact.seats, rows + 1).astype(int)
    means = [shares[:, a:b].mean(axis=1) for a, b in zip(lines[:-1], lines[1:], strict=True)]
    found = exact.shares(t0, t1, columns, rows)
    assert_allclose(found, np.stack(means, axis=1), rtol=0, atol=1e-9)


@every_policy
@given(case=cases, window=windows)
@laws
def test_the_rows_of_a_window_make_the_same_picture_as_its_grid(policy, case, window):
    run = run_of(policy, case)
    t0, t1, columns, _ = of(run, window)
    s = run.segments
    places = index(run).slice(t0, t1)
    lasting = (s["t1"] > t0) & (s["t0"] < t1) & (s["phase"] != PREEMPTED)
    moments = (s["t0"] >= t0) & (s["t0"] < t1) & (s["phase"] == PREEMPTED)
    assert_array_equal(np.sort(places), np.flatnonzero(lasting | moments))
    assert index(run).count(t0, t1) == len(places)
    assert index(run).preempted(t0, t1, columns).sum() == moments.sum()
    grid = _grid(run, t0, t1, columns)
    shares, exact = grid["share"] / SHARE, index(run).shares(t0, t1, columns)
    assert np.abs(shares - exact).max(initial=0) <= 1.001 / SHARE
    drift = (shares - exact).cumsum(axis=2)  # what is rounded off is carried on
    assert np.abs(drift).max(initial=0) <= 0.501 / SHARE


@every_policy
@given(case=cases, window=windows)
@laws
def test_columns_show_the_largest_of_their_steps_and_who_waits_and_runs(policy, case, window):
    run = run_of(policy, case)
    t0, t1, columns, _ = of(run, window)
    found, steps, edges = most(run, t0, t1, columns), run.steps, np.linspace(t0, t1, columns + 1)
    ended = steps["t0"] + steps["ms"] * steps["repeats"]
    values = {name: steps[name] for name in OF_STEPS[:-1]} | {"held": run.blocks - steps["free"]}
    for x, (left, right) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        well_under = (steps["t0"] < right - 1e-9) & (ended > left + 1e-9)
        near = (steps["t0"] < right + 1e-9) & (ended > left - 1e-9)
        for name in OF_STEPS:
            low, high = (values[name][rows].max(initial=0) for rows in (well_under, near))
            assert low <= found[name][x] <= high, name
    r, lost = run.served, run.segments[run.segments["phase"] == PREEMPTED]
    for t in edges:
        sits = (run.segments["t0"] <= t) & (t < run.segments["t1"])
        seated = len(np.unique(run.segments["request"][sits]))
        assert events(run).running(np.array([t]))[0] == seated
        came, over = int((r["arrival"] <= t).sum()), int((r["finish"] <= t).sum())
        assert events(run).waiting(np.array([t]))[0] == came - over - seated
    assert len(events(run).lost) <= len(lost)
