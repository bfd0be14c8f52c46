"""The simulator in time: watch it go, drop a prompt in, change a limit, under every policy."""

import streamlit as st

from pages.ui import live, sharing

st.subheader("Live", anchor=False)
session = live.session()
live.clock(session)
live.doing(session)
live.watch()
live.script(session)
sharing.session(session)
