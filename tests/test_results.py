"""Results of benchmark tools: recomputed by our definitions, and what their own figures mean."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import bring, results
from sim.__main__ import main
from sim.metrics import figures
from sim.parameter import ScenarioError
from sim.results import Measured, closed_loop
from sim.results.fit import of_requests
from sim.results.prometheus import interpolated
from sim.run import compare, serve
from sim.scenario import Scenario, Slo
from sim.state import Limits
from sim.traffic import Traffic
from sim.workload import draw

FILES = Path(__file__).parents[2] / "shared" / "cases" / "files"
shared = pytest.mark.skipif(not FILES.is_dir(), reason="the real slices are not here")

# Samples, written here in the shape of each tool's files.


def bench(ttfts, itls, outputs, **more) -> dict[str, Any]:
    """As vLLM's bench serve writes it: arrays in seconds."""
    n = len(ttfts)
    return {
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": n,
        "request_rate": "inf",
        "duration": 2.0,
        "completed": n,
        "input_lens": [10] * n,
        "output_lens": outputs,
        "ttfts": ttfts,
        "itls": itls,
        "generated_texts": [""] * n,
        "errors": [""] * n,
        "mean_ttft_ms": 1e3 * float(np.mean(ttfts)),
    } | more


VLLM = bench([0.1, 0.2], [[0.01, 0.03], [0.02]], [3, 2], max_concurrency=1)
SGLANG = {
    "backend": "sglang",
    "request_rate": math.inf,
    "max_concurrency": None,
    "completed": 2,
    "duration": 2.0,
    "total_input_tokens": 20,
    "total_output_tokens": 5,
    "mean_e2e_latency_ms": 180.0,
    "median_e2e_latency_ms": 170.0,
    "mean_ttft_ms": 150.0,
    "server_info": {"max_running_requests": 48, "chunked_prefill_size": 4096, "page_size": 1},
}
AIPERF = [
    {
        "metadata": {"request_start_ns": 2_000_000_000 + 7_000_000 * k,
                     "request_end_ns": 2_000_000_000 + 7_000_000 * k + 50_000_000,
                     "benchmark_phase": "profiling"},
        "metrics": {} if k == 1 else {
            "time_to_first_token": {"value": 30.0, "unit": "ms"},
            "request_latency": {"value": 50.0, "unit": "ms"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            "input_sequence_length": {"value": 8, "unit": "tokens"},
            "inter_chunk_latency": {"value": [12.0, 8.0], "unit": "ms"}},
        "error": {"type": "Http", "message": "500"} if k == 1 else None,
    }
    for k in (2, 0, 1)
]  # fmt: skip
LLMPERF = [
    {"error_code": None, "inter_token_latency_s": 0.03, "ttft_s": 0.1, "end_to_end_latency_s": 0.3,
     "number_output_tokens": 11, "number_input_tokens": 20},
    {"error_code": 429, "inter_token_latency_s": 0.0, "ttft_s": 0, "end_to_end_latency_s": 0,
     "number_output_tokens": 1, "number_input_tokens": 20},
]  # fmt: skip
LLMPERF_SUMMARY = {
    "results_ttft_s_mean": 0.2, "results_end_to_end_latency_s_mean": 2.2,
    "results_number_output_tokens_mean": 101, "results_inter_token_latency_s_mean": 0.0218,
    "results_num_completed_requests": 5, "results_number_errors": 1, "num_concurrent_requests": 4,
}  # fmt: skip
STAGE = {
    "load_summary": {"count": 5, "requested_rate": 10.0, "achieved_rate": 6.0},
    "successes": {
        "count": 5,
        "latency": {
            "request_latency": {"mean": 1.0, "median": 1.0},
            "time_to_first_token": {"mean": 0.1, "median": 0.1},
            "time_per_output_token": {"mean": 0.005},
        },
        "throughput": {"requests_per_sec": 5.0},
        "output_len": {"mean": 88.0, "p25": 91.0, "median": 91.0, "p75": 92.0},
    },
    "failures": {"count": 0},
}
STAGE_SERVER = {
    "load_summary": {},
    "successes": {"count": 9, "queue_len": {"mean": 1}, "time_per_output_token": {"mean": 0.01}},
}
ENGINE = [
    {"request_id": str(k), "input_toks": 5, "output_toks": 3, "arrival_time": 1e9 + k,
     "queued_ts": 50.0 + k + 0.001 * k, "scheduled_ts": 50.2 + k, "first_token_ts": 50.3 + k,
     "last_token_ts": 50.5 + k}
    for k in range(3)
]  # fmt: skip
V1_LINE = (
    "INFO 07-28 06:40:{:02d} [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg"
    " generation throughput: 100.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage:"
    " {}%, Prefix cache hit rate: 0.0%"
)
V1_LOG = (
    f"noise\n(APIServer pid=1) {V1_LINE.format(0, 50.0)}\n"
    + V1_LINE.format(10, 51.0)
    + (V1_LINE.format(20, 52.0))
)
V0_LOG = (
    "INFO 01-23 06:33:37 metrics.py:396] Avg prompt throughput: 1.0 tokens/s, Avg generation"
    " throughput: 16.7 tokens/s, Running: 16 reqs, Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache"
    " usage: 92.1%, CPU KV cache usage: 0.0%.\n"
)
SGLANG_LOG = (
    "[2026-01-02 03:04:05 TP0] Decode batch. #running-req: 7, #token: 900, token usage: 0.25, gen"
    " throughput (token/s): 350.5, #queue-req: 3,\n"
)
PROMETHEUS = """# HELP vllm:time_to_first_token_seconds x
# TYPE vllm:time_to_first_token_seconds histogram
vllm:cache_config_info{block_size="16",num_gpu_blocks="4574",enable_prefix_caching="True"} 1.0
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="other"} 3.0
vllm:kv_cache_usage_perc{model_name="m"} 0.5
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.3",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 4.0e-001
"""
STEPS = (
    "timestamp,prompt_throughput,generation_throughput,num_running,num_pending,gpu_kvcache_usage\n"
)
STEPS += "".join(
    f"{1000 + k},0,{1e3 * n / (4 + 0.5 * n)},{n},0,{k}\n" for k, n in enumerate([1, 2, 3, 4, 5] * 8)
)
AIPERF_CSV = (
    "Metric,avg,min,max,sum,p1,p50,p99\nTime to First Token (ms),20.5,1,40,,,20,39\n"
    "Inter Token Latency (ms),9,,,,,,\n\nMetric,Value\nRequest Count,43.00\nBenchmark Duration"
    " (sec),10.0\nRequest Throughput (requests/sec),4.00\n\n\nEndpoint,GPU_Index,Metric,avg\n"
)
GUIDELLM_CSV = "\n".join(
    ",".join(cells)
    for cells in (
        ["Benchmark", "Request Counts", "Time to First Token", "Time to First Token",
         "Inter Token Latency", "Time per Output Token"],
        ["Strategy", "Successful", "Successful ms", "Successful ms", "Successful ms",
         "Successful ms"],
        ["", "", "Mean", "Percentiles", "Mean", "Mean"],
        ["constant", "5", "50.0", '"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"', "9.0", "14.0"],
    )
)  # fmt: skip


def guidellm(requests, old: bool = False) -> dict[str, Any]:
    """A file of one benchmark: (start s, ttft s or None, last s, tokens) of each request."""
    successful = []
    for start, ttft, last, tokens in requests:
        first = None if ttft is None else start + ttft
        if old:
            row = {
                "start_time": start,
                "end_time": last,
                "first_token_time": first or 0.0,
                "last_token_time": last,
                "prompt_tokens": 9,
                "output_tokens": tokens,
            }
        else:
            timings = {"first_token_iteration": first, "last_token_iteration": last}
            row = {"request_start_time": start, "request_end_time": last, "prompt_tokens": 9,
                   "output_tokens": tokens, "info": {"timings": timings}}  # fmt: skip
        successful.append(row)
    metrics = {
        "time_to_first_token_ms": {"successful": {"mean": -9.4e10 if old else 50.0}},
        "time_per_output_token_ms": {"successful": {"mean": 30.0}},
        "inter_token_latency_ms": {"successful": {"mean": 10.0}},
    }
    b = {"metrics": metrics, "requests": {"successful": successful, "errored": []}, "duration": 3.0}
    b |= {"args": {"strategy": {"type_": "constant", "rate": 4.0}}, "run_stats": {}} if old else {}
    return {"benchmarks": [b]} | ({} if old else {"metadata": {"guidellm_version": "0.5.3"}})


GUIDELLM = guidellm([(100.0, 0.1, 100.3, 3), (100.5, None, 100.6, 0), (101.0, 0.2, 101.2, 1)])


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SAMPLES = {
    "vllm": json.dumps(VLLM),
    "sglang": json.dumps(SGLANG) + "\n",
    "aiperf": lines(AIPERF),
    "aiperf_json": json.dumps({"request_latency": {"avg": 9.0, "unit": "ms"}}),
    "aiperf_csv": AIPERF_CSV,
    "guidellm": json.dumps(GUIDELLM),
    "guidellm_csv": GUIDELLM_CSV,
    "llmperf": json.dumps(LLMPERF),
    "llmperf_summary": json.dumps(LLMPERF_SUMMARY, indent=1),
    "llmperf_bench": json.dumps({"4": {"first-time-to-token_mean_in_ms": 9.0}}),
    "inference_perf": json.dumps(STAGE),
    "inference_perf_prometheus": json.dumps(STAGE_SERVER),
    "engine_requests": lines(ENGINE),
    "vllm_log": V1_LOG,
    "sglang_log": SGLANG_LOG,
    "step_log": STEPS,
    "prometheus": PROMETHEUS,
}


META = {
    "vllm_version": "0.19.0",
    "model": "m",
    "engine_kwargs": {"max_num_seqs": 128, "max_model_len": None, "seed": 42},
    "num_requests": 3,
    "started_at": "2026-04-25T18:47:18.25Z",
    "finished_at": "2026-04-25T18:47:20.75Z",
}
SAMPLES["engine_meta"] = json.dumps(META, indent=1)


def profile(metric, mean, rate=2.0, **more) -> dict[str, Any]:
    """As AIBrix's GPU benchmark prints a metric."""
    given = {"input_tokens": 128, "output_tokens": 4, "request_rate": rate, "model": "m"}
    return given | {"seed": 0, "samples": 9, "metric": metric, "mean": mean} | more


PROFILE = [
    profile("TPUT", 1.5),
    profile("TT", 6.0),
    profile("E2E", 0.2, P50=0.1, P90=0.3, P99=0.4),
    profile("TTFT", 0.00002, P50=0.00001, P90=0.00003, P99=0.0001),
    profile("TPOT", 0.0, P50=0.0, P90=0.0, P99=0.0),
    profile("TPUT", 2.5, rate=4.0),
    profile("TPOT", 0.01, rate=4.0, P50=0.01, P90=0.02, P99=0.03),
]
SAMPLES["aibrix_profile"] = lines(PROFILE)


def read(text: str | dict) -> list[Measured]:
    text = json.dumps(text) if isinstance(text, dict) else text
    found = results.read(text.encode(), "f")
    assert found is not None
    return found[1]


def one(text: str | dict) -> Measured:
    (measured,) = read(text)
    return measured


def said(measured: Measured) -> str:
    return "\n".join([*measured.notes, *map(str, measured.own)])


def own(measured: Measured, name: str) -> results.Own:
    return next(o for o in measured.own if o.name == name)


SLO = Slo()


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_recognised_by_its_content_alone(name):
    assert SAMPLES.keys() == results.RESULTS.keys()
    found = bring.bring(SAMPLES[name].encode(), "whatever.bin")
    assert found.form is not None
    assert found.form.name == name
    assert found.bad_rows == 0
    r = bring.report(found, SLO)
    json.dumps(r, allow_nan=False)
    text = bring.as_text(r)
    for measured in found.measured:
        assert measured.label in text
        for note in measured.notes:
            assert note in text


def test_vllms_arrays_are_seconds_and_e2e_is_ttft_and_the_gaps():
    f = one(VLLM).all_figures(SLO)
    assert f["ttft_mean"] == pytest.approx(150)
    assert f["tpot_mean"] == pytest.approx(20)
    assert f["itl_mean"] == pytest.approx(20)
    assert f["e2e_max"] == pytest.approx(220)
    assert f["tok_s"] == pytest.approx(5 / 2)


def test_with_start_times_arrivals_are_the_files_own():
    run = one(VLLM | {"start_times": [7.5, 7.0]}).run
    assert run is not None
    assert run.requests["arrival"].tolist() == [500, 0]


def test_all_at_once_under_a_cap_is_a_closed_loop_of_it():
    measured = one(VLLM)
    assert measured.clients == 1
    assert measured.run is not None
    assert measured.run.requests["arrival"] == pytest.approx([0, 140])
    assert measured.workload().clients == 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 5))
