"""Sweeps: the same table wherever it is run, whatever dies meanwhile; named, kept, refused."""

import json
import os
import signal
from dataclasses import replace

import joblib
import pandas as pd
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import sweep as sweeps
from sim.metrics import figures
from sim.parameter import ScenarioError
from sim.points import at, growth, measure, time_shares
from sim.run import Run, compare
from sim.scenario import PARAMETERS, Scenario, Variant
from sim.sweep import Axis, Rows, Sweep, batches, complete, run, usual_axis, workers
from sim.traffic import ARRIVALS, Lengths, Traffic

SHORT = Scenario(traffic=Traffic(duration=2.0))
RATES = Sweep(scenario=SHORT, axes=(Axis.parse("rate:10:50:10"),), seeds=2)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing is kept from test to test."""
    monkeypatch.setattr(sweeps, "CACHE", tmp_path / "sweeps")
    monkeypatch.delenv("SLOTSCOPE_CLUSTER", raising=False)
    return tmp_path / "sweeps"


def alone(sweep: Sweep) -> pd.DataFrame:
    """The sweep's table, made in this process one run after the other."""
    return pd.DataFrame(measure(sweep.scenario, sweep.points(), None)[1])


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks"])
@pytest.mark.parametrize("engine", ["vllm-0.33.0-h100-api", "sglang-0.5.18-h100-api"])
def test_what_is_swept_holds_for_an_engine_whatever_its_versions_default(engine, name):
    asked = replace(SHORT, variants=(Variant(engine),), baseline=0)
    for value in (2_000, 3_000):
        found = at(asked, [(name, value)])
        limits, block = found.limits_of(found.variants[0]), found.limits.block_size
        own = limits.block_size if name == "num_gpu_blocks" else block  # a pool is so many tokens
        assert getattr(limits, name) == value * block // own


def is_worker(process: psutil.Process) -> bool:
    alive = process.status() != psutil.STATUS_ZOMBIE
    return alive and any("popen_loky" in part for part in process.cmdline())


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one, other, check_exact=True, check_dtype=False)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rate:20:40:5", (20, 25, 30, 35, 40)),
        ("rate:20:41:5", (20, 25, 30, 35, 40)),
        ("rate:0.1:0.7:0.2", (0.1, 0.3, 0.5, 0.7)),
        ("chunk:8:256:x2", (8, 16, 32, 64, 128, 256)),
        ("max_num_seqs:32,8,16,8", (8, 16, 32)),
        ("rate:5:5:1", (5,)),
    ],
)
def test_a_range_has_both_ends_and_every_step(text, values):
    axis = Axis.parse(text)
    assert axis.values == values
    assert Axis.parse(str(axis)) == axis


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate:1:10000:0.00001", "has 999,900,000 values, over the cap of 50,000 runs"),
        ("rate:60:20:5", "is empty, 60 is above 20: swap them"),
        ("rate:1:50:0", "step 0 is out of range"),
        ("rate:1:50:-1", "step -1 is out of range"),
        ("rate:1:50:x1", "never gets from 1 to 50"),
        ("watermark:0:1:x2", "never gets from 0 to 1"),
        ("rate:", "is empty: give it a value"),
        ("rate:1:2", "is no range"),
        ("rate:a,b", "rate 'a' is no number"),
        ("chunk:1:9:0.5", "chunk 1.5 is not whole"),
        ("rate:0:9:1", "rate 0 is out of range"),
        ("speediness:1:2:1", "sweeps no parameter"),
        ("seed:1:9:1", "sweeps no parameter"),
        ("", "sweeps no parameter"),
    ],
)
def test_a_range_that_cannot_be_had_is_named_with_the_way_out(text, said):
    with pytest.raises(ScenarioError) as error:
        Axis.parse(text)
    assert said in str(error.value)
    assert ": " in str(error.value)


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (replace(RATES, axes=()), "nothing can't be swept"),
        (replace(RATES, axes=RATES.axes * 2), "give one parameter, or two different ones"),
        (replace(RATES, axes=(Axis.parse("clients:1:9:1"),)), "clients plays no part in arrivals"),
        (replace(RATES, axes=(Axis.parse("num_gpu_blocks:9,99"),)), "num_gpu_blocks plays no part"),
        (
            replace(RATES, axes=(Axis.parse("rate:1:999:1"), Axis.parse("chunk:1:999:1"))),
            "5,988,006 runs are over the cap of 50,000",
        ),
        (
            replace(
                RATES,
                scenario=replace(
                    SHORT, variants=(Variant("chunked"), Variant("chunked", (("chunk", 8),)))
                ),
                axes=(Axis.parse("chunk:8,16"),),
            ),
            "with chunk swept, two variants are both chunked: remove one",
        ),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused_before_any_run(sweep, said):
    with pytest.raises(ScenarioError) as error:
        run(sweep)
    assert said in str(error.value)


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_everything_that_can_be_swept_has_a_usual_range(arrivals):
    scenario = Scenario(
        traffic=Traffic(arrivals=arrivals), variants=(Variant("vllm_v1"), Variant("chunked"))
    )
    assert sweeps.default_axis(scenario).values
    for name in sweeps.sweepable(scenario):
        axis = usual_axis(scenario, name)
        assert axis.name == name
        assert len(axis.values) >= 2
        Sweep(scenario=scenario, axes=(axis,)).check()


