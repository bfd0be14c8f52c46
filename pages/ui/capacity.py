"""The parts of the page Capacity: what is asked, the answer, the curves behind it."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import streamlit as st

from sim import answer as words
from sim import capacity, curves, sweep
from sim.capacity import Capacity, Search
from sim.metrics import FIGURES
from sim.parameter import ScenarioError, written
from sim.points import at
from sim.scenario import PARAMETERS, Scenario
from sim.sweep import SEEDS, SHARE, Axis, Rows, Sweep
from sim.table import stamp
from sim.workload import Workload

from . import controls as sidebar
from . import curves as charts
from . import searches, share, tables
from .export import export, export_chart
from .palette import variant_colours
from .text import dark, legend, plain, unbroken

AT_ONCE = 4_000_000  # requests that a sweep may serve without being asked: some seconds
LATENCIES = (("ttft", "ttft_slo"), ("tpot", "tpot_slo"), ("itl", None))
RATES = ("tok_s", "goodput", "attainment")
COLOURED = ("attainment", "goodput", "tok_s", "ttft_p99", "tpot_p99", "itl_p99")


class Asked(NamedTuple):
    sweep: Sweep
    trace: Workload | None

    @property
    def share(self) -> float:
        return self.sweep.share

    @property
    def names(self) -> list[str]:
        return [axis.name for axis in self.sweep.axes]


def controls(scenario: Scenario) -> Asked:
    """What to sweep, bound to the address. Where it can't be run, say why and stop."""
    state = st.session_state
    kept = state.setdefault("sweep", {"x": "", "y": "", "seeds": "", "share": ""})
    for name in kept:
        given = share.of_page(name)
        if given is not None:
            kept[name] = given
    problems = []
    axes = _axes(scenario, kept, problems)
    numbers = {}
    for parameter in (SEEDS, SHARE):
        try:
            numbers[parameter.name] = parameter.parse(
                kept[parameter.name] or written(parameter.default)
            )
        except ScenarioError as error:
            state["sweep.said"] = f"{error}: this is as usual"
            kept[parameter.name], numbers[parameter.name] = "", parameter.default
    if said := state.get("sweep.said"):
        st.warning(f"{plain(said)}.")
    _draw(scenario, axes, numbers)
    asked = Sweep(scenario=scenario, axes=axes, seeds=int(numbers["seeds"]), share=numbers["share"])
    _keep(asked)
    try:
        if problems:
            raise ScenarioError(problems[0])
        asked.check()
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        st.stop()
    return Asked(asked, sidebar.trace())


def _axes(scenario: Scenario, kept: dict[str, str], problems: list[str]) -> tuple[Axis, ...]:
    axes = []
    for name in "xy":
        if not kept[name] and name == "y":
            continue
        try:
            axes.append(Axis.parse(kept[name]) if kept[name] else sweep.default_axis(scenario))
        except ScenarioError as error:
            problems.append(str(error))
            axes.append(Axis(sweep.default_axis(scenario).name, (), kept[name]))
    return tuple(axes)


def _draw(scenario: Scenario, axes: tuple[Axis, ...], numbers: dict[str, float]) -> None:
    state, possible = st.session_state, sweep.sweepable(scenario)
    widths = st.columns([3, 3, 3, 3, 1.6, 2], vertical_alignment="bottom")
    for k, (letter, title) in enumerate((("x", "Swept"), ("y", "And"))):
        axis = axes[k] if k < len(axes) else None
        name, _, spread = str(axis).partition(":") if axis else ("", "", "")
        options = [
            *([""] if k else []),
            *possible,
            *([name] if name not in ["", *possible] else []),
        ]
        state[f"sweep.{letter}.name"], state[f"sweep.{letter}.range"] = name, spread
        widths[2 * k].selectbox(
            title,
            options,
            key=f"sweep.{letter}.name",
            format_func=lambda n: n or "nothing else",
            on_change=_take_name,
            args=(letter, scenario),
        )
        widths[2 * k + 1].text_input(
            "from:to:step, from:to:x2, or values",
            key=f"sweep.{letter}.range",
            on_change=_take_range,
            args=(letter,),
            disabled=axis is None,
        )
    for column, parameter in zip(widths[4:], (SEEDS, SHARE), strict=True):
        key = f"sweep.{parameter.name}"
        state[key] = numbers[parameter.name]
        column.number_input(
            parameter.label.partition(":")[0] if parameter is SEEDS else "Share kept, %",
            key=key,
            step=1 if parameter is SEEDS else 0.5,
            format=None if parameter is SEEDS else "%.4g",
            help=f"{parameter.label} ({parameter.span})",
            on_change=_take_number,
            args=(parameter.name,),
        )


