"""inference-perf: a summary of a stage as the client saw it, and as Prometheus did."""

import math

from . import Measured, as_number, own_figures, result

STATISTICS = {
    "mean": "mean",
    "median": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "max": "max",
}
HALF = (
    "every fragment of the stream is timed, two a token, so that at least half of the gaps are"
    " microseconds"
)


@result(
    "inference-perf stage",
    "json",
    "keys load_summary, successes.latency",
    lambda d: "load_summary" in d and "latency" in (d.get("successes") or {}),
    "count request_latency time_to_first_token throughput",
)
def inference_perf(rows, bad) -> list[Measured]:
    """Seconds. Its TPOT and ITL are half the truth: TPOT is computed from its means."""
    return [_stage(d) for _, d in rows]


def _stage(d: dict) -> Measured:
    load, ok = d["load_summary"], d["successes"]
    latency, lengths = ok["latency"], ok.get("output_len") or {}
    output, middle = as_number(lengths.get("mean")), as_number(lengths.get("median"))
    forced = 0.97 * middle <= as_number(lengths.get("p25")) <= as_number(lengths.get("p75"))
    forced = forced and as_number(lengths.get("p75")) <= 1.03 * middle
    tokens = middle if forced else output
    figures = {}
    for name, ours in (("time_to_first_token", "ttft"), ("request_latency", "e2e")):
        figures |= _statistics(latency.get(name), ours)
    if tokens > 1:
        figures["tpot_mean"] = (figures["e2e_mean"] - figures["ttft_mean"]) / (tokens - 1)
    through = ok.get("throughput") or {}
    figures["req_s"] = as_number(through.get("requests_per_sec"))
    figures["tok_s"] = told = as_number(through.get("output_tokens_per_sec"))
    if forced:
        figures["tok_s"] = figures["req_s"] * tokens
    own, agree = own_figures(
        figures,
        [
            (f"{name}, mean", as_number((latency.get(name) or {}).get("mean")) * 1e3, ours, meaning)
            for name, ours, meaning in (
                ("time_per_output_token", "tpot_mean", HALF),
                ("inter_token_latency", "tpot_mean", HALF),
                ("normalized_time_per_output_token", "tpot_mean", "E2E / tokens: TTFT is in it"),
            )
        ]
        + [("output_tokens_per_sec", told, "tok_s", "of output lengths tokenised again")],
    )
    asked, sent = (as_number(load.get(k)) for k in ("requested_rate", "achieved_rate"))
    early = as_number((load.get("schedule_delay") or {}).get("min")) * 1e3
    which = "median" if forced else "mean"
    notes = [
        f"a summary alone: TPOT mean is (E2E mean - TTFT mean) / (output {which} - 1)",
        "requests/s is over the time to the last answer, the drain included: sent were"
        f" {sent:.2f} a second",
    ]
    if early < 0:
        notes.append(f"schedule_delay is negative: some went out up to {-early:.2g} ms too early")
    if forced:
        notes.append(
            f"output lengths are tokenised again: half of them are within 3 % of {middle:g}, which"
            f" stands for what was forced; their mean says {output:.1f}"
        )
    if sent < 0.98 * asked:
        notes.append(
            f"asked for {asked:g} req/s, sent {sent:.1f}: above saturation this is a closed loop of"
            " the client's own cap"
        )
    failed = int((d.get("failures") or {}).get("count") or 0)
    return Measured(
        label=f"inference-perf, {asked:g} req/s asked",
        own=own,
        agree=agree,
        notes=notes,
        figures={k: v for k, v in figures.items() if math.isfinite(v)},
        states={"completed": int(ok.get("count") or 0), "failed": failed},
    )


def _statistics(of: dict | None, metric: str) -> dict[str, float]:
    return {
        f"{metric}_{ours}": as_number((of or {}).get(theirs)) * 1e3
        for theirs, ours in STATISTICS.items()
    }


@result(
    "inference-perf, Prometheus",
    "json",
    "keys load_summary {}, successes.queue_len",
    lambda d: "load_summary" in d and "queue_len" in (d.get("successes") or {}),
    "count time_per_output_token",
)
def inference_perf_prometheus(rows, bad) -> list[Measured]:
    """The server's own histograms over the stage's time."""
    found = []
    for _, d in rows:
        ok, figures = d["successes"], {}
        for name, ours in (
            ("time_to_first_token", "ttft"),
            ("request_latency", "e2e"),
            ("time_per_output_token", "tpot"),
        ):
            figures |= _statistics(ok.get(name), ours)
        figures["tok_s"] = as_number((ok.get("output_len") or {}).get("rate"))
        figures["req_s"] = as_number(ok.get("rate"))
        notes = [
            "as the server's histograms have it: percentiles are interpolated in buckets",
            "prompt_len and output_len `mean` are totals here, not means",
            "the window also counts what came before and after the stage",
        ]
        found.append(
            Measured(
                label="inference-perf, Prometheus",
                notes=notes,
                figures={k: v for k, v in figures.items() if math.isfinite(v)},
                states={"completed": int(ok.get("count") or 0)},
            )
        )
    return found
