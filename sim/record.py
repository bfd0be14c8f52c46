"""A Run as one file: Parquet with a row, whose lists are the Run's columns. Any reader opens it."""

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from .parameter import ScenarioError
from .run import COLUMNS, Run
from .state import GAP, GRANT, REQUEST, SEGMENT, STEP

TABLES = {
    "requests": np.dtype([(name, REQUEST[name]) for name in COLUMNS]),
    "steps": STEP,
    "segments": SEGMENT,
    "gaps": GAP,
    "grants": GRANT,
}


class Record(NamedTuple):
    """A run, what is known about how it was made, and tables of what was measured beside it."""

    run: Run
    about: dict  # JSON: `finished`, `device`, `versions`, `date`, `query`, and what else is said
    beside: dict[str, np.ndarray]  # structured arrays of floats, such as `memory`


def save(path: Path, record: Record) -> None:
    """Write it whole or not at all: who reads the path meanwhile sees the one before."""
    run, columns = record.run, {}
    tables = {name: getattr(run, name) for name in TABLES} | record.beside
    for table, rows in tables.items():
        for name in rows.dtype.names or ():
            columns[f"{table}.{name}"] = [np.ascontiguousarray(rows[name])]
    plain = {f.name: getattr(run, f.name) for f in fields(Run) if f.name not in TABLES}
    said = json.dumps({"run": plain, "about": record.about, "beside": list(record.beside)})
    content = pa.table(columns).replace_schema_metadata({b"slotscope_run": said.encode()})
    beside = path.with_name(f"{path.name}.writing")
    parquet.write_table(content, beside)
    beside.replace(path)


def load(source: Path | bytes, name: str = "") -> Record:
    """What `save` wrote. ScenarioError if it is nothing of the kind."""
    name = name or (str(source) if isinstance(source, Path) else "the file")
    source = source.read_bytes() if isinstance(source, Path) else source
    try:
        content = parquet.read_table(io.BytesIO(source), use_threads=False)
        said = json.loads(content.schema.metadata[b"slotscope_run"])
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise ScenarioError(
            f"{name[-80:]} is no run of this program: give a file that `python -m gpu_probe serve`"
            " wrote"
        ) from None
    try:
        tables: dict[str, Any] = {t: _rows(content, t, dtype) for t, dtype in TABLES.items()}
        beside = {table: _rows(content, table) for table in said["beside"]}
        return Record(Run(**said["run"], **tables), said["about"], beside)
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise ScenarioError(
            f"{name[-80:]} is a run of another version of this program, or damaged: serve it again"
            " with this one"
        ) from None


def _rows(content: pa.Table, table: str, dtype: np.dtype | None = None) -> np.ndarray:
    if dtype is None:
        names = [c.partition(".")[2] for c in content.column_names if c.startswith(f"{table}.")]
        dtype = np.dtype([(name, "f8") for name in names])
    lists = {name: content[f"{table}.{name}"][0].values for name in dtype.names or ()}
    rows = np.zeros(len(next(iter(lists.values()))), dtype)
    for name, values in lists.items():
        rows[name] = values.to_numpy(zero_copy_only=False)
    return rows
