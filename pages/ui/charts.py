"""Charts: functions from plain tables to a chart. No Streamlit, no computing.

Those that most pages draw are Vega-Lite in a dict, built by Altair once and filled with tables.
"""

import json
from functools import lru_cache

import altair as alt
import pandas as pd

MARK = ("#d1242f", "#ff6b6b")
PHASE_COLOURS = {  # as in timeline.js: light, dark
    "prefill": ("#e69f00", "#f0a81c"),
    "stalled": ("#f3d9a0", "#7d6434"),
    "padding": ("#c3c7ce", "#565b66"),
    "recompute": ("#b8480b", "#e8702a"),
    "preempted": MARK,
}
ORDER = list(PHASE_COLOURS)
RAMP = (["#bcdaf1", "#4a8ac9", "#0a1f66"], ["#b9ddf6", "#5b97e6", "#1f45b8"])
GROUND, INK = ("#ffffff", "#0e1117"), ("#1f2328", "#fafafa")
SLIDE = (1_280, 720)  # px, 16:9
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"  # named, since an SVG does not carry it

alt.data_transformers.disable_max_rows()  # ours are counted beforehand
alt.theme.enable("none")  # pages and slides bring their own


def distribution(
    bins: pd.DataFrame,
    marks: pd.DataFrame,
    *,
    title: str,
    of: str,
    log: bool,
    limit: float | None,
    colours: dict[str, str],
    dark: bool,
    cumulative: bool,
    on_slide: bool = False,
) -> dict:
    """A histogram, or its running sum, of every variant; p95 of each, and the limit, as rules.

    bins: rows of sim.bins.counted; marks: (variant, p95, label). All in ms. On a slide it is large
    and names its colours; on a page one line does that for all charts.
    """
    small = 16 if on_slide else 11
    marks = marks.assign(place=[8 + (small + 2) * k for k in range(len(marks))])
    tables = {"bins": _closed(bins, cumulative), "marks": marks}
    reached = None
    if limit is not None:
        reached = bool((1.3 * bins["high"] >= limit).any())
        text = f"limit {limit:,.6g} ms" + ("" if reached else " →")
        top = 21 + (small + 2) * len(marks)
        tables["limit"] = pd.DataFrame({"x": [limit], "text": [text], "top": [top]})
    spec = _distribution(
        title, of, log, reached, tuple(colours.items()), dark, cumulative, on_slide
    )
    return spec | {"datasets": tables}


@lru_cache(64)  # most of a page's time went into building what is the same in every rerun
def _distribution(
    title: str,
    of: str,
    log: bool,
    reached: bool | None,
    colours: tuple[tuple[str, str], ...],
    dark: bool,
    cumulative: bool,
    on_slide: bool,
) -> dict:
    """Without its tables. reached: whether the limit lies on the axis; None for no limit."""
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(nice=False)
    edge, y = ("high", "upto") if cumulative else ("low", "share")
    # A histogram's tail is what people look for: a square root keeps it in sight beside the peak.
    height = alt.Scale() if cumulative else alt.Scale(type="sqrt")
    small = 16 if on_slide else 11
    colour = (
        alt.Color("variant:N", sort=None, title=None)
        .scale(domain=[name for name, _ in colours], range=[c for _, c in colours])
        .legend(alt.Legend(orient="top", symbolType="square") if on_slide else None)
    )
    x = alt.X(f"{edge}:Q", title=f"{title}, ms" + (" (log)" if log else ""), scale=scale).axis(
        format="~s" if not log else ",~g", tickCount=6
    )
    base = alt.Chart(alt.NamedData("bins")).encode(
        x=x,
        y=alt.Y(f"{y}:Q", scale=height).title(f"% of {of}" + (" below" if cumulative else ", √")),
        color=colour,
        tooltip=[
            alt.Tooltip("variant:N"),
            alt.Tooltip("low:Q", title="from, ms", format=",.2f"),
            alt.Tooltip("high:Q", title="to, ms", format=",.2f"),
            alt.Tooltip("share:Q", title="% within", format=".2f"),
            alt.Tooltip("upto:Q", title="% below", format=".2f"),
        ],
    )
    form = "linear" if cumulative else "step-after"
    layers = [base.mark_line(interpolate=form, strokeWidth=1.8)]
    if not cumulative:
        area = base.mark_area(interpolate="step-after", opacity=0.16, line=False)
        layers.insert(0, area.encode(y=alt.Y(f"{y}:Q", scale=height, stack=None)))
    p95 = alt.Chart(alt.NamedData("marks")).encode(x=alt.X("p95:Q", scale=scale), color=colour)
    layers.append(
        p95.mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(
            tooltip=[alt.Tooltip("variant:N"), alt.Tooltip("p95:Q", title="p95, ms", format=",.2f")]
        )
    )
    layers.append(
        p95.mark_text(align="left", dx=4, fontSize=small).encode(
            text=alt.Text("label:N"), y=alt.Y("place:Q", scale=None, axis=None)
        )
    )
    if reached is not None:
        layers += _limit(scale if reached else None, dark, small)
    return alt.layer(*layers).properties(height=240).to_dict()


