"""Every claim of the course module beside its computed value."""

import streamlit as st

from pages.ui import module, share

share.enter()
module.verdict()
module.claims()
module.defaults()
module.static_batch()
module.exercise_1()
module.exercise_2()
module.checklist()
st.caption(module.PROVENANCE)
