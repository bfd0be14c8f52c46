"""A scrape of an engine's /metrics: counters and histograms since the server started."""

import math
import re

from . import Measured, as_number, result

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
OURS = {
    "time_to_first_token_seconds": "ttft",
    "time_per_output_token_seconds": "itl",  # V0's, and exported beside the new ones for a while
    "inter_token_latency_seconds": "itl",
    "request_time_per_output_token_seconds": "tpot",
    "e2e_request_latency_seconds": "e2e",
    "request_queue_time_seconds": "queue",
}
GAUGES = {
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "gpu_cache_usage_perc": "KV pool",
    "kv_cache_usage_perc": "KV pool",
}


@result(
    "Prometheus text",
    "text",
    "lines of # TYPE, with vllm: or sglang: metrics",
    lambda text: bool(re.search(r"^(vllm|sglang):\w+", text, re.MULTILINE)),
)
def prometheus(text: str, bad) -> list[Measured]:
    """Means are sums / counts; percentiles are interpolated within buckets, in order of models."""
    samples: dict[str, list[tuple[dict, float]]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        value = math.nan if match is None else as_number(match[3])
        if match is None or (math.isnan(value) and match[3].lower() != "nan"):
            bad.add(number, f"{line[:60]!r} is no sample")
            continue
        name = match[1].partition(":")[2] or match[1]
        samples.setdefault(name, []).append((dict(LABEL.findall(match[2] or "")), value))
        bad.total += 1
    models = {
        d["model_name"]
        for name, rows in samples.items()
        if name.endswith("_count")
        for d, _ in rows
        if "model_name" in d
    }
    return [_model(samples, model, len(models) > 1) for model in sorted(models) or [""]]


def _model(samples: dict, model: str, several: bool) -> Measured:
    def of(name):
        return [(d, v) for d, v in samples.get(name, ()) if d.get("model_name", model) == model]

    def total(name):
        return sum(v for _, v in of(name)) if of(name) else math.nan

    figures, notes = {}, ["counted since the server started: difference two scrapes for a window"]
    for name, ours in OURS.items():
        count = total(f"{name}_count")
        if not count > 0:
            continue
        figures[f"{ours}_mean"] = total(f"{name}_sum") / count * 1e3
        buckets = sorted((float(d["le"]), v) for d, v in of(f"{name}_bucket") if "le" in d)
        for key, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            figures[f"{ours}_{key}"] = interpolated(buckets, q) * 1e3
    own = []
    if of("time_per_output_token_seconds_count"):
        gaps, done = (
            total("time_per_output_token_seconds_count"),
            total("time_to_first_token_seconds_count"),
        )
        notes.append(
            f"time_per_output_token_seconds has a sample a gap ({gaps:,.0f} for {done:,.0f}"
            " requests): it is ITL, not TPOT"
        )
    notes += _gauges(samples, model)
    info = next((d for d, _ in samples.get("cache_config_info", ())), {})
    names = ("num_gpu_blocks", "block_size")
    limits: dict[str, float] = {n: int(info[n]) for n in names if str(info.get(n, "")).isdigit()}
    if "enable_prefix_caching" in info:
        limits["enable_prefix_caching"] = int(info["enable_prefix_caching"] == "True")
    done = total("request_success_total")
    states = {"completed": int(done)} if math.isfinite(done) else {}
    label = f"Prometheus, {model}" if model else "Prometheus"
    return Measured(
        label=label,
        figures=figures,
        notes=notes,
        limits=limits,
        states=states,
        own=own,
        policy="vllm_v1",
    )


def _gauges(samples: dict, model: str) -> list[str]:
    parts, others = [], set()
    for name, word in GAUGES.items():
        for d, value in samples.get(name, ()):
            if d.get("model_name", model) != model:
                others.add(d["model_name"])
            elif name.endswith("perc"):
                parts.append(f"{word} {100 * value:.2g} % full (the gauge is a share)")
            else:
                parts.append(f"{value:,.0f} {word}")
    notes = [f"at the scrape: {', '.join(parts)}"] if parts else []
    if others:
        notes.append(f"gauges of {', '.join(sorted(others))} stand there too and are not added")
    return notes


def interpolated(buckets: list[tuple[float, float]], q: float) -> float:
    """The quantile within cumulative (upper end, count) buckets, as Prometheus has it."""
    if not buckets or not buckets[-1][1] > 0:
        return math.nan
    rank, low, before = q * buckets[-1][1], 0.0, 0.0
    for high, count in buckets:
        if count >= rank and count > before:
            if math.isinf(high):
                return low
            return low + (high - low) * (rank - before) / (count - before)
        low, before = high, count
    return low
