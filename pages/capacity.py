"""How much each variant can take: its capacity under the SLO, and curves over any parameter."""

import streamlit as st

from pages.ui import capacity, compare

scenario = compare.scenario()
answer = st.container()
asked = capacity.controls(scenario)
with answer:
    capacity.answer(asked)
capacity.curves_below(asked)
capacity.definitions()
st.caption(capacity.provenance(asked))
