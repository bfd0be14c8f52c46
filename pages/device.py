"""The same scheduler on a real device: what the clock and the memory say, beside the simulator."""

import streamlit as st

from pages.ui import device, device_bench

device.ground()
job = device.controls()
device_bench.exercise()
device.live(job)
record = device.record(job)
device.compared(record)
device.keep()
st.caption(device.provenance(record))
