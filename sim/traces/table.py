"""A piece of a trace as columns, and which of its rows can't be read, and why."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import json as arrow_json

from ..files import as_object
from ..parameter import ScenarioError
from ..traffic import LONGEST

EARLIEST, LATEST = (np.datetime64(y, "ns").astype(np.int64) for y in ("1700", "2200"))

LISTS = {  # keys of JSON rows that hold no single number
    "hash_ids": pa.list_(pa.int64()),
    "requests": pa.list_(
        pa.struct([("Prompt Length", pa.float64()), ("Output Length", pa.float64())])
    ),
}


class Bad(NamedTuple):
    line: int  # of the file, from 1
    reason: str


class Table:
    """Columns by name. A reader asks for each as what it should be; rows that are not are bad."""

    def __init__(self, data: pa.Table, skipped: dict[int, str], rows: int):
        self.data = data
        self.rows = rows  # of the piece, those that are no row of the table included
        self.skipped = skipped  # filled line -> why it is no row
        self.reasons: dict[int, str] = {}
        self.good = np.ones(data.num_rows, bool)
        self.left_out: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.data.column_names

    def __len__(self) -> int:
        return self.data.num_rows

    @property
    def bad_rows(self) -> int:
        return len(self.reasons) + len(self.skipped)

    def numbers(self, name: str, wanted: str = "a number") -> np.ndarray:
        """(n,) f8."""
        column = self.data[name]
        values = _as_floats(column)
        self._demand(name, column, np.isfinite(values), wanted)
        return values

    def tokens(self, name: str, least: int = 1) -> np.ndarray:
        """(n,) i8: whole numbers from `least` on."""
        column = self.data[name]
        values = _as_floats(column)
        with np.errstate(invalid="ignore"):  # inf has no remainder
            good = (values >= least) & (values <= LONGEST) & (values % 1 == 0)
        self._demand(name, column, good, f"a whole number of tokens from {least} to {LONGEST:,}")
        return np.where(good, values, least).astype(np.int64)

    def dates(self, name: str) -> np.ndarray:
        """(n,) i8, ns: ISO dates with any fraction and offset."""
        column = self.data[name]
        for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
            try:
                ticks = np.asarray(pc.cast(pc.cast(column, kind), pa.int64()))
                break
            except pa.ArrowInvalid:
                continue
        else:
            dates = pd.to_datetime(column.to_pandas(), format="ISO8601", utc=True, errors="coerce")
            known = np.asarray((dates > "1700") & (dates < "2200"))
            ticks = np.zeros(len(dates), np.int64)
            ticks[known] = np.asarray(dates[known].dt.tz_convert(None), "datetime64[ns]").astype(
                np.int64
            )
            self._demand(name, column, known, "a date and time")
            return ticks
        self._demand(name, column, (ticks > EARLIEST) & (ticks < LATEST), "a date and time")
        return ticks

    def ids(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Lists of whole numbers: all of them, and where each row's begin (n + 1,)."""
        lists = self.data[name].combine_chunks()
        if lists.flatten().null_count:
            holes = np.array([None in (row or ()) for row in lists.to_pylist()], bool)
            self.mark(holes, f"{name} holds null, not a whole number")
            lists = pc.call_function(
                "if_else", [pa.array(~holes), lists, pa.scalar([], lists.type)]
            )
        sizes = np.asarray(pc.call_function("list_value_length", [lists]).fill_null(0), np.int64)
        return np.asarray(lists.flatten(), np.int64), np.append(0, sizes.cumsum())

    def texts(self, name: str) -> np.ndarray:
        """(n,) str."""
        return np.array(self.data[name].to_pylist(), str)

    def leave_out(self, rows: np.ndarray, reason: str) -> None:
        """Rows that are no request to serve, though nothing is wrong with them."""
        rows = rows & self.good
        if rows.any():
            self.left_out[reason] = self.left_out.get(reason, 0) + int(rows.sum())
            self.good &= ~rows

    def mark(self, rows: np.ndarray, reason: str) -> None:
        """Rows that can't be right."""
        for row in np.flatnonzero(rows & self.good):
            self.reasons[int(row)] = reason
        self.good &= ~rows

    def _demand(self, name: str, column, good: np.ndarray, wanted: str) -> None:
        for row in np.flatnonzero(~good & self.good):
            value = column[int(row)].as_py()
            got = "empty" if value in ("", None) else repr(str(value)[:40])
            self.reasons[int(row)] = f"{name} is {got}, not {wanted}"
        self.good &= good

    def listed(self, piece: bytes, number: int, most: int) -> list[Bad]:
        """The first bad rows with their lines in the file."""
        if most <= 0 or not self.bad_rows:
            return []
        filled = [k for k, line in enumerate(piece.split(b"\n"), number) if line.strip()]
        filled = filled[len(filled) - self.rows :]  # the header is none
        skipped = [Bad(filled[k], reason) for k, reason in self.skipped.items()]
        place = [k for k in range(self.rows) if k not in self.skipped]
        bad = [Bad(filled[place[row]], reason) for row, reason in self.reasons.items()]
        return sorted(bad + skipped)[:most]


