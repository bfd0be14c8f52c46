"""Whatever file somebody brings: a trace, or results; what it is and what it says."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import results, traces
from .files import Source, head
from .metrics import FIGURES
from .parameter import ScenarioError
from .results import Measured
from .scenario import COSTING, LIMITS, Scenario, Slo, Variant
from .state import Limits
from .traces import Reading
from .traffic import Lengths, Traffic
from .workload import Workload

FIRST = 1_000  # requests of a long trace that are taken at first


class Brought(NamedTuple):
    """One of trace and measured is there."""

    filename: str
    name: str  # that a link gives to the content
    trace: Reading | None
    form: results.Format | None
    measured: list[Measured]
    bad: results.Bads | None

    @property
    def label(self) -> str:
        return self.trace.form.label if self.trace else self.form.label if self.form else ""

    @property
    def bad_rows(self) -> int:
        return self.trace.bad_rows if self.trace else self.bad.count if self.bad else 0

    def workloads(self) -> dict[str, tuple[Workload, Measured | None]]:
        """What can be simulated, by the name that a link gives to it."""
        if self.trace is not None:
            return {self.name: (self.trace.workload, None)}
        held = [m for m in self.measured if m.run is not None and _speaks(m)]
        names = [self.name, *(f"{self.name}.{k}" for k in range(2, len(held) + 1))]
        return {name: (m.workload(), m) for name, m in zip(names, held, strict=False)}


def _speaks(m: Measured) -> bool:
    return m.run is not None and bool(np.isfinite(m.run.requests["first"]).any())


def named(source: Source) -> str:
    """The name that a link gives to a file's content."""
    if isinstance(source, bytes):
        return traces.name_of(source)
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def bring(
    source: Source, filename: str = "the file", mapping: Mapping[str, str] | None = None
) -> Brought:
    """Recognise a file by its content and read it. ScenarioError says what is wrong with it."""
    if isinstance(source, bytes):
        traces.check_size(source, filename)
    start = head(source, filename)
    if not mapping and traces.recognise(start) is None:
        found = results.read(source, filename)
        if found is not None:
            form, measured, bad = found
            return Brought(filename, named(source), None, form, measured, bad)
        if near := results.almost(source, filename):
            raise ScenarioError(f"{filename} {near}")
        raise traces.unknown(start, filename)
    reading = traces.reading(source, filename, mapping)
    return Brought(filename, named(source), reading, None, [], None)


def workload(source: Source, filename: str) -> tuple[Workload, str]:
    """The requests of a trace, or of the first run of a result; and what is said of bad rows."""
    found = bring(source, filename)
    ready = found.workloads()
    if not ready:
        raise ScenarioError(f"{filename} has figures and no requests: nothing to simulate")
    said = f"{filename}: {found.bad_rows:,} bad rows left out: inspect lists them"
    return next(iter(ready.values()))[0], said if found.bad_rows else ""


def traffic_of(name: str, workload: Workload) -> Traffic:
    """How a file's requests are first taken: a part of a long one; lengths alone ask for a rate."""
    first = FIRST if len(workload) > FIRST else 0
    if np.isnan(workload.arrival[0]):
        drawn = Lengths("trace")
        return Traffic(arrivals="poisson", prompt=drawn, output=drawn, trace=name)
    kind = "timed" if workload.prompt[0] == 0 else "trace"
    return Traffic(arrivals=kind, trace=name, first=first)