def test_a_closed_loop_never_has_more_in_flight_and_never_idles(e2e, clients):
    took = np.array(e2e, float)
    sent = closed_loop(took, clients)
    ends = sent + took
    for k, t in enumerate(sent):
        in_flight = ((sent[:k] <= t) & (ends[:k] > t)).sum()
        assert in_flight < clients
        assert t == 0 or t in ends[:k]


def test_failures_are_in_the_denominator_of_attainment_and_in_no_latency():
    d = bench([0.1, 0.0], [[0.01], []], [2, 0], errors=["", "refused"], completed=1, failed=1)
    measured = one(d)
    f = measured.all_figures(SLO)
    assert measured.states == {"completed": 1, "no token": 0, "failed": 1}
    assert f["attainment"] == 50
    assert f["ttft_mean"] == pytest.approx(100)
    assert f["req_s"] == pytest.approx(0.5)


# D1, sgl-project/sglang#36047: TTFT 0.0 of a request without a token is no measurement.

ZERO_OUTPUTS = bench(
    [0.06, 0.0, 0.08, 0.0], [[0.05, 0.05], [], [], []], [21, 0, 1, 0], mean_itl_ms=50.0
)


def test_requests_without_a_token_have_no_ttft():
    measured = one(ZERO_OUTPUTS)
    f = measured.all_figures(SLO)
    assert measured.states == {"completed": 2, "no token": 2, "failed": 0}
    assert f["ttft_mean"] == pytest.approx(70)
    assert own(measured, "mean_ttft_ms").theirs == pytest.approx(35)
    assert "2 of 4 returned no token" in said(measured)
    assert "2.00 req/s completed, 1.00 req/s with output" in said(measured)
    assert math.isnan(measured.run.requests["finish"][1])  # pyright: ignore