def _take_name(letter: str, scenario: Scenario) -> None:
    name = st.session_state[f"sweep.{letter}.name"]
    _asked(letter, str(sweep.usual_axis(scenario, name)) if name else "")


def _take_range(letter: str) -> None:
    state = st.session_state
    spread = state[f"sweep.{letter}.range"].replace(" ", "")
    _asked(letter, f"{state[f'sweep.{letter}.name']}:{spread}" if spread else "")


def _take_number(name: str) -> None:
    value = st.session_state[f"sweep.{name}"]
    _asked(name, "" if value is None else written(value))


def _asked(name: str, text: str) -> None:
    """By a control; the address no longer counts."""
    st.session_state.sweep[name] = text
    st.session_state.pop("sweep.said", None)
    share.drop_of_page(name)


def _keep(asked: Sweep) -> None:
    """What the controls say, in the session and the address; what is as usual in neither."""
    kept = st.session_state.sweep
    if kept["x"] == str(sweep.default_axis(asked.scenario)):
        kept["x"] = ""
    if asked.seeds == SEEDS.default:
        kept["seeds"] = ""
    if asked.share == SHARE.default:
        kept["share"] = ""
    share.keep_of_page(kept)


def here() -> bool:
    """Whether this visitor wants the runs on this machine, cluster or not."""
    return st.session_state.get("run_here", False)


def answer(asked: Asked) -> None:
    """Who carries how much, in one sentence, and what that rests on."""
    search = Search(scenario=asked.sweep.scenario, share=asked.share, seeds=asked.sweep.seeds)
    try:
        _ = search.load
    except ScenarioError as error:
        st.info(f"{plain(str(error))}.")
        return
    on = here()
    key = ("capacity", search.name, on)
    job = searches.job(key, lambda go_on: capacity.find(search, asked.trace, here=on, go_on=go_on))
    searches.watched(key, job, lambda: _answer(asked, job.result or []))


def _answer(asked: Asked, found: list[Capacity]) -> None:
    scenario = asked.sweep.scenario
    said = words.sentence(found, asked.share, scenario.slo)
    st.subheader(f"{unbroken(said)}.", anchor=False)
    if real := words.whether_real(found):
        st.markdown(real)
    rows = {}
    for c in found:
        spread = "" if not np.isfinite(c.reach) or c.value == 0 else f" ± {c.reach:.2g}"
        rows[c.label] = {
            f"Capacity, {c.unit}": f"{c.value:g}{spread}" if c.value else "none",
            "Runs": f"{c.runs:,}",
            "What it rests on": words.about(c, asked.share, scenario.slo),
        }
    st.table(pd.DataFrame(rows).T, border="horizontal", alt="Capacity of each variant")
    slo = scenario.slo
    st.caption(
        f"Capacity: the highest load at which {asked.share:g} % of the requests keep TTFT"
        f" {slo.ttft_slo:g} ms and TPOT {slo.tpot_slo:g} ms and the queue does not grow; mean and"
        f" 95 % interval over {len(asked.sweep.numbers)} seeds, the same for every variant."
    )


