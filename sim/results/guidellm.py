"""GuideLLM 0.2 to 0.8, JSON and CSV.

One object mixes seconds and milliseconds. Its `inter_token_latency_ms` is TPOT; the mean over a run
is weighted by tokens from 0.4 on.
"""

import csv
import io
import json
import math

import numpy as np

from ..scenario import Slo
from . import (
    Bads,
    Measured,
    Own,
    as_number,
    known_figures,
    number,
    own_figures,
    result,
    run_of,
    spoken_notes,
    states_of,
)
from .fit import of_requests

OLD = {
    "time_to_first_token_ms": (
        "ttft",
        "a request without a token counts as minus the epoch, or as 0",
    ),
    "inter_token_latency_ms": ("tpot", "requests of one token, or of none, count as 0"),
    "time_per_output_token_ms": ("tpot", "(last - first) / tokens, not / (tokens - 1)"),
}
NEW = {
    "time_to_first_token_ms": ("ttft", "requests without a token are counted as 0"),
    "inter_token_latency_ms": ("tpot", "weighted by tokens, not a mean over requests"),
    "time_per_output_token_ms": ("tpot", "last token / tokens: TTFT is in it"),
}
NEAREST = "the next value that was measured, not one between two, as numpy's linear method has it"
STATISTICS = {"mean": "mean", "median": "p50"}
# Of a CSV's list: the smallest value first and the largest last, the median in a cell of its own.
PERCENTILES = ("min", "p001", "p01", "p05", "p10", "p25", "p75", "p90", "p95", "p99", "max")


@result(
    "GuideLLM",
    "json",
    "key benchmarks, with metrics and requests",
    lambda d: isinstance(d.get("benchmarks"), list),
    "metrics requests successful time_to_first_token_ms inter_token_latency_ms",
)
def guidellm(rows, bad: Bads) -> list[Measured]:
    """A run a benchmark."""
    found = []
    for _, d in rows:
        version = (d.get("metadata") or {}).get("guidellm_version")
        found += [_benchmark(b, version or "0.2", bad) for b in d["benchmarks"]]
    return found


def _benchmark(b: dict, version: str, bad: Bads) -> Measured:
    old = "args" in b and "run_stats" in b
    strategy = (b.get("args") if old else b.get("config")) or {}
    strategy = strategy.get("strategy") or {}
    rate = strategy.get("rate")
    label = f"GuideLLM {version}, {strategy.get('type_', 'run')}" + (f" {rate:g}" if rate else "")
    records = [
        (r, state != "successful", state)
        for state in ("successful", "errored", "incomplete")
        for r in b["requests"].get(state) or ()
    ]
    meanings = OLD if old else NEW
    pairs = [
        (
            f"{name}, {stat}",
            (b["metrics"].get(name) or {}).get("successful", {}).get(stat),
            f"{ours}_{key}",
            meaning,
        )
        for name, (ours, meaning) in meanings.items()
        for stat, key in STATISTICS.items()
    ]
    latency = (b["metrics"].get("request_latency") or {}).get("successful") or {}
    pairs += [
        (
            "request_latency, mean",
            as_number(latency.get("mean")) * 1e3,
            "e2e_mean",
            "seconds in the file; requests without a token are counted",
        )
    ]
    if not records:
        own = [pair for pair in pairs if "time_per_output_token" in pair[0]]
        figures = {f: as_number(v) for n, v, f, m in pairs if (n, v, f, m) not in own}
        own, agree = own_figures(figures, own)
        return Measured(
            label=label, figures=figures, own=own, agree=agree, notes=["a summary alone"]
        )
    run, notes = _run(label, b, records, bad)
    if not states_of(run)["no token"]:  # then another rule is all that can tell the medians apart
        pairs = [(n, v, f, NEAREST if f == "ttft_p50" else m) for n, v, f, m in pairs]
    counts = b.get("request_totals") or b["metrics"].get("request_totals") or {}
    listed = states_of(run)
    succeeded = [r for r, failed, _ in records if not failed]
    if counts and counts.get("successful", 0) > len(succeeded):
        notes.append(
            f"the summary counts {counts['successful']} successful requests, the file lists"
            f" {len(succeeded)}: figures are of those, throughput of those over the whole time"
        )
        name, (ours, meaning) = "time_per_output_token_ms", meanings["time_per_output_token_ms"]
        own = np.array([as_number(r.get(name)) for r in succeeded])
        mean = float(np.nanmean(own)) if np.isfinite(own).any() else math.nan
        pairs = [(f"{name}, mean of those", mean, f"{ours}_mean", meaning)]
    total = ((b["metrics"].get("time_to_first_token_ms") or {}).get("total") or {}).get("mean")
    good = ((b["metrics"].get("time_to_first_token_ms") or {}).get("successful") or {}).get("mean")
    own, agree = own_figures(known_figures(run, Slo()), pairs)
    if total is not None and good and 0 < total < 0.995 * good:
        own.append(
            Own(
                "time_to_first_token_ms, total, mean",
                total,
                good,
                "ms",
                "zeros of failed requests are in it",
            )
        )
    cost, fitted = of_requests(run)
    return Measured(
        label=label,
        run=run,
        states=listed,
        own=own,
        agree=agree,
        cost=cost,
        notes=[*notes, *spoken_notes(run), *fitted],
    )


