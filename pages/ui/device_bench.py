"""Exercise 08.2 on the device page: padding to the longest against continuous stepping."""

import numpy as np
import pandas as pd
import streamlit as st

from gpu_probe import jobs
from gpu_probe.jobs import Job
from sim.parameter import ScenarioError

from . import device_charts
from .text import dark, plain

COLUMNS = {
    "batch": "{:,}",
    "way": "{}",
    "tokens": "{:,}",
    "calls": "{:,}",
    "decode calls": "{:,}",
    "slots used": "{:.0%}",
    "seconds": "{:.2f}",
    "spread": "±{:.0%}",
    "tok/s": "{:,.0f}",
    "against pad_to_max": "{:.2f}×",
}


def exercise() -> None:
    """Measure it, and what it found the last time."""
    device = st.session_state["device.device"]
    job = jobs.exercise(device)
    with st.expander(
        "Exercise 08.2: padding to the longest against continuous stepping, calls and memory",
        icon=":material/exercise:",
        expanded=job.runs,
    ):
        if job.runs:
            _running(job)
            return
        st.button("Measure", icon=":material/play_arrow:", key="exercise", on_click=_start)
        if said := st.session_state.pop("exercise.said", None):
            st.error(f"{plain(said)}.")
        if found := job.found():
            st.markdown(_said(found["rows"]))
            _calls(found)
            _memory(found["memory"])
            st.caption(f"{device}, {job.about.get('date', '')[:16].replace('T', ' ')} UTC")
        elif job.folder.exists():
            said = "it was stopped" if job.stopping else job.last_words()
            st.warning(f"It ended early: {plain(said or 'its process said nothing')}.")


def _start() -> None:
    try:
        jobs.start_exercise(st.session_state["device.device"])
    except ScenarioError as error:
        st.session_state["exercise.said"] = str(error)


@st.fragment(run_every=1.0)
def _running(job: Job) -> None:
    if not job.runs:
        st.rerun()
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.markdown("Measuring four ways at two batch sizes, then memory in a process each …")
    right.button("Stop", on_click=job.stop, key="exercise-stop", width="stretch")


def _said(rows: list[dict]) -> str:
    """What came out, at the largest batch."""
    batch = max(row["batch"] for row in rows)
    by = {row["way"]: row for row in rows if row["batch"] == batch}
    pad, flat = by["pad_to_max"], by["continuous"]
    return (
        f"**At batch {batch} continuous stepping makes {flat['calls']:,} calls instead of"
        f" {pad['calls']:,} and {flat['against pad_to_max']:.1f} times the tok/s**; padding that"
        f" knew all lengths beforehand: {by['pad_to_max_sorted']['against pad_to_max']:.1f} times."
    )


def _calls(found: dict) -> None:
    table = pd.DataFrame(found["rows"])[list(COLUMNS)]
    for name, form in COLUMNS.items():
        table[name] = [form.format(value) for value in table[name]]
    st.table(
        table.set_index(["batch", "way"]), border="horizontal", alt="Each way of exercise 08.2"
    )
    st.caption(
        f"Counts are the module's, exact on any machine. The regime here is {found['regime']}."
    )


def _memory(ways: list[dict]) -> None:
    """Bytes above the start by time; whichever way it comes out is what is shown."""
    pad, flat = ways
    titles = {"bytes": "Above the start", "kv": "KV in use"}
    for column, (name, title) in zip(st.columns(2), titles.items(), strict=True):
        lines = {way["way"]: (np.array(way["t"]), np.array(way[name])) for way in ways}
        if name == "kv":  # slots times the longest of the wave, useful or not
            ends = np.array([0.0, pad["t"][-1]])
            lines["pad_to_max, with its padding"] = ends, np.full(2, pad["needed"])
        with column:
            chart = device_charts.memory(lines, title, dark())
            st.vega_lite_chart(chart, key=f"exercise.{name}", alt=f"{title}, both ways by time")
    rows = {
        way["way"]: {
            "KV needed": _mib(way["needed"]),
            "peak above the start": _mib(way["peak"]),
        }
        for way in ways
    }
    for way in ways:
        if way["reserved"] is not None:
            rows[way["way"]]["reserved above the start"] = _mib(way["reserved"])
    st.table(pd.DataFrame(rows), border="horizontal", alt="Memory of both ways")
    st.caption(
        f"One long prompt among short ones; one process each, {pad['what']}. Peak: {pad['way']}"
        f" {pad['peak'] / max(1, flat['peak']):.1f} times that of {flat['way']}. The pool of KV"
        " blocks is taken at the start."
    )


def _mib(number: float) -> str:
    return f"{number / 2**20:,.1f} MiB"