def test_a_point_has_the_figures_of_the_same_scenario_compared():
    row = run(RATES).iloc[7]
    scenario = at(SHORT, [("rate", float(row["rate"]))], int(row["seed"]))
    found = {str(v): r for v, r in zip(scenario.variants, compare(scenario), strict=True)}
    for name, value in figures(found[row["variant"]], scenario.slo).items():
        assert row[name] == value, name


def test_a_swept_limit_goes_before_a_variants_own():
    swept = at(Scenario(), [("chunk", 32)])
    assert [swept.limits_of(v).chunk for v in swept.variants] == [32, 32, 32]


def test_workers_find_what_one_process_finds_bit_for_bit_and_only_once(monkeypatch):
    table = run(RATES)
    same(table, alone(RATES))
    assert len(table) == RATES.runs == 5 * 2 * 3

    def nothing(*args, **kwargs):
        raise AssertionError("run again")

    monkeypatch.setattr(sweeps, "complete", nothing)
    same(run(RATES), table)


def test_what_is_done_when_a_sweep_is_ended_is_not_run_again(monkeypatch):
    monkeypatch.setattr(sweeps, "BATCH", 500)
    alone_here = joblib.parallel_config(backend="sequential")  # which is never ahead of us
    monkeypatch.setattr(sweeps, "workers", lambda here: alone_here)
    sweep = replace(RATES, axes=(Axis.parse("rate:1:40:1"),))

    def end(done, of):
        assert (of, done > 0) == (sweep.runs, True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sweep, go_on=end)
    kept = len(Rows(sweep.name).by_key)
    assert 0 < kept < sweep.runs
    told = []
    table = run(sweep, go_on=lambda done, of: told.append(done))
    assert told[0] > kept
    assert told[-1] == sweep.runs
    same(table, alone(sweep))


def test_a_worker_that_dies_here_loses_nothing():
    sweep = replace(RATES, axes=(Axis.parse("rate:1:40:1"),))
    killed = []

    def kill(done, of):
        if not killed:
            killed.append(next(p.pid for p in psutil.Process().children() if is_worker(p)))
            os.kill(killed[0], signal.SIGKILL)

    table = run(sweep, go_on=kill)
    assert killed
    assert len(table) == sweep.runs
    same(table, alone(sweep))


def test_a_task_that_kills_every_worker_is_given_up(monkeypatch):
    def die(*args):
        raise sweeps.BrokenProcessPool

    monkeypatch.setattr(sweeps, "_attempt", die)
    with pytest.raises(ScenarioError, match="workers died 3 times over static"):
        run(RATES)