def curves_below(asked: Asked) -> None:
    """The sweep: curves or a heatmap, what binds, the Pareto front, the table."""
    rows, runs = Rows(asked.sweep.name), asked.sweep.points()
    missing = rows.missing(runs)
    on = here()
    key = ("sweep", asked.sweep.name, on)
    wanted = st.session_state.get("sweep wanted") == asked.sweep.name
    if missing and not wanted and len(missing) * asked.sweep.traffic.expected > AT_ONCE:
        st.button(
            f"Run {len(missing):,} runs",
            on_click=st.session_state.update,
            args=({"sweep wanted": asked.sweep.name},),
        )
        return
    job = searches.job(
        key, lambda go_on: sweep.run(asked.sweep, asked.trace, rows, here=on, go_on=go_on)
    )
    searches.watched(
        key, job, lambda: _curves(asked, job.result), lambda: _curves(asked, rows.table(runs))
    )


def _curves(asked: Asked, table: pd.DataFrame | None) -> None:
    if table is None or table.empty or all(table["problem"].tolist()):
        return
    frame = curves.points(table, asked.names, asked.share)
    colours = {
        v.label: variant_colours(k)[dark()]
        for k, v in enumerate(
            sweep.stripped(asked.sweep.scenario.variants, dict.fromkeys(asked.names))
        )
    }
    st.subheader(_heading(asked, frame), anchor=False)
    legend(colours)
    if len(asked.names) == 1:
        _lines(asked, table, frame, colours)
    else:
        _heat(asked, frame)
    _pareto(asked, frame, colours)
    _picked(asked, frame)
    _table(asked, table, frame)


def _heading(asked: Asked, frame: pd.DataFrame) -> str:
    """From where on a limit binds, if one does."""
    if len(asked.names) == 2:
        share = 100 * frame["feasible"].mean()
        return f"{share:.0f} % of the points keep the SLO"
    said = words.binding_sentence(frame, asked.names[0])
    return f"{said[0].upper()}{said[1:]}"


def _title(name: str) -> str:
    unit = PARAMETERS[name].unit
    return f"{name}, {unit}" if unit else name


def _lines(asked: Asked, table: pd.DataFrame, frame: pd.DataFrame, colours: dict[str, str]) -> None:
    axis = asked.names[0]
    log_x = ":x" in str(asked.sweep.axes[0])
    quantile = st.segmented_control(
        "Percentile", ["p50", "p90", "p95", "p99"], default="p99", required=True, key="sweep.q"
    )
    figures = [(f"{name}_{quantile}", limit) for name, limit in LATENCIES]
    figures += [(name, None) for name in RATES]
    bands = curves.bands(table, asked.names, [name for name, _ in figures])
    knees = curves.knees(bands, axis)
    marks = _marks(asked, axis)
    columns = [*st.columns(3), *st.columns(3)]
    for column, (name, limit) in zip(columns, figures, strict=True):
        own, figure = bands.loc[bands["figure"] == name], FIGURES[name]
        title = f"{figure.label}, {figure.unit}"
        chart = charts.curve(
            own,
            knees.loc[knees["figure"] == name],
            marks,
            axis=axis,
            axis_title=_title(axis),
            title=title,
            limit=_limit(asked, axis, name, limit),
            colours=colours,
            dark=dark(),
            log_x=log_x,
            log_y=figure.unit == "ms",
        )
        with column:
            _chart(asked, name, chart, f"{title} against {axis}", lambda own=own: own)
    st.caption(
        "Line: mean over the seeds; band: lowest to highest seed; diamond: the knee; dashed:"
        " capacity. Click a point to open it."
    )
    cells = _cells(frame, axis, log_x)
    st.markdown("**Which limit keeps the head of the line out**")
    present = [name for name in charts.BINDS if name in set(frame["binds"])]
    legend({name: charts.BINDS[name][dark()] for name in present})
    chart = charts.strip(cells, axis=axis, axis_title=_title(axis), dark=dark(), log_x=log_x)
    st.altair_chart(chart, alt=f"Which limit binds along {axis}", key="strip")
    export_chart("binds", asked.sweep, lambda: cells, chart, "Which limit binds")


