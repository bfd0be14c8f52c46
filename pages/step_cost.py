"""One step taken apart: what it reads, what it computes, and when it begins to stretch."""

import streamlit as st

from pages.ui import share, stepcost

share.enter()
cost, step = stepcost.controls()
stepcost.verdict(cost, step)
stepcost.bars(cost, step)
stepcost.roofline(cost, step)
stepcost.curves(cost, step)
stepcost.sum_or_max(cost)
stepcost.formulas(cost, step)
stepcost.of_the_module(cost)
st.caption(stepcost.provenance(cost))
