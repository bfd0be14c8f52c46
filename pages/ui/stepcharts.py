"""Charts of costs: functions from plain tables to an Altair chart. No Streamlit, no computing."""

from collections.abc import Iterable

import altair as alt
import numpy as np
import pandas as pd

from .charts import MARK

PARTS = {  # light, dark
    "weights": ("#5e1f4f", "#e25fb5"),
    "KV": ("#b07aa1", "#f3b3dc"),
    "GEMM": ("#1b9e77", "#2fe0b5"),
    "attention": ("#8fd0b5", "#a9f2dc"),
    "network": ("#8a4dff", "#a06bff"),
    "overhead": ("#8a8f98", "#9aa0aa"),
}
HOW = (
    ["#1b9e77", "#5e1f4f", "#8a4dff", "#c2410c"],
    ["#2fe0b5", "#e25fb5", "#a06bff", "#ffb454"],
)
INK = ("#1f2328", "#fafafa")
MEASURED = "measured line"
MOST_DOTS = 1_000


def bars(rows: pd.DataFrame, ends: pd.DataFrame, dark: bool):
    """One step in time, a row a way to overlap: reading above, computing below.

    rows: (how, lane, part, t0, t1), ms; ends: (how, ms, text), where each step ends.
    """
    y = alt.Y("how:N", sort=None, title=None).scale(paddingInner=0.25)
    names = list(PARTS)
    parts = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("t0:Q", title="ms since the step began"),
            x2="t1:Q",
            y=y,
            yOffset=alt.YOffset("lane:N", sort=["read", "compute"]),
            color=alt.Color("part:N")
            .scale(domain=names, range=[PARTS[name][dark] for name in names])
            .legend(None),
            tooltip=[
                alt.Tooltip("how:N", title="memory and compute"),
                alt.Tooltip("part:N"),
                alt.Tooltip("t0:Q", title="from, ms", format=",.3f"),
                alt.Tooltip("t1:Q", title="to, ms", format=",.3f"),
                alt.Tooltip("ms:Q", title="takes, ms", format=",.3f"),
            ],
        )
        .transform_calculate(ms="datum.t1 - datum.t0")
    )
    text = alt.Chart(ends).mark_text(align="left", dx=5, color=INK[dark])
    return alt.layer(parts, text.encode(x="ms:Q", y=y, text="text:N")).properties(height=230)


def kinds(names: Iterable[str], dark: bool) -> dict[str, str]:
    """A colour for each way to overlap, and ink for what was measured: the same in every chart."""
    colours = iter(HOW[dark])
    return {name: INK[dark] if name == MEASURED else next(colours) for name in names}


def roofline(roof: pd.DataFrame, points: pd.DataFrame, ridge: float, dark: bool):
    """roof and points: (intensity, tflops), log by log; a rule at the ridge."""
    x = alt.X("intensity:Q", title="FLOP per byte read (log)").scale(type="log", nice=False)
    y = alt.Y("tflops:Q", title="TFLOP/s (log)").scale(type="log", nice=False)
    line = alt.Chart(roof).mark_line(color=INK[dark], strokeWidth=2).encode(x=x, y=y)
    edge = alt.Chart(pd.DataFrame({"intensity": [ridge]})).mark_rule(
        color=MARK[dark], strokeDash=[4, 3]
    )
    base = alt.Chart(points).encode(x=x, y=y)
    tips = [
        "name:N",
        alt.Tooltip("intensity:Q", format=",.1f", title="FLOP/B"),
        alt.Tooltip("tflops:Q", format=",.1f", title="TFLOP/s"),
    ]
    dots = base.mark_point(filled=True, size=110, opacity=1).encode(
        tooltip=tips,
        color=alt.Color("name:N", sort=None, title=None)
        .scale(range=HOW[dark])
        .legend(orient="top"),
        shape=alt.Shape("name:N", sort=None, title=None),
    )
    return alt.layer(line, edge.encode(x=x), dots).properties(height=300)


