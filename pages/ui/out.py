"""The runs as files for other programs."""

from collections.abc import Sequence

import streamlit as st

from sim.out import TABLES, parquet, trace_json
from sim.run import Run
from sim.scenario import Scenario

from .files import tabled


def files(runs: Sequence[Run], shown: Sequence[Run], scenario: Scenario) -> None:
    """A trace of all variants for Perfetto, and each variant's tables as parquet.

    shown: the runs, of which only who counts is in the tables.
    """
    with st.expander("The runs as files", icon=":material/download:"):
        st.caption("The trace opens in ui.perfetto.dev or chrome://tracing: a track a slot.")
        if shown is not runs:
            st.caption(
                "It holds everybody, since a slot of somebody left out would look free. The tables"
                " hold who arrived in the window, and all steps."
            )
        _button("slotscope-trace.json", lambda: trace_json(runs, scenario), "application/json")
        for k, run in enumerate(runs):
            with st.container(horizontal=True):
                for table in (*TABLES, "grants"):
                    name = f"{run.label.replace(' ', '-')}-{table}.parquet"

                    def made(k=k, table=table):
                        return parquet(tabled(runs[k], shown[k]), table, scenario)

                    _button(name, made, "application/vnd.apache.parquet")


def _button(file: str, make, mime: str) -> None:
    key = f"file {file}"
    st.download_button(file, make, file, mime, key=key, on_click="ignore", type="tertiary")
