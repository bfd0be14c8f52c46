"""Does it predict? Published measurements beside what the simulator says of them.

A record is simulated as it was run: arrivals, client cap, lengths, limits, and the policy of the
engine's version, on the preset of its device and model. Nothing is set per record. FITTED are four
knobs of the preset, fitted to the TPOT of FITTED_ON; the front end follows from TTFT where the load
is low. Each of these records is scored by a fit without it, of all five. MBU is set, not fitted:
what it takes, the overhead of a step gives back.
"""

import calendar
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from .hardware import DEVICES, LLMS, Llm, quantized
from .load import NEAR, at_once, throughput
from .parameter import ScenarioError
from .presets import ENGINES, GPUS, pool_blocks, preset
from .roofline import PRESETS, Knobs, coefficients
from .run import Run, serve
from .state import Limits
from .workload import Workload

FITTED = {  # to TPOT, each with its bounds; front_ms follows from TTFT
    "overhead_ms": (1e-4, math.inf),
    "mfu": (1e-4, 1.0),
    "overlap": (0.0, 1.0),
    "mixed_ms": (0.0, math.inf),
}
# None of the figures to be predicted.
START = Knobs(overhead_ms=1.5, mfu=0.6, overlap=0.5, mixed_ms=0.5, host_ms=0.0, front_ms=0.0)
FITTED_ON = (
    "kubecon25-base-stage0",
    "kubecon25-base-stage3",
    "kubecon25-base-stage5",
    "kubecon25-batch_size-stage3",
    "kubecon25-chunking_and_prefix_caching-stage3",
    "blis-llama-2-7b-tp1-codegen-stage0",
)
SATURATED = 1.1  # offered over capacity: from here on the clients' cap decides who waits
PUBLISHED = Path(__file__).with_name("published.json")  # figures only, each with its source
DISTINCT = 100  # prompts of a shared-prefix run that does not say how many it cycles through

# The first that a text matches. "H100" alone names two devices whose TPOT differs by 48 %.
DEVICE_NAMES = (
    ("h100-pcie", r"h100.*pcie is likely|h100[ -]*(80gb )?pcie|h100 nvl"),
    ("h100-sxm", r"h100.*sxm|nvidia-h100-80gb|hgx h100|dgx h100"),
    ("h200", r"h200"),
    ("b200", r"b200"),
    ("a100-40", r"a100.*40 ?gb"),
    ("a100-80", r"a100"),
    ("l40s", r"l40s"),
    ("l4", r"\bl4\b"),
    ("rtx4090", r"4090"),
    ("mi300x", r"mi300x"),
    ("h100-sxm", r"h100"),
)
LLM_NAMES = (
    ("llama-3.1-8b", r"llama-3(\.1)?-8b|llama-3(\.1)?.*\b8b"),
    ("llama-3.1-70b", r"llama-3(\.[13])?.*\b70b"),
    ("qwen3-8b", r"qwen3-8b"),
    ("qwen2.5-7b", r"qwen2(\.5)?-7b"),
    ("llama-2-7b", r"llama-?2-7b"),
    ("llama-2-70b", r"llama-?2-70b"),
    ("codellama-34b", r"codellama-34b"),
    ("mistral-7b", r"mistral-7b"),
)
GPU_OF = {"h100-sxm": "h100", "h100-pcie": "h100"}  # in sim.presets; others have the same name
SINCE = (((0, 27), "0.33.0"), ((0, 9), "0.17.1"), ((0, 8), "0.8.5"), ((0, 0), "0.6.6"))
YEARS = ((2026.6, "0.33.0"), (2025.5, "0.17.1"), (2025.1, "0.8.5"), (0.0, "0.6.6"))
MONTHS = [name.lower() for name in calendar.month_abbr[1:]]


def _named(text: str, names) -> str | None:
    return next((name for name, form in names if re.search(form, text.lower())), None)