def test_gaps_between_chunks_are_not_called_gaps_between_tokens():
    measured = one(ZERO_OUTPUTS)
    assert measured.all_figures(SLO)["itl_mean"] == pytest.approx(50)
    assert "ITL is per chunk, not per token: 2 gaps for 20 tokens" in said(measured)
    assert "token-weighted TPOT is 5.00 ms" in said(measured)


@shared
def test_d1_on_the_real_file():
    path = FILES / "vllm_bench_serve" / "lambda_h100_fp8_zero_outputs_n10.json"
    measured = bring.bring(path, path.name).measured[0]
    f = measured.all_figures(SLO)
    assert f["ttft_mean"] == pytest.approx(63.09, abs=0.005)
    assert f["ttft_p50"] == pytest.approx(62.69, abs=0.005)
    assert f["tpot_mean"] == pytest.approx(6.01, abs=0.005)
    assert f["itl_mean"] == pytest.approx(50.32, abs=0.005)
    assert "3 of 10 returned no token" in said(measured)
    assert "9.36 req/s completed, 6.55 req/s with output" in said(measured)
    assert "45 gaps for 435 tokens" in said(measured)
    assert "token-weighted TPOT is 5.21 ms" in said(measured)
    assert own(measured, "mean_ttft_ms").theirs == pytest.approx(44.16, abs=0.005)


