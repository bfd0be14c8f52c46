"""The same requests under each variant: what it gains, what it costs, who waited and why."""

import streamlit as st

from pages.ui import beside, compare, export, sharing

scenario, runs = compare.runs()
sharing.opened(runs, scenario)
compare.verdict(runs, scenario)
compare.headline(runs, scenario)
compare.load(runs, scenario)
with st.container(horizontal=True):
    sharing.sharing(runs, scenario)
    export.files(runs, scenario)
beside.beside(runs, scenario)
compare.timeline(runs, scenario)
compare.distributions(runs, scenario)
compare.figures(runs, scenario)
compare.definitions()
st.caption(compare.provenance(scenario, runs))
