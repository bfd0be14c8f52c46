"""Files that visitors bring: kept for the session, shown as `python -m sim inspect` says them."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from sim import results, traces
from sim.bring import (
    FIRST,
    Brought,
    bring,
    folder_files,
    named,
    report,
    simulated,
    states_line,
    traffic_line,
    traffic_of,
)
from sim.files import MAX_UPLOAD_MB, head
from sim.metrics import FIGURES
from sim.parameter import ScenarioError
from sim.results import Measured
from sim.scenario import COSTING, Scenario
from sim.traces.plain import ROLES
from sim.workload import Workload

from . import charts, share, tables
from . import keep as kept
from .text import dark, plain

FOLDER = os.environ.get("SLOTSCOPE_TRACES", "")
BEYOND = 1_000.0
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def keep(found: Brought) -> None:
    """For this session: what can be simulated, and what was measured."""
    state = st.session_state
    state.brought = found
    for name, (workload, measured) in found.workloads().items():
        state.files = state.get("files", {}) | {name: workload}
        if measured is not None:
            state.measured = state.get("measured", {}) | {name: measured}


@st.cache_data(show_spinner=False)
def _name(path: str, size: int, changed: float) -> str:
    return named(Path(path))


@st.cache_resource(max_entries=4, show_spinner="Reading the file")
def _read(path: str, size: int, changed: float) -> Brought:
    return bring(Path(path), Path(path).name)


def _stat(path: Path) -> tuple[str, int, float]:
    about = path.stat()
    return str(path), about.st_size, about.st_mtime


def from_folder(name: str) -> Workload | None:
    """The requests of that name, where a file of the server's folder holds them."""
    for path in folder_files(FOLDER):
        if _name(*_stat(path)) == name.partition(".")[0]:
            try:
                keep(found := _read(*_stat(path)))
            except ScenarioError:
                return None
            return found.workloads().get(name, (None, None))[0]
    return None


def from_store(name: str) -> Workload | None:
    """The same, where this server has kept a file that somebody brought."""
    found = kept.trace(name)
    if found is None:
        return None
    keep(found)
    return found.workloads().get(name, (None, None))[0]


def linked() -> Brought | None:
    """The kept file that the address names, if it names one."""
    content = share.opened(st.session_state.scenario)
    return kept.trace(content.name) if content and content.kind == kept.TRACE else None


def choose() -> None:
    """A file of the visitor's, or of the server's folder; or an unknown CSV's columns by hand."""
    state = st.session_state
    st.file_uploader(
        "A trace, or a benchmark's result",
        key="bring",
        on_change=_take,
        max_upload_size=MAX_UPLOAD_MB,
        help=f"Recognised by content; up to {MAX_UPLOAD_MB} MB (SLOTSCOPE_MAX_UPLOAD_MB)",
    )
    if files := folder_files(FOLDER):
        named = {path.name: path for path in files}
        left, right = st.columns([4, 1], vertical_alignment="bottom")
        picked = left.selectbox("Or a file of the server's", named, key="folder")
        if right.button("Read it", width="stretch"):
            _attempt(lambda: _read(*_stat(named[picked])))
    if said := state.pop("bring_kept", None):
        st.caption(plain(said) + ".")
    if problem := state.get("bring_problem"):
        st.error(plain(problem) + ".")
        if state.get("unknown"):
            _columns(*state.unknown)


def _take() -> None:
    file = st.session_state.bring
    st.session_state.unknown = None
    if file is None:
        st.session_state.bring_problem = None
        return
    content = file.getvalue()
    _attempt(lambda: bring(content, file.name))
    if st.session_state.brought is not None:
        st.session_state.bring_kept = kept.keep_trace(content, st.session_state.brought)
    if st.session_state.bring_problem and _columns_of(content):
        st.session_state.unknown = (file.name, content)


def _attempt(read) -> None:
    state = st.session_state
    state.bring_problem = None
    try:
        keep(read())
    except ScenarioError as error:
        state.bring_problem, state.brought = str(error), None


