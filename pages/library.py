"""Saved runs: find one, open it, lay two side by side."""

import streamlit as st

from pages.ui import library

st.subheader("Library", anchor=False)
found = library.shelf()
library.side_by_side()
library.cards(found)
