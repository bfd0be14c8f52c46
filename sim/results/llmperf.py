"""LLMPerf: single requests, its summary, and the summary of llmperf-bench by concurrency."""

import math

import numpy as np

from ..scenario import Slo
from . import (
    Bads,
    Measured,
    as_number,
    known_figures,
    numbers,
    own_figures,
    result,
    run_of,
    spoken_notes,
    states_of,
)

ITL = "the sum of all gaps and TTFT / tokens: TTFT is in it"
KEYS = ("ttft_s", "end_to_end_latency_s", "number_output_tokens", "number_input_tokens")
QUANTILES = {
    "quantiles_p50": "p50",
    "quantiles_p90": "p90",
    "quantiles_p95": "p95",
    "quantiles_p99": "p99",
    "mean": "mean",
    "max": "max",
}


@result(
    "LLMPerf requests",
    "json",
    "keys inter_token_latency_s, ttft_s",
    lambda d: {"inter_token_latency_s", "ttft_s", "end_to_end_latency_s"} <= d.keys(),
    "end_to_end_latency_s number_output_tokens number_input_tokens",
)
def llmperf(rows, bad: Bads) -> list[Measured]:
    """Seconds; tokens by its own tokenizer; failures have an error_code and TTFT 0."""
    ttft, e2e, output, prompt = (
        numbers([d.get(name) for _, d in rows], name, bad, 1e3 if name.endswith("_s") else 1.0)
        for name in KEYS
    )
    own_itl = numbers([d["inter_token_latency_s"] for _, d in rows], "itl", bad, 1e3)
    failed = np.array([d.get("error_code") is not None for _, d in rows])
    ttft[failed | (ttft <= 0)] = np.nan
    label = f"LLMPerf, {len(rows):,} requests"
    run = run_of(
        label,
        arrival=np.zeros(len(rows)),
        prompt=prompt,
        output=output,
        ttft=ttft,
        e2e=np.where(failed, np.nan, e2e),
        total=math.nan,
        failed=failed,
    )
    ours = known_figures(run, Slo())
    spoke = np.isfinite(ttft)
    mean = float(own_itl[spoke].mean()) if spoke.any() else math.nan
    own, agree = own_figures(ours, [("inter_token_latency_s, mean", mean, "tpot_mean", ITL)])
    codes = {d.get("error_code") for _, d in rows} - {None}
    notes = [
        "no arrival times and no duration in the file: no throughput; a simulation sends all"
        " at once to one client, say how many there were"
    ]
    if failed.any():
        notes.append(
            f"{int(failed.sum())} of {len(rows)} failed (error {', '.join(map(str, codes))}): their"
            " zeros are no latencies"
        )
    return [
        Measured(
            label=label,
            run=run,
            states=states_of(run),
            own=own,
            agree=agree,
            clients=1,
            notes=[*notes, *spoken_notes(run)],
        )
    ]


@result(
    "LLMPerf summary",
    "json",
    "keys results_ttft_s_mean, results_inter_token_latency_s_mean",
    lambda d: "results_ttft_s_mean" in d,
    "results_end_to_end_latency_s_mean results_number_output_tokens_mean",
)
def llmperf_summary(rows, bad: Bads) -> list[Measured]:
    """Flat; quantiles of each."""
    return [_summary(d) for _, d in rows]


def _summary(d: dict) -> Measured:
    def of(name, key, scale=1e3):
        return as_number(d.get(f"results_{name}_{key}")) * scale

    figures = {}
    for name, metric in (("ttft_s", "ttft"), ("end_to_end_latency_s", "e2e")):
        figures |= {f"{metric}_{ours}": of(name, theirs) for theirs, ours in QUANTILES.items()}
    tokens = of("number_output_tokens", "mean", 1.0)
    figures["tpot_mean"] = (figures["e2e_mean"] - figures["ttft_mean"]) / (tokens - 1)
    figures["tok_s"] = as_number(d.get("results_mean_output_throughput_token_per_s"))
    figures["req_s"] = as_number(d.get("results_num_completed_requests_per_min")) / 60
    itl = ("results_inter_token_latency_s_mean", of("inter_token_latency_s", "mean"))
    own, agree = own_figures(figures, [(*itl, "tpot_mean", ITL)])
    errors = int(as_number(d.get("results_number_errors") or 0))
    done = int(as_number(d.get("results_num_completed_requests") or 0))
    clients = int(as_number(d.get("num_concurrent_requests") or 0))
    label = f"LLMPerf summary, {clients} at once" if clients else "LLMPerf summary"
    notes = ["a summary alone: TPOT mean is (E2E mean - TTFT mean) / (output mean - 1)"]
    return Measured(
        label=label,
        figures=_finite(figures),
        own=own,
        agree=agree,
        notes=notes,
        states={"completed": done, "failed": errors},
        clients=clients,
    )


@result(
    "llmperf-bench summary",
    "json",
    "concurrencies with first-time-to-token_mean_in_ms",
    lambda d: (
        bool(d)
        and all(isinstance(v, dict) and "first-time-to-token_mean_in_ms" in v for v in d.values())
    ),
)
def llmperf_bench(rows, bad: Bads) -> list[Measured]:
    """By concurrency."""
    found = []
    for _, d in rows:
        for key, one in d.items():
            figures = {
                "ttft_mean": as_number(one["first-time-to-token_mean_in_ms"]),
                "tok_s": as_number(one.get("throughput_token_per_s")),
            }
            own, _ = own_figures(
                {}, [("latency_ms_per_token", one.get("latency_ms_per_token"), "tpot_mean", ITL)]
            )
            found.append(
                Measured(
                    label=f"llmperf-bench, {key} at once",
                    figures=_finite(figures),
                    own=own,
                    clients=int(key),
                    notes=["a summary alone"],
                )
            )
    return found


def _finite(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if math.isfinite(value)}
