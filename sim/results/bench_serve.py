"""vLLM's `bench serve` and SGLang's `bench_serving`: one ancestor, two dialects.

Arrays are in seconds, summaries in ms. Neither has E2E by request: it is TTFT and the gaps.
"""

import math

import numpy as np

from ..parameter import ScenarioError
from ..policies import POLICIES
from ..scenario import Slo
from . import (
    Bads,
    Measured,
    as_number,
    closed_loop,
    drawn_arrivals,
    known_figures,
    numbers,
    own_figures,
    result,
    run_of,
    spoken_notes,
    states_of,
)
from .fit import of_requests

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls")
STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
MEANING = {
    "ttft": "TTFT 0.0 of requests without a token is counted",
    "tpot": "the mean over other requests, or over a declared length",
    "itl": "a gap between chunks, whatever tokens they hold",
    "e2e": "requests without a token are counted",
    "req_s": "over another number of requests",
    "tok_s": "declared output lengths are counted, not real ones",
}


@result(
    "SGLang bench_serving",
    "json",
    "keys backend, mean_e2e_latency_ms",
    lambda d: "mean_e2e_latency_ms" in d and "backend" in d,
    "duration request_rate total_input_tokens median_e2e_latency_ms",
)
def sglang(rows, bad: Bads) -> list[Measured]:
    """A line a run. A request's arrays are there with --output-details only."""
    return [_measured("SGLang bench_serving", d, "e2e_latency", _sglang, bad) for _, d in rows]


@result(
    "vLLM bench serve",
    "json",
    "keys backend, completed, mean_ttft_ms",
    lambda d: (
        {"backend", "completed", "mean_ttft_ms"} <= d.keys() and "median_e2e_latency_ms" not in d
    ),
    "duration request_rate total_input_tokens input_lens output_lens ttfts itls",
)
def vllm(rows, bad: Bads) -> list[Measured]:
    """A request's arrays are there with --save-detailed, or in files of before 2025."""
    return [_measured("vLLM bench serve", d, "e2el", _vllm, bad) for _, d in rows]


def _measured(tool: str, d: dict, e2e: str, server, bad: Bads) -> Measured:
    rate, cap = as_number(d.get("request_rate")), d.get("max_concurrency") or 0
    label = f"{tool}, " + (f"{rate:g} req/s" if math.isfinite(rate) else "all at once")
    label += f", at most {cap} at once" if cap else ""
    limits, policy, notes = server(d)
    pairs = [
        (f"{stat}_{theirs}_ms", d.get(f"{stat}_{theirs}_ms"), f"{ours}_{key}", MEANING[ours])
        for theirs, ours in (
            ("ttft", "ttft"),
            ("tpot", "tpot"),
            ("itl", "itl"),
            (e2e, "e2e"),
            ("latency", "e2e"),
        )
        for stat, key in STATISTICS.items()
    ]
    pairs += [
        ("request_throughput", d.get("request_throughput"), "req_s", MEANING["req_s"]),
        ("output_throughput", d.get("output_throughput"), "tok_s", MEANING["tok_s"]),
    ]
    if not all(isinstance(d.get(name), list) for name in ARRAYS):
        values = [(figure, as_number(value)) for _, value, figure, _ in pairs]
        figures = {figure: value for figure, value in values if math.isfinite(value)}
        figures["total_s"] = as_number(d.get("duration"))
        notes.append("a summary alone: no requests to compute anew, or to simulate")
        states = {"completed": int(d["completed"]), "failed": int(d.get("failed") or 0)}
        return Measured(label=label, figures=figures, states=states, notes=notes, limits=limits)
    arrays, asked = _arrays(d, bad)
    if asked is not None:
        notes.append(asked)
    run, clients, said = _run(label, d, arrays, rate, cap)
    notes = [*said, *notes, *spoken_notes(run)]
    held = len(run.requests) - states_of(run)["failed"]
    if held != d["completed"]:
        pairs = []  # they are of others
        notes.append(
            f"the summary counts {d['completed']:,} completed requests, the arrays hold {held:,}:"
            " figures are of the arrays, throughput of these over the whole time"
        )
    own, agree = own_figures(known_figures(run, Slo()), pairs)
    cost, fitted = of_requests(run)
    notes += fitted
    return Measured(
        label=label,
        run=run,
        states=states_of(run),
        own=own,
        agree=agree,
        notes=notes,
        limits=limits,
        policy=policy,
        clients=clients,
        cost=cost,
    )