@pytest.fixture
def cluster(monkeypatch):
    """A scheduler and two workers, each a process of its own."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
    ) as cluster:
        monkeypatch.setenv("SLOTSCOPE_CLUSTER", cluster.scheduler_address)
        yield cluster


@pytest.mark.filterwarnings("default")  # of what the cluster's own libraries warn
def test_a_cluster_that_loses_a_worker_finds_the_same_table(cluster, monkeypatch):
    sweep = replace(RATES, axes=(Axis.parse("rate:1:40:1"),))
    victims = [w.pid for w in cluster.scheduler_info["workers"].values() if "pid" in w]
    victims = victims or [nanny.pid for nanny in cluster.workers.values()]
    killed = []

    def kill(done, of):
        if not killed:
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)

    table = run(sweep, go_on=kill)
    assert killed
    same(table, alone(sweep))

    monkeypatch.setattr(sweeps, "SOURCES", "of another checkout")
    with pytest.raises(ScenarioError, match="have other sources than this process"), workers():
        pass


def test_a_cluster_that_is_not_there_is_one_sentence_and_the_offer_to_run_here(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(sweeps, "ANSWERS_WITHIN", 0.2)
    monkeypatch.setenv("SLOTSCOPE_CLUSTER", "tcp://127.0.0.1:9")
    with pytest.raises(ScenarioError) as error:
        run(RATES)
    assert "no cluster answers at SLOTSCOPE_CLUSTER=tcp://127.0.0.1:9" in str(error.value)
    assert "or unset SLOTSCOPE_CLUSTER to run here" in str(error.value)
    assert len(run(RATES, here=True)) == RATES.runs


def test_a_file_that_was_cut_short_is_run_again(cache):
    table = run(RATES)
    (path,) = cache.glob("*.parquet")
    path.write_bytes(path.read_bytes()[:1000])
    same(run(RATES), table)
    again = pd.read_parquet(path).sort_values(["rate", "seed", "variant"], ignore_index=True)
    same(again, table.sort_values(["rate", "seed", "variant"], ignore_index=True))


def test_where_nothing_can_be_kept_the_table_is_there_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sweeps, "CACHE", tmp_path / "file" / "sweeps")
    rows = Rows(RATES.name)
    assert len(run(RATES, None, rows)) == RATES.runs
    assert "is not kept" in rows.problem


def test_the_oldest_go_where_the_folder_is_full(cache, monkeypatch):
    monkeypatch.setattr(sweeps, "MAX_CACHE_MB", 0.05)
    for seeds in (1, 2):
        run(replace(RATES, seeds=seeds, axes=(Axis.parse("rate:10,20"),)))
    names = [path.name for path in cache.glob("*.parquet")]
    assert len(names) == 1
    assert sum(p.stat().st_size for p in cache.glob("*")) <= 50_000


def test_points_that_cannot_be_run_say_why_and_the_others_run():
    scenario = replace(SHORT, variants=(Variant("vllm_v1"),), baseline=0)
    sweep = Sweep(
        scenario=scenario, axes=(Axis.parse("max_num_batched_tokens:16,64,512"),), seeds=1
    )
    table = run(sweep)
    assert list(table["problem"] != "") == [True, False, False]
    assert "max_num_batched_tokens 16 is below max_num_seqs 32" in table["problem"][0]
    assert table["ttft_p99"].isna().tolist() == [True, False, False]
    hopeless = replace(sweep, axes=(Axis.parse("max_num_batched_tokens:8,16"),))
    with pytest.raises(ScenarioError, match="max_num_batched_tokens 8 is below max_num_seqs 32"):
        run(hopeless)


def test_what_is_not_drawn_has_one_replicate():
    listed = replace(SHORT, traffic=Traffic(arrivals="list"))
    sweep = Sweep(scenario=listed, axes=(Axis.parse("max_num_seqs:1,2"),), seeds=9)
    assert sweep.runs == 2 * 3
    assert len(run(sweep)) == 6


AXES = st.sampled_from(["rate:10,20", "rate:10:20:5", "max_num_seqs:4,8", "ttft_slo:100,200"])


@given(AXES, st.integers(1, 9), st.sampled_from([1.0, 2.0]))
def test_a_sweep_is_named_by_what_it_asks(axis, seeds, duration):
    def named(axis, seeds, duration):
        scenario = replace(SHORT, traffic=Traffic(duration=duration))
        return Sweep(scenario=scenario, axes=(Axis.parse(axis),), seeds=seeds).name

    name = named(axis, seeds, duration)
    assert name == named(axis, seeds, duration)
    assert named(axis, seeds + 1, duration) != name
    assert named(axis, seeds, duration / 2) != name
    assert named("rate:11,20", seeds, duration) != name


@given(st.integers(1, 60), st.integers(1, 16), st.floats(1, 9_000))
def test_batches_hold_every_run_once_and_none_is_long(rates, jobs, heavy):
    scenario = replace(SHORT, traffic=Traffic(duration=heavy))
    axis = Axis("rate", tuple(range(1, rates + 1)))
    points = Sweep(scenario=scenario, axes=(axis,), seeds=1).points()
    found = list(batches(scenario, points, jobs))
    assert [p for batch in found for p in batch] == points
    for batch in found:
        weights = [dict(p.values)["rate"] * heavy for p in batch]
        assert sum(weights[:-1]) < sweeps.BATCH


def test_the_link_of_a_sweep_is_read_back():
    sweep = Sweep(
        scenario=SHORT, axes=(Axis.parse("chunk:8:64:x2"), Axis.parse("rate:10,20")), seeds=3
    )
    assert sweep.link().startswith("/capacity?")
    query = json.loads(json.dumps(sweep.to_query()))
    assert (query["x"], query["y"], query["seeds"]) == (["chunk:8:64:x2"], ["rate:10,20"], ["3"])
    scenario, problems = Scenario.from_query(query)
    assert (scenario, problems) == (SHORT, [])


def test_time_is_shared_out_among_what_keeps_the_line_waiting():
    """One seat: the second request waits for it from its arrival to the first one's end."""
    scenario = Scenario(
        traffic=Traffic(arrivals="list", list="0:10:5;0:10:5;1000:10:5"),
        variants=(Variant("continuous", (("max_num_seqs", 1),)),),
        baseline=0,
        cost=(1.0, 0.0, 0.0, 0.0),
    )
    (served,) = compare(scenario)
    shares = time_shares(served)
    assert served.total == 1005
    assert shares["seats"] == pytest.approx(100 * 5 / 1005)
    assert shares["compute"] == pytest.approx(100 * 10 / 1005)
    assert shares["idle"] == pytest.approx(100 * 990 / 1005)
    assert sum(shares.values()) == pytest.approx(100)


