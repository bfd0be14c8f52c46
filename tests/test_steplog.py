"""Engines' own logs -> steps and their times: what each line holds, and what is refused."""

import re

import numpy as np
import pytest

from sim import calibrate, record, steplog
from sim.costs import Features
from sim.parameter import ScenarioError
from sim.run import serve
from sim.state import Limits
from sim.workload import Workload

LOADS = [(p, 40 * p, d) for p, d in zip([0, 1, 2, 0] * 10, [1, 2, 4, 8, 16] * 8, strict=True)]


def ms_of(prefill: float, decodes: float) -> float:
    return 6 + 0.02 * prefill + 0.1 * decodes


def vllm() -> str:
    return "".join(
        f"(EngineCore_DP0 pid=9) INFO 02-03 04:05:06 [core.py:361] Iteration({k}): {p} context"
        f" requests, {t} context tokens, {d} generation requests, {d} generation tokens, iteration"
        f" elapsed time: {ms_of(t, d):.2f} ms\n"
        for k, (p, t, d) in enumerate(LOADS)
    )


def tensorrt() -> str:
    """A line has the time of the step before it."""
    before = ["N/A", *(f"{ms_of(t, d):.4f}ms" for _, t, d in LOADS[:-1])]
    return "".join(
        f"[TRT-LLM] [I] [_torch][RANK {rank}] iter = {k}, global_rank = {rank}, rank = {rank},"
        f" currank_total_requests = 1/8, host_step_time = 9.9ms, prev_device_step_time = {ms},"
        f" timestamp = 2026-02-03 04:05:06, num_scheduled_requests: {p + d}, states ="
        f" {{'num_ctx_requests': {p}, 'num_ctx_tokens': {t}, 'num_generation_tokens': {d}}}\n"
        for k, ((p, t, d), ms) in enumerate(zip(LOADS, before, strict=True))
        for rank in (0, 1)
    )


def sglang() -> str:
    return "".join(
        f"[2026-02-03 04:05:{k:02d} TP0] Decode batch. #running-req: {d}, #token: {100 * d}, token"
        f" usage: 0.25, gen throughput (token/s): {1e3 * d / ms_of(0, d):.2f}, #queue-req: 0,\n"
        for k, (_, _, d) in enumerate(LOADS)
    )


@pytest.mark.parametrize(
    ("text", "steps", "prefills"),
    [(vllm(), 40, True), (tensorrt(), 39, True), (sglang(), 40, False)],
)
def test_what_an_engine_logs_gives_back_the_cost_that_it_ran_at(text, steps, prefills):
    x, ms = calibrate.read_steps(text.encode())
    assert len(ms) == steps
    only = ("step", "decodes", "prefill") if prefills else ("step", "decodes")
    found = calibrate.fit("calibrated", x, ms, only=only)
    by_name = dict(zip(Features._fields, found.coefficients, strict=True))
    assert by_name["step"] == pytest.approx(6, abs=0.02)
    assert by_name["decodes"] == pytest.approx(0.1, abs=0.003)
    if prefills:
        assert by_name["prefill"] == pytest.approx(0.02, abs=0.001)
    assert dict(found.step_cost().numbers)["error"] < 0.1


def test_a_decode_batch_says_how_much_kv_its_steps_read():
    found = steplog.read(sglang().encode())
    assert found
    assert found[0]["context"].tolist() == [100 * d for _, _, d in LOADS]


def test_a_recorded_run_gives_its_own_steps(tmp_path):
    work = Workload(np.zeros(6), np.full(6, 50), np.full(6, 9), np.full(6, 9))
    run = serve(work, "chunked", Limits(max_num_seqs=4, chunk=32), (1.0, 0.1, 0.2, 0.3))
    record.save(tmp_path / "run.parquet", record.Record(run, {"finished": True}, {}))
    x, ms = calibrate.read_steps((tmp_path / "run.parquet").read_bytes())
    assert ms.tolist() == run.steps["ms"].tolist()
    assert x[:, Features._fields.index("prefill")].tolist() == run.steps["prefill"].tolist()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (re.sub(r"time: [\d.]+", "time: 0.03", vllm()), "--no-async-scheduling"),
        (re.sub(r"time: [\d.]+", "time: 1.2.3", vllm()), "give ms"),
        ("\n".join(sglang().splitlines()[:9]), "9 samples"),
        (sglang().replace("#running-req: 16", "#running-req: 1"), None),
        ("\n".join(line for line in sglang().splitlines() if "req: 8," in line) * 5, "1 number"),
        ("Iteration(1): 0 context requests, 0 context tokens, 0 generation requests, 0 generation"
         " tokens, iteration elapsed time: 7.00 ms", "no step with a token"),
        (b"PAR1 and nothing else", "no run of this program"),
    ],
)  # fmt: skip
def test_a_log_that_does_not_hold_enough_gets_a_sentence(content, said):
    content = content if isinstance(content, bytes) else content.encode()
    if said is None:
        assert steplog.read(content)
        return
    with pytest.raises(ScenarioError, match=said):
        calibrate.read_steps(content)
