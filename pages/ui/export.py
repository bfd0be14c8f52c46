"""A chart or a table as a file: PNG at twice the size, SVG, CSV, each saying what it is of."""

from collections.abc import Callable
from io import BytesIO, StringIO
from typing import Literal

import altair as alt
import pandas as pd
import streamlit as st

from sim.scenario import Scenario
from sim.sweep import Sweep
from sim.table import csv, parquet, stamp

from . import charts, share

PARQUET = "application/vnd.apache.parquet"


def picture(chart: alt.TopLevelMixin, kind: Literal["png", "svg"]) -> bytes:
    """The chart as PNG or SVG."""
    if kind == "svg":
        text = StringIO()
        chart.save(text, format="svg")
        return text.getvalue().encode()
    out = BytesIO()
    chart.save(out, format="png", scale_factor=2)
    return out.getvalue()


def export(
    name: str,
    scenario: Scenario | Sweep,
    table: Callable[[], pd.DataFrame],
    chart=None,
    title: str = "",
    dark: bool = False,
) -> None:
    """A popover with the files; each is made when it is asked for."""
    host = share.host()
    with st.popover("Export", icon=":material/download:", type="tertiary"):
        if chart is not None:

            def drawn(kind):
                return picture(charts.stamped(chart, title, stamp(scenario, host), dark), kind)

            _button(f"{name}.png", lambda: drawn("png"), "image/png")
            _button(f"{name}.svg", lambda: drawn("svg"), "image/svg+xml")
        _button(f"{name}.csv", lambda: csv(table(), scenario, host).encode(), "text/csv")
        _button(f"{name}.parquet", lambda: parquet(table(), scenario, host), PARQUET)


def _button(file: str, make: Callable[[], bytes], mime: str) -> None:
    st.download_button(
        file, make, file, mime, key=f"download {file}", on_click="ignore", type="tertiary"
    )