def _limit(asked: Asked, axis: str, name: str, limit: str | None) -> float | None:
    if name == "attainment":
        return asked.share
    return getattr(asked.sweep.scenario.slo, limit) if limit and limit != axis else None


def _marks(asked: Asked, axis: str) -> pd.DataFrame:
    """Capacities that lie on the axis, once they are known."""
    search = Search(scenario=asked.sweep.scenario, share=asked.share, seeds=asked.sweep.seeds)
    values, found = (
        asked.sweep.axes[0].values,
        searches.found(("capacity", search.name, here())) or [],
    )
    rows = [
        (c.label, c.value) for c in found if c.load == axis and values[0] <= c.value <= values[-1]
    ]
    return pd.DataFrame(rows, columns=["label", "at"])


def _cells(frame: pd.DataFrame, axis: str, log_x: bool) -> pd.DataFrame:
    """With x and x2, halfway to the neighbours."""
    values = np.unique(frame[axis].to_numpy(float))
    scaled = np.log(values) if log_x else values
    middle = (scaled[1:] + scaled[:-1]) / 2
    ends = np.concatenate([scaled[:1], middle, scaled[-1:]])
    if len(values) == 1:
        ends = scaled[0] + np.array([-0.5, 0.5])
    ends = np.exp(ends) if log_x else ends
    place = np.searchsorted(values, frame[axis])
    names = [n for n in frame if n.startswith("time_")]
    return frame[["label", axis, "binds", *names]].assign(x=ends[place], x2=ends[place + 1])


def _heat(asked: Asked, frame: pd.DataFrame) -> None:
    left, right = st.columns(2)
    labels = list(frame["label"].unique())
    label = left.segmented_control(
        "Variant", labels, default=labels[0], required=True, key="heat.v"
    )
    name = right.selectbox(
        "Coloured by", COLOURED, format_func=lambda n: FIGURES[n].label, key="heat.figure"
    )
    own, axes = frame.loc[frame["label"] == label], asked.sweep.axes
    own = own.assign(
        column=np.searchsorted(axes[0].values, own[axes[0].name]),
        row=np.searchsorted(axes[1].values, own[axes[1].name]),
    )
    feasible = np.zeros((len(axes[1].values), len(axes[0].values)), bool)
    feasible[own["row"], own["column"]] = own["feasible"]
    chart = charts.heatmap(
        own,
        curves.edges(feasible),
        axes=(axes[0].name, axes[1].name),
        titles=(_title(axes[0].name), _title(axes[1].name)),
        values=([f"{v:g}" for v in axes[0].values], [f"{v:g}" for v in axes[1].values]),
        figure=name,
        title=f"{FIGURES[name].label}, {FIGURES[name].unit}",
        dark=dark(),
        log=FIGURES[name].unit == "ms",
    )
    title = (
        f"{FIGURES[name].label} of {label}; outlined: the SLO is kept and the queue does not grow"
    )
    st.markdown(f"**{title}**")
    _chart(asked, "heatmap", chart, title, lambda: own)
    if problems := own.loc[own["problem"] != "", "problem"].unique().tolist():
        st.caption(f"Empty cells can't be run: {plain(problems[0])}.")


def _pareto(asked: Asked, frame: pd.DataFrame, colours: dict[str, str]) -> None:
    names = asked.names
    shown = frame[[*names, "variant", "label", "user_tok_s", "tok_s", "attainment", "feasible"]]
    shown = shown.assign(front=curves.front(frame))
    st.markdown("**Tokens for each user against tokens for the GPU**, one GPU a server")
    legend(colours)
    chart = charts.pareto(shown, fields=names, colours=colours, dark=dark())
    _chart(asked, "pareto", chart, "tok/s per user against tok/s per GPU", lambda: shown)
    st.caption("Filled: the SLO is kept. Dotted: no other point is better in both.")