def _closed(bins: pd.DataFrame, cumulative: bool) -> pd.DataFrame:
    """The bins and their outer end: a sum begins at 0, and the last step of a histogram has an end.

    The share at or below a value is known at the edges of bins, so a sum is drawn at their upper
    ones.
    """
    ends = bins.groupby("variant", sort=False)
    if cumulative:
        first = ends.head(1)
        return pd.concat([first.assign(high=first["low"], share=0.0, upto=0.0), bins])
    last = ends.tail(1)
    return pd.concat([bins, last.assign(low=last["high"], share=0.0)])


def _limit(scale: alt.Scale | None, dark: bool, small: int) -> list:
    """A rule at the limit; without a scale, words at the right edge that it lies beyond."""
    table = alt.Chart(alt.NamedData("limit"))
    if scale is None:
        text = table.mark_text(color=MARK[dark], align="right", dx=-4, dy=-8, fontSize=small)
        return [text.encode(text="text:N", x=alt.value("width"), y=alt.value("height"))]
    at = table.encode(x=alt.X("x:Q", scale=scale))
    text = at.mark_text(color=MARK[dark], angle=270, align="right", dy=4 - small, fontSize=small)
    return [
        at.mark_rule(color=MARK[dark], strokeWidth=1.5),
        text.encode(text="text:N", y=alt.Y("top:Q", scale=None, axis=None)),
    ]


def gantt(
    rows: pd.DataFrame,
    shade: tuple[float, float],
    dark: bool,
    seats: dict[str, int],
    width: int = 1_000,
):
    """The window of the timeline as bars: rows of sim.bins.coalesced, the colours of the canvas."""
    x = alt.X("t0:Q", title="time, s").scale(nice=False, zero=False)
    where = {"x": x, "x2": "t1:Q"}
    data = rows.assign(t0=rows["t0"] / 1e3, t1=rows["t1"] / 1e3)
    present = [phase for phase in ORDER if phase in set(rows["phase"])]
    panels = []
    for label, count in seats.items():
        own = data[data["variant"] == label]
        y = (
            alt.Y("seat:O", title="seat")
            .scale(domain=list(range(count)))
            .axis(values=[0, count - 1], ticks=False, domain=False)
        )
        tips = [
            alt.Tooltip("phase:N"),
            alt.Tooltip("seat:O"),
            alt.Tooltip("t0:Q", title="from, s", format=".3f"),
            alt.Tooltip("t1:Q", title="to, s", format=".3f"),
        ]
        decodes = (
            alt.Chart(own[own["phase"] == "decode"])
            .mark_bar()
            .encode(
                **where,
                y=y,
                color=alt.Color("itl:Q", title="ITL, ms")
                .scale(domain=[shade[0], sum(shade) / 2, shade[1]], range=RAMP[dark], clamp=True)
                .legend(orient="top", gradientLength=160, gradientThickness=10),
                tooltip=[*tips, alt.Tooltip("itl:Q", title="worst ITL, ms", format=",.2f")],
            )
        )
        others = (
            alt.Chart(own[own["phase"] != "decode"])
            .mark_bar()
            .encode(
                **where,
                y=y,
                fill=alt.Fill("phase:N", title=None, sort=present)
                .scale(domain=present, range=[PHASE_COLOURS[p][dark] for p in present])
                .legend(orient="top"),
                tooltip=tips,
            )
        )
        panels.append(alt.layer(decodes, others).properties(title=label, width=width, height=130))
    return alt.vconcat(*panels, spacing=8).resolve_scale(x="shared", color="shared", fill="shared")