def _columns_of(content: bytes) -> tuple[str, ...]:
    try:
        columns = head(content, "").columns
    except ScenarioError:
        return ()
    return columns if len(columns) > 1 and traces.recognise(head(content, "")) is None else ()


def _columns(filename: str, content: bytes) -> None:
    """Which column is what."""
    st.markdown("**If it is a CSV of requests, say which column is what:**")
    options = list(dict.fromkeys(_columns_of(content)))
    mapping = {}
    for cell, (role, label) in zip(st.columns(len(ROLES)), ROLES.items(), strict=True):
        picked = cell.selectbox(label, options, index=None, key=f"column.{role}")
        mapping |= {role: picked} if picked else {}
    ready = {"prompt_len", "output_len"} <= set(mapping)
    st.button(
        "Read with these columns",
        disabled=not ready,
        on_click=lambda: _attempt(lambda: bring(content, filename, mapping)),
    )


def known_formats() -> None:
    """What can be brought, while nothing is."""
    st.markdown(
        "A trace becomes the traffic that every variant serves; a result is read again by one set"
        " of definitions, beside the tool's own figures and what would be predicted. A file is"
        " recognised by its content, `.gz` or not. These are known:"
    )
    left, right = st.columns(2)
    for column, title, registry in (
        (left, "Traces, as traffic", traces.TRACES),
        (right, "Results, as measured runs", results.RESULTS),
    ):
        column.subheader(title, anchor=False)
        column.table(
            pd.DataFrame(
                {"worth knowing": [f.about for f in registry.values()]},
                index=[f.label for f in registry.values()],
            ),
            border="horizontal",
        )


def show(found: Brought, scenario: Scenario) -> None:
    """All that there is to say of a file."""
    r = report(found, scenario.slo)
    st.subheader(f"{plain(r['file'])}: {r['format']}", anchor=False)
    st.caption(f"Recognised by {plain(r['recognised_by'])}. {plain(r['about'])}")
    _rows(r)
    if r["kind"] == "trace":
        _trace(found, r, scenario)
    else:
        _results(found, r, scenario)
    st.download_button(
        "inspect.json",
        json.dumps(r, indent=1),
        "inspect.json",
        "application/json",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
    )


def _rows(r: dict[str, Any]) -> None:
    left = "".join(f", {n:,} left out ({why})" for why, n in r.get("left_out", {}).items())
    rows = f"{r['rows']:,} row{'s' * (r['rows'] != 1)}"
    st.markdown(f"{rows}, **{r['bad_rows']:,} bad**{left}.")
    if r["bad_rows"]:
        label = f"Bad rows: the first {len(r['bad'])} of {r['bad_rows']:,}"
        with st.expander(label, expanded=True, icon=":material/warning:"):
            bad = pd.DataFrame(r["bad"]).rename(columns={"row": "line", "reason": "what is wrong"})
            st.dataframe(bad, hide_index=True, height="content" if len(bad) < 8 else 300)


def _notes(notes: list[str]) -> None:
    if notes:
        st.markdown("\n".join(f"- {plain(note)}" for note in notes))


def _trace(found: Brought, r: dict[str, Any], scenario: Scenario) -> None:
    st.markdown(traffic_line(r) + ".")
    if r["lengths"]:
        table = pd.DataFrame(r["lengths"]).T.map(lambda x: f"{x:,.0f}")
        table.columns, table.index = ["mean", "median", "longest"], ["prompt", "output"]
        st.table(table.rename_axis("tokens"), border="horizontal", width="content")
    (name, (workload, _)) = next(iter(found.workloads().items()))
    asked = replace(scenario, traffic=traffic_of(name, workload))
    part = [f"the first {FIRST:,} requests; the sidebar takes more"] if asked.traffic.first else []
    _go("Use it as traffic", asked, part)
    _notes(r["notes"])