def test_growth_is_what_is_not_served_of_what_arrives():
    """A server of one request a second under two a second: one more waits each second."""
    scenario = Scenario(
        traffic=Traffic(
            arrivals="constant",
            rate=2.0,
            duration=100.0,
            prompt=Lengths("fixed", (1,)),
            output=Lengths("fixed", (10,)),
        ),
        variants=(Variant("continuous", (("max_num_seqs", 1),)),),
        baseline=0,
        cost=(100.0, 0.0, 0.0, 0.0),
    )
    (served,) = compare(scenario)
    assert isinstance(served, Run)
    assert growth(served) == pytest.approx(1.0, abs=0.02)
    (idle,) = compare(replace(scenario, traffic=replace(scenario.traffic, rate=0.5)))
    assert growth(idle) == pytest.approx(0.0, abs=0.02)


def test_no_parameter_shares_its_name_with_a_column_of_the_table():
    scenario = replace(SHORT, baseline=0, variants=(Variant("static"),))
    rows = Rows("none")
    points = Sweep(scenario=scenario, axes=(Axis.parse("rate:10"),), seeds=1).points()
    with workers():
        complete(scenario, points, rows)
    (row,) = rows.by_key.values()
    assert not set(row) - {"rate", "seed"} & set(PARAMETERS)
