"""Traces: files of requests that somebody recorded.

To add a format, write a reader of (table) -> Rows in a file here, decorate it with the columns (or
keys) that it is recognised by, and import the file below; the page, `inspect` and the tests find it
in TRACES.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ..files import Head, Source, check_size, head, lines
from ..parameter import ScenarioError
from ..workload import Workload
from .table import Bad, Table, csv_table, json_table, mapped_table

# To ms from a format's own unit; dates are ns of the epoch by then.
MS = {
    "date": lambda t: t / 1e6,
    "ns": lambda t: t / 1e6,
    "ms": lambda t: t / 1.0,
    "s": lambda t: t * 1e3,
}
LISTED = 100  # bad rows that are listed; the others are counted


class Rows(NamedTuple):
    """What a reader finds: columns of equal length, times in the format's own unit."""

    arrival: np.ndarray | None  # None: the file has none
    prompt: np.ndarray | None
    output: np.ndarray | None
    # Ids of the prompts' blocks, one request after the other, and where each request's begin.
    hashes: tuple[np.ndarray, np.ndarray] | None = None


class Trace(NamedTuple):
    name: str
    label: str
    kind: str  # "csv", "jsonl", or "bare": a CSV without a header
    columns: tuple[str, ...]
    unit: str  # of the arrivals, one of MS
    about: str
    tokens: int  # of a block of the prefix hashes; 0: it has none
    read: Callable[[Table], Rows]


class Reading(NamedTuple):
    """A trace as it was read."""

    form: Trace
    workload: Workload
    first: float  # arrival as the file has it; nan where it has none
    rows: int  # of the file, bad ones and those left out included
    bad: list[Bad]  # the first LISTED of them
    bad_rows: int
    left_out: dict[str, int]  # rows that are no request to serve, by reason
    recognised: str
    notes: list[str]


TRACES: dict[str, Trace] = {}


def trace(label: str, kind: str, *columns: str, unit: str = "ms", tokens: int = 0):
    def register(read):
        name, about = read.__name__, inspect.getdoc(read) or ""
        TRACES[name] = Trace(name, label, kind, columns, unit, about, tokens, read)
        return read

    return register


def name_of(content: bytes) -> str:
    """The name that a link gives to a file: it stands for the content, not for the file's name."""
    return hashlib.sha256(content).hexdigest()[:16]


def recognise(start: Head) -> Trace | None:
    """The format that a file's beginning is of, the one with the most columns first."""
    names = set(start.first or ()) if start.first else set(start.columns)
    kind = "jsonl" if start.first else "csv"
    fits = [t for t in TRACES.values() if t.kind == kind and set(t.columns) <= names]
    bare = TRACES["servegen"]
    if not fits and kind == "csv" and len(start.columns) == len(bare.columns):
        numbers = [start.columns[k] for k in (0, 1, 2) if start.columns[k]]
        if all(_is_number(n) for n in numbers) and not _is_number(start.columns[3]):
            return bare
    return max(fits, key=lambda t: len(t.columns), default=None)


def almost(start: Head) -> str:
    """What keeps a file from being of a format that it is nearly of; '' where it is near none."""
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        cells = [cell.strip().strip('"') for cell in start.line.split(mark)]
        if recognise(start._replace(columns=tuple(cells))) and not start.first:
            return f"its columns stand between {name}: save it with commas"
    names = set(start.first or ()) if start.first else set(start.columns)
    kind = "jsonl" if start.first else "csv"
    for t in TRACES.values():
        lacking = [name for name in t.columns if name not in names]
        if t.kind == kind and len(lacking) == 1 < len(t.columns) - 1:
            what = "key" if kind == "jsonl" else "column"
            return (
                f"it looks like {t.label} and lacks the {what} {lacking[0]}: name it so, or name"
                " the columns of a CSV by hand"
            )
    return ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def unknown(start: Head, filename: str) -> ScenarioError:
    """What to say of a file of no known format."""
    if near := almost(start):
        return ScenarioError(f"{filename}, line 1: {near}")
    return ScenarioError(
        f"{filename} is of no format known here, it begins with {start.line[:60]!r}: name the"
        " columns of a CSV by hand, or begin it with arrival_ms,prompt_len,output_len"
    )


def read(source: Source, filename: str = "the file") -> tuple[Trace, Workload]:
    """The trace in a file. ScenarioError as `reading`."""
    found = reading(source, filename)
    return found.form, found.workload


def reading(
    source: Source, filename: str = "the file", mapping: Mapping[str, str] | None = None
) -> Reading:
    """Recognise a file by its content and read it, in pieces.

    mapping: for a CSV that is of no known format, which of its columns are `arrival_ms` (or
    `arrival_s`), `prompt_len` and `output_len`. ScenarioError where it is no trace, or where more
    than half of its rows can't be read: it names the first of them.
    """
    if isinstance(source, bytes):
        check_size(source, filename)
    start = head(source, filename)
    form = plain.mapped(mapping) if mapping else recognise(start)
    if form is None:
        raise unknown(start, filename)
    parts, bad, counts = [], [], {}
    bad_rows = rows = 0
    for number, piece in lines(source, filename):
        table = _table(form, start, piece, number, filename, mapping)
        if table is None:
            continue
        part = form.read(table)
        good = table.good
        rows += table.rows
        bad_rows += table.bad_rows
        bad += table.listed(piece, number, LISTED - len(bad))
        for reason, count in table.left_out.items():
            counts[reason] = counts.get(reason, 0) + count
        parts.append(_kept(part, good))
    if rows == 0:
        raise ScenarioError(f"{filename} has a header and no request: give a row a request")
    left = rows - bad_rows - sum(counts.values())
    if bad_rows > rows / 2 or left == 0:
        first = bad[0] if bad else Bad(2, f"every row is left out: {next(iter(counts))}")
        raise ScenarioError(
            f"{filename}, line {first.line}: {first.reason}"
            + (f"; {bad_rows:,} of {rows:,} rows can't be read" if bad_rows > 1 else "")
        )
    joined = _joined(parts)
    workload = in_order(form, joined)
    first = math.nan if joined.arrival is None else joined.arrival.min()
    keys = "keys" if form.kind == "jsonl" else "columns"
    how = f"{keys} {', '.join(mapping.values() if mapping else form.columns)}"
    notes = _notes(form, joined, workload)
    return Reading(form, workload, first, rows, bad, bad_rows, counts, how, notes)