def _go(label: str, scenario: Scenario, said: list[str]) -> None:
    """What one click does with the file, and what that takes for granted."""
    with st.container(border=True):
        st.page_link(
            "pages/compare.py",
            label=f"**{label}**",
            icon=":material/play_arrow:",
            query_params=scenario.to_query(),
        )
        if said:
            st.caption(plain("; ".join(said)) + ".")


def _results(found: Brought, r: dict[str, Any], scenario: Scenario) -> None:
    labels = [f"{k + 1}. {run['label']}" for k, run in enumerate(r["runs"])]
    k = 0
    if len(labels) > 1:
        k = labels.index(st.selectbox("Run", labels, key="run-of-file"))
    run, measured = r["runs"][k], found.measured[k]
    st.markdown(f"**{plain(run['label'])}**: {states_line(run)}.")
    held = {id(m): name for name, (_, m) in found.workloads().items()}
    if id(measured) in held:
        _go("Simulate what was measured", *simulated(held[id(measured)], measured))
    elif measured.cost:
        cost = tuple(measured.cost[name] for name in COSTING)
        _go("Use its cost of a step", replace(scenario, cost=cost), [])
    elif measured.limits:
        _limits(measured, scenario)
    if any(FIGURES[name].metric for name in run["figures"]):
        st.table(figures_table(run["figures"]), border="horizontal")
    _others(run)
    if run["own"]:
        st.markdown("**The tool's own figures that mean something else**")
        st.table(_own_table(measured), border="horizontal")
    if run["agree"]:
        st.caption(f"Within 0.5 % of ours: {run['agree']} of the tool's own figures.")
    _notes(run["notes"])
    if len(measured.series.get("t", ())) > 1:
        st.altair_chart(
            charts.log(measured.series, dark()), alt="Running, waiting and KV pool by time"
        )


def _limits(measured: Measured, scenario: Scenario) -> None:
    """One click takes the server's own limits along; no more than they are known."""
    usual = scenario.limits._asdict()
    known = {n: type(usual[n])(v) for n, v in measured.limits.items() if n in usual}
    asked = replace(scenario, limits=scenario.limits._replace(**known))
    said = ", ".join(f"{name} {value:,}" for name, value in known.items())
    if asked.problem:
        st.caption(f"{said}: not to be had in this scenario, {plain(asked.problem)}.")
    else:
        _go("Use its limits", asked, [said])


def figures_table(figures: Mapping[str, float | None]) -> pd.DataFrame:
    """Metrics down, statistics across."""
    rows: dict[str, dict[str, str]] = {}
    for name, value in figures.items():
        f = FIGURES[name]
        if f.metric:
            stat = name.removeprefix(f"{f.metric}_")
            label = f.label.removesuffix(f" {stat}")
            shown = tables.number(float("nan") if value is None else value, f.unit)
            rows.setdefault(label, {})[stat] = "not defined" if value is None else shown
    return (
        pd.DataFrame(rows).T.reindex(columns=list(STATISTICS)).dropna(axis=1, how="all").fillna("")
    )


def _others(run: dict[str, Any]) -> None:
    parts = [
        f"{FIGURES[n].label} {tables.number(v, FIGURES[n].unit)}"
        for n, v in run["figures"].items()
        if not FIGURES[n].metric and v is not None
    ]
    if parts:
        st.markdown(" · ".join(parts))


def _apart(theirs: float, ours: float) -> str:
    """The difference; none where one is no measure of the other, such as an epoch of a latency."""
    return "–" if abs(theirs) > BEYOND * abs(ours) else tables.difference(theirs, ours)


def _own_table(m: Measured) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "theirs": [tables.number(o.theirs, o.unit) for o in m.own],
            "ours": [tables.number(o.ours, o.unit) for o in m.own],
            "apart": [_apart(o.theirs, o.ours) for o in m.own],
            "what it means": [plain(o.meaning) for o in m.own],
        },
        index=[plain(o.name) for o in m.own],
    )
