"""The parts of latencies as stacked bars."""

import altair as alt
import pandas as pd

from sim.why import PARTS

LABELS = {part.name: part.label for part in PARTS}
COLOURS = {  # light, dark: waits are reds and violets, what a step holds is as on the timeline
    "front": ("#c9b18f", "#8d7a5c"),
    "step": ("#9aa0a6", "#8b9096"),
    "seat": ("#5c3c92", "#a98be0"),
    "batch": ("#8f6fc0", "#7f5fb5"),
    "blocks": ("#b5177b", "#f06bbd"),
    "ahead_blocks": ("#e39ac7", "#a3467f"),
    "budget": ("#c0392b", "#ff7a6b"),
    "ahead_budget": ("#ee9f95", "#a8493e"),
    "preempted": ("#7a0019", "#ff9db0"),
    "overhead": ("#5f6b7a", "#b6c0cc"),
    "own": ("#0b7a75", "#35c4b8"),
    "recomputed": ("#b8480b", "#e8702a"),
    "decodes": ("#4a8ac9", "#5b97e6"),
    "prompts": ("#e69f00", "#f0a81c"),
}


def bars(rows: pd.DataFrame, title: str, dark: bool):
    """Stacked bars: rows (row, name, value, text), one bar a row."""
    present = [name for name in LABELS if name in set(rows["name"])]
    colour = (
        alt.Color("label:N", sort=None, title=None)
        .scale(domain=[LABELS[n] for n in present], range=[COLOURS[n][dark] for n in present])
        .legend(None)
    )
    data = rows.assign(
        label=[LABELS[name] for name in rows["name"]],
        order=[list(LABELS).index(name) for name in rows["name"]],
    )
    return (
        alt.Chart(data)
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title=title).scale(nice=False),
            y=alt.Y("row:N", sort=None, title=None).axis(labelLimit=180),
            color=colour,
            order="order:O",
            tooltip=[
                alt.Tooltip("row:N", title="of"),
                alt.Tooltip("label:N", title="cause"),
                alt.Tooltip("text:N", title="is"),
            ],
        )
        .properties(height=50 + 34 * rows["row"].nunique())
    )
