"""The parts of the comparison, in the order in which a person needs them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import streamlit as st

from sim.bins import coalesced
from sim.detail import index
from sim.explain import duration, verdicts
from sim.load import NEAR, band, capacity, offered
from sim.metrics import FIGURES, METRICS
from sim.parameter import ScenarioError
from sim.run import Run
from sim.scenario import Scenario
from sim.state import PHASES
from sim.table import figure_table, requests_table, segments_table, stamp
from sim.window import Windowed, counted
from sim.workload import draw

from . import charts, controls, drawings, files, share, tables, why
from .export import export, export_table
from .palette import variant_colours
from .shelf import Runs, fragment
from .text import dark, legend, plain, unbroken
from .timeline import Window, asked, is_large, opening_window, pack, remote, shade_scale
from .timeline import timeline as canvas

UNKNOWN_ERROR = 5.0  # %, where nothing measured says
MOST_SHOWN = 5_000  # rows of a table that go to the browser
MOST_BANDED = 60_000  # requests of all variants: 22 runs of each take some seconds


def scenario() -> Scenario:
    """The scenario of the sidebar; where it can't be had, or its trace, say so (and stop)."""
    share.enter()
    scenario, notices = st.session_state.scenario, st.session_state.notices
    notice(notices)
    trace = controls.trace()
    if "trace" in scenario.traffic.uses and trace is None:
        name = scenario.traffic.trace
        st.info(
            f"This link shows a trace that is not part of it: drop the file"
            f" {plain(name)} in the sidebar."
            if name
            else "Drop a trace in the sidebar, or choose other arrivals."
        )
        st.stop()
    return scenario


def runs() -> tuple[Scenario, Runs]:
    """The scenario of the sidebar and its runs; where it can't be run, say why and stop."""
    asked, bar = scenario(), st.empty()
    runs = Runs(asked, controls.trace())
    try:
        runs.taken(bar.progress)
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        st.stop()
    bar.empty()
    notice([*share.problem_of_pick(len(runs[0].requests)), *share.problem_of_window()])
    return asked, runs


def brushed(runs: Runs, scenario: Scenario) -> tuple[Scenario, Runs]:
    """Scenario and runs, of which only who arrived in the window that the brush marks counts."""
    window = share.window()
    place = st.container(key="brushed")  # always there, so that what follows keeps the focus
    if window is None:
        return scenario, runs
    part = Windowed.of(scenario, *window)
    parts = Runs(part, runs.trace)
    left, right = place.columns([5, 1], vertical_alignment="center")
    span = f"{window[0] / 1e3:,.3f} to {window[1] / 1e3:,.3f} s"
    if not all(len(run.served) for run in parts):
        left.warning(f"Nobody who was served arrived from {span}: all requests are shown.")
        part, parts = scenario, runs
    else:
        left.info(
            f"Of {len(parts[0].requests):,} requests that arrived from {span}, and no others."
        )
    right.button("All arrivals", on_click=_unbrush, type="tertiary")
    return part, parts


def _unbrush() -> None:
    share.brush(None)
    st.session_state.pop("packed_link", None)


def notice(problems: Sequence[str]) -> None:
    if problems:
        lines = [f"- {plain(problem)}." for problem in problems]
        st.warning("\n".join(lines), title="Not as asked; this part is as in the opening scenario:")


def verdict(runs: Sequence[Run], scenario: Scenario) -> None:
    sentences = verdicts(runs, scenario.baseline)
    if not sentences:
        st.subheader(f"{runs[0].label}, {len(runs[0].requests):,} requests")
        return
    st.subheader(unbroken(sentences[0]), anchor=False)
    for sentence in sentences[1:]:
        st.markdown(unbroken(sentence))


def headline(runs: Sequence[Run], scenario: Scenario) -> None:
    table = tables.compared(runs, scenario, tables.HEADLINE, dark())
    st.table(
        table, border="horizontal", alt="Figures of each variant, with differences to the baseline"
    )


@st.cache_data(max_entries=32, show_spinner=False)
def _loads(link: str, trace: str, _scenario, _workload) -> dict[str, float]:
    rates = offered(_workload)
    return {
        variant.label: rates / capacity(_scenario, variant, _workload)
        for variant in _scenario.variants
    }


