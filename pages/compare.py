"""The same requests under each variant: what it gains, what it costs, who waited and why."""

import streamlit as st

from pages.ui import beside, compare, differ, export, out, sharing, why

scenario, runs = compare.runs()
part, shown = compare.brushed(runs, scenario)
held = [*runs, *shown]  # by whoever draws them, however many others draw theirs
sharing.opened(runs, scenario)
compare.verdict(shown, part)
compare.headline(shown, part)
compare.load(shown, part)
with st.container(horizontal=True):
    sharing.sharing(runs, scenario)
    export.files(shown, part, runs)
beside.beside(runs, scenario)
differ.real(part, runs)
compare.timeline(runs, scenario, shown, part)
why.totals(runs, shown, part, compare.dark())
differ.section(runs, shown, part)
compare.distributions(shown, part)
compare.figures(shown, part)
out.files(runs, shown, part)
compare.definitions()
st.caption(compare.provenance(part, shown))
held.clear()