def curve(
    rows: pd.DataFrame,
    y: str,
    title: str,
    mark: float | None,
    colours: dict[str, str],
    dark: bool,
):
    """rows: (how, x, y), each how in its colour; a rule at `mark`."""
    base = alt.Chart(rows).encode(
        x=alt.X("x:Q", title=title),
        y=alt.Y(f"{y}:Q", title=y),
        color=alt.Color("how:N", sort=None, title=None)
        .scale(domain=list(colours), range=list(colours.values()))
        .legend(None),
        tooltip=["how:N", alt.Tooltip("x:Q", title=title), alt.Tooltip(f"{y}:Q", format=",.2f")],
    )
    layers = [base.mark_line()]
    if mark is not None:
        at = alt.Chart(pd.DataFrame({"x": [mark], "text": [f"{mark:,.0f} tokens"]})).encode(x="x:Q")
        layers += [
            at.mark_rule(color=MARK[dark], strokeDash=[4, 3]),
            at.mark_text(color=MARK[dark], align="left", dx=4).encode(
                text="text:N", y=alt.value(8)
            ),
        ]
    return alt.layer(*layers).properties(height=240)


def residuals(measured: np.ndarray, errors: np.ndarray, dark: bool):
    """(n,) ms and predicted / measured - 1: of at most MOST_DOTS steps, evenly through them."""
    keep = np.unique(np.linspace(0, len(measured) - 1, MOST_DOTS).astype(int))
    rows = pd.DataFrame({"ms": measured[keep], "error": errors[keep]})
    dots = (
        alt.Chart(rows)
        .mark_point(filled=True, size=14, opacity=0.5, color=HOW[dark][0])
        .encode(
            x=alt.X("ms:Q", title="measured, ms"),
            y=alt.Y("error:Q", title="error of the fit").axis(format="+.0%"),
        )
    )
    zero = alt.Chart(pd.DataFrame({"error": [0]})).mark_rule(color=INK[dark]).encode(y="error:Q")
    return alt.layer(zero, dots).properties(height=200)


def predicted(rows: pd.DataFrame, dark: bool):
    """rows of sim.fidelity.table: predicted against measured, one panel a figure, log by log."""
    panels = []
    for figure, part in rows.groupby("figure", sort=False):
        low = 0.8 * float(part[["measured", "predicted"]].min().min())
        high = 1.25 * float(part[["measured", "predicted"]].max().max())
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        line = pd.DataFrame({"measured": [low, high], "predicted": [low, high]})
        unit = part["unit"].iloc[0]
        x = alt.X("measured:Q", title=f"measured, {unit}", scale=scale)
        y = alt.Y("predicted:Q", title=f"predicted, {unit}", scale=scale)
        dots = (
            alt.Chart(part.assign(counts=np.where(part["scored"], "scored", "not scored")))
            .mark_point(filled=True, size=90, opacity=0.85)
            .encode(
                x=x,
                y=y,
                color=alt.Color("group:N", title=None)
                .scale(range=HOW[dark])
                .legend(orient="bottom"),
                shape=alt.Shape("counts:N", title=None)
                .scale(domain=["scored", "not scored"], range=["square", "circle"])
                .legend(orient="bottom", symbolFillColor=INK[dark], symbolStrokeWidth=0),
                tooltip=[
                    "record:N",
                    alt.Tooltip("measured:Q", format=",.2f"),
                    alt.Tooltip("predicted:Q", format=",.2f"),
                    alt.Tooltip("error:Q", format="+.1f", title="error, %"),
                    alt.Tooltip("load:Q", format=".2f"),
                ],
            )
        )
        ideal = alt.Chart(line).mark_line(color=INK[dark], strokeDash=[4, 3]).encode(x=x, y=y)
        panels.append(alt.layer(ideal, dots).properties(title=str(figure), width=190, height=190))
    return alt.hconcat(*panels).resolve_scale(color="shared", shape="shared")