def load(runs: Sequence[Run], scenario: Scenario) -> None:
    """How much of what each variant can serve is asked of it; on request, how sure that is."""
    for run, variant in zip(runs, scenario.variants, strict=True):
        tops = scenario.model_of(variant).ranges
        beyond = [f"{n} {run.steps[n].max():,} over {top:,.0f}" for n, top in tops.items()
                  if run.steps[n].max() > top]  # fmt: skip
        if beyond:
            st.warning(f"{plain(run.label)}: steps beyond what was measured: {', '.join(beyond)}.")
    workload = draw(scenario.traffic, controls.trace())
    if runs[0].ids is not None:
        workload = workload.rows(runs[0].ids)
    if len(workload) < 2:
        st.caption("Load: one request is no rate.")
        return
    loads = _loads(scenario.link(), scenario.traffic.trace, scenario, workload)
    if any(math.isnan(rho) for rho in loads.values()):
        st.caption("Load: a closed loop offers what is served.")
        return
    said = ", ".join(f"{plain(label)} {rho:.2f}" for label, rho in loads.items())
    near = any(rho > NEAR for rho in loads.values())
    warning = (
        f" :orange[Above {NEAR:g} a small error in the step time is a large one in TTFT, and"
        " another seed gives another figure.]"
    )
    left, right = st.columns([7, 2], vertical_alignment="center")
    left.markdown(f"Load (offered over capacity): {said}.{warning if near else ''}")
    with right:
        _certainty(scenario)


def worst_known(scenario: Scenario) -> tuple[float, str]:
    """(%, where it is from): the largest known error of the variants' step times."""
    models = {str(m): m for m in map(scenario.model_of, scenario.variants)}.values()
    known = [m.known_error for m in models if not math.isnan(m.known_error[0])]
    if not known:
        guess = "is a guess: no measured step or record says by how much this cost is off"
        return UNKNOWN_ERROR, f"{UNKNOWN_ERROR:g} % {guess}"
    error, source = max(known)
    unknown = ", for those variants of which one is known" if len(known) < len(models) else ""
    return min(max(error, 0.1), 50.0), f"{error:g} %, {source}{unknown}"


@st.fragment
def _certainty(scenario: Scenario) -> None:
    with st.popover("How sure is this?", icon=":material/query_stats:"):
        known, source = worst_known(scenario)
        error = st.number_input(
            "Error of the step time, %", 0.1, 50.0, known, 0.5, key=f"step-error-{known:g}"
        )
        st.caption(f"As a start {source}.")
        if not st.button("Run 20 seeds, and the step time off both ways"):
            return
        try:
            table = _bands(
                scenario.link(), scenario.traffic.trace, error, scenario, controls.trace()
            )
        except ScenarioError as problem:
            st.error(f"{plain(str(problem))}.")
            return
        st.dataframe(table, hide_index=True, alt="TTFT p95 over 20 seeds and step times")


@st.cache_data(max_entries=16, show_spinner="Running 20 seeds of each variant")
def _bands(link: str, trace: str, error: float, _scenario, _trace) -> pd.DataFrame:
    if _scenario.traffic.expected * len(_scenario.variants) > MOST_BANDED:
        raise ScenarioError(
            f"{_scenario.traffic.expected:,.0f} requests under {len(_scenario.variants)} variants"
            f" are too many for 22 runs each: ask for {MOST_BANDED:,} in all"
        )
    rows = []
    for variant in _scenario.variants:
        for name, label in (("ttft", "TTFT p95"), ("tpot", "TPOT p95")):
            found = band(
                _scenario,
                variant,
                lambda run, name=name: METRICS[name].of(counted(run, _scenario)).quantile(0.95),
                error=error / 100,
                trace=_trace,
            )
            rows.append(
                {
                    "variant": variant.label,
                    "figure": label,
                    "this seed": duration(found.value),
                    "20 seeds": " to ".join(map(duration, found.seeds)),
                    f"step time ±{error:g} %": " to ".join(map(duration, found.step_time)),
                }
            )
    return pd.DataFrame(rows)