# D2, sglang#10746: 1,024 tokens asked for, 300 came in 6 s.


def test_d2_tpot_is_over_the_real_length_and_the_mismatch_is_shown():
    d = SGLANG | bench(
        [0.5], [[6.0 / 299] * 299], [1024], total_output_tokens=1024,
        total_output_tokens_retokenized=300, mean_tpot_ms=6000 / 1023, output_throughput=1024 / 6.5,
        duration=6.5, completed=1,
    )  # fmt: skip
    measured = one(d)
    f = measured.all_figures(SLO)
    assert f["tpot_mean"] == pytest.approx(20.07, abs=0.005)
    assert own(measured, "mean_tpot_ms").theirs == pytest.approx(5.87, abs=0.006)
    assert f["tok_s"] == pytest.approx(300 / 6.5)
    assert "3.41 times too high" in said(measured)
    assert "1,024 tokens, of which 300 came" in said(measured)


# D3, CentML/flexible-inference-bench#68: 100 requests of one token each.


def test_d3_one_token_outputs_have_no_tpot_and_no_itl():
    ttfts = np.linspace(0.02, 0.0345, 100).tolist()
    measured = one(bench(ttfts, [[]] * 100, [1] * 100, duration=20.89, mean_tpot_ms=0.0))
    f = measured.all_figures(SLO)
    assert math.isnan(f["tpot_mean"])
    assert "itl_mean" not in f
    assert "not defined: 0 of 100 requests have a second token" in said(measured)
    assert f["e2e_mean"] == f["ttft_mean"]
    assert f["req_s"] == pytest.approx(4.79, abs=0.005)
    assert f["attainment"] == 100  # as vLLM's script: such a request keeps the TPOT limit
    assert "TPOT  " in bring.as_text(
        bring.report(bring.bring(json.dumps(bench(ttfts, [[]] * 100, [1] * 100)).encode()), SLO)
    )
    assert "not defined" in str(own(measured, "mean_tpot_ms"))


# D9, vllm#8782, #9338, #24555: a request counts only if it keeps every limit.


def test_goodput_counts_who_keeps_both_limits():
    d = bench([0.05, 0.05, 0.09, 0.09], [[0.01], [0.03], [0.01], [0.03]], [2] * 4)
    f = one(d).all_figures(Slo(ttft_slo=60.0, tpot_slo=14.0))
    assert f["attainment"] == 25  # half and half again, and not by multiplying
    assert f["goodput"] == pytest.approx(1 / 2.0)
    assert f["good_tok_s"] == pytest.approx(2 / 2.0)


