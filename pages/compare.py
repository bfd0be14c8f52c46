"""The same requests under each variant: what it gains, what it costs, who waited and why."""

import streamlit as st

from pages.ui import compare, differ, out, why

scenario, runs = compare.runs()
shown = compare.brushed(runs)
compare.verdict(shown, scenario)
compare.headline(shown, scenario)
differ.real(scenario)
compare.timeline(runs, scenario)
why.totals(runs, shown, scenario, compare.dark())
differ.section(runs, shown, scenario)
compare.distributions(shown, scenario)
compare.figures(shown, scenario)
out.files(runs, scenario)
compare.definitions()
st.caption(compare.provenance(scenario, runs))
