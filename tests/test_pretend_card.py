"""What runs on a CUDA device alone, on a card that is not there: the code around the kernels."""

import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pretend_card import GIB, card, pynvml, refuses

import gpu_probe.bench as exercise
from gpu_probe import check, memory
from gpu_probe.__main__ import main
from gpu_probe.device import Device
from gpu_probe.loop import Server
from gpu_probe.models import SHAPES, Decoder
from sim.parameter import ScenarioError
from sim.record import load
from sim.state import Limits

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here: no need of one")
SCENARIO = {"arrivals": "poisson", "rate": "40", "duration": "2", "prompt": "uniform:5:60"}
SCENARIO |= {"output": "uniform:2:20", "max_num_seqs": "8", "max_num_batched_tokens": "64"}


@pytest.fixture
def tapes(monkeypatch):
    with card(monkeypatch) as captured:
        yield captured


def few(cuda: bool):
    assert cuda
    limits = Limits(8, 64, 64)
    works = [check.poisson(20, 8, (20, 90), (4, 9), seed) for seed in (1, 4, 6)]
    names = (check.BASE, "longer prompts", "another budget")
    return {name: (work, "chunked", limits) for name, work in zip(names, works, strict=True)}


def both_here(device: str, left: float) -> list[dict]:
    """As bench.memory, whose processes would see no card."""
    return [exercise.memory_of(way, device) for way in ("pad_to_max", "continuous")]


def test_the_whole_check_runs(tapes, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "scenarios", few)
    monkeypatch.setattr(check, "ROUNDS", 2)
    # Proven elsewhere; and what is timed here is nobody's.
    monkeypatch.setattr(check, "worst_error", lambda *made: 1e-6)
    monkeypatch.setattr(check.Check, "times", lambda self, call, repeats=1: (call(), np.ones(2))[1])
    monkeypatch.setattr(check, "memory", both_here)
    monkeypatch.setitem(exercise.SIZES, "cuda", exercise.Sizes("tiny", 12, 4, 300, 64))
    said = check.check("cuda", "tiny", tmp_path, 150, began=time.monotonic() - 50)
    assert said["seconds"] > said["loading"] >= 50  # what was compiled before is counted
    assert said == json.loads((tmp_path / "check.json").read_text())
    results = {name: stage["result"] for name, stage in said["stages"].items()}
    assert [
        name for name, found in results.items() if "failed" in found or "skipped" in found
    ] == []
    assert results["software"]["card at rest"]["W at most"] == 700
    assert results["software"]["card at rest"]["SM MHz"] is None  # NVML refuses it
    assert len(results["correctness"]) == 8
    assert {int(name.split()[0]) for name in results["decodes"]} == {1, 8, 64}
    assert results["flatness"]["what"] == "device memory (NVML)"
    assert all(way["reserved"] == 0 for way in results["both_ways"])
    assert results["calibration"]["rounds"] == 2
    judged = {verdict["what"] for verdict in said["verdicts"]}
    assert {"decode of 64, times the floor", "decode of 64, the floor's share"} <= judged
    assert "bytes by which memory in use changes" in judged
    assert "logits, triton, static, float32" in judged


@pytest.fixture
def asked(tmp_path):
    (tmp_path / "scenario.json").write_text(
        json.dumps({name: [value] for name, value in SCENARIO.items()})
    )
    path = tmp_path / "run.parquet"
    said = ["serve", "--scenario", str(tmp_path / "scenario.json"), "--model", "tiny"]
    return [*said, "--requests", "12", "--device", "cuda", "-o", str(path)], path


def test_a_scenario_is_served_by_replays_with_the_cards_memory(tapes, asked):
    argv, path = asked
    assert main(argv) == 0
    assert tapes
    record = load(path)
    assert record.about["device"] == "NVIDIA H200"
    assert record.about["dtype"] == "bfloat16"
    assert record.about["driver"] == "580.1"
    assert "CUDA graphs" in record.about["attention"]
    assert record.about["memory"] == "device memory (NVML)"
    assert (record.beside["memory"]["used"] == 5 * GIB).all()
    assert (record.beside["step_memory"]["peak"] > 4 * GIB).all()
    assert np.isfinite(record.run.requests["finish"]).all()


@pytest.mark.parametrize(
    ("dies", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
         "out of device memory while computing a step (it wanted 2.00 GiB more): lower"),
        (RuntimeError("CUDA error: unspecified launch failure\nmore"), "the device was lost"),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access"), "the device was lost"),
    ],
)  # fmt: skip
def test_what_was_measured_before_the_device_died_is_kept(
    tapes, asked, dies, said, monkeypatch, capsys
):
    argv, path = asked
    steps = iter(range(10_000))

    def synchronize():
        if path.exists() and next(steps) > 5:  # warmed up
            raise dies

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert main(argv) == 2
    assert said in capsys.readouterr().err
    record = load(path)
    assert not record.about["finished"]
    assert len(record.run.steps) > 3


def test_a_pool_that_does_not_fit_is_one_sentence(tapes, monkeypatch):
    def full(self, *size):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 99.00 GiB. GPU 0")

    monkeypatch.setattr(Decoder, "kv_cache", full)
    server = Server(check.poisson(9, 3, (4, 9), (2, 3), 0), "chunked", Limits(8, 64))
    with pytest.raises(ScenarioError, match=r"taking \d+ blocks of KV \(it wanted 99"):
        Device(Decoder(SHAPES["tiny"], device="cuda"), server)


def test_the_bench_runs(tapes):
    found = exercise.measure("continuous", [3, 5, 2], 2, "cuda")
    assert (found.tokens, found.calls) == (10, 7)


NOT_OURS = SimpleNamespace(pid=1, usedGpuMemory=GIB)
HIDDEN = SimpleNamespace(pid=-1, usedGpuMemory=None)


@pytest.mark.parametrize(
    ("other", "column", "what"),
    [
        ({"nvmlDeviceGetComputeRunningProcesses": lambda handle: [NOT_OURS, HIDDEN]},
         "used", "device memory (NVML)"),
        ({"nvmlDeviceGetComputeRunningProcesses": refuses}, "used", "device memory (NVML)"),
        ({"nvmlInit": refuses}, "reserved", "that torch took"),
    ],
    ids=["the host's pids", "no processes", "no NVML"],
)  # fmt: skip
def test_memory_is_named_after_what_could_be_read(tapes, other, column, what, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", pynvml(**other))
    with memory.Sampler(lambda: 0.0, cuda=True) as sampler:
        pass
    rows = sampler.rows()
    assert sampler.column == column
    assert what in sampler.what
    assert (rows[column] == 5 * GIB).all()
    assert np.isnan(rows["process"]).all()