@shared
@pytest.mark.parametrize(
    ("ttft", "tpot", "kept", "goodput"),
    [(60, 14, 51, 4.975), (50, 14, 33, 3.219), (60, 13.5, 42, 4.097), (60, 1e9, 75, None),
     (1e9, 14, 64, None)],
)  # fmt: skip
def test_d9_on_the_real_file(ttft, tpot, kept, goodput):
    path = FILES / "vllm_bench_serve" / "h100_fp16_in512_out85_c32_full.json"
    measured = bring.bring(path, path.name).measured[0]
    f = measured.all_figures(Slo(ttft_slo=ttft, tpot_slo=tpot))
    assert f["attainment"] == pytest.approx(kept)
    if goodput:
        assert f["goodput"] == pytest.approx(goodput, abs=0.0005)
    if kept == 51:
        assert f["good_tok_s"] == pytest.approx(422.9, abs=0.05)
        assert measured.agree == 11
        assert not measured.own


# What each tool's names mean.


def test_sglangs_line_may_hold_a_bare_infinity_and_says_its_limits():
    text = SAMPLES["sglang"]
    assert "Infinity" in text
    measured = read(text * 2)[1]
    assert measured.limits["max_num_seqs"] == 48
    assert measured.limits["max_num_batched_tokens"] == 4096
    assert measured.figures["ttft_mean"] == 150
    assert "summary alone" in said(measured)


def test_guidellm_05_has_ttft_in_its_time_per_output_token():
    measured = one(GUIDELLM)
    f = measured.all_figures(SLO)
    assert measured.states == {"completed": 2, "no token": 1, "failed": 0}
    assert f["ttft_mean"] == pytest.approx(150)
    assert f["tpot_mean"] == pytest.approx(100)  # (0.3 - 0.1) / 2
    assert "TTFT is in it" in own(measured, "time_per_output_token_ms, mean").meaning
    assert own(measured, "time_to_first_token_ms, mean").theirs == 50


def test_guidellm_02_has_minus_the_epoch_for_who_returned_nothing():
    requests = [(100.0, 0.1, 100.3, 3), (100.5, None, 100.6, 16)]
    measured = one(guidellm(requests, old=True))
    assert measured.states == {"completed": 1, "no token": 1, "failed": 0}
    assert measured.all_figures(SLO)["ttft_mean"] == pytest.approx(100)
    assert own(measured, "time_to_first_token_ms, mean").theirs == -9.4e10
    assert measured.all_figures(SLO)["tok_s"] == pytest.approx(3 / 3.0)


def test_aiperf_records_are_put_in_order_and_its_errors_are_failures():
    measured = one(SAMPLES["aiperf"])
    run = measured.run
    assert run is not None
    assert run.requests["arrival"].tolist() == [0, 7, 14]
    assert measured.states == {"completed": 2, "no token": 0, "failed": 1}
    f = measured.all_figures(SLO)
    assert (f["ttft_mean"], f["tpot_mean"], f["itl_max"]) == pytest.approx((30, 10, 12))


def test_aiperfs_throughput_is_over_more_than_its_own_duration():
    measured = one(AIPERF_CSV)
    assert measured.figures["req_s"] == pytest.approx(4.3)
    assert measured.figures["tpot_mean"] == 9
    assert own(measured, "request_throughput").theirs == 4


def test_llmperf_has_ttft_in_its_inter_token_latency():
    measured = one(SAMPLES["llmperf"])
    f = measured.all_figures(SLO)
    assert measured.states == {"completed": 1, "no token": 0, "failed": 1}
    assert f["tpot_mean"] == pytest.approx(20)
    assert "TTFT is in it" in said(measured)
    assert "req_s" not in f  # the file has no duration
    assert one(SAMPLES["llmperf_summary"]).figures["tpot_mean"] == pytest.approx(20)


def test_inference_perfs_gaps_are_half_the_truth():
    measured = one(SAMPLES["inference_perf"])
    assert measured.figures["tpot_mean"] == pytest.approx(10)  # 900 ms over the median's 90 gaps
    assert own(measured, "time_per_output_token, mean").theirs == 5
    assert "sent 6.0" in said(measured)


@shared
def test_inference_perf_recomputed_is_what_the_servers_histogram_says():
    folder = FILES / "inference_perf"
    for stage in ("vllm_stage3", "vllm_stage5"):
        client, server = (
            bring.bring(folder / f"{stage}_{side}.json").measured[0].figures["tpot_mean"]
            for side in ("lifecycle", "prometheus")
        )
        assert client == pytest.approx(server, rel=2e-3)


def test_the_engines_two_clocks_are_set_together():
    run = one(SAMPLES["engine_requests"]).run
    assert run is not None
    r = run.requests
    assert r["arrival"] == pytest.approx([0, 1000, 2000], abs=1e-3)
    assert r["start"] - r["arrival"] == pytest.approx([200, 200, 200], abs=1e-3)
    assert r["first"] - r["arrival"] == pytest.approx([300, 300, 300], abs=1e-3)


@shared
def test_the_published_p99_of_the_engines_requests_is_numpys_linear_one():
    path = FILES / "vllm_engine_requests" / "RTXPRO6000_requests.jsonl"
    assert "its p99 is 19,755.3 ms" in said(bring.bring(path).measured[0])