def slide(chart: alt.TopLevelMixin | dict, title: str, stamp: str, dark: bool) -> str:
    """A layered chart as a slide, in Vega-Lite's JSON: 16:9, on its theme's ground, and saying
    where it comes from.
    """
    ink = INK[dark]
    spec = chart if isinstance(chart, dict) else chart.to_dict()
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 17, "titleFontSize": 17}
    whole = spec | {
        "datasets": {name: _records(table) for name, table in spec["datasets"].items()},
        "title": {"text": title, "subtitle": stamp, "anchor": "start", "limit": SLIDE[0] - 48},
        "width": SLIDE[0],
        "height": SLIDE[1],
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": 24,
        "background": GROUND[dark],
        "config": {
            "font": FONT,
            "title": {
                "color": ink,
                "subtitleColor": ink,
                "fontSize": 28,
                "subtitleFontSize": 13,
                "offset": 18,
            },
            "axis": text | {"gridOpacity": 0.2},
            "legend": text,
            "view": {"strokeOpacity": 0.2},
        },
    }
    return json.dumps(whole)


def _records(table: pd.DataFrame | list[dict]) -> list[dict]:
    return table.to_dict("records") if isinstance(table, pd.DataFrame) else table


def by_arrival(points: pd.DataFrame, colours: dict[str, str]):
    """TTFT of each request at its arrival. points: (variant, arrival in s, ttft in ms)."""
    return (
        alt.Chart(points)
        .mark_circle(size=14, opacity=0.6)
        .encode(
            x=alt.X("arrival:Q", title="arrival, s").scale(nice=False),
            y=alt.Y("ttft:Q", title="TTFT, ms"),
            color=alt.Color("variant:N", sort=None)
            .scale(domain=list(colours), range=list(colours.values()))
            .legend(None),
            tooltip=[
                alt.Tooltip("variant:N"),
                alt.Tooltip("arrival:Q", title="arrival, s", format=",.2f"),
                alt.Tooltip("ttft:Q", title="TTFT, ms", format=",.1f"),
            ],
        )
        .properties(height=220)
    )


def log(series, dark: bool):
    """An engine's log by time: who runs and who waits, and how full the KV pool is."""
    table = pd.DataFrame(
        {"t": series["t"], "running": series["running"], "waiting": series["waiting"]}
    )
    x = alt.X("t:Q", title="time, s").scale(nice=False)
    names, colours = ["running", "waiting", "KV pool"], ["#4a8ac9", "#e69f00", MARK[dark]]
    counts = (
        alt.Chart(table.melt("t", var_name="what", value_name="requests"))
        .mark_line(interpolate="step-after")
        .encode(
            x=x,
            y=alt.Y("requests:Q"),
            color=alt.Color("what:N", title=None).scale(domain=names, range=colours),
        )
    )
    pool = pd.DataFrame({"t": series["t"], "kv": series["kv"], "what": "KV pool"})
    filled = (
        alt.Chart(pool)
        .mark_line(strokeDash=[4, 3])
        .encode(
            x=x,
            y=alt.Y("kv:Q", title="KV pool, %").scale(domain=[0, 100]),
            color=alt.Color("what:N").scale(domain=names, range=colours),
        )
    )
    return alt.layer(counts, filled).resolve_scale(y="independent").properties(height=220)


CAUSES = {  # as sim.why has the parts: waits are reds and violets, what a step holds is as above
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


def causes(rows: pd.DataFrame, title: str, names: dict[str, str], dark: bool) -> dict:
    """Stacked bars: rows (row, name, value, text), one bar a row; names: a part's label by name."""
    present = tuple(name for name in names if name in set(rows["name"]))
    data = rows.assign(
        label=[names[name] for name in rows["name"]],
        order=[list(names).index(name) for name in rows["name"]],
    )
    spec = _causes(title, tuple((names[n], CAUSES[n][dark]) for n in present))
    return spec | {"height": 84 + 23 * rows["row"].nunique(), "datasets": {"causes": data}}


@lru_cache(64)
def _causes(title: str, colours: tuple[tuple[str, str], ...]) -> dict:
    colour = (
        alt.Color("label:N", sort=None, title=None)
        .scale(domain=[name for name, _ in colours], range=[c for _, c in colours])
        .legend(None)
    )
    return (
        alt.Chart(alt.NamedData("causes"))
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
        .to_dict()
    )
