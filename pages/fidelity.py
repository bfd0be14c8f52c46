"""Does it predict? Published measurements beside what the simulator says of them."""

import streamlit as st

from pages.ui import predictions, share

share.enter()
rows = predictions.scored()
predictions.verdict(rows)
predictions.chart(rows)
predictions.table(rows)
predictions.apart(rows)
predictions.problems(rows)
st.caption(predictions.provenance(rows))