def _table(form, start, piece, number, filename, mapping) -> Table | None:
    if form.kind == "jsonl":
        return json_table(piece, form)
    columns = form.columns if form.kind == "bare" else start.columns
    if number == 1 and form.kind != "bare":
        piece = _blanked(piece)
    if not piece.strip():
        return None
    if mapping:
        return mapped_table(piece, columns, mapping, filename)
    return csv_table(piece, columns, filename, start.line.startswith('"'))


def _blanked(piece: bytes) -> bytes:
    """Without its header, but with as many lines."""
    text = piece.removeprefix(b"\xef\xbb\xbf")
    blank = len(text) - len(text.lstrip())
    return b"\n" * text[:blank].count(b"\n") + b"\n" + text[blank:].partition(b"\n")[2]


def _kept(part: Rows, good: np.ndarray) -> Rows:
    if good.all():
        return part

    def of_good(column):
        return None if column is None else column[good]

    hashes = part.hashes
    if hashes is not None:
        sizes = np.diff(hashes[1])
        hashes = hashes[0][np.repeat(good, sizes)], np.append(0, sizes[good].cumsum())
    return Rows(of_good(part.arrival), of_good(part.prompt), of_good(part.output), hashes)


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]

    def column(name):
        if getattr(parts[0], name) is None:
            return None
        return np.concatenate([getattr(part, name) for part in parts])

    hashes = None
    if parts[0].hashes is not None:
        each = [part.hashes for part in parts if part.hashes is not None]
        sizes = np.concatenate([np.diff(offsets) for _, offsets in each])
        flat = np.concatenate([flat for flat, _ in each])
        hashes = flat, np.append(0, sizes.cumsum())
    return Rows(column("arrival"), column("prompt"), column("output"), hashes)


def in_order(form: Trace, rows: Rows) -> Workload:
    """Requests by arrival; ties stay as the file has them. A trace's limit is its own output.

    A file without arrivals has them all nan; one without lengths has them all 0.
    """
    some = next(c for c in (rows.arrival, rows.prompt) if c is not None)
    none = np.zeros(len(some), np.int64)
    prompt = none if rows.prompt is None else rows.prompt
    output = none if rows.output is None else rows.output
    if rows.arrival is None:
        arrival, order = np.full(len(some), np.nan), np.arange(len(some))
    else:
        order = np.argsort(rows.arrival, kind="stable")
        arrival = MS[form.unit](rows.arrival[order] - rows.arrival[order[0]])
    hashes = None
    if rows.hashes is not None and len(rows.hashes[0]):
        flat, offsets = rows.hashes
        sizes = np.diff(offsets)[order]
        after = np.append(0, sizes.cumsum())
        place = np.arange(after[-1]) + np.repeat(offsets[:-1][order] - after[:-1], sizes)
        hashes = flat[place], after, form.tokens
    return Workload(arrival, prompt[order], output[order], output[order], hashes=hashes)


def _notes(form: Trace, rows: Rows, w: Workload) -> list[str]:
    """What a person should know before using it."""
    notes = []
    if rows.arrival is None:
        notes.append("lengths only, no arrivals: choose a rate, and prompt and output trace")
    elif rows.prompt is None:
        notes.append(
            "arrivals only, drawn once from the file's rates and laws: choose arrivals timed and"
            " the lengths"
        )
    else:
        stamps = np.unique(w.arrival)
        if len(stamps) < 0.9 * len(w) and len(stamps) > 1:
            most = int(np.unique(w.arrival, return_counts=True)[1].max())
            tick = float(np.median(np.diff(stamps))) / 1e3
            notes.append(
                f"{len(w):,} requests share {len(stamps):,} arrival times, {tick:g} s apart in the"
                f" median, up to {most:,} at once: spread 1 spreads them evenly"
            )
        if np.any(np.diff(rows.arrival) < 0):
            notes.append("rows were not in order of arrival and have been sorted")
    if w.hashes is not None:
        flat, _, tokens = w.hashes
        shared = 1 - len(np.unique(flat)) / len(flat)
        notes.append(
            f"prefix hashes of {tokens}-token blocks, {100 * shared:.1f} % of them seen before:"
            " they feed prefix caching at any block_size"
        )
        if twice := _repeated(w):
            notes.append(f"repeat another row, its arrival and hashes too, and are kept: {twice:,}")
    return notes


def _repeated(w: Workload) -> int:
    """Requests with another's arrival, lengths and last hash, which stands for all before it."""
    assert w.hashes is not None
    flat, offsets, _ = w.hashes
    last = flat[np.maximum(offsets[1:] - 1, 0)]
    key = np.zeros(len(w), np.uint64)
    for column in (w.arrival.view(np.uint64), w.prompt, w.output, last):
        key = (key ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return len(key) - len(np.unique(key))


from . import (  # noqa: E402, F401  a reader registers itself when its file is read
    aibrix,
    azure,
    burstgpt,
    lengths,
    mooncake,
    plain,
    servegen,
    splitwise,
    vllm_workload,
)