def version_of(engine: str) -> str | None:
    """The version in ENGINES that schedules as `vLLM 0.11.0` or `vLLM … (Feb 2026 …)` does."""
    if "vllm" not in engine.lower():
        return None
    if found := re.search(r"(\d+)\.(\d+)", engine):
        number = int(found[1]), int(found[2])
        return next(version for since, version in SINCE if number >= since)
    if found := re.search(r"([A-Za-z]{3})[a-z]* (20\d\d)", engine):
        month = MONTHS.index(found[1].lower()) if found[1].lower() in MONTHS else 0
        year = int(found[2]) + month / 12
        return next(version for since, version in YEARS if year >= since)
    return "0.17.1"


@dataclass(frozen=True)
class Record:
    """A published measurement, as a workload on a server."""

    id: str
    source: str
    device: str  # in DEVICES
    llm: Llm
    version: str  # in ENGINES
    tp: int
    limits: Limits
    workload: Workload
    rate: float  # requests a second that were asked for; inf: as fast as the clients may
    measured: dict[str, float]  # ttft, tpot (ms, means), throughput (req/s)
    doubts: tuple[str, ...]  # why it is counted apart, if it is
    version_stated: bool

    @property
    def policy(self) -> str:
        return ENGINES[self.version].policies["fcfs"]

    def run(self, knobs: Knobs, workload: Workload | None = None) -> Run:
        cost = coefficients(self.llm, DEVICES[self.device], replace(knobs, tp=self.tp))
        return serve(
            workload or self.workload,
            self.policy,
            self.limits,
            cost,
            cost="roofline",
            front_ms=knobs.front_ms,
        )

    def predict(self, knobs: Knobs) -> dict[str, float]:
        run = self.run(knobs)
        r = run.served
        several = r[r["output"] > 1]
        return {
            "ttft": float((r["first"] - r["arrival"]).mean()),
            "tpot": float(((several["last"] - several["first"]) / (several["output"] - 1)).mean()),
            "throughput": len(r) / run.total * 1e3,
        }

    def rho(self, knobs: Knobs) -> float:
        """Offered over capacity; inf where only the clients hold back."""
        everybody = at_once(self.workload, 16 * self.limits.max_num_seqs)
        return self.rate / throughput(self.run(knobs, everybody))


def _mean(block: dict, *names: str) -> float:
    for name in names:
        value = block.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return math.nan


def _shared(kind: str, w: dict, requests: int, prompt: np.ndarray):
    """Which requests begin alike, and for how many tokens."""
    if "shared_prefix" in kind:  # the tool cycles through its prompts: a later one is known whole
        distinct = int(_mean(w, "groups") * _mean(w, "prompts_per_group")) if "groups" in w else 0
        return np.arange(requests) % (distinct or DISTINCT), prompt
    tokens = re.search(r"\d+", str(w.get("shared_prefix", "")))
    if tokens:
        return np.zeros(requests, np.int64), np.minimum(prompt, int(tokens[0]))
    return None


def _arrivals(w: dict, requests: int, rate: float) -> np.ndarray:
    if not math.isfinite(rate):
        return np.zeros(requests)
    if "oisson" in str(w.get("arrivals", "")):
        gaps = np.random.default_rng(0).exponential(1e3 / rate, requests)
        return gaps.cumsum() - gaps[0]
    return np.arange(requests) * 1e3 / rate


def record(r: dict) -> Record:
    """One of the file's objects. ScenarioError if it can't be simulated, with the reason."""
    name = str(r.get("id", "?"))
    try:
        return _record(name, r)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"record {name[:60]!r} lacks or misstates a field: {error!r}") from None


