"""The parts of the page that lays predictions beside measurements."""

from typing import NamedTuple, cast

import pandas as pd
import streamlit as st
from joblib import Memory

from sim import fidelity
from sim.jit import SOURCES
from sim.parameter import ScenarioError
from sim.sweep import CACHE

from . import stepcharts
from .text import dark, plain, unbroken


class Scored(NamedTuple):
    table: pd.DataFrame
    medians: pd.DataFrame
    front: str  # what is to be said of front ends
    said: str  # what was fitted on what
    problems: list[str]


@st.cache_data(max_entries=4, show_spinner="Fitting without each record, and simulating it")
def _scored(text: str, comes_along: bool) -> Scored:
    """What comes along takes seconds too: it is kept from one start of a server to the next."""
    if not comes_along:
        return Scored(*_of(text, SOURCES))
    try:
        memory = Memory(CACHE, verbose=0)
    except OSError:  # a folder that can't be written to
        memory = Memory(None)
    return Scored(*cast(tuple, memory.cache(_of)(text, SOURCES)))


def _of(text: str, sources: str) -> tuple:
    """In the order of Scored; `sources` are those that predict."""
    records, problems = fidelity.read(text)
    rows = fidelity.score(records)
    return (
        fidelity.table(rows),
        fidelity.medians(rows),
        fidelity.front_ends(rows),
        fidelity.whats_fitted(),
        problems,
    )


def scored() -> Scored:
    """The file dropped, or the measurements that come along."""
    file = st.sidebar.file_uploader("Measurements of your own", type="json")
    st.sidebar.caption("The same form as `sim/published.json`, which is shown until then.")
    content = file.getvalue() if file else fidelity.PUBLISHED.read_bytes()
    try:
        return _scored(content.decode("utf-8", "replace"), comes_along=file is None)
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        st.stop()


def verdict(rows: Scored) -> None:
    medians = rows.medians
    if medians.empty:
        st.subheader("Nothing here can be scored.", anchor=False)
        return
    groups = medians["group"].tolist()
    first = next((group for group in groups if not group.endswith(", apart")), groups[0])
    shown = medians.loc[medians["group"] == first].to_dict("records")
    said = "; ".join(f"{r['figure']} {r['median']:.1f} % ({r['count']})" for r in shown)
    said = said.replace(")", " records)", 1)
    st.subheader(unbroken(f"Median error on {first}: {said}."), anchor=False)
    medians = medians.sort_values("group", key=lambda names: names.str.endswith(", apart"))
    st.dataframe(
        medians.rename(columns={"median": "median |error|, %", "count": "records"}).round(1),
        hide_index=True,
        alt="Median error by device and figure",
    )
    st.markdown(
        "Throughput is scored in saturation only: below it, it echoes the offered rate. TTFT is not"
        f" scored at a load from {fidelity.NEAR:g} to {fidelity.SATURATED:g}, where a small error"
        " in the step time is a large one in the queue. Records of an unnamed device or of unknown"
        f" flags count apart. {rows.front}"
    )


def chart(rows: Scored) -> None:
    with st.container(key="predicted"):
        st.html("<style>.st-key-predicted { overflow-x: auto; }</style>")
        st.altair_chart(
            stepcharts.predicted(rows.table, dark()),
            alt="Predicted against measured TTFT, TPOT and throughput",
            width="content",
            key="predicted-chart",
        )


def table(rows: Scored) -> None:
    number = st.column_config.NumberColumn(format="%.2f")
    st.dataframe(
        rows.table,
        hide_index=True,
        height=35 * (len(rows.table) + 1) + 3,
        alt="Each record: measured, predicted, error",
        column_order=(
            "record",
            "figure",
            "error",
            "measured",
            "predicted",
            "unit",
            "load",
            "scored",
            "why not",
            "fitted on",
            "group",
            "source",
        ),
        column_config=dict.fromkeys(("load", "measured", "predicted"), number)
        | {"error": st.column_config.NumberColumn("error, %", format="%+.1f")},
    )


def apart(rows: Scored) -> None:
    """Why a record counts apart, once each."""
    of_those = rows.table["group"].str.endswith(", apart")
    shown = rows.table.loc[of_those & (rows.table["figure"] == "TTFT")]
    if len(shown):
        said = [f"- {plain(r['record'])}: {plain(r['why not'])}." for r in shown.to_dict("records")]
        st.markdown("Counted apart, and why they may be off:\n" + "\n".join(said))


def problems(rows: Scored) -> None:
    if rows.problems:
        st.warning("\n".join(f"- {plain(s)}." for s in rows.problems), title="Not simulated:")


def provenance(rows: Scored) -> str:
    return f"{rows.said} `python -m sim fidelity FILE` prints the same."
