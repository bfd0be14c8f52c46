"""What engines say of themselves every few seconds: log lines of vLLM and SGLang, step logs as CSV.

No requests; steps to calibrate a cost by, and how full the pool was.
"""

import csv
import io
import re
from datetime import datetime

import numpy as np

from . import Bads, Measured, as_number, result
from .fit import of_samples

VLLM = re.compile(
    r"(?P<at>\d\d-\d\d \d\d:\d\d:\d\d) .{0,40}?(?:Engine (?P<engine>\d+): )?"
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<output>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, (?:Swapped: \d+ reqs, )?"
    r"(?:Waiting|Pending): (?P<waiting>\d+) reqs, GPU KV cache usage: (?P<kv>[\d.]+)%"
)
SGLANG = re.compile(
    r"\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] Decode batch[^#]*"
    r"#running-req: (?P<running>\d+)(?:.*?#token: (?P<context>\d+))?.*?token usage: (?P<kv>[\d.]+)"
    r".*?gen throughput \(token/s\): (?P<output>[\d.]+)"
    r"(?:.*?#queue-req: (?P<waiting>\d+))?"
)
CSVS = {  # ours -> the names that step logs have for it
    "t": ("timestamp", "t"),
    "prompt": ("prompt_throughput",),
    "output": ("generation_throughput", "gen_throughput"),
    "running": ("num_running", "running"),
    "waiting": ("num_pending", "waiting"),
    "kv": ("gpu_kvcache_usage", "kv_cache_pct"),
}


@result(
    "vLLM log",
    "text",
    "lines of Avg prompt throughput … Running: … reqs",
    lambda text: bool(VLLM.search(text)),
)
def vllm_log(text: str, bad: Bads) -> list[Measured]:
    """No year and no zone; two records may stand on one line; prefixes are passed over."""
    rows = [m.groupdict() for m in VLLM.finditer(text)]
    bad.total = len(rows)
    engines: dict[tuple, list] = {}
    at = [_seconds(f"2000-{row['at']}") for row in rows]
    part = 0
    for k, row in enumerate(rows):
        if k and not 0 <= at[k] - at[k - 1] <= 600:  # another excerpt, or another day
            part += 1
        engines.setdefault((part, row["engine"]), []).append((at[k], row))
    preempted = len(re.findall(r"is preempted by", text))
    said = [f"preemptions that the whole file logs: {preempted}"] if preempted else []
    return [
        _series(
            f"vLLM log, {given[0][1]['at']}", [t for t, _ in given], [r for _, r in given], said
        )
        for given in engines.values()
    ]


@result(
    "SGLang log",
    "text",
    "lines of Decode batch … #running-req",
    lambda text: bool(SGLANG.search(text)),
)
def sglang_log(text: str, bad: Bads) -> list[Measured]:
    """Token usage is a share, not per cent."""
    rows = [m.groupdict() for m in SGLANG.finditer(text)]
    bad.total = len(rows)
    for row in rows:
        row["kv"], row["prompt"] = str(100 * float(row["kv"])), "0"
    return [_series("SGLang log", [_seconds(row["at"]) for row in rows], rows, [])]


@result(
    "Step log",
    "csv",
    "columns prompt_throughput, running",
    lambda columns: all(set(names) & set(columns) for names in CSVS.values()),
)
def step_log(text: str, bad: Bads) -> list[Measured]:
    """Samples of throughput and queue; the time is any monotonic clock's."""
    lines = list(csv.reader(io.StringIO(text)))
    header = [name.strip() for name in lines[0]]
    place = {
        ours: next(header.index(n) for n in names if n in header) for ours, names in CSVS.items()
    }
    rows, times = [], []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        bad.total += 1
        values = {n: as_number(line[k]) if k < len(line) else np.nan for n, k in place.items()}
        wrong = next((n for n, v in values.items() if not np.isfinite(v)), None)
        if wrong:
            bad.add(number, f"{header[place[wrong]]} is no number")
            continue
        times.append(values["t"])
        rows.append(values)
    return [_series("Step log", times, rows, [])] if rows else []


def _seconds(text: str) -> float:
    return (datetime.fromisoformat(text) - datetime(2000, 1, 1)).total_seconds()


def _series(label: str, times: list[float], rows: list[dict], notes: list[str]) -> Measured:
    series = {
        name: np.array([as_number(row.get(name) or 0) for row in rows])
        for name in ("prompt", "output", "running", "waiting", "kv")
    }
    if rows[0].get("context"):
        series["context"] = np.array([as_number(row.get("context") or 0) for row in rows])
    series["t"] = np.array(times) - times[0]
    span = float(series["t"][-1])
    pool = f"{_range(series['kv'])} % full" if series["kv"].any() else "said to be empty throughout"
    notes = [
        f"{len(rows)} samples over {span:,.0f} s; no requests: nothing to simulate",
        f"running {_range(series['running'])}, waiting {_range(series['waiting'])}, KV pool {pool}",
        *notes,
    ]
    notes += _pool(series)
    cost, said = of_samples(series)
    return Measured(
        label=label,
        series=series,
        notes=notes + said,
        cost=cost,
        figures={"tok_s": float(np.average(series["output"]))},
    )


def _range(values: np.ndarray) -> str:
    """'8', or '0 to 32'."""
    low, high = float(values.min()), float(values.max())
    return f"{low:,.10g}" if low == high else f"{low:,.10g} to {high:,.10g}"


def _pool(s: dict[str, np.ndarray]) -> list[str]:
    """How large the KV pool is, where it fills by nothing but output tokens."""
    if len(s["t"]) < 2:
        return []
    grown, took = s["kv"][-1] - s["kv"][0], s["t"][-1] - s["t"][0]
    steady = np.ptp(s["running"]) == 0 and not s["prompt"].any() and not s["waiting"].any()
    if not steady or grown <= 0.2:
        return []
    rate = float(s["output"][:-1].mean())
    pool = took * rate / grown * 100
    left = (100 - s["kv"][-1]) / 100 * pool / rate
    return [
        f"KV pool about {pool:,.0f} tokens ({took * rate:,.0f} tokens for {grown:.1f} points); the"
        f" missing {100 - s['kv'][-1]:.1f} % lasts about {left:,.0f} s, then the first preemption"
    ]
