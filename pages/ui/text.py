"""How text reaches a page, and on which ground."""

import re

import streamlit as st


def dark() -> bool:
    return st.context.theme.type == "dark"


def plain(text: str) -> str:
    """Markdown that shows `text` as it is: an address or a file may hold anything."""
    return re.sub(r"([^A-Za-z0-9\s])", r"\\\1", text, flags=re.ASCII)
