"""AIBrix profiles: what its GPU benchmark prints, a line a metric.

Its fields as python/aibrix/.../profiling/gpu_benchmark.py of vllm-project/aibrix computes them.
"""

import math
from itertools import groupby

from . import Bads, Measured, Own, as_number, number, result

STATISTICS = {"mean": "mean", "P50": "p50", "P90": "p90", "P99": "p99"}
GIVEN = ("input_tokens", "output_tokens", "request_rate", "model", "seed", "samples")
KNOWN = ("TPUT", "TT", "E2E", "TTFT", "TPOT")
HEADERS = "counted from the answer's headers, not from sending: queue and prefill may not be in it"
STREAMLESS = "nothing was streamed, so that no gap was timed"


@result(
    "AIBrix profile",
    "json",
    "keys metric, input_tokens, output_tokens, request_rate",
    lambda d: {"metric", "input_tokens", "output_tokens", "request_rate"} <= d.keys(),
    "model seed samples mean",
)
def aibrix_profile(rows, bad: Bads) -> list[Measured]:
    """Seconds. A run is the lines that share lengths and rate."""
    good = []
    for row, d in rows:
        bad.total += 1
        if d.get("metric") not in KNOWN:
            bad.add(row, f"metric is {str(d.get('metric'))[:40]!r}, not {', '.join(KNOWN)}")
        elif all(not math.isnan(number(d[n], row, n, bad)) for n in STATISTICS if n in d):
            good.append(d)
    runs = groupby(good, key=lambda d: [d.get(name) for name in GIVEN])
    return [_run(given, {d["metric"]: d for d in lines}) for given, lines in runs]


def _run(given: list, by_metric: dict[str, dict]) -> Measured:
    prompt, output, rate, model, _, samples = given

    def statistics(metric: str, ours: str) -> dict[str, float]:
        d = by_metric.get(metric, {})
        return {
            f"{ours}_{key}": as_number(d.get(theirs)) * 1e3 for theirs, key in STATISTICS.items()
        }

    figures = {
        "req_s": as_number(by_metric.get("TPUT", {}).get("mean")),
        "tok_s": as_number(by_metric.get("TT", {}).get("mean")),
    } | statistics("E2E", "e2e")
    own, gaps = [], statistics("TPOT", "itl")
    if gaps["itl_mean"] > 0:
        figures |= gaps
        notes = ["its TPOT is over all gaps between chunks: what is called ITL here"]
    else:
        own += [Own("TPOT, mean", 0.0, math.nan, "ms", STREAMLESS)] if "TPOT" in by_metric else []
        notes = []
    first = statistics("TTFT", "ttft")["ttft_mean"]
    own += [Own("TTFT, mean", first, math.nan, "ms", HEADERS)] if math.isfinite(first) else []
    notes += ["a summary alone", f"tokens/s counts the {output} tokens that were asked for"]
    return Measured(
        label=f"AIBrix profile, {model}, {prompt} in, {output} out, {as_number(rate):g} req/s",
        figures={name: value for name, value in figures.items() if math.isfinite(value)},
        states={"completed": int(as_number(samples))} if as_number(samples) >= 0 else {},
        own=own,
        notes=notes,
    )
