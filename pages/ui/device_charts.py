"""Charts of a device run: functions from plain tables to an Altair chart. No Streamlit."""

import altair as alt
import pandas as pd

from .charts import PHASE_COLOURS, RAMP

KINDS = {"decode only": ("#4a8ac9", "#5b97e6"), "mixed": ("#e69f00", "#f0a81c")}
HEIGHT = 260
SERIES = (
    ("#1b9e77", "#2fe0b5"),
    ("#8a4dff", "#a06bff"),
    ("#5e1f4f", "#e25fb5"),
    ("#3b3f12", "#eaf06a"),
)


def steps(rows: pd.DataFrame, dark: bool):
    """A point a step. rows: (t s, ms, kind)."""
    colour = alt.Color("kind:N", title=None).scale(
        domain=list(KINDS), range=[pair[dark] for pair in KINDS.values()]
    )
    return (
        alt.Chart(rows)
        .mark_circle(size=14, opacity=0.7)
        .encode(
            x=alt.X("t:Q", title="time of the run, s").scale(nice=False, zero=False),
            y=alt.Y("ms:Q", title="ms a step").scale(zero=True),
            color=colour.legend(orient="top"),
            tooltip=[
                alt.Tooltip("kind:N"),
                alt.Tooltip("t:Q", title="s", format=".3f"),
                alt.Tooltip("ms:Q", format=",.3f"),
            ],
        )
        .properties(height=HEIGHT)
    )


def slots(rows: pd.DataFrame, seats: int, dark: bool):
    """Who held which seat. rows: (t0 s, t1 s, seat, request, phase)."""
    colours = {"decode": RAMP[dark][1]} | {p: c[dark] for p, c in PHASE_COLOURS.items()}
    colours |= {"recompute": "#d1242f", "preempted": "#d1242f"}
    present = [phase for phase in colours if phase in set(rows["phase"])]
    return (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("t0:Q", title="time of the run, s").scale(nice=False, zero=False),
            x2="t1:Q",
            y=alt.Y("seat:O", title="seat")
            .scale(domain=list(range(seats)))
            .axis(values=[0, seats - 1], ticks=False, domain=False),
            color=alt.Color("phase:N", title=None)
            .scale(domain=present, range=[colours[phase] for phase in present])
            .legend(orient="top"),
            tooltip=[alt.Tooltip("request:Q"), alt.Tooltip("phase:N")],
        )
        .properties(height=HEIGHT)
    )


def memory(rows: pd.DataFrame, dark: bool):
    """Lines by time. rows: (t s, MiB, what)."""
    names = list(dict.fromkeys(rows["what"]))
    colours = [pair[dark] for pair in SERIES[: len(names)]]
    return (
        alt.Chart(rows)
        .mark_line(interpolate="step-after", strokeWidth=1.8)
        .encode(
            x=alt.X("t:Q", title="time of the run, s").scale(nice=False, zero=False),
            y=alt.Y("MiB:Q").scale(zero=True),
            color=alt.Color("what:N", title=None)
            .scale(domain=names, range=colours)
            .legend(orient="top", columns=1, labelLimit=300),
            tooltip=[
                alt.Tooltip("what:N"),
                alt.Tooltip("t:Q", title="s", format=".3f"),
                alt.Tooltip("MiB:Q", format=",.1f"),
            ],
        )
        .properties(height=HEIGHT)
    )