def simulated(name: str, measured: Measured) -> tuple[Scenario, list[str]]:
    """The scenario of a measured run: its arrivals and lengths, limits and cost where known.

    And what was assumed.
    """
    work = measured.workload()
    longest = int((work.prompt + work.limit).max())
    block = int(measured.limits.get("block_size", Limits().block_size))
    assumed: dict[str, float] = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8_192,
        "max_model_len": max(Limits().max_model_len, 1 << longest.bit_length()),
        "num_gpu_blocks": max(Limits().num_gpu_blocks, _peak_blocks(measured, block)),
        "block_size": block,
    }
    known = dict(measured.limits)
    said = []
    if "max_num_seqs" not in known and (seats := _seats(measured)):
        known["max_num_seqs"] = seats
        said.append(f"max_num_seqs {seats}: the most that ran at once, while others waited")
    known = {n: v for n, v in known.items() if n in LIMITS}
    known = {n: LIMITS[n].parse(str(v)) for n, v in known.items()}
    unknown = {n: v for n, v in assumed.items() if n not in known and n != "block_size"}
    values = assumed | known
    values["num_gpu_blocks"] = min(values["num_gpu_blocks"], LIMITS["num_gpu_blocks"].high)
    usual = Limits()._asdict()
    limits = Limits(**{n: type(usual[n])(v) for n, v in values.items()})
    cost = Scenario().cost
    if unknown:
        said.append(f"assumed, since the file does not say: {_listed(unknown)}")
    if measured.cost:
        cost = tuple(measured.cost[n] for n in COSTING)
        said.append("the cost of a step is fitted to this very run: what is tested is scheduling")
    else:
        said.append("the cost of a step is the opening scenario's: fit or set it before comparing")
    scenario = Scenario(
        traffic=Traffic(arrivals="trace", trace=name),
        variants=(Variant(measured.policy or "vllm_v1"),),
        baseline=0,
        limits=limits,
        cost=cost,
    )
    return scenario, said


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.10g}" for name, value in values.items())


def _seats(measured: Measured) -> int:
    """The most that ever ran at once, if somebody waited then; 0 where nobody did, or who knows."""
    assert measured.run is not None
    r = measured.run.served
    r = r[np.isfinite(r["start"]) & np.isfinite(r["last"])]
    if not len(r):
        return 0
    at = np.concatenate([r["start"], r["last"]]).round(3)  # us
    change = np.repeat([1, -1], len(r))
    order = np.lexsort((change, at))  # who leaves goes first
    running = change[order].cumsum()
    full = at[order][running == running.max()]
    waited = np.searchsorted(np.sort(r["arrival"]), full) - np.searchsorted(
        np.sort(r["start"]), full, side="right"
    )
    return int(running.max()) if np.median(waited) >= 1 else 0


