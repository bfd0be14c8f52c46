"""A chart or a table as a file: PNG at twice the size, SVG, CSV, each stamped with where it comes from."""

from collections.abc import Callable
from io import BytesIO

import altair as alt
import pandas as pd
import streamlit as st

from sim.scenario import Scenario
from sim.table import csv, stamp

from . import charts, share


def picture(chart: alt.TopLevelMixin, kind: str) -> bytes:
    """The chart as PNG or SVG."""
    out = BytesIO()
    chart.save(out, format=kind, scale_factor=2 if kind == "png" else 1)
    return out.getvalue()


def export(
    name: str,
    scenario: Scenario,
    table: Callable[[], pd.DataFrame],
    chart=None,
    title: str = "",
    dark: bool = False,
) -> None:
    """A popover with the files; each is made when it is asked for."""
    host = share.host()
    with st.popover("Export", icon=":material/download:", type="tertiary"):
        if chart is not None:
            whole = charts.stamped(chart, title, stamp(scenario, host), dark)
            for kind, mime in (("png", "image/png"), ("svg", "image/svg+xml")):
                _button(f"{name}.{kind}", lambda kind=kind: picture(whole, kind), mime)
        _button(f"{name}.csv", lambda: csv(table(), scenario, host).encode(), "text/csv")


def _button(file: str, make: Callable[[], bytes], mime: str) -> None:
    st.download_button(
        file, make, file, mime, key=f"download {file}", on_click="ignore", type="tertiary"
    )