def test_an_aibrix_profile_is_a_run_for_each_rate_and_no_tpot_where_nothing_was_streamed():
    still, streamed = read(lines(PROFILE))
    f = still.all_figures(SLO)
    assert (f["req_s"], f["tok_s"], f["e2e_mean"], f["e2e_p99"]) == (1.5, 6.0, 200, 400)
    assert not any(name.startswith(("ttft", "tpot", "itl")) for name in f)
    assert [o.name for o in still.own] == ["TPOT, mean", "TTFT, mean"]
    assert still.states == {"completed": 9}
    assert streamed.all_figures(SLO)["itl_mean"] == 10
    assert "4 req/s" in streamed.label


def test_an_engines_settings_are_limits_and_name_the_file_that_has_the_requests():
    m = one(META)
    assert (m.limits, m.policy) == ({"max_num_seqs": 128}, "vllm_v1")
    assert "3 requests over 2.50 s" in said(m)
    assert "requests.jsonl" in said(m)
    assert "max_model_len: left to vLLM's own default" in said(m)


def test_a_summary_of_a_thousand_requests_is_one_row_and_keeps_its_e2e():
    summary = {k: v for k, v in SGLANG.items() if not isinstance(v, list)} | {"completed": 1_000}
    found = bring.bring(json.dumps(summary | {"median_e2e_latency_ms": 9.0}).encode(), "f")
    r = bring.report(found, SLO)
    assert (r["rows"], r["bad_rows"]) == (1, 0)
    assert r["runs"][0]["states"]["completed"] == 1_000
    assert r["runs"][0]["figures"]["e2e_p50"] == 9.0


@pytest.mark.parametrize(
    ("sample", "old", "new", "row", "wanted"),
    [
        ("vllm", '"ttfts": [0.1', '"ttfts": [-0.1', 1, "ttfts is '-0.1'"),
        ("vllm", '"output_lens": [3', '"output_lens": [NaN', 1, "output_lens is 'nan'"),
        ("llmperf", '"ttft_s": 0.1', '"ttft_s": -0.1', 1, "ttft_s is '-0.1'"),
        ("prometheus", '"m"} 0.5', '"m"} half', 7, "is no sample"),
        ("aibrix_profile", '"P99": 0.4', '"P99": -4', 3, "P99 is '-4'"),
        ("aiperf_csv", ",40,,,20", ",abc,,,20", 2, "Time to First Token (ms) is 'abc'"),
    ],
)
def test_a_value_that_can_not_be_makes_its_row_a_bad_one(sample, old, new, row, wanted):
    assert old in SAMPLES[sample]
    found = bring.bring(SAMPLES[sample].replace(old, new, 1).encode(), "f")
    assert found.bad is not None
    assert found.bad.count == 1
    ((at, reason),) = found.bad.rows
    assert at == row
    assert wanted in reason


def test_a_log_with_two_records_on_a_line_says_how_large_the_pool_is():
    measured = one(V1_LOG)
    assert len(measured.series["t"]) == 3
    assert measured.series["t"].tolist() == [0, 10, 20]
    # 20 s x 100 tokens/s for 2 points: 100,000 tokens, of which 48 % are left.
    assert "KV pool about 100,000 tokens" in said(measured)
    assert "lasts about 480 s" in said(measured)


@shared
def test_d4_on_the_real_log():
    path = FILES / "engine_logs" / "vllm_v1_lines.log"
    notes = said(bring.bring(path).measured[0])
    assert "KV pool about 683,429 tokens (4,784 tokens for 0.7 points)" in notes
    assert "lasts about 231 s" in notes


def test_other_logs_are_read_too():
    (v0,) = read(V0_LOG)
    assert v0.series["waiting"].tolist() == [2]
    (sglang,) = read(SGLANG_LOG)
    assert (sglang.series["running"][0], sglang.series["kv"][0]) == (7, 25)
    assert sglang.series["waiting"][0] == 3


def test_histograms_are_interpolated_and_models_are_not_added():
    measured = one(PROMETHEUS)
    assert measured.figures["ttft_mean"] == pytest.approx(100)
    assert measured.figures["ttft_p50"] == pytest.approx(100)
    assert measured.figures["ttft_p90"] == pytest.approx(260)  # 100 + 200 x 1.6 / 2
    assert "3 running, 2 waiting, KV pool 50 % full" in said(measured)
    assert "other" in said(measured)
    assert measured.limits == {"num_gpu_blocks": 4574, "block_size": 16, "enable_prefix_caching": 1}


