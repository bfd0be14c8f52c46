"""The runs as files for other programs."""

from collections.abc import Sequence

import streamlit as st

from sim.out import TABLES, parquet, trace_json
from sim.run import Run
from sim.scenario import Scenario


def files(runs: Sequence[Run], scenario: Scenario) -> None:
    """A trace of all variants for Perfetto, and each variant's tables as parquet."""
    with st.expander("The runs as files", icon=":material/download:"):
        st.caption("The trace opens in ui.perfetto.dev or chrome://tracing: a track a slot.")
        _button("slotscope-trace.json", lambda: trace_json(runs, scenario), "application/json")
        for run in runs:
            with st.container(horizontal=True):
                for table in (*TABLES, "grants"):
                    name = f"{run.label.replace(' ', '-')}-{table}.parquet"

                    def made(run=run, table=table):
                        return parquet(run, table, scenario)

                    _button(name, made, "application/vnd.apache.parquet")


def _button(file: str, make, mime: str) -> None:
    key = f"file {file}"
    st.download_button(file, make, file, mime, key=key, on_click="ignore", type="tertiary")
