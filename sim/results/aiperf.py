"""AIPerf: records by request, and its summaries as JSON and CSV.

Its `inter_token_latency` is TPOT, and its `inter_chunk_latency` is ITL.
"""

import csv
import io
import math
import re

import numpy as np

from . import (
    Bads,
    Measured,
    as_number,
    number,
    own_figures,
    result,
    run_of,
    spoken_notes,
    states_of,
)
from .fit import of_requests

OURS = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "itl",
    "request_latency": "e2e",
}
USED = (
    "time_to_first_token",
    "request_latency",
    "input_sequence_length",
    "output_sequence_length",
)
STATISTICS = {"avg": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "max": "max"}
NAMES = [
    "its inter_token_latency is what is called TPOT here, and its inter_chunk_latency ITL",
    "its request_count leaves failed requests out",
]


@result(
    "AIPerf records",
    "json",
    "keys metadata.request_start_ns, metrics",
    lambda d: isinstance(d.get("metadata"), dict) and "request_start_ns" in d["metadata"],
    "request_end_ns request_latency time_to_first_token output_sequence_length",
)
def aiperf(rows, bad: Bads) -> list[Measured]:
    """A line a request, unsorted; stamps in ns of the epoch, values in ms."""
    kept = []
    for line, d in rows:
        meta = d.get("metadata") or {}
        start, end = meta.get("request_start_ns"), meta.get("request_end_ns")
        if not isinstance(start, int) or not isinstance(end, int):
            bad.add(line, "metadata.request_start_ns or request_end_ns is no whole number")
        elif meta.get("benchmark_phase", "profiling") == "profiling":
            values = d.get("metrics") or {}
            told = [(n, (values.get(n) or {}).get("value")) for n in USED]
            if all(v is None or number(v, line, n, bad) >= 0 for n, v in told):
                kept.append((start, end, values, bool(d.get("error"))))
    if not kept:
        return []
    kept.sort(key=lambda row: row[0])
    zero = kept[0][0]

    def column(name):
        return np.array([as_number((m.get(name) or {}).get("value")) for *_, m, _ in kept])

    def chunks(m):
        value = (m.get("inter_chunk_latency") or {}).get("value")
        return np.array(value if isinstance(value, list) else [], float)

    arrival = np.array([(start - zero) / 1e6 for start, *_ in kept])
    failed = np.array([error for *_, error in kept])
    ttft = column("time_to_first_token")
    ttft[failed] = np.nan
    prompt = column("input_sequence_length")
    prompt = np.where(np.isnan(prompt), column("error_isl"), prompt)
    total = (max(end for _, end, *_ in kept) - zero) / 1e6
    label = f"AIPerf, {len(kept):,} requests"
    run = run_of(
        label,
        arrival=arrival,
        prompt=prompt,
        output=column("output_sequence_length"),
        ttft=ttft,
        e2e=column("request_latency"),
        total=total,
        gaps=[chunks(m) for *_, m, _ in kept],
        failed=failed,
    )
    notes = [*NAMES, *spoken_notes(run)]
    if failed.any():
        notes.append("requests without a token are failures to it")
    asked = column("osl_mismatch_diff_pct")
    if (off := int((np.abs(asked) > 1).sum())) > 0:
        notes.append(f"{off} outputs are not as long as was asked for: the real lengths are used")
    cost, fitted = of_requests(run)
    notes += fitted
    return [Measured(label=label, run=run, states=states_of(run), notes=notes, cost=cost)]


@result(
    "AIPerf summary",
    "json",
    "keys request_latency.avg, time_to_first_token.avg",
    lambda d: isinstance(d.get("request_latency"), dict) and "avg" in d["request_latency"],
    "unit",
)
def aiperf_json(rows, bad: Bads) -> list[Measured]:
    """Statistics by metric."""
    return [_summary({name: v for name, v in d.items() if isinstance(v, dict)}) for _, d in rows]


@result(
    "AIPerf summary CSV",
    "csv",
    "header Metric,avg,min,max",
    lambda columns: tuple(columns[:4]) == ("Metric", "avg", "min", "max"),
)
def aiperf_csv(text: str, bad: Bads) -> list[Measured]:
    """Tables one above the other, cells empty where there is nothing."""
    found, header = {}, []
    for at, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not row:
            continue
        if row[0] in ("Metric", "Endpoint"):
            header = row[1:]
            continue
        if len(row) - 1 > len(header):
            bad.add(at, f"{len(row)} cells where the header has {len(header) + 1}")
            continue
        name = re.sub(r" \([^()]*\)$", "", row[0]).lower().replace(" ", "_")
        keys = ["avg" if h == "Value" else h for h in header]
        wrong = [cell for cell in row[1:] if cell and math.isnan(as_number(cell))]
        if name in OURS and wrong:
            bad.add(at, f"{row[0]} is {wrong[0][:40]!r}, not a number")
            continue
        found[name] = dict(zip(keys, row[1:], strict=False))
    return [_summary(found)]


def _summary(d: dict[str, dict]) -> Measured:
    def value(name, key="avg"):
        return as_number((d.get(name) or {}).get(key))

    figures = {
        f"{ours}_{key}": value(theirs, stat)
        for theirs, ours in OURS.items()
        for stat, key in STATISTICS.items()
    }
    seconds = value("benchmark_duration")
    figures |= {
        "tok_s": value("total_output_tokens") / seconds,
        "req_s": value("request_count") / seconds,
        "goodput": value("good_request_count") / seconds,
        "total_s": seconds,
    }
    over = "over a longer time than its own benchmark_duration"
    own, agree = own_figures(
        figures,
        [
            (name, value(name), ours, over)
            for name, ours in (
                ("output_token_throughput", "tok_s"),
                ("request_throughput", "req_s"),
                ("goodput", "goodput"),
            )
        ],
    )
    failed = value("error_request_count")
    states = {
        "completed": int(np.nan_to_num(value("request_count"))),
        "failed": int(np.nan_to_num(failed)),
    }
    return Measured(
        label="AIPerf summary",
        states=states,
        notes=["a summary alone", *NAMES],
        own=own,
        agree=agree,
        figures={k: v for k, v in figures.items() if math.isfinite(v)},
    )