def _record(name: str, r: dict) -> Record:
    w, asked, measured = r["workload"], r["limits"], r["measured"]
    flags = asked if isinstance(asked, dict) else {}
    device, key = _named(r["gpu"], DEVICE_NAMES), _named(r["model"], LLM_NAMES)
    version = version_of(r["engine"])
    for value, what, known in (
        (device, f"gpu {r['gpu'][:50]!r}", DEVICES),
        (key, f"model {r['model'][:50]!r}", LLMS),
        (version, f"engine {r['engine'][:50]!r}", [f"vLLM {v}" for v in ENGINES]),
    ):
        if value is None:
            raise ScenarioError(
                f"record {name!r}: {what} is unknown here: known are {', '.join(known)}"
            )
    assert device
    assert key
    assert version
    llm, gpu = quantized(LLMS[key], str(r.get("dtype", ""))), GPU_OF.get(device, device)
    engine = preset(f"vllm-{version}-{gpu}-api")
    assert engine
    cards = re.match(r"(\d+)x", r["gpu"])
    tp = int(cards[1]) if cards else 1
    requests = int(w["requests"])
    rate = (r.get("rate_rps") or {}).get("requested")
    rate = float(rate) if rate not in (None, "inf") else math.inf
    low, high = (w.get("input_len_actual") or [0, 0])[:2]
    mean = _mean(w, "prompt_len_measured_mean", "input_len_mean", "input_len", "input_len_nominal")
    if high > low > 0:
        prompt = np.random.default_rng(1).integers(low, high, requests, endpoint=True)
    else:
        prompt = np.full(requests, round(mean))
    output = np.full(requests, round(_mean(w, "output_len", "output_len_mean")))
    cap = _mean(r.get("concurrency") or {}, "client_cap", "max_concurrency", "concurrency")
    workload = Workload(
        _arrivals(w, requests, rate),
        prompt,
        output,
        output,
        int(cap) if math.isfinite(cap) else 0,
        prefix=_shared(str(w.get("kind", "")), w, requests, prompt),
    )
    longest = int(_mean(flags | {"usual": 8_192}, "max_model_len", "usual"))
    chunked = flags.get("chunked_prefill") is not False
    given = Limits()._replace(max_model_len=longest, enable_chunked_prefill=int(chunked))
    limits = given._replace(**engine.limits(given, {}))
    for flag in ("max_num_batched_tokens", "max_num_seqs"):
        if isinstance(flags.get(flag), int):
            limits = limits._replace(**{flag: flags[flag]})
    blocks = pool_blocks(
        GPUS[gpu].memory_gib * tp,
        llm.weights / 2**30,
        float(flags.get("gpu_memory_utilization", 0.9)),
        llm.kv_per_token / 1024,
        16,
    )
    caching = flags.get("prefix_caching", bool(limits.enable_prefix_caching)) is not False
    limits = limits._replace(
        num_gpu_blocks=blocks,
        enable_chunked_prefill=int(chunked),
        enable_prefix_caching=int(caching),
    )
    tpot = measured["tpot_ms"]
    doubts = []
    if "not stated" in r["gpu"]:
        doubts.append(f"device not stated, {DEVICES[device].label} assumed")
    if not flags:
        doubts.append("server flags not published, the version's defaults assumed")
    return Record(
        name,
        str(r.get("source", "")),
        device,
        llm,
        version,
        tp,
        limits,
        workload,
        rate,
        {
            "ttft": _mean(measured["ttft_ms"], "mean"),
            "tpot": _mean(tpot, "mean_recomputed", "mean"),
            "throughput": _mean(measured, "req_per_s"),
        },
        tuple(doubts),
        bool(re.search(r"\d+\.\d+", r["engine"])),
    )