def _as_floats(column) -> np.ndarray:
    if not pa.types.is_string(column.type):
        return np.asarray(pc.fill_null(pc.cast(column, pa.float64()), np.nan), np.float64)
    try:
        return np.asarray(pc.cast(column, pa.float64()))
    except pa.ArrowInvalid:
        return np.asarray(pd.to_numeric(column.to_pandas(), errors="coerce"), np.float64)


def csv_table(piece: bytes, columns: Sequence[str], filename: str, quote: bool) -> Table:
    """The columns that the format names, and any others of the file, all cells as text."""
    # A stray quote is a cell of its own, unless whoever wrote the file put all cells in quotes.
    return _csv(piece, list(columns), list(columns), filename, quote)


def mapped_table(
    piece: bytes, columns: Sequence[str], mapping: Mapping[str, str], filename: str
) -> Table:
    """The columns that were named by hand, under our names."""
    missing = [name for name in mapping.values() if name not in columns]
    if missing:
        raise ScenarioError(
            f"{filename} has no column {missing[0]!r}: it has {', '.join(columns)[:200]}"
        )
    table = _csv(piece, list(columns), list(mapping.values()), filename, quote=True)
    arrays = [table.data[name] for name in mapping.values()]
    return Table(pa.table(arrays, names=list(mapping)), table.skipped, table.rows)


def _csv(piece: bytes, columns: list[str], kept: list[str], filename: str, quote: bool) -> Table:
    skipped: dict[int, str] = {}

    def ragged(row) -> str:
        cells = f"{row.actual_columns} cells" if row.actual_columns != 1 else "1 cell"
        skipped[row.number - 1] = f"{cells} where the header has {row.expected_columns}"
        return "skip"

    names = [name if columns.index(name) == k else f"{name} {k}" for k, name in enumerate(columns)]
    try:
        piece.decode()
    except UnicodeDecodeError:  # what can't be read makes its row a bad one, not the file
        piece = piece.decode("utf-8", "replace").encode()
    try:
        data = csv.read_csv(
            pa.BufferReader(piece),
            csv.ReadOptions(use_threads=False, column_names=names),  # threads lose row numbers
            csv.ParseOptions(quote_char='"' if quote else False, invalid_row_handler=ragged),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                include_columns=list(dict.fromkeys(kept)),
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        reason = str(error).partition("CSV parse error: ")[2] or str(error)
        raise ScenarioError(f"{filename} is cut or malformed: {reason[:120]}") from None
    return Table(data, skipped, data.num_rows + len(skipped))


def json_table(piece: bytes, form: Any) -> Table | None:
    """A line an object. The lines that are none, or hold something else than numbers, are bad."""
    schema = pa.schema({name: LISTS.get(name, pa.float64()) for name in form.columns})
    try:
        data = arrow_json.read_json(
            pa.BufferReader(piece),
            arrow_json.ReadOptions(block_size=1 << 22),  # blocks are read in parallel
            arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        return Table(data, {}, data.num_rows) if data.num_rows else None
    except pa.ArrowInvalid:
        return _line_by_line(piece, schema)


def _line_by_line(piece: bytes, schema: pa.Schema) -> Table | None:
    rows, skipped = [], {}
    filled = [line for line in piece.split(b"\n") if line.strip()]
    for k, line in enumerate(filled):
        row = as_object(line.removeprefix(b"\xef\xbb\xbf"))
        if row is None:
            skipped[k] = f"{line[:40].decode('utf-8', 'replace')!r} is no JSON object"
            continue
        try:
            rows.append(
                {f.name: pa.scalar(row.get(f.name), f.type, from_pandas=False) for f in schema}
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            skipped[k] = _wrong(row, schema)
    if not filled:
        return None
    columns = [pa.array([r[f.name].as_py() for r in rows], f.type) for f in schema]
    return Table(pa.table(columns, schema=schema), skipped, len(filled))


def _wrong(row: dict, schema: pa.Schema) -> str:
    for field in schema:
        try:
            pa.scalar(row.get(field.name), field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            whole = pa.types.is_list(field.type) and pa.types.is_integer(field.type.value_type)
            kind = "a number" if not pa.types.is_list(field.type) else "a list"
            kind += " of whole numbers" if whole else ""
            return f"{field.name} is {str(row[field.name])[:40]!r}, not {kind}"
    return "it holds something else than numbers"
