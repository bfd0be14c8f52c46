"""Charts of a sweep: functions from plain tables to an Altair chart. No Streamlit, no computing."""

import altair as alt
import pandas as pd

from .charts import MARK

BINDS = {  # light, dark: apart for colour-blind readers, and none of a variant's or a phase's
    "seats": ("#d55e00", "#ff8c42"),
    "blocks": ("#b07aa1", "#d3a4c8"),
    "budget": ("#0072b2", "#56a8e0"),
    "batch": ("#7f6a3f", "#c2a66b"),
    "compute": ("#8fbccf", "#4d7d92"),
    "nothing": ("#e9ebee", "#2b3038"),
}
PICK = "pick"


def picking(fields: list[str]):
    """A click on a point says which it is."""
    return alt.selection_point(name=PICK, fields=fields, on="click", empty=False)


def _colour(colours: dict[str, str]):
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("label:N", sort=None, title=None, scale=scale).legend(None)


def _along(log: bool, **rest) -> alt.Scale:
    return (
        alt.Scale(type="log", nice=False, **rest)
        if log
        else alt.Scale(nice=False, zero=False, **rest)
    )


def _fill(colours: dict[str, str]):
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Fill("label:N", sort=None, title=None, scale=scale).legend(None)


def curve(
    bands: pd.DataFrame,
    knees: pd.DataFrame,
    marks: pd.DataFrame,
    *,
    axis: str,
    axis_title: str,
    title: str,
    limit: float | None,
    colours: dict[str, str],
    dark: bool,
    log_x: bool,
    log_y: bool,
):
    """One figure against what is swept: a line a variant, its seeds' range, knee and limit.

    bands, knees: rows of sim.curves.bands of that figure; marks: capacities, as (label, at).
    """
    x_scale = _along(log_x, padding=8)
    y_scale = alt.Scale(type="log", nice=False) if log_y else alt.Scale(nice=False)
    colour = _colour(colours)
    x = alt.X(f"{axis}:Q", title=axis_title, scale=x_scale).axis(format="~s", tickCount=7)
    base = alt.Chart(bands).encode(x=x, color=colour)
    y = alt.Y("mean:Q", title=title + (" (log)" if log_y else ""), scale=y_scale)
    y = y.axis(format=",~g" if log_y else "~s", tickCount=4)
    tips = [
        alt.Tooltip("label:N", title="variant"),
        alt.Tooltip(f"{axis}:Q", title=axis_title),
        alt.Tooltip("mean:Q", title="mean", format=",.4~g"),
        alt.Tooltip("low:Q", title="lowest seed", format=",.4~g"),
        alt.Tooltip("high:Q", title="highest seed", format=",.4~g"),
    ]
    layers = [
        base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", scale=y_scale), y2="high:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y),
    ]
    if limit is not None:
        unit = title.rpartition(", ")[2]
        data = pd.DataFrame({"y": [limit], "text": [f"limit {limit:,.6g} {unit}"]})
        at = alt.Chart(data).encode(y=alt.Y("y:Q", scale=y_scale))
        layers.append(at.mark_rule(color=MARK[dark], strokeWidth=1.5))
        text = at.mark_text(color=MARK[dark], align="right", dx=-4, dy=8, fontSize=11)
        layers.append(text.encode(text="text:N", x=alt.value("width")))
    if len(marks):
        rule = alt.Chart(marks).mark_rule(strokeDash=[4, 3], strokeWidth=1.5)
        tip = [alt.Tooltip("label:N", title="capacity of"), alt.Tooltip("at:Q", title=axis_title)]
        layers.append(rule.encode(x=alt.X("at:Q", scale=x_scale), color=colour, tooltip=tip))
    if len(knees):
        turn = alt.Chart(knees).mark_point(shape="diamond", size=130, strokeWidth=2)
        layers.append(turn.encode(x=x, y=y, color=colour))
    picked = picking(["variant", axis])
    dots = base.mark_circle(opacity=1).encode(
        y=y,
        tooltip=tips,
        size=alt.condition(picked, alt.value(150), alt.value(38)),
    )
    return alt.layer(*layers, dots.add_params(picked)).properties(height=210)


def strip(cells: pd.DataFrame, *, axis: str, axis_title: str, dark: bool, log_x: bool):
    """Which limit binds along the axis, a row a variant. cells: label, x, x2, binds and shares."""
    scale = _along(log_x)
    shares = [
        alt.Tooltip(f"time_{name}:Q", title=f"{name}, % of time", format=".1f")
        for name in (*BINDS, "idle")
        if f"time_{name}" in cells
    ]
    return (
        alt.Chart(cells)
        .mark_rect()
        .encode(
            x=alt.X("x:Q", title=axis_title, scale=scale).axis(format="~s", tickCount=7),
            x2="x2:Q",
            y=alt.Y("label:N", sort=None, title=None).axis(labelOverlap=False),
            color=alt.Color("binds:N", title="binds", sort=list(BINDS))
            .scale(domain=list(BINDS), range=[c[dark] for c in BINDS.values()])
            .legend(None),
            tooltip=[
                alt.Tooltip("label:N", title="variant"),
                alt.Tooltip(f"{axis}:Q", title=axis_title),
                alt.Tooltip("binds:N"),
                *shares,
            ],
        )
        .properties(height=64 + 24 * cells["label"].nunique())  # with axis and legend
    )


