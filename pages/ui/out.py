"""The runs as files for other programs."""

import streamlit as st

from sim.out import TABLES
from sim.scenario import Scenario

from .export import table_button, trace_button
from .shelf import Runs


def files(runs: Runs, shown: Runs, scenario: Scenario) -> None:
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
        trace_button(runs, scenario)
        for k, run in enumerate(runs):
            with st.container(horizontal=True):
                for table in TABLES:
                    name = f"{run.label.replace(' ', '-')}-{table}.parquet"
                    table_button(name, scenario, f"{table}.parquet", k, shown, runs)