@st.cache_data(max_entries=8, show_spinner=False)
def _packed(link: str, window: Window | None, picked: int | None, _runs, _scenario) -> bytes:
    return pack(_runs, _scenario, window=window, picked=picked)


@fragment
def timeline(runs: Runs, scenario: Scenario, shown: Runs, part: Scenario) -> None:
    """The canvas, of all requests; and, outside it, what was picked or asked for there, of those
    that count."""
    picked = share.picked(len(runs[0].requests))
    link, state = scenario.link(), st.session_state
    large = is_large(runs)
    if large or state.get("packed_link") != link:  # of small runs the block is sent once
        state.packed_link, state.first_picked, state.first_brush = link, picked, share.window()
    view, lit = None, None
    if large:
        view = asked(link) or Window(*opening_window(runs, scenario.baseline))
        lit = picked
    alt = f"Slot timeline of {len(runs)} variants. " + " ".join(verdicts(runs, scenario.baseline))
    with st.container(key="timeline-box"):
        packed = _packed(link, view, lit, runs, scenario)
        result = canvas(packed, alt, state.first_picked, state.first_brush)
        remote(state.get("order"))
    if result.pick is not None and result.pick != picked:
        share.pick(int(result.pick))
        st.rerun(scope="fragment")
    if result.brush is not None:
        share.brush(result.brush)
        st.rerun()
    if result.chart:
        st.session_state.window = (result.chart["t0"], result.chart["t1"])
    if result.failed:
        st.session_state.window = opening_window(runs, scenario.baseline)
    if window := st.session_state.get("window"):
        _gantt(runs, scenario, window)
    _refused(shown)
    why.jumps(runs, shown, scenario)
    _request(runs, scenario, picked)
    with st.expander("The timeline as a table", icon=":material/table_rows:"):
        _as_table(shown, part, view)


def _refused(runs: Sequence[Run]) -> None:
    """Who was turned away at the door, and why."""
    for run in runs:
        ids = np.flatnonzero(run.requests["refused"])
        if not len(ids):
            continue
        with st.expander(f"{run.label}: {len(ids):,} refused at the door", icon=":material/block:"):
            first = ids[:MOST_SHOWN]
            table = requests_table(replace(run, requests=run.requests[first], ids=first))
            table = table.assign(why=table["refused"])[["arrival", "prompt", "limit", "why"]]
            st.dataframe(table, alt="Refused requests")
            _cut(len(ids))


def _cut(rows: int, where: str = "") -> None:
    """Say so where a table leaves rows out."""
    if rows > MOST_SHOWN:
        st.caption(f"The first {MOST_SHOWN:,} of {rows:,} rows{where}. Exports hold all.")


@st.cache_data(max_entries=8, show_spinner=False)
def _coalesced(link: str, window: tuple[float, float], _runs: Sequence[Run]) -> pd.DataFrame:
    return coalesced(_runs, *window)


def _gantt(runs: Sequence[Run], scenario: Scenario, window: tuple[float, float]) -> None:
    t0, t1 = window
    rows = _coalesced(scenario.link(), window, runs)
    chart = charts.gantt(
        rows, shade_scale(runs, scenario), dark(), {run.label: run.seats for run in runs}
    )
    title = f"Timeline from {duration(t0)} to {duration(t1)}"
    with st.container(border=True):
        left, middle, right = st.columns([6, 1, 1], vertical_alignment="center")
        left.markdown(f"**{title}**, as a chart")
        with middle:
            view, ground = _view(runs, scenario, window), dark()
            export("timeline", scenario, lambda: rows, lambda: files.timeline(view, ground))
        right.button("Close", type="tertiary", on_click=lambda: st.session_state.pop("window"))
        with st.container(key="gantt"):  # as wide as a slide, on a narrow page too
            st.html("<style>.st-key-gantt { overflow-x: auto; }</style>")
            st.altair_chart(chart, alt=title)


