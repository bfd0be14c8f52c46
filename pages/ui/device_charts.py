"""Charts of a device run: functions from plain tables to Vega-Lite in a dict.

Built once and filled with tables by name: of a run that goes on only the tables change, so the
browser moves the marks and doesn't build the chart anew. No Streamlit.
"""

from collections.abc import Mapping
from functools import lru_cache

import altair as alt
import numpy as np
import pandas as pd

from .charts import PHASE_COLOURS, RAMP
from .palette import variant_colours

KINDS = {"decode only": ("#4a8ac9", "#5b97e6"), "mixed": ("#e69f00", "#f0a81c")}
HEIGHT = 300
SAMPLES = 300  # of a line


def steps(rows: pd.DataFrame, title: str, dark: bool) -> dict:
    """A point a step. rows: (t s, ms, kind)."""
    return _steps(dark) | {"title": title, "datasets": {"steps": rows}}


@lru_cache
def _steps(dark: bool) -> dict:
    colour = alt.Color("kind:N", title="").scale(
        domain=list(KINDS), range=[pair[dark] for pair in KINDS.values()]
    )
    return _filled(
        alt.Chart(alt.NamedData("steps"))
        .mark_circle(size=14, opacity=0.7)
        .encode(
            x=_time(),
            y=alt.Y("ms:Q", title="a step, ms").scale(zero=True),
            color=colour.legend(orient="top"),
            tooltip=[
                alt.Tooltip("kind:N"),
                alt.Tooltip("t:Q", title="s", format=".3f"),
                alt.Tooltip("ms:Q", format=",.3f"),
            ],
        )
    )


def slots(rows: pd.DataFrame, seats: int, phases: tuple[str, ...], dark: bool) -> dict:
    """Who held which of the seats. rows: (t0 s, t1 s, seat, request, phase), of these phases."""
    return _slots(seats, phases, dark) | {"title": "Slots", "datasets": {"slots": rows}}


@lru_cache
def _slots(seats: int, phases: tuple[str, ...], dark: bool) -> dict:
    colours = {"decode": RAMP[dark][1]} | {p: c[dark] for p, c in PHASE_COLOURS.items()}
    present = [phase for phase in colours if phase in phases]
    return _filled(
        alt.Chart(alt.NamedData("slots"))
        .mark_bar()
        .encode(
            x=_time("t0"),
            x2="t1:Q",
            y=alt.Y("seat:O", title="seat")
            .scale(domain=list(range(seats)))
            .axis(values=[0, seats - 1], ticks=False, domain=False),
            color=alt.Color("phase:N", title="")
            .scale(domain=present, range=[colours[phase] for phase in present])
            .legend(orient="top", columns=3),
            tooltip=[alt.Tooltip("request:Q"), alt.Tooltip("phase:N")],
        )
    )


def memory(lines: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str, dark: bool) -> dict:
    """Lines by time, from zero: (t ms, bytes) by what they are called; SAMPLES of each."""
    parts = []
    for what, (t, values) in lines.items():
        each = max(1, -(-len(t) // SAMPLES))
        line = {"t": t[::each] / 1e3, "MiB": values[::each] / 2**20, "what": what}
        parts.append(pd.DataFrame(line))
    tables = {"memory": pd.concat(parts)}
    return _memory(tuple(lines), dark) | {"title": title, "datasets": tables}


@lru_cache
def _memory(names: tuple[str, ...], dark: bool) -> dict:
    colours = [variant_colours(k)[dark] for k in range(len(names))]
    return _filled(
        alt.Chart(alt.NamedData("memory"))
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(
            x=_time(),
            y=alt.Y("MiB:Q").scale(zero=True),
            color=alt.Color("what:N", title="")
            .scale(domain=list(names), range=colours)
            .legend(orient="top", columns=1, labelLimit=300),
            tooltip=[
                alt.Tooltip("what:N"),
                alt.Tooltip("t:Q", title="s", format=".3f"),
                alt.Tooltip("MiB:Q", format=",.1f"),
            ],
        )
    )


def _time(column: str = "t") -> alt.X:
    axis = alt.Axis(tickCount=6, labelOverlap=True)
    return alt.X(f"{column}:Q", title="time of the run, s", axis=axis).scale(nice=False, zero=False)


def _filled(chart: alt.Chart) -> dict:
    return chart.properties(height=HEIGHT).to_dict()
