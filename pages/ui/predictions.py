"""The parts of the page that lays predictions beside measurements."""

import pandas as pd
import streamlit as st

from sim import fidelity
from sim.parameter import ScenarioError
from sim.roofline import PRESETS

from . import stepcharts
from .compare import dark, plain


@st.cache_data(max_entries=4, show_spinner="Fitting without each record, and simulating it")
def _scored(text: str) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    records, problems = fidelity.read(text)
    rows = fidelity.score(records)
    return fidelity.table(rows), fidelity.medians(rows), problems


def scored() -> tuple[tuple[pd.DataFrame, pd.DataFrame], list[str]]:
    """(The table, the medians) of the file dropped, or of the measurements that come along."""
    file = st.sidebar.file_uploader("Measurements of your own", type="json")
    st.sidebar.caption("The same form as `sim/published.json`, which is shown until then.")
    content = file.getvalue() if file else fidelity.PUBLISHED.read_bytes()
    try:
        table, medians, problems = _scored(content.decode("utf-8", "replace"))
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        st.stop()
    return (table, medians), problems


def verdict(rows: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    _, medians = rows
    if medians.empty:
        st.subheader("Nothing here can be scored.", anchor=False)
        return
    groups = medians["group"].tolist()
    first = next((group for group in groups if not group.endswith(", apart")), groups[0])
    shown = medians.loc[medians["group"] == first].to_dict("records")
    said = ", ".join(f"{r['figure']} {r['median']:.1f} % ({r['count']})" for r in shown)
    st.subheader(f"Median error on {first}: {said}.", anchor=False)
    st.dataframe(
        medians.rename(columns={"median": "median |error|, %", "count": "records"}).round(1),
        hide_index=True,
        alt="Median error by device and figure",
    )
    st.markdown(
        "Throughput is scored in saturation only: below it, it echoes the offered rate. TTFT is not"
        f" scored at a load from {fidelity.NEAR:g} to {fidelity.SATURATED:g}, where a small error"
        " in the step time is a large one in the queue. Records of an unnamed device or of unknown"
        " flags count apart."
    )


def chart(rows: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    with st.container(key="predicted"):
        st.html("<style>.st-key-predicted { overflow-x: auto; }</style>")
        st.altair_chart(
            stepcharts.predicted(rows[0], dark()),
            alt="Predicted against measured TTFT, TPOT and throughput",
            width="content",
            key="predicted-chart",
        )


def table(rows: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    number = st.column_config.NumberColumn(format="%.2f")
    st.dataframe(
        rows[0],
        hide_index=True,
        height=35 * (len(rows[0]) + 1) + 3,
        alt="Each record: measured, predicted, error",
        column_config=dict.fromkeys(("load", "measured", "predicted"), number)
        | {"error": st.column_config.NumberColumn("error, %", format="%+.1f")},
    )


def problems(sentences: list[str]) -> None:
    if sentences:
        st.warning("\n".join(f"- {plain(s)}." for s in sentences), title="Not simulated:")


def provenance() -> str:
    knobs = PRESETS["h100-sxm"]
    fitted = ", ".join(f"{n} {getattr(knobs, n):.4g}" for n in (*fidelity.FITTED, "front_ms"))
    return (
        f"Fitted once: {fitted}, to TPOT (front_ms to TTFT) of {', '.join(fidelity.FITTED_ON)}."
        f" Each of these is scored by a fit without it. Set, not fitted: MBU {knobs.mbu:g}, overlap"
        f" {knobs.overlap:g}. Other devices take these knobs over. `python -m sim fidelity FILE`"
        " prints the same."
    )
