"""How text reaches a page, and on which ground."""

import re

import streamlit as st


def dark() -> bool:
    return st.context.theme.type == "dark"


def plain(text: str) -> str:
    """Markdown that shows `text` as it is: an address, a title or a file may hold anything."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))
