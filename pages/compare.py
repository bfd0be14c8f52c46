"""The same requests under each variant: what it gains, what it costs, who waited and why."""

import streamlit as st

from pages.ui import beside, compare, differ, export, out, sharing, why

scenario, runs = compare.runs()
shown = compare.brushed(runs)
sharing.opened(runs, scenario)
compare.verdict(shown, scenario)
compare.headline(shown, scenario)
compare.load(runs, scenario)
with st.container(horizontal=True):
    sharing.sharing(runs, scenario)
    export.files(runs, scenario)
beside.beside(runs, scenario)
differ.real(scenario)
compare.timeline(runs, scenario)
why.totals(runs, shown, scenario, compare.dark())
differ.section(runs, shown, scenario)
compare.distributions(shown, scenario)
compare.figures(shown, scenario)
out.files(runs, scenario)
compare.definitions()
st.caption(compare.provenance(scenario, runs))
