"""Exercise 08.2, memory, the command line, the check, and runs as processes of their own."""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from pretend_card import GIB, pynvml
from test_engine import laws

import gpu_probe.bench as exercise
from gpu_probe import MODELS, jobs, memory
from gpu_probe import check as checks
from gpu_probe.__main__ import main
from gpu_probe.bench import WAYS, bench, lengths, measure
from gpu_probe.models import INNER, SHAPES
from gpu_probe.predict import (
    FIGURES,
    SHARING,
    asked,
    errors,
    figures,
    predicted,
    shared,
    workload_of,
)
from sim.hardware import LLMS
from sim.parameter import ScenarioError
from sim.record import Record, load, save
from sim.run import serve
from sim.scenario import Scenario, Variant
from sim.state import Limits
from sim.workload import Workload, draw

ROOT = Path(__file__).parents[1]
QUERY = {
    "arrivals": ["poisson"],
    "rate": ["40"],
    "duration": ["2"],
    "prompt": ["uniform:5:60"],
    "output": ["uniform:2:20"],
    "max_num_seqs": ["8"],
    "max_num_batched_tokens": ["64"],
    "prefixes": ["2"],
    "prefix_tokens": ["32"],
    "v": ["chunked:chunk=32", "vllm_v1:enable_prefix_caching=1"],
}


@pytest.fixture
def nothing_computed(monkeypatch):
    """TinyLM that only counts."""
    monkeypatch.setattr(exercise, "_tiny", lambda device: lambda ids: None)


# Exercise 08.2


@pytest.mark.parametrize(
    ("way", "batch", "calls"),
    [
        ("pad_to_max", 8, 2_395),
        ("continuous", 8, 1_707),
        ("pad_to_max", 32, 930),
        ("continuous", 32, 752),
    ],
)
def test_the_modules_counts(way, batch, calls, nothing_computed):
    tokens, seconds, counted = bench(way, lengths(), batch)
    assert (tokens, counted) == (11_176, calls)
    assert seconds > 0


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(out_lens=LENGTHS, batch=st.integers(1, 9))
@laws
def test_every_way_emits_every_token_and_continuous_wastes_no_row(out_lens, batch):
    exercise._tiny.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercise, "_tiny", lambda device: lambda ids: None)
        found = {way: measure(way, out_lens, batch, "cpu") for way in WAYS}
    assert {m.tokens for m in found.values()} == {sum(out_lens)}
    assert found["continuous"].slots == 1
    assert found["continuous"].decode_calls <= found["pad_to_max"].decode_calls
    assert found["pad_to_max_sorted"].decode_calls <= found["pad_to_max"].decode_calls
    shared = found["continuous_shared"]
    assert shared.calls == shared.decode_calls == found["continuous"].decode_calls


def test_the_bench_computes():
    tokens, seconds, calls = bench("continuous", [3, 5, 2], 2)
    assert (tokens, calls) == (10, 7)
    assert seconds > 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("fifo", [3], 2), "'fifo' is none"),
        (("continuous", [3], 0), "0"),
        (("continuous", [], 2), "0"),
    ],
)
def test_a_bench_that_cannot_be_is_refused(asked, said):
    with pytest.raises(ScenarioError, match=said):
        bench(*asked)


# Models


def test_the_models_are_known_without_torch():
    assert tuple(SHAPES) == MODELS


@pytest.mark.parametrize("name", INNER)
def test_a_shapes_weights_are_the_presets(name):
    shape = SHAPES[name]
    weights = shape.block_weights + 2 * shape.head_weights
    assert weights == pytest.approx(LLMS[name].params, rel=2e-3)
    assert shape.kv_bytes(2) == LLMS[name].kv_per_token


# Memory


no_driver = pytest.mark.skipif(torch.cuda.is_available(), reason="a driver is here: no fake of it")


