"""The entrypoint: page config, the scenario's sidebar, navigation."""

import streamlit as st

from pages.ui import controls, share

# Drawn here: an icon by name would be fetched from elsewhere.
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<path fill="#e69f00" d="M1 2h5v3H1zM1 6.5h3v3H1zM5 11h3v3H5z"/>
<path fill="#4a8ac9" d="M6 2h9v3H6zM4 6.5h8v3H4zM8 11h7v3H8z"/></svg>"""

st.set_page_config(page_title="Slotscope", page_icon=ICON, layout="wide")
page = st.navigation(
    [
        st.Page(
            "pages/compare.py", title="Compare", icon=":material/compare_arrows:", default=True
        ),
        st.Page("pages/live.py", title="Live", icon=":material/play_circle:"),
    ]
)
share.come_along(page.url_path)
controls.presets()
st.session_state.scenario, st.session_state.notices = controls.scenario()
page.run()
