"""How text reaches a page, and on which ground."""

import re

import streamlit as st


def dark() -> bool:
    return st.context.theme.type == "dark"


def unbroken(text: str) -> str:
    """A number and its unit stay on one line."""
    return re.sub(r"(?<=\d) (?=%|ms\b|s\b|req/s|tok/s)", "\u00a0", text)


def legend(colours: dict[str, str], more: str = "") -> None:
    """Which colour is what, in words that wrap; `more` says what else is drawn."""
    entries = [
        f'<span style="white-space:nowrap"><span style="color:{c}">■</span> {name}</span>'
        for name, c in colours.items()
    ]
    said = " &emsp; ".join([*entries, *([more] if more else [])])
    st.markdown(said, unsafe_allow_html=True)


def plain(text: str) -> str:
    """Markdown that shows `text` as it is: an address, a title or a file may hold anything."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))