def read(text: str) -> tuple[list[Record], list[str]]:
    """The records of a file, and a sentence on each that can't be simulated."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"the file is no JSON ({error}): give a list of measurements") from None
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows) or not rows:
        raise ScenarioError(
            "the file holds no list of measurements: give objects with id, gpu, model"
        )
    records, problems = [], []
    for r in rows:
        try:
            records.append(record(r))
        except ScenarioError as error:
            problems.append(str(error))
    return records, problems


def fit(records: Sequence[Record], start: Knobs = START, rounds: int = 20) -> Knobs:
    """FITTED by least squares of log TPOT (Gauss-Newton, damped); then front_ms, the median of what
    TTFT lacks at a load below NEAR, where the engine's version, whose front end it is, is known."""
    knobs, damping = start, 1e-3
    off = _off(records, knobs)
    for _ in range(rounds):
        values = np.array([getattr(knobs, name) for name in FITTED])
        steps = 0.02 * np.maximum(np.abs(values), 0.02)
        slopes = np.stack(
            [
                (_off(records, _moved(knobs, name, step)) - off) / step
                for name, step in zip(FITTED, steps, strict=True)
            ],
            axis=1,
        )
        scale = np.abs(values) + 0.05
        scaled = slopes * scale
        better = None
        for _ in range(5):
            system = scaled.T @ scaled + damping * np.eye(len(values))
            moved = values - scale * np.linalg.solve(system, scaled.T @ off)
            trial = replace(knobs, **dict(zip(FITTED, _bounded(moved), strict=True)))
            now = _off(records, trial)
            if now @ now < off @ off:
                better = trial, now
                damping /= 3
                break
            damping *= 5
        if better is None:
            break
        done = off @ off - better[1] @ better[1] < 1e-7
        knobs, off = better
        if done:
            break
    calm = [r for r in records if r.rho(knobs) <= NEAR and r.version_stated]
    front = [r.measured["ttft"] - r.predict(knobs)["ttft"] for r in calm]
    return replace(knobs, front_ms=max(0.0, float(np.median(front))) if front else 0.0)


def _off(records: Sequence[Record], knobs: Knobs) -> np.ndarray:
    return np.array([math.log(r.predict(knobs)["tpot"] / r.measured["tpot"]) for r in records])


def _moved(knobs: Knobs, name: str, by: float) -> Knobs:
    return replace(knobs, **{name: getattr(knobs, name) + by})


def _bounded(values: np.ndarray) -> list[float]:
    return [
        float(min(max(v, low), high))
        for v, (low, high) in zip(values, FITTED.values(), strict=True)
    ]


@dataclass(frozen=True)
class Scored:
    """A record beside its prediction; errors are predicted / measured - 1."""

    record: Record
    knobs: Knobs
    fitted_on: str
    predicted: dict[str, float]
    rho: float

    def error(self, name: str) -> float:
        return self.predicted[name] / self.record.measured[name] - 1

    @cached_property
    def saturated(self) -> bool:
        return self.rho > SATURATED

    def counts(self, name: str) -> bool:
        """Whether the figure is scored: throughput only where the server decides it, TTFT not near
        saturation."""
        if self.record.doubts or not math.isfinite(self.record.measured[name]):
            return False
        if name == "throughput":
            return self.saturated
        return name == "tpot" or self.rho <= NEAR or self.saturated


def score(records: Sequence[Record]) -> list[Scored]:
    """Each record of FITTED_ON by a fit without it, where the others are there; else the preset."""
    known = {r.id: r for r in records if r.id in FITTED_ON}
    whole = len(known) == len(FITTED_ON)
    rows = []
    for r in records:
        knobs, on = PRESETS.get(r.device, PRESETS["h100-sxm"]), "preset"
        if whole and r.id in known:
            knobs, on = fit([known[i] for i in FITTED_ON if i != r.id]), "the five others"
        rows.append(Scored(r, knobs, on, r.predict(knobs), r.rho(knobs)))
    return rows


UNITS = {"ttft": ("TTFT", "ms"), "tpot": ("TPOT", "ms"), "throughput": ("Throughput", "req/s")}


def group(row: Scored) -> str:
    """Records of an unnamed device or of unknown flags count apart."""
    return DEVICES[row.record.device].label + (", apart" if row.record.doubts else "")