@shared
def test_the_check_values_of_the_real_scrape():
    f = bring.bring(FILES / "prometheus" / "vllm_v0_metrics_kubeai.txt").measured[0].figures
    assert f["ttft_mean"] == pytest.approx(56.7, abs=0.05)
    assert f["ttft_p50"] == pytest.approx(54.0, abs=0.05)
    assert f["ttft_p99"] == pytest.approx(79.4, abs=0.05)
    assert f["itl_mean"] == pytest.approx(38.8, abs=0.05)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.floats(0.001, 1))
def test_an_interpolated_quantile_lies_within_its_bucket(counts, q):
    edges = [0.1 * (k + 1) for k in range(len(counts))]
    upto = np.cumsum(counts)
    buckets = [*zip(edges, upto.tolist(), strict=True), (math.inf, float(upto[-1]))]
    x = interpolated(buckets, q)
    if upto[-1] == 0:
        assert math.isnan(x)
    else:
        k = int(np.searchsorted(upto, q * upto[-1]))
        assert edges[k] - 0.1 - 1e-9 <= x <= edges[k] + 1e-9


# What was measured, simulated.


def test_a_step_logs_cost_is_found_again():
    cost = one(STEPS).cost  # written with steps of 4 ms and 0.5 ms a sequence
    assert cost["overhead_ms"] == pytest.approx(4, rel=0.02)
    assert cost["decode_ms_per_seq"] == pytest.approx(0.5, rel=0.02)


def test_the_cost_of_a_simulated_run_is_found_again_from_its_requests():
    work = draw(Traffic(arrivals="poisson", rate=10, duration=40))
    run = serve(work, "vllm_v1", Limits(max_num_seqs=64, num_gpu_blocks=40_000),
                (8.0, 0.03, 0.0, 0.2))  # fmt: skip
    cost, notes = of_requests(run)
    assert cost["overhead_ms"] == pytest.approx(8, rel=0.02)
    assert cost["decode_ms_per_seq"] == pytest.approx(0.2, rel=0.05)
    assert cost["prefill_ms_per_token"] == pytest.approx(0.03, rel=0.05)
    assert "in the median" in notes[0]


def as_engine_requests(run) -> str:
    """A simulated run, as the engine would have written it."""
    return lines(
        {"request_id": str(k), "input_toks": int(r["prompt"]), "output_toks": int(r["output"]),
         "arrival_time": 1.7e9 + r["arrival"] / 1e3, "queued_ts": 50 + r["arrival"] / 1e3,
         "scheduled_ts": 50 + r["start"] / 1e3, "first_token_ts": 50 + r["first"] / 1e3,
         "last_token_ts": 50 + r["last"] / 1e3}
        for k, r in enumerate(run.requests)
    )  # fmt: skip


def test_a_run_written_down_and_simulated_again_is_the_same_run():
    work = draw(Traffic(arrivals="poisson", rate=30, duration=20))
    run = serve(work, "vllm_v1", Limits(max_num_seqs=24, num_gpu_blocks=40_000),
                (6.0, 0.02, 0.0, 0.2))  # fmt: skip
    found = bring.bring(as_engine_requests(run).encode(), "f")
    ((name, (workload, measured)),) = found.workloads().items()
    assert measured is not None
    scenario, notes = bring.simulated(name, measured)
    assert scenario.limits.max_num_seqs == 24  # the most at once, while others waited
    assert any("max_num_seqs 24" in note for note in notes)
    assert Scenario.from_url(scenario.link()) == (scenario, [])
    (again,) = compare(scenario, workload)
    truth, ours = measured.all_figures(SLO), figures(again, SLO)
    for figure in ("ttft_mean", "ttft_p95", "tpot_mean", "e2e_p50", "tok_s"):
        assert ours[figure] == pytest.approx(truth[figure], rel=0.03)


@shared
def test_a_real_run_is_predicted_within_a_few_per_cent():
    found = bring.bring(FILES / "vllm_engine_requests" / "RTXPRO6000_requests.jsonl")
    ((name, (workload, measured)),) = found.workloads().items()
    assert measured is not None
    (run,) = compare(bring.simulated(name, measured)[0], workload)
    truth, ours = measured.all_figures(SLO), figures(run, SLO)
    for figure in ("ttft_mean", "ttft_p50", "ttft_p99", "tpot_p50", "e2e_p95"):
        assert ours[figure] == pytest.approx(truth[figure], rel=0.03)


def test_figures_without_requests_can_not_be_simulated():
    with pytest.raises(ScenarioError, match="nothing to simulate"):
        bring.workload(SAMPLES["inference_perf"].encode(), "f")


# What can't be read.


