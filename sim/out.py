"""Runs as files for other programs: a Chrome trace for Perfetto, and parquet.

The trace-event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(one JSON object with `traceEvents`; ts and dur in microseconds; ph X: a slice, i: an instant,
C: a counter, M: metadata). It opens in ui.perfetto.dev and in chrome://tracing.
"""

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from .metrics import again
from .run import Run
from .scenario import Scenario
from .state import PHASES, PREEMPTED
from .table import csv, requests_table, segments_table, stamp, steps_table

AT_ONCE = 10_000  # rows or events that are taken into the hand together

# Names of colours that trace viewers know (tr_ui_base's color_scheme.html).
COLOURS = {
    "prefill": "thread_state_iowait",
    "stalled": "yellow",
    "decode": "thread_state_running",
    "padding": "grey",
    "recompute": "terrible",
    "preempted": "black",
}


def trace_events(runs: Sequence[Run]) -> Iterator[dict]:
    """The runs as trace events: a process each, a track a slot, counters for queue, tokens, KV."""
    for pid, run in enumerate(runs, start=1):
        yield from _names(pid, run)
        yield from _slots(pid, run)
        yield from _counters(pid, run)


def trace_json(runs: Sequence[Run], scenario: Scenario) -> Iterator[str]:
    """The file of them, piece by piece: of a million requests it has a gigabyte."""
    about = {"made by": stamp(scenario), "requests": str(len(runs[0].requests))}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":['
    events, joint = trace_events(runs), ""
    while some := list(islice(events, AT_ONCE)):
        yield joint + json.dumps(some, separators=(",", ":"), allow_nan=False)[1:-1]
        joint = ","
    yield "]}"


def _rows(table: np.ndarray, *names: str) -> Iterator[tuple]:
    """The table's rows as Python's own numbers."""
    for k in range(0, len(table), AT_ONCE):
        part = table[k : k + AT_ONCE]
        yield from zip(*(part[name].tolist() for name in names), strict=True)


def _names(pid: int, run: Run) -> Iterator[dict]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": run.label}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for seat in np.unique(run.segments["seat"]).tolist():
        about = {"ph": "M", "pid": pid, "tid": seat + 1}
        yield about | {"name": "thread_name", "args": {"name": f"slot {seat}"}}
        yield about | {"name": "thread_sort_index", "args": {"sort_index": seat}}


def _slots(pid: int, run: Run) -> Iterator[dict]:
    """Who held which slot; the moments at which one was lost as instants."""
    prompt, output, arrival = (run.requests[name] for name in ("prompt", "output", "arrival"))
    ordered = run.segments[np.argsort(run.segments["t0"], kind="stable")]
    for i, seat, k, t0, t1, tokens in _rows(
        ordered, "request", "seat", "phase", "t0", "t1", "tokens"
    ):
        phase = PHASES[k]
        event = {
            "name": f"{phase} {i}",
            "cat": phase,
            "pid": pid,
            "tid": seat + 1,
            "ts": 1e3 * t0,
        }
        if k == PREEMPTED:
            yield event | {"ph": "i", "s": "t"}
            continue
        args = {"request": i, "tokens": tokens, "prompt": int(prompt[i])}
        args |= {"output": int(output[i]), "arrived_ms": float(arrival[i])}
        duration = 1e3 * (t1 - t0)
        yield event | {"ph": "X", "dur": duration, "cname": COLOURS[phase], "args": args}


def _counters(pid: int, run: Run) -> Iterator[dict]:
    """Queue, running, tokens of a step and KV in use, wherever they change."""
    arrived = np.sort(run.queued[run.requests["refused"] == 0])
    started = np.sort(run.served["start"])
    lost, back = again(run)
    finish = np.sort(run.served["finish"])
    times = np.unique(np.concatenate([arrived, started, finish, lost, back]))

    def upto(values):
        return np.searchsorted(values, times, side="right")

    seated = upto(started) + upto(back) - upto(lost) - upto(finish)
    waiting = upto(arrived) - upto(started) + upto(lost) - upto(back)
    for t, line, held in zip(times.tolist(), waiting.tolist(), seated.tolist(), strict=True):
        yield _counter(pid, "requests", t, {"waiting": line, "seated": held})
    for t, prefill, decodes, free in _rows(run.steps, "t0", "prefill", "decodes", "free"):
        yield _counter(pid, "tokens of a step", t, {"prefill": prefill, "decode": decodes})
        if run.blocks:
            yield _counter(pid, "KV blocks", t, {"held": run.blocks - free})
    yield _counter(pid, "tokens of a step", run.total, {"prefill": 0, "decode": 0})


def _counter(pid: int, name: str, ms: float, values: dict[str, int]) -> dict:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": 1e3 * ms, "args": values}


def grants_table(run: Run) -> pd.DataFrame:
    """One row a request's prompt tokens in each of the step rows [step0, step1)."""
    return pd.DataFrame(run.grants)


TABLES = {
    "requests": requests_table,
    "steps": steps_table,
    "segments": segments_table,
    "grants": grants_table,
}


def table_of(run: Run, name: str) -> pd.DataFrame:
    """One of TABLES, its index a column."""
    made = TABLES[name](run)
    return made.reset_index() if made.index.name else made


def parquet(run: Run, table: str, scenario: Scenario, host: str = "") -> bytes:
    """One of the tables of a run as parquet, saying in its metadata where it comes from."""
    made = table_of(run, table)
    made.attrs = {"slotscope": stamp(scenario, host), "variant": run.label, "source": run.source}
    out = io.BytesIO()
    made.to_parquet(out, index=False)
    return out.getvalue()


def as_csv(run: Run, table: str, scenario: Scenario, host: str = "") -> bytes:
    """The same as CSV under one comment line."""
    return csv(table_of(run, table), scenario, host).encode()


def write_parquet(folder: Path, runs: Sequence[Run], scenario: Scenario) -> None:
    """For each variant its requests, steps, segments and grants."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        for table in TABLES:
            name = f"{run.label.replace(' ', '-')}-{table}.parquet"
            (folder / name).write_bytes(parquet(run, table, scenario))


def write_trace(
    path: Path, runs: Sequence[Run], scenario: Scenario, compressed: bool = False
) -> None:
    """The trace as a file; viewers open a compressed one as well."""
    with gzip.open(path, "wt", compresslevel=1) if compressed else path.open("w") as out:
        out.writelines(trace_json(runs, scenario))