def _run(label: str, b: dict, records, bad: Bads):
    """The run of the requests that are listed, by start."""
    columns = []
    for k, (r, failed, _) in enumerate(records, 1):
        timings = (r.get("info") or {}).get("timings") or {}
        start = as_number(r.get("request_start_time") or r.get("start_time"))
        if math.isnan(start):
            start = as_number(timings.get("request_start"))
        end = r.get("request_end_time") or r.get("end_time") or timings.get("request_end")
        first = r.get("first_token_time") or timings.get("first_token_iteration")
        last = r.get("last_token_time") or timings.get("last_token_iteration")
        ttft = (as_number(first) - start) * 1e3
        if math.isnan(ttft):
            ttft = as_number(r.get("time_to_first_token_ms"))
        prompt, output = (number(r.get(n), k, n, bad) for n in ("prompt_tokens", "output_tokens"))
        if bad.last == k:
            continue
        if math.isnan(start):
            bad.add(k, "a request has no start time")
            continue
        if failed or not output or not ttft > 0:
            ttft = math.nan
        columns.append(
            (
                start * 1e3,
                prompt,
                output,
                ttft,
                (as_number(end) - start) * 1e3,
                (as_number(last) - start) * 1e3,
                failed,
            )
        )
    columns.sort(key=lambda c: c[0])
    arrival, prompt, output, ttft, e2e, last, failed = (
        np.array(c) for c in zip(*columns, strict=True)
    )
    arrival = arrival - arrival[0]
    total = as_number(b.get("duration")) * 1e3
    last = np.where(np.isfinite(last), last, e2e)
    run = run_of(
        label,
        arrival=arrival,
        prompt=prompt,
        output=output,
        ttft=ttft,
        e2e=e2e,
        last=last,
        total=total,
        failed=failed.astype(bool),
    )
    return run, ["its inter_token_latency_ms is what is called TPOT here; it has no gaps (ITL)"]


NEEDED = [
    (name, "Successful ms", "Mean") for name in ("Time to First Token", "Inter Token Latency")
]


@result(
    "GuideLLM CSV",
    "csv",
    "three header rows, the first with Run Info or Benchmark",
    lambda columns: "Time to First Token" in columns,
)
def guidellm_csv(text: str, bad: Bads) -> list[Measured]:
    """Three header rows, then a row a benchmark."""
    rows = list(csv.reader(io.StringIO(text)))
    keys = list(zip(*rows[:3], strict=True))
    for key in NEEDED:
        if key not in keys:
            raise KeyError(f"the column {', '.join(key)}")
    found = []
    for at, row in enumerate(rows[3:], 4):
        if not row:
            continue
        if len(row) != len(keys):
            bad.add(at, f"{len(row)} cells where the header has {len(keys)}")
            continue
        found.append(_row(dict(zip(keys, row, strict=True)), at, bad))
    return found


def _row(d: dict[tuple[str, str, str], str], at: int, bad: Bads) -> Measured:
    def statistics(group: str, unit: str, metric: str, scale: float = 1.0) -> dict[str, float]:
        out = {}
        for stat, key in (("Mean", "mean"), ("Median", "p50")):
            cell = d.get((group, unit, stat)) or ""
            out[f"{metric}_{key}"] = as_number(cell) * scale
            if cell and math.isnan(as_number(cell)):
                bad.add(at, f"{group}, {unit}, {stat} is {cell[:40]!r}, not a number")
        listed = json.loads(d.get((group, unit, "Percentiles")) or "[]")
        named = dict(zip(PERCENTILES, listed, strict=False))
        out |= {
            f"{metric}_{p}": as_number(named.get(p)) * scale for p in ("p90", "p95", "p99", "max")
        }
        return out

    figures = statistics("Request Latency", "Successful Sec", "e2e", 1e3)
    figures |= statistics("Time to First Token", "Successful ms", "ttft")
    figures |= statistics("Inter Token Latency", "Successful ms", "tpot")
    figures["req_s"] = as_number(d.get(("Server Throughput", "Successful Requests/Sec", "Mean")))
    own_tpot = as_number(d.get(("Time per Output Token", "Successful ms", "Mean")))
    own, agree = own_figures(
        figures,
        [
            (
                "Time per Output Token, mean",
                own_tpot,
                "tpot_mean",
                NEW["time_per_output_token_ms"][1],
            )
        ],
    )
    states = {
        name.lower(): int(as_number(d.get(("Request Counts", name, "")) or 0))
        for name in ("Successful", "Errored", "Incomplete")
    }
    strategy = d.get(("Benchmark", "Strategy", "")) or "run"
    notes = ["a summary alone; TPOT (its Inter Token Latency) is weighted by tokens"]
    if json.loads(d.get(("Time to First Token", "Successful ms", "Percentiles")) or "[1]")[0] == 0:
        notes.append("requests without a token are among the successful, with TTFT 0")
    return Measured(
        label=f"GuideLLM CSV, {strategy}",
        own=own,
        agree=agree,
        states=states,
        figures={k: v for k, v in figures.items() if math.isfinite(v)},
        notes=notes,
    )
