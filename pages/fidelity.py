"""Does it predict? Published measurements beside what the simulator says of them."""

import streamlit as st

from pages.ui import predictions, share

share.enter()
rows, problems = predictions.scored()
predictions.verdict(rows)
predictions.chart(rows)
predictions.table(rows)
predictions.problems(problems)
st.caption(predictions.provenance())
