"""Runs as files for other programs: a Chrome trace for Perfetto, and parquet.

The trace-event format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
(one JSON object with `traceEvents`; ts and dur in microseconds; ph X: a slice, i: an instant,
C: a counter, M: metadata). It opens in ui.perfetto.dev and in chrome://tracing.
"""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from .metrics import again
from .run import Run
from .scenario import Scenario
from .state import PHASES, PREEMPTED
from .table import requests_table, segments_table, stamp, steps_table

# Names of colours that trace viewers know (tr_ui_base's color_scheme.html).
COLOURS = {
    "prefill": "thread_state_iowait",
    "stalled": "yellow",
    "decode": "thread_state_running",
    "padding": "grey",
    "recompute": "terrible",
    "preempted": "black",
}


def trace_events(runs: Sequence[Run], scenario: Scenario) -> dict:
    """The runs as trace events: a process each, a track a slot, counters for queue, tokens, KV."""
    events: list[dict] = []
    for pid, run in enumerate(runs, start=1):
        events += _names(pid, run)
        events += _slots(pid, run)
        events += _counters(pid, run)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"made by": stamp(scenario), "requests": str(len(runs[0].requests))},
    }


def trace_json(runs: Sequence[Run], scenario: Scenario) -> str:
    return json.dumps(trace_events(runs, scenario), separators=(",", ":"), allow_nan=False)


def _names(pid: int, run: Run) -> Iterator[dict]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": run.label}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for seat in np.unique(run.segments["seat"]).tolist():
        about = {"ph": "M", "pid": pid, "tid": seat + 1}
        yield about | {"name": "thread_name", "args": {"name": f"slot {seat}"}}
        yield about | {"name": "thread_sort_index", "args": {"sort_index": seat}}


def _slots(pid: int, run: Run) -> Iterator[dict]:
    """Who held which slot; the moments at which one was lost as instants."""
    r = run.requests
    for s in run.segments[np.argsort(run.segments["t0"], kind="stable")]:
        i, phase = int(s["request"]), PHASES[s["phase"]]
        event = {
            "name": f"{phase} {i}",
            "cat": phase,
            "pid": pid,
            "tid": int(s["seat"]) + 1,
            "ts": 1e3 * float(s["t0"]),
        }
        if s["phase"] == PREEMPTED:
            yield event | {"ph": "i", "s": "t"}
            continue
        args = {"request": i, "tokens": int(s["tokens"]), "prompt": int(r["prompt"][i])}
        args |= {"output": int(r["output"][i]), "arrived_ms": float(r["arrival"][i])}
        duration = 1e3 * float(s["t1"] - s["t0"])
        yield event | {"ph": "X", "dur": duration, "cname": COLOURS[phase], "args": args}


def _counters(pid: int, run: Run) -> Iterator[dict]:
    """Queue, running, tokens of a step and KV in use, wherever they change."""
    arrived, started = np.sort(run.served["arrival"]), np.sort(run.served["start"])
    lost, back = again(run)
    finish = np.sort(run.served["finish"])
    times = np.unique(np.concatenate([arrived, started, finish, lost, back]))

    def upto(values):
        return np.searchsorted(values, times, side="right")

    seated = upto(started) + upto(back) - upto(lost) - upto(finish)
    waiting = upto(arrived) - upto(started) + upto(lost) - upto(back)
    for t, line, held in zip(times.tolist(), waiting.tolist(), seated.tolist(), strict=True):
        yield _counter(pid, "requests", t, {"waiting": line, "seated": held})
    for step in run.steps:
        values = {"prefill": int(step["prefill"]), "decode": int(step["decodes"])}
        yield _counter(pid, "tokens of a step", float(step["t0"]), values)
        if run.blocks:
            kv = {"held": run.blocks - int(step["free"])}
            yield _counter(pid, "KV blocks", float(step["t0"]), kv)
    yield _counter(pid, "tokens of a step", run.total, {"prefill": 0, "decode": 0})


def _counter(pid: int, name: str, ms: float, values: dict[str, int]) -> dict:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": 1e3 * ms, "args": values}


TABLES = {"requests": requests_table, "steps": steps_table, "segments": segments_table}


def grants_table(run: Run) -> pd.DataFrame:
    """One row a request's prompt tokens in each of the step rows [step0, step1)."""
    return pd.DataFrame(run.grants)


def parquet(run: Run, table: str, scenario: Scenario) -> bytes:
    """One of the tables of a run as parquet, saying in its metadata where it comes from."""
    made = (TABLES | {"grants": grants_table})[table](run)
    made = made.reset_index() if made.index.name else made
    made.attrs = {"slotscope": stamp(scenario), "variant": run.label, "source": run.source}
    out = io.BytesIO()
    made.to_parquet(out, index=False)
    return out.getvalue()


def write_parquet(folder: Path, runs: Sequence[Run], scenario: Scenario) -> None:
    """For each variant its requests, steps, segments and grants."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        for table in (*TABLES, "grants"):
            name = f"{run.label.replace(' ', '-')}-{table}.parquet"
            (folder / name).write_bytes(parquet(run, table, scenario))


def write_trace(path: Path, runs: Sequence[Run], scenario: Scenario) -> None:
    path.write_text(trace_json(runs, scenario))
