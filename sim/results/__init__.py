"""Results: what a benchmark tool or an engine wrote down about a real server.

A file with requests becomes a Run, as a simulated one is, and its figures are computed anew by
sim.metrics. A file with a summary alone keeps its figures under our names. Each of a tool's own
figures that means something else than its name says is listed, with by how much.

To add a format, write a reader of its content -> list of Measured in a file here, decorate it with
how it is recognised, and import the file below.
"""

import csv
import heapq
import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..files import Source, as_object, check_size, head, whole
from ..metrics import FIGURES
from ..parameter import ScenarioError
from ..run import COLUMNS, Run
from ..scenario import Slo
from ..state import ADMITTED, FAILED, GAP, REQUEST, SEGMENT, STEP
from ..workload import Workload

# What a reader meets in a file that is almost one of its format.
FAULTS = (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, csv.Error)
LARGEST = 1e20  # ns of an epoch are 2e18
NEAR = 0.005  # relative: figures that differ by less are the same
MOST = 20  # bad rows that are listed


class Own(NamedTuple):
    """A figure of the tool's own that is not what ours of the same name is."""

    name: str
    theirs: float
    ours: float  # nan: not defined, or not known
    unit: str
    meaning: str

    def __str__(self) -> str:
        def shown(x: float) -> str:
            return "not defined" if math.isnan(x) else f"{x:,.4g} {self.unit}".strip()

        apart = ""
        if self.ours and math.isfinite(self.ours):
            apart = f", {100 * (self.theirs / self.ours - 1):+,.3g} %"
        return f"{self.name} {shown(self.theirs)}: {self.meaning}; ours {shown(self.ours)}{apart}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measured:
    """One measured run. Times in ms."""

    label: str
    run: Run | None = None  # None: the file has no requests, only figures
    states: dict[str, int] = field(default_factory=dict)  # requests by what became of them
    figures: dict[str, float] = field(default_factory=dict)  # by names of sim.metrics.FIGURES
    own: list[Own] = field(default_factory=list)
    agree: int = 0  # of the tool's figures, those that are ours too
    notes: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)  # of the server, where known
    policy: str = ""  # the scheduler's name in POLICIES, where known
    cost: dict[str, float] = field(default_factory=dict)  # ms of a step, fitted to the file
    clients: int = 0  # a closed loop of so many; 0: requests came as they came
    series: dict[str, np.ndarray] = field(default_factory=dict)  # columns by time, of a log

    def all_figures(self, slo: Slo) -> dict[str, float]:
        """Figures by name; nan: not defined. Those that a client can't know are left out."""
        return known_figures(self.run, slo) if self.run is not None else self.figures

    def workload(self) -> Workload:
        """The requests that had an output, to be simulated.

        ScenarioError where the file does not say which they were.
        """
        if self.run is None:
            raise ScenarioError(f"{self.label} has figures and no requests: nothing to simulate")
        r = self.run.requests
        r = r[np.isfinite(r["first"]) & (r["prompt"] > 0)]
        if not len(r):
            raise ScenarioError(f"{self.label} has no request with an output: nothing to simulate")
        order = np.argsort(r["arrival"], kind="stable")
        r = r[order]
        arrival = np.zeros(len(r)) if self.clients else r["arrival"] - r["arrival"][0]
        prompt, output = r["prompt"].astype(np.int64), r["output"].astype(np.int64)
        return Workload(arrival, prompt, output, output, self.clients)


class Format(NamedTuple):
    name: str
    label: str
    about: str
    fits: Callable[[Any], bool]  # of the first JSON object, the CSV's columns or the text
    kind: str  # "json" (one object or list, or a line an object), "csv", "text"
    how: str
    read: Callable[[Any, "Bads"], list[Measured]]
    beside: str = ""  # names of a JSON that its files have beside those that tell it

    @property
    def tells(self) -> list[str]:
        """The names that tell a JSON, as `how` has them."""
        return re.findall(r"[\w-]+", self.how.partition(" ")[2].partition(", with ")[0])