def refusal(content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    with pytest.raises(ScenarioError) as caught:
        bring.bring(content, "f.json")
    sentence = str(caught.value)
    assert sentence.startswith("f.json")
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


def test_a_cut_json_is_named_with_line_and_column():
    assert "line 1, column" in refusal(SAMPLES["vllm"][:-30])
    assert "line 3" in refusal(json.dumps(VLLM, indent=0)[:30] + "\n")


def test_arrays_of_different_lengths_are_named():
    assert "ttfts 1, itls 2" in refusal(json.dumps(VLLM | {"ttfts": [0.1]}))


def test_a_value_that_is_no_number_is_listed_with_its_row_and_name():
    d = VLLM | {"ttfts": ["=1+1", 0.2], "output_lens": [3, None]}
    _, (measured,), bad = results.read(json.dumps(d).encode(), "f")  # pyright: ignore
    assert (1, "ttfts is '=1+1', not a number from 0 on") in bad.rows
    assert len(measured.run.requests) == 1  # pyright: ignore


def test_a_field_that_is_not_there_is_named():
    rows = [{k: v for k, v in ENGINE[0].items() if k != "arrival_time"} | {"arrival_time": None}]
    assert "arrival_time" in refusal(lines(rows + [ENGINE[1] | {"scheduled_ts": "x"}]))


TOLD = [(f.name, name) for f in results.RESULTS.values() if f.beside for name in f.tells]


@pytest.mark.parametrize(("sample", "name"), TOLD)
def test_a_field_that_tells_the_format_is_missed_by_its_name(sample, name):
    """Renamed, it leaves the file nearest to the format that it was of, or still of that format."""
    form = results.RESULTS[sample]
    renamed = SAMPLES[sample].replace(f'"{name}"', f'"{name}_"').encode()
    try:
        assert bring.bring(renamed, "f.json").form is form
        return
    except ScenarioError as error:
        sentence = str(error)
    assert sentence.startswith(f"f.json looks like {form.label} and lacks ")
    assert name in sentence


def test_json_that_nests_too_deeply_is_refused():
    assert "f.json" in refusal("[" * 100_000)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_whatever_is_done_to_a_result_it_is_read_or_refused_in_one_sentence(data):
    text = data.draw(st.sampled_from(list(SAMPLES.values())))
    content = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        kind = data.draw(st.sampled_from(["cut", "end", "insert", "word"]))
        if kind == "cut":
            del content[at : at + data.draw(st.integers(1, 60))]
        elif kind == "end":
            del content[at:]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(max_size=6))
        else:
            old = data.draw(st.sampled_from([b"0", b"1", b"[", b"null", b"0.1", b'"', b"10"]))
            new = data.draw(st.sampled_from([b"null", b"-1", b"[]", b"{}", b"1e999", b'"x"']))
            content = content.replace(old, new, 1)
    outcome = reported(bytes(content))
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert outcome.startswith("f")
    else:
        json.dumps(outcome)
        assert bring.as_text(outcome)


def reported(content: bytes) -> dict | str:
    try:
        return bring.report(bring.bring(content, "f"), SLO)
    except ScenarioError as error:
        return str(error)


# The command line.


def test_inspect_prints_what_the_report_says(tmp_path, capsys):
    path = tmp_path / "result.json"
    path.write_text(SAMPLES["vllm"])
    assert main(["inspect", str(path), "--ttft-slo", "150", "--json"]) == 0
    r = json.loads(capsys.readouterr().out)
    assert r == bring.report(bring.bring(path, path.name), Slo(ttft_slo=150.0))
    assert r["runs"][0]["figures"]["attainment"] == 50
    assert main(["inspect", str(path)]) == 0
    assert "vLLM bench serve" in capsys.readouterr().out


def test_inspect_takes_columns_by_hand_and_refuses_others(tmp_path, capsys):
    path = tmp_path / "some.csv"
    path.write_text("s,in,out\n0,1,2\n1,3,4\n")
    assert (
        main(["inspect", str(path), "--columns", "arrival_s=s,prompt_len=in,output_len=out"]) == 0
    )
    assert "2 requests over 1.0 s" in capsys.readouterr().out
    assert main(["inspect", str(path), "--columns", "when=s"]) == 2
    assert "prompt_len" in capsys.readouterr().err
    assert main(["inspect", str(path)]) == 2
    assert "no format known" in capsys.readouterr().err


def test_compare_runs_on_a_results_requests_and_says_what_it_leaves_out(tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_ms,prompt_len,output_len\n0,5,3\n1,0,3\n2,5,3\n")
    assert main(["compare", "--trace", str(path), "--policies", "continuous"]) == 0
    assert "1 bad rows left out" in capsys.readouterr().err
    result = tmp_path / "r.jsonl"
    result.write_text(SAMPLES["engine_requests"])
    assert main(["compare", "--trace", str(result), "--policies", "continuous", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 3


@shared
def test_every_real_slice_is_recognised():
    for path in sorted(FILES.glob("*/*")):
        if path.suffix not in (".md", ".MD"):
            assert bring.bring(path, path.name).bad_rows == 0
