"""Traces: files of requests that somebody recorded.

To add a format, write a reader of (table) -> Workload and decorate it with the columns that it is
recognised by; the upload control and the tests find it in TRACES.
"""

import hashlib
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv

from ..parameter import ScenarioError
from ..traffic import LONGEST
from ..workload import Workload

MAX_UPLOAD_MB = int(os.environ.get("SLOTSCOPE_MAX_UPLOAD_MB", 200))


class Trace(NamedTuple):
    name: str
    label: str
    columns: tuple[str, ...]
    read: Callable[[pd.DataFrame], Workload]


TRACES: dict[str, Trace] = {}


def trace(label: str, *columns: str):
    def register(read):
        TRACES[read.__name__] = Trace(read.__name__, label, columns, read)
        return read

    return register


def name_of(content: bytes) -> str:
    """The name that a link gives to a file: it stands for the content, not for the file's name."""
    return hashlib.sha256(content).hexdigest()[:16]


def read(content: bytes, filename: str = "the file") -> tuple[Trace, Workload]:
    """Recognise a CSV by its header and read it. ScenarioError names the row that can't be read."""
    if len(content) > MAX_UPLOAD_MB * 1_000_000:
        raise ScenarioError(
            f"{filename} has {len(content) / 1e6:,.0f} MB, over the limit of {MAX_UPLOAD_MB} MB:"
            " cut it, or raise SLOTSCOPE_MAX_UPLOAD_MB"
        )
    if not content.strip():
        raise ScenarioError(f"{filename} is empty: give a CSV with a header and a row a request")
    wanted = " or ".join(",".join(t.columns) for t in TRACES.values())
    try:
        text = content.decode("utf-8-sig")
        header = text.partition("\n")[0].strip().split(",")
    except UnicodeDecodeError:
        text, header = "", []
    form = next((t for t in TRACES.values() if list(t.columns) == header), None)
    if form is None or "\0" in text:
        raise ScenarioError(f"{filename} is no trace known here: its first line is not {wanted}")
    if not content.partition(b"\n")[2].strip():
        raise ScenarioError(f"{filename} has a header and no request: give a row a request")
    try:
        return form, form.read(_table(content, form, filename))
    except RowError as error:
        filled = (k for k, line in enumerate(content.split(b"\n"), 1) if line.strip())
        line = next(k for row, k in enumerate(filled) if row == error.row + 1)
        raise ScenarioError(f"{filename}, line {line}: {error}") from None


class RowError(ValueError):
    """A row that can't be read: its number, from 0, and what is wrong with it."""

    def __init__(self, row: int, reason: str):
        super().__init__(reason)
        self.row = row


def _table(content: bytes, form: Trace, filename: str) -> pd.DataFrame:
    """All cells as text. ScenarioError names the first row with a cell too many or too few."""
    try:
        table = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(use_threads=False),  # with threads, rows lose their numbers
            csv.ParseOptions(quote_char=False),  # numbers and dates need none
            csv.ConvertOptions(
                column_types=dict.fromkeys(form.columns, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).partition("CSV parse error: ")[2] or str(error)
        raise ScenarioError(f"{filename} is cut or malformed: {reason[:120]}") from None
    return table.to_pandas().rename(columns=str.strip)


def whole(column: pd.Series) -> np.ndarray:
    """Token counts from 1 on. RowError for the first row that has none."""
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)
    with np.errstate(invalid="ignore"):  # inf has no remainder
        good = (numbers >= 1) & (numbers <= LONGEST) & (numbers % 1 == 0)
    _demand(column, good, f"a whole number of tokens from 1 to {LONGEST:,}")
    return numbers.astype(np.int64)


def milliseconds(column: pd.Series) -> np.ndarray:
    """Times as numbers. RowError for the first row that has none."""
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)
    _demand(column, np.isfinite(numbers), "a number of ms")
    return numbers


def timestamps(column: pd.Series) -> np.ndarray:
    """ms since the first row, from ISO dates with any fraction and offset, kept to 100 ns."""
    dates = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    known = (dates > "1700") & (dates < "2200")  # what 64 bits of nanoseconds hold, and to spare
    _demand(column, np.asarray(known), "a date and time")
    ticks = np.asarray(dates.dt.tz_convert(None), "datetime64[ns]").astype(np.int64)
    return (ticks - ticks[0]) / 1e6


def _demand(column: pd.Series, good: np.ndarray, wanted: str) -> None:
    for row in np.flatnonzero(~good)[:1]:
        got = repr(str(column.iloc[row])[:40]) if column.iloc[row] else "empty"
        raise RowError(int(row), f"{column.name} is {got}, not {wanted}")


def in_order(arrival: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> Workload:
    """Requests by arrival; ties stay as the file has them. A trace's limit is its own output."""
    order = np.argsort(arrival, kind="stable")
    arrival = arrival[order] - arrival[order[0]]
    return Workload(arrival, prompt[order], output[order], output[order])


from . import azure, plain  # noqa: E402, F401  a reader registers itself when its file is read
