"""What charts draw keeps the truth of what it was counted from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, startable

from sim.bins import BINS, IDLE, cells, coalesced, counted, spread, worst_itl
from sim.metrics import METRICS, Sample
from sim.policies import POLICIES
from sim.run import Run, serve
from sim.scenario import Scenario
from sim.state import DECODE, PHASES, Limits
from sim.traffic import Traffic
from sim.workload import draw

every_policy = pytest.mark.parametrize("policy", POLICIES)
laws = settings(max_examples=50, deadline=None)
values = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=40)


SHOWN = ("static", "continuous", "chunked")


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    workload = draw(Traffic(duration=4))
    limits = Limits(max_num_seqs=16, chunk=128)
    return {name: serve(workload, name, limits, Scenario().cost, label=name) for name in POLICIES}


def exact_shares(run: Run, t0: float, t1: float) -> np.ndarray:
    """The share of all seat time in the window that each phase takes, and IDLE."""
    within = np.minimum(run.segments["t1"], t1) - np.maximum(run.segments["t0"], t0)
    times = np.bincount(run.segments["phase"], within.clip(0), minlength=IDLE)
    return np.append(times, run.seats * (t1 - t0) - times.sum()) / (run.seats * (t1 - t0))


@given(samples=st.lists(values, min_size=1, max_size=3), log=st.booleans())
@laws
def test_the_bins_of_each_variant_add_up_to_100(samples, log):
    named = {f"v{k}": Sample(np.array(v)) for k, v in enumerate(samples)}
    bins = counted(named, log)
    for _, rows in bins.groupby("variant"):
        assert len(rows) == BINS
        assert rows["upto"].iloc[-1] == pytest.approx(100)
        assert rows["upto"].tolist() == rows["share"].cumsum().tolist()
        assert np.all(np.diff(rows["upto"]) >= 0)
        assert rows["low"].iloc[1:].tolist() == rows["high"].iloc[:-1].tolist()
    assert len({tuple(rows["low"]) for _, rows in bins.groupby("variant")}) == 1


@given(values=values, data=st.data(), log=st.booleans())
@laws
def test_weights_count_as_values_written_out(values, data, log):
    size = len(values)
    weights = np.array(data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)))
    weighted = counted({"v": Sample(np.array(values), weights)}, log)
    written = counted({"v": Sample(np.repeat(values, weights))}, log)
    assert weighted["share"].tolist() == pytest.approx(written["share"].tolist())


def test_a_bin_holds_what_lies_between_its_edges():
    bins = counted({"v": Sample(np.array([0.5, 0.5, 29.5, 60.0]))}, log=False)
    assert bins["share"].iloc[[0, 29, 59]].tolist() == [50, 25, 25]
    assert (bins["low"].iloc[29], bins["high"].iloc[29]) == (29, 30)


def test_nothing_to_count_gives_no_bins_and_one_value_gives_one():
    assert counted({"v": Sample(np.empty(0))}, log=False).empty
    for log in (False, True):
        shares = counted({"v": Sample(np.array([7.0]))}, log)["share"].tolist()
        assert sorted(shares) == [0.0] * (BINS - 1) + [100.0]


def test_only_a_wide_spread_asks_for_a_logarithmic_axis():
    assert not spread({"v": Sample(np.linspace(10, 100, 500))})
    assert spread({"v": Sample(np.geomspace(1, 1000, 500))})
    assert spread({"a": Sample(np.full(500, 1.0)), "b": Sample(np.full(500, 50.0))})
    assert not spread({"a value of 0": Sample(np.full(500, 0.0)), "b": Sample(np.full(500, 50.0))})
    assert not spread({"v": Sample(np.empty(0))})


@every_policy
@pytest.mark.parametrize("columns", [40, 1_000])
def test_cells_keep_the_mix_of_phases_however_coarse(runs, policy, columns):
    run = runs[policy]
    for t0, t1 in ((0.0, run.total), (500.0, 1_750.0)):
        phases, _ = cells(run, t0, t1, columns)
        assert phases.shape == (run.seats, columns)
        shares = np.bincount(phases.ravel(), minlength=IDLE + 1) / phases.size
        assert shares == pytest.approx(exact_shares(run, t0, t1), abs=0.01)


@every_policy
def test_a_fine_grid_shows_each_moment_as_it_is(runs, policy):
    run = runs[policy]
    t0, t1, columns = 500.0, 700.0, 8_000
    phases, _ = cells(run, t0, t1, columns)
    wrong = 0
    for x in range(0, columns, 7):
        moment = t0 + (x + 0.5) * (t1 - t0) / columns
        now = run.segments[(run.segments["t0"] <= moment) & (moment < run.segments["t1"])]
        truth = np.full(run.seats, IDLE)
        truth[now["seat"]] = now["phase"]
        wrong += (phases[:, x] != truth).sum()
    assert wrong < 0.01 * run.seats * columns / 7  # cells with an edge in them


@every_policy
@given(case=cases, columns=st.integers(1, 40), window=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@laws
def test_the_worst_itl_is_never_lower_than_a_step_under_the_column(policy, case, columns, window):
    run = serve(case.workload, policy, startable(policy, case.limits), case.cost)
    t0, t1 = (run.total * edge for edge in sorted(window))
    if t1 - t0 < 1e-3:
        t0, t1 = 0.0, run.total
    worst, width = worst_itl(run, t0, t1, columns), (t1 - t0) / columns
    decoding = run.ticks()
    ended = decoding["t0"] + decoding["ms"] * decoding["repeats"]
    for x in range(columns):
        left, right = t0 + x * width, t0 + (x + 1) * width
        well_under = (decoding["t0"] < right - 1e-9) & (ended > left + 1e-9)
        near = (decoding["t0"] < right + 1e-9) & (ended > left - 1e-9)
        assert worst[x] >= decoding["ms"][well_under].max(initial=0)
        assert worst[x] <= decoding["ms"][near].max(initial=0)


@pytest.mark.parametrize("most", [20_000, 2_000, 300])
def test_coalesced_stays_under_its_cap_and_keeps_the_mix(runs, most):
    runs = {name: runs[name] for name in SHOWN}
    t1 = max(run.total for run in runs.values())
    rows = coalesced(list(runs.values()), 0.0, t1, most)
    assert 0 < len(rows) <= most
    assert np.all(rows["t0"] < rows["t1"])
    assert set(rows["phase"]) <= set(PHASES)
    for name, run in runs.items():
        for k, share in enumerate(exact_shares(run, 0.0, t1)[:IDLE]):
            own = rows[(rows["variant"] == name) & (rows["phase"] == PHASES[k])]
            length = np.sum(own["t1"] - own["t0"]) / run.seats / t1
            assert length == pytest.approx(share, abs=0.01 if most > 1_000 else 0.05)


def test_coalesced_rows_of_a_seat_do_not_overlap(runs):
    rows = coalesced(list(runs.values()), 0.0, 2_000.0)
    for _, own in rows.groupby(["variant", "seat"]):
        own = own.sort_values("t0")
        assert (own["t1"].to_numpy()[:-1] <= own["t0"].to_numpy()[1:] + 1e-9).all()


def test_coalesced_decodes_carry_the_worst_itl_beneath_them(runs):
    run = runs["continuous"]
    rows = coalesced([run], 0.0, run.total)
    worst = METRICS["itl"].of(run).quantile(1.0)
    assert rows.loc[rows["phase"] == PHASES[DECODE], "itl"].max() == worst