def _arrays(d: dict, bad: Bads):
    """(prompt, output, ttft, gaps, failed), and what is to be said of declared lengths."""
    sizes = {name: len(d[name]) for name in ARRAYS}
    if len(set(sizes.values())) > 1:
        raise ScenarioError(
            "its arrays differ in length, "
            + ", ".join(f"{k} {n}" for k, n in sizes.items())
            + ": the file is cut"
        )
    prompt, output = (numbers(d[name], name, bad) for name in ("input_lens", "output_lens"))
    ttft = numbers(d["ttfts"], "ttfts", bad, 1e3)
    gaps = []
    for k, each in enumerate(d["itls"]):
        good = isinstance(each, list) and all(isinstance(g, (int, float)) for g in each)
        if not good:
            bad.add(k + 1, f"itls is {str(each)[:40]!r}, not a list of numbers")
        gaps.append(np.array(each if good else [], float) * 1e3)
    errors = d.get("errors") or []
    failed = np.array([bool(errors[k]) if k < len(errors) else False for k in range(len(ttft))])
    asked = None
    total, real = (
        as_number(d.get("total_output_tokens")),
        as_number(d.get("total_output_tokens_retokenized")),
    )
    received = np.array([len(g) + 1 for g in gaps])
    if total > 0 and real < 0.97 * total and abs(received.sum() - real) < 0.03 * real:
        asked = (
            f"output_lens are what was asked for, {total:,.0f} tokens, of which {real:,.0f} came:"
            " the real lengths are used (one more than the gaps), and the tool's output throughput"
            f" is {total / real:.2f} times too high"
        )
        output = received.astype(float)
    ttft[(output < 1) | (ttft <= 0) | failed] = np.nan
    kept = np.isfinite(prompt) & np.isfinite(output)
    return (
        prompt[kept],
        output[kept],
        ttft[kept],
        [g for g, k in zip(gaps, kept, strict=True) if k],
        failed[kept],
        np.flatnonzero(kept),
    ), asked


def _run(label: str, d: dict, arrays, rate: float, cap: int):
    """The run, how many clients in a closed loop, and what is to be said of the arrivals."""
    prompt, output, ttft, gaps, failed, rows = arrays
    e2e = ttft + np.array([g.sum() for g in gaps])
    clients, notes = 0, []
    total = as_number(d.get("duration")) * 1e3
    starts = d.get("start_times")
    if isinstance(starts, list) and len(starts) == len(d["ttfts"]):
        arrival = np.array([starts[k] for k in rows], float) * 1e3
        arrival -= arrival.min()
    elif math.isfinite(rate):
        burstiness = as_number(d.get("burstiness") or 1.0)
        arrival = drawn_arrivals(np.nan_to_num(e2e), rate, burstiness, total)
        notes.append(
            f"no arrival times in the file: drawn at {rate:g} req/s by seed 0, over the run's"
            " duration, so that single requests can't be compared, and a fitted cost is rough"
        )
    elif cap:
        arrival, clients = closed_loop(e2e, cap), cap
        notes.append(f"a closed loop of {cap}: each is sent when one before it is done")
    else:
        arrival = np.zeros(len(ttft))
    run = run_of(
        label,
        arrival=arrival,
        prompt=prompt,
        output=output,
        ttft=ttft,
        e2e=e2e,
        total=total,
        gaps=gaps,
        failed=failed,
    )
    return run, clients, notes


def _vllm(d: dict):
    return {}, "vllm_v1", []


def _sglang(d: dict):
    info = d.get("server_info") or {}
    names = {
        "max_running_requests": "max_num_seqs",
        "chunked_prefill_size": "max_num_batched_tokens",
        "context_length": "max_model_len",
        "page_size": "block_size",
    }
    limits = {ours: info[theirs] for theirs, ours in names.items() if info.get(theirs)}
    if "disable_radix_cache" in info:
        limits["enable_prefix_caching"] = int(not info["disable_radix_cache"])
    notes = []
    if d.get("random_range_ratio") == 0 and d.get("random_input_len"):
        mean = d["total_input_tokens"] / d["completed"]
        notes.append(
            f"random_range_ratio 0.0 draws lengths from 1 to {d['random_input_len']:,} here (in"
            f" vLLM's it means all of that length): prompts were {mean:,.0f} on average"
        )
    return limits, "sglang" if "sglang" in POLICIES else "", notes