class Bads:
    """Rows of a file that can't be used, with their lines or numbers."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []
        self.count = self.total = self.last = 0

    def add(self, row: int, reason: str) -> None:
        self.count += 1
        self.last = row
        if len(self.rows) < MOST:
            self.rows.append((row, reason))


RESULTS: dict[str, Format] = {}


def result(label: str, kind: str, how: str, fits: Callable[[Any], bool], beside: str = ""):
    def register(read):
        name, about = read.__name__, inspect.getdoc(read) or ""
        RESULTS[name] = Format(name, label, about, fits, kind, how, read, beside)
        return read

    return register


def read(source: Source, filename: str) -> tuple[Format, list[Measured], Bads] | None:
    """The results in a file; None where it is of no format known here.

    ScenarioError where it is cut, malformed or lacks what its format has: it says where.
    """
    if isinstance(source, bytes):
        check_size(source, filename)
    start, bad = head(source, filename), Bads()
    if re.match(r"\{|\[\s*([\[{]|$)", start.line):
        content: Any = _objects(whole(source, filename), filename, bad)
        kinds, first = ("json",), content[0][1] if content else {}
    elif any(f.kind == "csv" and f.fits(start.columns) for f in RESULTS.values()):
        text = whole(source, filename).replace("\r\n", "\n").replace("\r", "\n")
        content, kinds, first = text, ("csv",), start.columns
    else:
        content = first = whole(source, filename)
        kinds = ("text",)
    form = next((f for f in RESULTS.values() if f.kind in kinds and f.fits(first)), None)
    if form is None:
        return None
    try:
        found = form.read(content, bad)
    except FAULTS as error:
        if isinstance(error, ScenarioError):
            raise ScenarioError(f"{filename}: {error}") from None
        lacks = f"lacks {error}" if isinstance(error, KeyError) else f"misstates a field: {error}"
        raise ScenarioError(
            f"{filename} looks like {form.label} and {lacks[:120]}: give the file as it was written"
        ) from None
    for k, measured in enumerate(found, 1):
        for name in [n for n, value in measured.figures.items() if value < 0]:
            bad.add(k, f"{FIGURES[name].label} is {measured.figures.pop(name):g}, below 0")
    bad.rows.sort()
    # A summary is a row of its own, whatever it is of.
    rows = sum(len(m.run.requests) if m.run is not None else 1 for m in found)
    bad.total = bad.total or rows + bad.count
    if not found:
        first_bad = f": row {bad.rows[0][0]}: {bad.rows[0][1]}" if bad.rows else ""
        raise ScenarioError(f"{filename} is {form.label} without a run that can be read{first_bad}")
    return form, found, bad


def almost(source: Source, filename: str) -> str:
    """What keeps a JSON from being of the format that it is nearest to; '' where it is of none."""
    if not re.match(r"\{|\[\s*([\[{]|$)", head(source, filename).line):
        return ""
    content = _objects(whole(source, filename), filename, Bads())
    found = set(_names(content[0][1], 4)) if content else set()

    def share(form: Format) -> float:
        names = {*form.tells, *form.beside.split()}
        return len(names & found) / len(names)

    near = max((f for f in RESULTS.values() if f.kind == "json" and f.beside), key=share)
    lacks = [name for name in near.tells if name not in found]
    if share(near) < 0.5 or not lacks:
        return ""
    return f"looks like {near.label} and lacks {', '.join(lacks)}: give the file as it was written"


def _names(value: Any, deep: int) -> Iterator[str]:
    """The names in a JSON, so many levels deep; of a list's items those of the first."""
    if isinstance(value, list):
        yield from _names(value[0] if value else None, deep)
    elif isinstance(value, dict) and deep:
        for name, inner in value.items():
            yield name
            yield from _names(inner, deep - 1)


