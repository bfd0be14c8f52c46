"""What differs: where two runs part, who gains and who loses, and whether it is real."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sim import differ
from sim.explain import duration
from sim.metrics import FIGURES
from sim.parameter import ScenarioError
from sim.replicate import SEEDS, Difference, Replicates, replicate
from sim.run import Run
from sim.scenario import Scenario
from sim.why import MEASURES
from sim.window import Windowed, within

from . import controls, searches, share, tables, why
from .shelf import Runs, fragment
from .text import plain


@fragment
def section(runs: Runs, shown: Runs, scenario: Scenario) -> None:
    """Two variants, or one and another link's baseline, side by side: of the requests shown."""
    st.subheader("What differs", anchor=False)
    labels = [run.label for run in runs]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        first = st.selectbox("From", labels, index=scenario.baseline, key="differ-from", width=240)
        rest = [*(label for label in labels if label != first), OTHER]
        nearest = len(rest) - 2 if len(rest) > 1 else 0
        second = st.selectbox("to", rest, index=nearest, key="differ-to", width=240)
        measure = st.selectbox(
            "by", MEASURES, format_func=MEASURES.__getitem__, key="differ-by", width=120
        )
    k = labels.index(first)
    if second == OTHER:
        found = _other()
        if found is None:
            return
        other, variant, run = found
        window = scenario.window if isinstance(scenario, Windowed) else None
        part = within(run, *window) if window else run
    else:
        j = labels.index(second)
        other, variant, run, part = scenario, scenario.variants[j], runs[j], shown[j]
    st.markdown(f"**{differ.in_words(scenario, scenario.variants[k], other, variant)}**")
    key = (scenario.link(), k, other.link(), str(variant))
    _parting(key, (runs[k], run), (shown[k], part))
    if differ.same_requests(shown[k], part):
        _gains(shown[k], part, measure)
    else:
        st.caption("They serve other requests, so that none can be compared one by one.")


OTHER = "another scenario's link"


def _other():
    text = st.text_input("The other link", key="differ-link", placeholder="/?rate=40&v=chunked")
    if not text:
        st.caption("Its baseline variant is compared with the one above.")
        return None
    scenario, problems = Scenario.from_url(text)
    try:
        if problems:
            raise ScenarioError(problems[0])
        return _one_of(scenario.link(), scenario)
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        return None


@st.cache_resource(max_entries=1, show_spinner="Simulating the other link")
def _one_of(link: str, _scenario: Scenario):
    return differ.one_of(_scenario)


@st.cache_data(max_entries=16, show_spinner=False)
def _part(key: tuple, _runs: tuple[Run, Run], _shown: tuple[Run, Run]):
    return differ.parting(*_runs, None if _shown == _runs else _shown)


def _parting(key: tuple, runs: tuple[Run, Run], shown: tuple[Run, Run]) -> None:
    """The first moment at which they part, as far as the requests shown go, and the steps there."""
    steps, (a, b) = _part(key, runs, shown), runs
    who = "They" if shown == runs else f"Of these {len(shown[0].requests):,} requests they"
    if steps is None:
        st.markdown(f"{who} never part: every step is the same.")
        return
    t0 = min(step.t0 for step in steps)
    left, right = st.columns([5, 1], vertical_alignment="bottom")
    left.markdown(f"{who} part at **{t0 / 1e3:,.3f} s**:")
    if right.button("Go there", icon=":material/arrow_forward:"):
        _go(t0, steps)
        st.rerun()  # the timeline is no part of this fragment
    rows = {
        run.label if run is a or a.label != run.label else f"{run.label}, the other": {
            "begins, ms": f"{step.t0:,.3f}",
            "takes": duration(step.ms),
            "prompts (tokens)": ", ".join(f"{i} ({n:,})" for i, n in step.prompts.items()) or "–",
            "decodes": ", ".join(map(str, step.decodes)) or "–",
            "head of the line": f"{step.head}: {step.stop}" if step.head >= 0 else "–",
        }
        for run, step in zip((a, b), steps, strict=True)
    }
    st.table(pd.DataFrame(rows).T, border="horizontal")


def _go(t0: float, steps: Sequence[differ.Step]) -> None:
    span = max(10 * max(step.ms for step in steps), 100.0)
    why.order(None, t0 - span / 2, t0 + span / 2)


def _gains(a: Run, b: Run, measure: str) -> None:
    """The largest winners and losers; a click on a row picks its request."""
    st.markdown(differ.balance(a, b, measure))
    table = differ.gains(a, b, measure)
    shown = table.reset_index()
    picked = st.dataframe(
        shown.style.format(precision=2, thousands=","),
        hide_index=True,
        key="gains",
        on_select="rerun",
        selection_mode="single-row",
        alt="The requests that gain and lose most",
    )
    st.caption("Times in ms; choose a row to go to that request.")
    if rows := picked.selection.rows:
        i = int(shown.loc[rows[0], "request"])
        if st.session_state.get("gains-went") != (measure, i):
            st.session_state["gains-went"] = (measure, i)
            share.pick(i)
            st.rerun()


def real(scenario: Scenario, runs: Runs) -> None:
    """On request: the same comparison under more seeds, and an interval beside each difference."""
    if len(scenario.variants) < 2:
        return
    key, state = ("real", scenario.link(), scenario.traffic.trace), st.session_state
    if searches.found(key) is None and state.get("real wanted") != key:
        left, right = st.columns([1, 3], vertical_alignment="center")
        left.button(
            "Is the difference real?",
            icon=":material/science:",
            on_click=state.update,
            args=({"real wanted": key},),
        )
        right.caption(
            f"Runs every variant under {SEEDS} seeds, paired, with a bootstrap interval:"
            f" {SEEDS * len(runs):,} runs, about {duration(1e3 * SEEDS * runs.seconds)} of"
            " simulating."
        )
        return
    trace = controls.trace()
    job = searches.job(key, lambda go_on: replicate(scenario, tables.HEADLINE, trace, go_on=go_on))
    searches.watched(key, job, lambda: _real(scenario, job.result))


def _real(scenario: Scenario, found: Replicates | None) -> None:
    assert found
    st.markdown(
        f"**Is it real?** Differences to {scenario.variants[scenario.baseline].label}, mean of"
        f" {SEEDS} seeds and its 95 % bootstrap interval, paired by seed."
        + (" Of each, who arrives in the window." if isinstance(scenario, Windowed) else "")
    )
    st.table(_intervals(found, scenario.baseline), border="horizontal")


def _intervals(found: Replicates, base: int) -> pd.DataFrame:
    rows = {}
    for k, label in enumerate(found.labels):
        if k != base:
            rows[label] = {
                FIGURES[name].label: _said(found.difference(k, base, name), FIGURES[name].unit)
                for name in found.names
            }
    return pd.DataFrame(rows).T


def _said(difference: Difference, unit: str) -> str:
    if not difference.seeds:
        return "–"
    low, high = (tables.signed(x, unit) for x in (difference.low, difference.high))
    interval = f"{low} to {high}"
    if not difference.is_real:
        return f"not distinguishable ({interval})"
    return f"{tables.signed(difference.mean, unit)} ({interval})"