def _chart(asked: Asked, name: str, chart, title: str, table) -> None:
    """A chart whose points can be picked, with its files."""
    key = f"sweep chart {name}"
    st.altair_chart(chart, key=key, alt=title, on_select=lambda: _pick(key))
    export_chart(f"{name}-{asked.sweep.name}", asked.sweep, table, chart, title)


def _pick(key: str) -> None:
    chosen = st.session_state[key].selection.get(charts.PICK)
    if chosen:
        st.session_state["sweep picked"] = chosen[0]


def _picked(asked: Asked, frame: pd.DataFrame) -> None:
    """The point that was clicked, and the way to the same requests on the page Compare."""
    picked = st.session_state.get("sweep picked", {})
    if not {"variant", *asked.names} <= set(picked):
        st.caption("Click a point in a chart to see it here and open it on the page Compare.")
        return
    own = frame.loc[frame["variant"] == picked["variant"]]
    for name in asked.names:
        own = own.loc[np.isclose(own[name].to_numpy(float), float(picked[name]))]
    if own.empty or own["problem"].iloc[0]:
        return
    point = own.iloc[0]
    values = [(name, point[name].item()) for name in asked.names]
    where = " and ".join(f"{name} {value:g}" for name, value in values)
    figures = ", ".join(
        f"{FIGURES[n].label} {tables.number(point[n], FIGURES[n].unit)}"
        for n in ("ttft_p99", "tpot_p99", "itl_p99", "tok_s", "attainment")
    )
    with st.container(border=True, key="picked"):
        st.markdown(f"**{point['label']} at {where}**: {figures}; binding: {point['binds']}.")
        scenario = at(asked.sweep.scenario, values)
        st.page_link(
            "pages/compare.py",
            label=f"Open {where} on Compare",
            icon=":material/open_in_new:",
            query_params=scenario.to_query(),
        )


def _table(asked: Asked, table: pd.DataFrame, frame: pd.DataFrame) -> None:
    with st.expander("The sweep as a table", icon=":material/table_rows:"):
        names = [
            "label",
            *asked.names,
            "feasible",
            "binds",
            *RATES,
            "ttft_p99",
            "tpot_p99",
            "itl_p99",
        ]
        st.dataframe(frame[names], hide_index=True, alt="Means over the seeds of each point")
        left, right, _ = st.columns([1, 1, 4])
        with left:
            st.caption("A row a point")
            export(f"points-{asked.sweep.name}", asked.sweep, lambda: frame)
        with right:
            st.caption("A row a run")
            export(f"runs-{asked.sweep.name}", asked.sweep, lambda: table)


def definitions() -> None:
    with st.expander("What each word means", icon=":material/help:"):
        st.markdown(
            """
- **Capacity**: by bisection to 1 %, seed by seed: a rate holds if the stated share of its run's
  requests keeps both limits. A refused request keeps none. The interval is Student's t over the
  seeds; every variant meets the same seeds, so that the difference of two is known better than
  either.
- **The queue does not grow**: the slope of the number of unfinished requests while requests arrive,
  its first third left out, has a mean over the seeds that is not above 0 with 95 %. Runs are called
  too short if a growth of 2 % of the arrivals is not excluded.
- **Binding**: the limit that keeps the head of the line out for the most time, from 5 % of the run
  on; *compute* if there is none and the server is busy for 95 % of it; else *nothing*.
- **Knee**: the point farthest from the chord between a curve's ends, both axes scaled to 0 to 1.
- **tok/s per user**: 1 / TPOT p50. **tok/s per GPU**: output of all requests, one GPU a server."""
        )


def provenance(asked: Asked) -> str:
    said = stamp(asked.sweep, share.host())
    return f"{said} · sweep {asked.sweep.name}, {asked.sweep.runs:,} runs"
