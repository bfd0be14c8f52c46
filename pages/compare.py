"""The same requests under each variant: what it gains, what it costs, who waited and why."""

import streamlit as st

from pages.ui import beside, compare

scenario, runs = compare.runs()
compare.verdict(runs, scenario)
compare.headline(runs, scenario)
beside.beside(runs, scenario)
compare.timeline(runs, scenario)
compare.distributions(runs, scenario)
compare.figures(runs, scenario)
compare.definitions()
st.caption(compare.provenance(scenario, runs))