def _objects(text: str, filename: str, bad: Bads) -> list[tuple[int, dict]]:
    """(number, object) of each line, or of each item of a list, or the one object of the file.

    Bare Infinity and NaN are numbers, as Python writes them.
    """
    rows = [(k, line) for k, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(rows) > 1 and as_object(rows[0][1]) is not None:
        if (every := _all_objects(rows)) is not None:
            return every
        found = []
        for k, line in rows:
            one = as_object(line)
            if one is None:
                bad.add(k, f"{line[:40]!r} is no JSON object")
            else:
                found.append((k, one))
        return found
    try:
        content = json.loads(text)
    except RecursionError:
        raise ScenarioError(f"{filename} nests too deeply to be a result: give another") from None
    except ValueError as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        raise ScenarioError(
            f"{filename}, line {line}, column {column}: {getattr(error, 'msg', error)}: the JSON is"
            " cut or malformed"
        ) from None
    items = content if isinstance(content, list) else [content]
    return [(k, item) for k, item in enumerate(items, 1) if isinstance(item, dict)]


def _all_objects(rows: list[tuple[int, str]]) -> list[tuple[int, dict]] | None:
    """Lines that are an object each, read together, which is faster; None if one is not."""
    try:
        found = json.loads(f"[{','.join(line for _, line in rows)}]")
    except (ValueError, RecursionError):
        return None
    fits = len(found) == len(rows) and set(map(type, found)) == {dict}
    return [(k, one) for (k, _), one in zip(rows, found, strict=True)] if fits else None


def numbers(values: Sequence[Any], name: str, bad: Bads, scale: float = 1.0) -> np.ndarray:
    """(n,) f8, nan where a value is None; what is no number from 0 on makes its row a bad one."""
    if set(map(type, values)) <= {int, float}:
        out = np.array(values, float)
        if ((out >= 0) & (out < LARGEST)).all():
            return out * scale
    return np.array([number(v, k, name, bad) * scale for k, v in enumerate(values, 1)], float)


def number(value: Any, row: int, name: str, bad: Bads) -> float:
    """The value; nan where it is None, or no number from 0 on: then its row is a bad one."""
    if value is None:
        return math.nan
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if fits and 0 <= value < LARGEST:
        return float(value)
    bad.add(row, f"{name} is {str(value)[:40]!r}, not a number from 0 on")
    return math.nan


def as_number(value: Any) -> float:
    """The number that a summary holds, also as text; nan where there is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan


def run_of(
    label: str,
    *,
    arrival: np.ndarray,
    prompt: np.ndarray,
    output: np.ndarray,
    ttft: np.ndarray,
    e2e: np.ndarray,
    total: float,
    gaps: Sequence[np.ndarray] | None = None,
    last: np.ndarray | None = None,
    start: np.ndarray | None = None,
    failed: np.ndarray | None = None,
) -> Run:
    """A measured Run: columns by request, ms; nan is unknown.

    ttft nan: the request had no token. last: ms from arrival to the last token, where that is not
    e2e. gaps: of each request, ms between what it received.
    """
    if not len(arrival):
        raise ScenarioError(f"{label}: no request can be read: give the file as it was written")
    r = np.zeros(len(arrival), np.dtype([(name, REQUEST[name]) for name in COLUMNS]))
    spoke = np.isfinite(ttft)
    counts = np.nan_to_num(np.where(spoke, output, 0))
    r["arrival"], r["prompt"], r["output"] = arrival, np.nan_to_num(prompt), counts
    r["limit"], r["start"] = r["output"], np.nan if start is None else start
    r["first"] = arrival + ttft
    r["last"] = np.where(spoke, arrival + (e2e if last is None else last), np.nan)
    r["finish"] = arrival + e2e
    if failed is not None:
        r["refused"] = np.where(failed, FAILED, ADMITTED)
    if gaps is None:
        rows = np.zeros(0, GAP)
    else:
        rows = np.zeros(sum(map(len, gaps)), GAP)
        if len(rows):
            rows["ms"] = np.concatenate(list(gaps))
            rows["request"] = np.repeat(np.arange(len(gaps)), [len(g) for g in gaps])
            rows["t"] = np.concatenate(
                [t + np.cumsum(g) for t, g in zip(r["first"], gaps, strict=True)]
            )
    empty = np.zeros(0, STEP), np.zeros(0, SEGMENT)
    return Run(label, "measured", 0, 0, 0, float(total), r, *empty, rows)


def states_of(run: Run) -> dict[str, int]:
    """Requests by what became of them."""
    failed = run.requests["refused"] == FAILED
    spoke = np.isfinite(run.requests["first"])
    counts = {"completed": spoke & ~failed, "no token": ~spoke & ~failed, "failed": failed}
    return {name: int(rows.sum()) for name, rows in counts.items()}


OF_CLIENT = ("tok_s", "req_s", "total_s", "attainment", "goodput", "good_tok_s")


def known_figures(run: Run, slo: Slo) -> dict[str, float]:
    """The figures that requests as a client saw them have, by name."""
    metrics = ["ttft", "tpot", "e2e"]
    metrics += ["itl"] if len(run.gaps) else []
    metrics += ["queue"] if np.isfinite(run.requests["start"]).any() else []
    of_client = OF_CLIENT if math.isfinite(run.total) else ("attainment",)
    names = [n for n, f in FIGURES.items() if f.metric in metrics or n in of_client]
    return {name: FIGURES[name].of(run, slo) for name in names}


def own_figures(
    ours: Mapping[str, float], theirs: Sequence[tuple[str, Any, str, str]]
) -> tuple[list[Own], int]:
    """theirs: (name, value in our unit, our figure's name, what it means where it differs).

    Those that differ, and how many do not.
    """
    own, agree = [], 0
    for name, value, figure, meaning in theirs:
        value, mine = as_number(value), ours.get(figure, math.nan)
        if math.isnan(value):
            continue
        if math.isfinite(mine) and abs(value - mine) <= NEAR * abs(mine):
            agree += 1
        else:
            own.append(Own(name, value, mine, FIGURES[figure].unit, meaning))
    return own, agree


def spoken_notes(run: Run) -> list[str]:
    """What is to be said of requests without a token, of a second one, and of chunks."""
    notes, r = [], run.served
    spoke = np.isfinite(r["first"])
    several = spoke & (r["output"] > 1)
    if silent := int((~spoke).sum()):
        s = run.total / 1e3
        notes.append(
            f"{silent} of {len(r)} returned no token: TTFT is over the {int(spoke.sum())} that did;"
            f" {len(r) / s:.2f} req/s completed, {spoke.sum() / s:.2f} req/s with output"
        )
    if len(r) and not several.any():
        notes.append(
            f"TPOT and ITL are not defined: 0 of {len(r)} requests have a second token; for goodput"
            " such a request keeps the TPOT limit, as in vLLM's script"
        )
    tokens = int((r["output"][several] - 1).sum())
    if len(run.gaps) and len(run.gaps) < 0.9 * tokens:
        whole_ms = float((r["last"] - r["first"])[several].sum())
        notes.append(
            f"ITL is per chunk, not per token: {len(run.gaps):,} gaps for {tokens:,} tokens, about"
            f" {tokens / len(run.gaps):.1f} tokens an event; token-weighted TPOT is"
            f" {whole_ms / tokens:.2f} ms"
        )
    return notes


def closed_loop(e2e: np.ndarray, clients: int) -> np.ndarray:
    """(n,) ms: when each was sent, if so many clients each send the next when one is done."""
    free = [0.0] * min(clients, len(e2e))
    heapq.heapify(free)
    arrival = np.zeros(len(e2e))
    for k, took in enumerate(np.nan_to_num(e2e)):
        arrival[k] = heapq.heappop(free)
        heapq.heappush(free, arrival[k] + took)
    return arrival


def drawn_arrivals(e2e: np.ndarray, rate: float, burstiness: float, total: float) -> np.ndarray:
    """(n,) ms: gamma intervals at that rate, as vLLM's bench has them, by seed 0.

    Stretched so that the last of them is done at `total`, where that can be.
    """
    gaps = np.random.default_rng(0).gamma(burstiness, 1e3 / rate / burstiness, len(e2e))
    arrival = np.append(0.0, gaps.cumsum()[:-1])
    later = arrival > 0
    factor = ((total - e2e[later]) / arrival[later]).min(initial=math.inf)
    return arrival * factor if 0 < factor < math.inf else arrival


from . import (  # noqa: E402, F401  a reader registers itself when its file is read
    aibrix,
    aiperf,
    bench_serve,
    engine_logs,
    engine_requests,
    guidellm,
    inference_perf,
    llmperf,
    prometheus,
)