def _request(runs: Sequence[Run], scenario: Scenario, picked: int | None) -> None:
    if picked is None:
        st.caption("Click a request in the timeline to see it under every variant.")
        return
    r = runs[0].requests[picked]
    st.subheader(f"Request {picked} under every variant", anchor=False)
    st.markdown(
        f"Arrived at {r['arrival'] / 1e3:,.3f} s with a prompt of {r['prompt']:,} tokens;"
        f" emits {r['output']:,} of at most {r['limit']:,}."
    )
    why.request(runs, scenario, picked, dark())


def _as_table(runs: Sequence[Run], scenario: Scenario, window: Window | None) -> None:
    """Who held which seat and when, for whoever can't see the canvas."""
    labels = [run.label for run in runs]
    k = labels.index(st.selectbox("Variant", labels, key="table-variant"))
    label, run = labels[k], runs[k]
    # Not in order of their ends: a decode's is known later where the next step is planned ahead.
    places = index(run).slice(*window[:2]) if window else np.arange(len(run.segments))
    count = len(places)
    if count > MOST_SHOWN:
        places = np.partition(places, MOST_SHOWN)[:MOST_SHOWN]
    shown = segments_table(replace(run, segments=run.segments[places]))
    st.dataframe(shown, height=320, hide_index=True, alt=f"Segments of {label}")
    _cut(count, " in the window in view" if window else "")
    st.caption(f"Phases: {', '.join(PHASES)}. Times in ms.")
    left, right, _ = st.columns([1, 1, 4])
    with left:
        export_table(f"segments-{label}", scenario, "segments", k, runs, runs)
    with right:
        export_table(f"requests-{label}", scenario, "requests", k, runs, runs)


@fragment
def distributions(runs: Runs, scenario: Scenario) -> None:
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    left.subheader("How the latencies are spread", anchor=False)
    form = right.segmented_control(
        "Form",
        ["Histogram", "CDF"],
        default="Histogram",
        required=True,
        label_visibility="collapsed",
    )
    colours = {run.label: variant_colours(k)[dark()] for k, run in enumerate(runs)}
    legend(colours, "dashed: p95")
    for column, shown in zip(st.columns(3), drawings.SHOWN, strict=True):
        with column:
            distribution(runs, scenario, shown, form == "CDF")


def distribution(runs, scenario, shown: drawings.Shown, cumulative: bool) -> None:
    metric = METRICS[shown.metric]
    bins, chart = drawings.distribution(runs, scenario, shown, dark(), cumulative)
    if chart is None:
        st.info(f"{metric.label} is not defined: no request has a second token.")
        return
    st.vega_lite_chart(
        chart, key=f"chart-{metric.name}", alt=f"{metric.label} of each variant; {metric.about}"
    )
    view, ground = _view(runs, scenario), dark()
    export(
        metric.name,
        scenario,
        lambda: bins,
        lambda: files.distribution(view, shown, ground, cumulative) or "",
    )


def _view(runs, scenario, window=(0.0, 0.0)) -> files.View:
    return files.View(scenario, runs, share.host(), window)


def figures(runs: Sequence[Run], scenario: Scenario) -> None:
    with st.expander("All figures", icon=":material/table_chart:"):
        table = tables.compared(runs, scenario, list(FIGURES), dark())
        st.table(table.data.T, border="horizontal")
        st.caption(
            "\\* too few requests: no 95 % upper bound for this percentile exists."
            " Percentiles are numpy's linear method over all values."
        )
        export(
            "figures",
            scenario,
            lambda: figure_table(runs, scenario).rename_axis("figure").reset_index(),
        )


def definitions() -> None:
    with st.expander("What each figure means", icon=":material/help:"):
        st.markdown(
            "\n".join(f"- **{m.label}**: {m.about}" for m in METRICS.values())
            + "\n"
            + "\n".join(f"- **{f.label}**: {f.about}" for f in FIGURES.values() if not f.metric)
        )


def provenance(scenario: Scenario, runs: Sequence[Run]) -> str:
    costs = ", ".join(dict.fromkeys(scenario.model_of(v).label for v in scenario.variants))
    made = f"{runs[0].source}, cost {costs}"
    return f"{stamp(scenario, share.host())} · {len(runs[0].requests):,} requests, {made}"