def table(rows: Sequence[Scored]) -> pd.DataFrame:
    """One row a record and figure: measured, predicted, error (%), and whether it is scored."""
    return pd.DataFrame(
        [
            {
                "record": row.record.id,
                "load": row.rho,
                "figure": label,
                "unit": unit,
                "measured": row.record.measured[name],
                "predicted": row.predicted[name],
                "error": 100 * row.error(name),
                "scored": row.counts(name),
                "why not": "; ".join(row.record.doubts) or why_unscored(row, name),
                "group": group(row),
                "fitted on": row.fitted_on,
                "source": row.record.source,
            }
            for row in rows
            for name, (label, unit) in UNITS.items()
        ]
    )


def why_unscored(row: Scored, name: str) -> str:
    if row.counts(name):
        return ""
    if name == "throughput":
        return "below saturation it only echoes the offered rate"
    return f"at a load of {row.rho:.2f} a small error in the step time is a large one here"


def medians(rows: Sequence[Scored]) -> pd.DataFrame:
    """Median |error| in % and number of records, by group and figure, of what is scored; of a
    group that counts apart, of all that it has."""
    shown = table(rows)
    full = (shown["figure"] == "TTFT") & (shown["load"] > SATURATED)
    shown["figure"] = shown["figure"].mask(full, "TTFT, saturated")
    shown = pd.DataFrame(shown[shown["scored"] | shown["group"].str.endswith(", apart")])
    errors = shown.assign(error=shown["error"].abs()).groupby(["group", "figure"])["error"]
    return errors.agg(["median", "count"]).reset_index()


def as_text(rows: Sequence[Scored], problems: Sequence[str]) -> str:
    """The table as a terminal shows it."""
    width = max([len(row.record.id) for row in rows] + [6])
    lines = [f"{'record':<{width}}  {'load':>5}" + "".join(f"  {u[0]:>27}" for u in UNITS.values())]
    lines += [f"{'':<{width}}  {'':>5}" + f"  {'measured  predicted    error':>27}" * len(UNITS)]
    for row in rows:
        cells = ""
        for n in UNITS:
            cells += f"  {row.record.measured[n]:>8,.2f} {row.predicted[n]:>9,.2f}"
            cells += f" {100 * row.error(n):>+6.1f}%" + ("*" if row.counts(n) else " ")
        lines.append(f"{row.record.id:<{width}}  {row.rho:>5.2f}{cells}")
        lines += [f"  {doubt}" for doubt in row.record.doubts]
    lines += ["* scored", "", "Median |error|, %"]
    for r in medians(rows).to_dict("records"):
        said = f"{r['group']:<24}{r['figure']:<17}{r['median']:>7.1f}"
        lines.append(f"  {said}  ({r['count']} records)")
    return "\n".join([*lines, "", front_ends(rows), whats_fitted(), *problems])


def whats_fitted() -> str:
    """What was fitted on what, and what was not."""
    knobs = PRESETS["h100-sxm"]
    fitted = ", ".join(f"{name} {getattr(knobs, name):.4g}" for name in FITTED)
    return (
        f"The preset of the H100 SXM: {fitted}, fitted to the TPOT of {', '.join(FITTED_ON)};"
        f" front_ms {knobs.front_ms:.4g}, to their TTFT at a load of at most {NEAR:g}, where the"
        " engine's version is stated. Each of these is scored by a fit without it. Set, not fitted:"
        f" mbu {knobs.mbu:g}. Other devices take these knobs over."
    )


def front_ends(rows: Sequence[Scored]) -> str:
    """What TTFT took beyond its steps where it is scored at low load; empty where it is nowhere."""
    took = {
        row.record.id: row.record.measured["ttft"] - row.predicted["ttft"] + row.knobs.front_ms
        for row in rows
        if row.counts("ttft") and row.rho <= NEAR
    }
    if not took:
        return ""
    said = ", ".join(f"{ms:.1f} ms on {name}" for name, ms in took.items())
    return (
        f"At low load TTFT took beyond its steps {said}. A front end differs by deployment, client"
        " and version, and a preset has one: that is most of what TTFT is off by."
    )