def _peak_blocks(measured: Measured, block: int) -> int:
    """Twice the KV blocks of the requests that were in flight together."""
    assert measured.run is not None
    r = measured.run.requests
    r = r[np.isfinite(r["first"])]
    held = -(-(r["prompt"] + r["output"]) // block)
    at = np.concatenate([r["arrival"], r["last"]])
    change = np.concatenate([held, -held])[np.argsort(at, kind="stable")]
    return int(2 * change.cumsum().max(initial=0)) + 1


def report(brought: Brought, slo: Slo) -> dict[str, Any]:
    """All that is to be said of a file; None where a figure is not defined."""
    if brought.trace is not None:
        return _of_trace(brought.filename, brought.name, brought.trace)
    form, bad = brought.form, brought.bad
    assert form is not None
    assert bad is not None
    return {
        "file": brought.filename,
        "name": brought.name,
        "kind": "results",
        "format": form.label,
        "recognised_by": form.how,
        "about": form.about,
        "rows": bad.total,
        "bad_rows": bad.count,
        "bad": [{"row": row, "reason": reason} for row, reason in bad.rows],
        "runs": [_of_run(m, slo) for m in brought.measured],
    }


def _of_trace(filename: str, name: str, t: Reading) -> dict[str, Any]:
    w = t.workload
    timed = not math.isnan(w.arrival[-1])
    span = float(w.arrival[-1]) / 1e3 if timed else None
    lengths = {"prompt": w.prompt, "output": w.output} if w.prompt[0] else {}
    return {
        "file": filename,
        "name": name,
        "kind": "trace",
        "format": t.form.label,
        "recognised_by": t.recognised,
        "about": t.form.about,
        "rows": t.rows,
        "bad_rows": t.bad_rows,
        "bad": [{"row": b.line, "reason": b.reason} for b in t.bad],
        "left_out": t.left_out,
        "requests": len(w),
        "span_s": span,
        "unit": "dates" if t.form.unit == "date" else t.form.unit,
        "first": _first(t),
        "req_s": (len(w) - 1) / span if span else None,
        "lengths": {
            key: {"mean": float(c.mean()), "p50": float(np.median(c)), "max": int(c.max())}
            for key, c in lengths.items()
        },
        "notes": t.notes,
    }


def _first(t: Reading) -> str:
    """When the first request arrives, as the file has it; '' where that is 0 or nothing."""
    if t.form.unit == "date":
        return str(np.datetime64(int(t.first), "ns").astype("M8[ms]")).replace("T", " ")
    return f"{t.first:,.15g} {t.form.unit}" if t.first and math.isfinite(t.first) else ""


def _of_run(m: Measured, slo: Slo) -> dict[str, Any]:
    figures = m.all_figures(slo)
    return {
        "label": m.label,
        "requests": None if m.run is None else len(m.run.requests),
        "span_s": None if m.run is None or math.isnan(m.run.total) else m.run.total / 1e3,
        "states": m.states,
        "figures": {
            n: None if math.isnan(figures[n]) else figures[n] for n in FIGURES if n in figures
        },
        "own": [
            {
                "name": o.name,
                "theirs": o.theirs,
                "unit": o.unit,
                "meaning": o.meaning,
                "ours": None if math.isnan(o.ours) else o.ours,
                "said": str(o),
            }
            for o in m.own
        ],
        "agree": m.agree,
        "limits": m.limits,
        "cost": m.cost,
        "notes": m.notes,
    }


def as_text(r: dict[str, Any]) -> str:
    """The report as a terminal shows it."""
    lines = [f"{r['file']}: {r['format']}, by {r['recognised_by']}"]
    lines += [r["about"]] if r["about"] else []
    rows = f"{r['rows']:,} row{_s(r['rows'])}, {r['bad_rows']:,} bad"
    rows += "".join(f", {n:,} left out ({why})" for why, n in r.get("left_out", {}).items())
    lines.append(rows)
    lines += [f"  row {b['row']}: {b['reason']}" for b in r["bad"]]
    if r["bad_rows"] > len(r["bad"]):
        lines.append(f"  and {r['bad_rows'] - len(r['bad']):,} more")
    if r["kind"] == "trace":
        lines.append(traffic_line(r))
        lines += [
            f"{key} tokens: mean {c['mean']:,.0f}, median {c['p50']:,.0f}, longest {c['max']:,}"
            for key, c in r["lengths"].items()
        ]
        return "\n".join(lines + [f"- {note}" for note in r["notes"]])
    for run in r["runs"]:
        lines += ["", *_run_lines(run)]
    return "\n".join(lines)


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def traffic_line(r: dict[str, Any]) -> str:
    if r["span_s"] is None:
        return f"{r['requests']:,} requests without arrivals"
    count = f"{r['requests']:,} request{_s(r['requests'])}"
    days = f" ({r['span_s'] / 86_400:.1f} days)" if r["span_s"] > 2 * 86_400 else ""
    rate = f", {r['req_s']:,.2f} req/s" if r["req_s"] else ""
    unit = "dates" if r["unit"] == "dates" else f"times in {r['unit']}"
    first = f", the first at {r['first']}" if r["first"] else ""
    return f"{count} over {r['span_s']:,.1f} s{days}{rate}; the file has {unit}{first}"


def states_line(run: dict[str, Any]) -> str:
    parts = [f"{n:,} {state}" for state, n in run["states"].items() if n or state == "completed"]
    span = f" over {run['span_s']:,.2f} s" if run["span_s"] else ""
    return (", ".join(parts) or "no requests") + span


def _run_lines(run: dict[str, Any]) -> list[str]:
    lines = [f"{run['label']}: {states_line(run)}"]
    groups: dict[str, list[str]] = {}
    for name, value in run["figures"].items():
        f = FIGURES[name]
        metric, _, stat = name.rpartition("_")
        key = f.label.rpartition(" ")[0] if f.metric or metric in PLAIN_METRICS else f.label
        shown = "not defined" if value is None else f"{value:,.2f} {f.unit}"
        groups.setdefault(key, []).append(f"{stat} {shown}" if f.metric else shown)
    width = max(map(len, groups), default=0)
    lines += [f"  {key:<{width}}  {', '.join(values)}" for key, values in groups.items()]
    if run["own"]:
        lines.append("  The tool's own figures that mean something else:")
        lines += [f"  - {own['said']}" for own in run["own"]]
    if run["agree"]:
        lines.append(f"  within 0.5 % of ours: {run['agree']} of the tool's own figures")
    if run["limits"]:
        lines.append(f"  limits: {_listed(run['limits'])}")
    return lines + [f"  - {note}" for note in run["notes"]]


PLAIN_METRICS = ("ttft", "tpot", "itl", "e2e", "queue")


def folder_files(folder: str) -> list[Path]:
    """The files of the server's folder, by name."""
    path = Path(folder)
    if not folder or not path.is_dir():
        return []
    return sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