def pareto(points: pd.DataFrame, *, fields: list[str], colours: dict[str, str], dark: bool):
    """tok/s per user against tok/s per GPU; filled where the SLO is kept; the front as a line."""
    colour = _colour(colours)
    x = alt.X("user_tok_s:Q", title="tok/s per user (1 / TPOT p50)").scale(zero=False, nice=False)
    y = alt.Y("tok_s:Q", title="tok/s per GPU").axis(format="~s")
    tips = [
        alt.Tooltip("label:N", title="variant"),
        *(alt.Tooltip(f"{name}:Q") for name in fields),
        alt.Tooltip("user_tok_s:Q", title="tok/s per user", format=",.4~g"),
        alt.Tooltip("tok_s:Q", title="tok/s per GPU", format=",.4~g"),
        alt.Tooltip("attainment:Q", title="SLO attainment, %", format=".4~g"),
    ]
    ink = "#fafafa" if dark else "#1f2328"
    front = (
        alt.Chart(points[points["front"]])
        .mark_line(color=ink, strokeWidth=1, strokeDash=[2, 2])
        .encode(x=x, y=y, order="user_tok_s:Q")
    )
    picked = picking(["variant", *fields])
    base = alt.Chart(points).encode(x=x, y=y, color=colour, fill=_fill(colours), tooltip=tips)
    kept = alt.FieldEqualPredicate(field="feasible", equal=True)
    dots = base.mark_point(size=70).encode(
        fillOpacity=alt.condition(kept, alt.value(1), alt.value(0)),
        strokeWidth=alt.condition(picked, alt.value(6), alt.value(1.6)),
    )
    return alt.layer(front, dots.add_params(picked)).properties(height=280)


def heatmap(
    cells: pd.DataFrame,
    border: pd.DataFrame,
    *,
    axes: tuple[str, str],
    titles: tuple[str, str],
    values: tuple[list[str], list[str]],
    figure: str,
    title: str,
    dark: bool,
    log: bool,
):
    """One figure over two parameters, equal cells; the border of where the SLO is kept.

    cells: column, row (0, 1, …), the two parameters and the figure; border: sim.curves.edges.
    """

    def scale(k: int):
        return alt.Scale(domain=[0, len(values[k])], nice=False, zero=False)

    def axis(k: int):
        names = ",".join(f"'{v}'" for v in values[k])
        places = [i + 0.5 for i in range(len(values[k]))]
        shown = places[:: max(1, len(places) // 16)]
        return alt.Axis(
            values=shown, labelExpr=f"[{names}][floor(datum.value)]", grid=False, ticks=False
        )

    data = cells.assign(
        left=cells["column"], right=cells["column"] + 1, low=cells["row"], high=cells["row"] + 1
    )
    picked = picking(["variant", *axes])
    x = alt.X("left:Q", title=titles[0], scale=scale(0), axis=axis(0))
    y = alt.Y("low:Q", title=titles[1], scale=scale(1), axis=axis(1))
    ground = "#0e1117" if dark else "#ffffff"
    colours = alt.Scale(type="symlog" if log else "linear", scheme="viridis", reverse=not dark)
    rects = (
        alt.Chart(data)
        .mark_rect(stroke=ground, strokeWidth=1)
        .encode(
            x=x,
            x2="right:Q",
            y=y,
            y2="high:Q",
            color=alt.Color(f"{figure}:Q", title=title, scale=colours).legend(
                orient="top", gradientLength=220, gradientThickness=10, format="~s"
            ),
            opacity=alt.condition(picked, alt.value(0.6), alt.value(1)),
            tooltip=[
                alt.Tooltip(f"{axes[0]}:Q", title=titles[0]),
                alt.Tooltip(f"{axes[1]}:Q", title=titles[1]),
                alt.Tooltip(f"{figure}:Q", title=title, format=",.4~g"),
                alt.Tooltip("attainment:Q", title="SLO attainment, %", format=".4~g"),
                alt.Tooltip("binds:N"),
                alt.Tooltip("problem:N", title="not run"),
            ],
        )
        .add_params(picked)
    )
    line = (
        alt.Chart(border)
        .mark_rule(color=MARK[dark], strokeWidth=3, strokeCap="square")
        .encode(
            x=alt.X("x:Q", scale=scale(0)), x2="x2:Q", y=alt.Y("y:Q", scale=scale(1)), y2="y2:Q"
        )
    )
    return alt.layer(rects, line).properties(height=max(220, 34 * len(values[1])))
