"""A trace or a benchmark's result of the visitor's own: what it is, and what it says."""

import streamlit as st

from pages.ui import brought, share

share.enter()
st.header("Bring your own", anchor=False)
brought.choose()
if found := st.session_state.get("brought") or brought.linked():
    brought.show(found, st.session_state.scenario)
else:
    brought.known_formats()
