"""The entrypoint: page config, the scenario's sidebar, navigation."""

import streamlit as st

# Drawn here: an icon by name would be fetched from elsewhere.
ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<path fill="#e69f00" d="M1 2h5v3H1zM1 6.5h3v3H1zM5 11h3v3H5z"/>
<path fill="#4a8ac9" d="M6 2h9v3H6zM4 6.5h8v3H4zM8 11h7v3H8z"/></svg>"""

st.set_page_config(page_title="Slotscope", page_icon=ICON, layout="wide")
compare = st.Page(
    "pages/compare.py", title="Compare", icon=":material/compare_arrows:", default=True
)
about_a_scenario = [
    compare,
    st.Page("pages/live.py", title="Live", icon=":material/play_circle:"),
    st.Page("pages/device.py", title="Device", icon=":material/developer_board:"),
    st.Page("pages/capacity.py", title="Capacity", icon=":material/trending_up:"),
    st.Page("pages/bring.py", title="Bring your own", icon=":material/upload_file:"),
    st.Page("pages/library.py", title="Library", icon=":material/photo_library:"),
]
others = [
    st.Page("pages/step_cost.py", title="Step cost", icon=":material/stacked_bar_chart:"),
    st.Page("pages/fidelity.py", title="Fidelity", icon=":material/target:"),
    st.Page("pages/module_08.py", title="Module 08", icon=":material/school:"),
]
page = st.navigation([*about_a_scenario, *others])

# Some seconds for a server's first visitor, who else would see the files of pages/ named meanwhile.
from pages.ui import controls, share  # noqa: E402

share.back_to_the_page([*about_a_scenario, *others])
if page in about_a_scenario:
    asked = controls.review if share.in_review() else controls.scenario
    st.session_state.scenario, st.session_state.notices = asked(page.url_path)
else:
    st.session_state.page = page.url_path
page.run()