@no_driver
def test_nvml_is_read_in_its_units_and_what_it_refuses_is_nan(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", pynvml())
    card = memory.Nvml("1234")
    read = card.read()
    assert np.isnan(read.pop("mhz"))
    assert read == {"used": 5 * GIB, "process": 3 * GIB, "watts": 350, "busy": 97}
    assert card.driver() == "580.1"
    assert jobs.cards() == ["NVIDIA H200"]


@no_driver
def test_without_a_driver_it_is_process_memory_and_says_so():
    card, why = memory.nvml()
    assert card is None
    assert why == "no CUDA device"
    times = iter(range(1_000_000))
    with memory.Sampler(lambda: float(next(times)), lambda: 64.0, every=0.001) as sampler:
        time.sleep(0.05)
    rows = sampler.rows()
    assert "RSS" in sampler.what
    assert len(rows) > 3
    assert (np.diff(rows["t"]) > 0).all()
    assert (rows["rss"] > 1e6).all()
    assert (rows["kv"] == 64).all()
    assert np.isnan(rows["used"]).all()


def test_the_requirements_name_nvidias_own_package():
    text = (ROOT / "requirements.txt").read_text()
    assert re.search(r"^nvidia-ml-py", text, re.MULTILINE)
    assert not re.search(r"^pynvml", text, re.MULTILINE)


# The command line


@pytest.fixture(scope="module")
def scenario_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "scenario.json"
    path.write_text(json.dumps(QUERY))
    return path


@pytest.fixture(scope="module")
def served(scenario_file, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("served") / "run.parquet"
    given_ = ["--scenario", str(scenario_file), "--model", "tiny", "--requests", "30"]
    assert main(["serve", *given_, "--variant", "1", "--device", "cpu", "-o", str(path)]) == 0
    return path


def test_a_served_scenario_is_a_run_with_steps_memory_and_its_making(served):
    record = load(served)
    run, about = record.run, record.about
    assert about["finished"]
    assert about["model"] == "tiny"
    assert "RSS" in about["memory"]
    assert len(run.requests) == 30
    assert np.isfinite(run.requests["finish"]).all()
    assert (run.steps["ms"] > 0).all()
    assert len(record.beside["step_memory"]) == len(run.steps)
    assert record.beside["memory"]["kv"].max() > 0
    wanted = Scenario.from_query(QUERY)[0]
    assert Scenario.from_query(about["query"])[0] == wanted
    assert Variant.parse(about["variant"]) == wanted.variants[1]
    assert run.steps["prefill"].sum() < run.requests["prompt"].sum()  # some of it was there


def test_its_requests_are_served_again_by_the_simulator(served):
    record = load(served)
    work = workload_of(record)
    assert_allclose(work.arrival, record.run.requests["arrival"])
    drawn = draw(Scenario.from_query(QUERY)[0].traffic).rows(np.arange(30))
    for ours, theirs in zip(work.blocks(16), drawn.blocks(16), strict=True):
        assert_array_equal(ours, theirs)
    # With each step as long as it was, were the cost model exact, all figures would be the same.
    run = predicted(record, "linear", (1.0, 0.0, 0.0, 0.0), "simulated")
    assert run.requests["output"].tolist() == record.run.requests["output"].tolist()
    table = errors([record.run, record.run], {"simulated": run})
    assert_allclose(table.loc["measured, ms"], figures(record.run))
    assert (table.loc["noise of the measurement, ±%"] == 0).all()
    off = 100 * (figures(run) / figures(record.run) - 1)
    assert_allclose(table.loc["simulated, error in %"], off)
    assert list(table) == list(FIGURES)


@pytest.mark.parametrize("kind", SHARING)
def test_a_record_keeps_what_requests_have_in_common(kind, tmp_path):
    prompt, output = np.array([70, 40, 70, 9]), np.array([2, 8, 2, 8])
    ids, begins = np.array([7, 8, 2**60, 7, 5, 7, 8, 9]), np.array([0, 3, 5, 8, 8])
    common = {
        "prefix": (np.array([3, -1, 3, 1]), np.array([50, 0, 50, 9])),
        "identities": (ids, begins),
        "hashes": (ids, begins, 32),
    }[kind]
    work = Workload(np.zeros(4), prompt, output, output, **{kind: common})
    run = serve(work, "vllm_v1", Limits(block_size=24, enable_prefix_caching=1), (1.0, 0, 0, 0))
    save(tmp_path / "run", Record(run, {}, {"asked": asked(work)} | shared(work)))
    again = workload_of(load(tmp_path / "run"))
    for ours, theirs in zip(again.blocks(24), work.blocks(24), strict=True):
        assert_array_equal(ours, theirs)
    if kind != "identities":
        assert_array_equal(again.openings(16), work.openings(16))


def test_a_run_is_calibrated_to_a_file(served, tmp_path, capsys):
    assert main(["calibrate", str(served), "-o", str(tmp_path / "cost.json"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((tmp_path / "cost.json").read_text())
    assert said["name"].startswith("measured on ")
    assert said["cost"].startswith("calibrated/")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serve", "--variant", "9", "-o", "x"], "--variant 9 is none"),
        (["serve", "--requests", "0", "-o", "x"], "--requests 0 is nobody"),
        (["serve", "--model", "gpt-9", "-o", "x"], "model 'gpt-9' is unknown: use tiny"),
        (["serve", "--scenario", "none.json", "-o", "x"], "none.json: No such file"),
        (["serve", "--device", "tpu", "-o", "x"], "use cpu, cuda or auto"),
        (["calibrate", "none.parquet", "-o", "x"], "none.parquet: No such file"),
        (["bench", "--device", "tpu"], "use cpu, cuda or auto"),
        (["check", "--model", "gpt-9", "--out", "x"], "model 'gpt-9' is unknown: use tiny"),
        (["check", "--seconds", "-4", "--out", "x"], "--seconds -4 is no time"),
        (["calibrate", "x", "--cost", "free", "-o", "x"], "choose from"),
        (["serve", "--url", "garbage", "-o", "x"], "'garbage' is no address"),
        (["serve", "-o", "none/x"], "none/x can't be written"),
        (["serve", "-o", "."], "it is a folder"),
        (["fly"], "invalid choice"),
    ],
)
def test_a_bad_command_is_one_line(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(argv)
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


@no_driver
def test_a_missing_driver_is_told_before_torch_loads(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(SystemExit):
        main(["bench", "--device", "cuda"])
    assert "no NVIDIA driver is installed: use cpu" in capsys.readouterr().err


# The check


def test_a_stage_that_fails_is_recorded_and_the_next_still_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "STAGES", (("ceilings", 1), ("model", 1), ("decodes", 1)))

    def breaks(self):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(checks.Check, "ceilings", breaks)
    said = checks.check("cpu", "tiny", tmp_path, 60)
    assert said == json.loads((tmp_path / "check.json").read_text())
    assert "no such luck" in said["stages"]["ceilings"]["result"]["failed"]
    assert said["stages"]["model"]["result"]["model"] == "tiny"
    assert said["stages"]["decodes"]["result"]["8 rows, 96 tokens of KV each"]["ms"] > 0


def test_no_stage_begins_when_the_time_is_over(tmp_path):
    said = checks.check("cpu", "tiny", tmp_path, 1)
    assert all("skipped" in stage["result"] for stage in said["stages"].values())


def test_the_checks_own_correctness_stage_holds():
    made = checks.Check("cpu", "tiny", 60)
    made.correctness()
    assert len(made.verdicts) >= 2
    assert all(verdict["holds"] for verdict in made.verdicts)


def test_a_step_below_the_floor_is_the_checks_own_fault():
    made = checks.Check("cpu", "tiny", 60)
    made.model()
    for rate, holds in ((1.0, False), (1e18, True)):
        made.verdicts, made.read_rate = [], rate
        made.decodes()
        assert [verdict["holds"] for verdict in made.verdicts] == [holds, holds]


# Runs as processes


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(jobs, "RUNS", tmp_path / "runs")
    return tmp_path / "runs"


def until(holds, seconds: float = 60):
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
    return found


def test_a_run_whose_process_cannot_begin_says_why(shelf):
    scenario = Scenario.from_query(QUERY)[0]
    job = jobs.start(scenario, 0, model="tiny", device="cpu", requests=0)
    until(lambda: not job.runs)
    assert job.record() is None
    assert "--requests 0 is nobody" in job.last_words()
