"""Why did it wait? The split of latencies: a total of each variant, a request, and ways between."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import streamlit as st

from sim import why as causes
from sim import worked
from sim.advice import advice, tried
from sim.explain import duration
from sim.run import Run
from sim.scenario import Scenario
from sim.state import PREEMPTED
from sim.why import DECODING, MEASURES, PARTS, TTFT, Total, Why
from sim.window import during
from sim.workload import draw

from . import charts, controls, share, tables
from .export import export_chart
from .text import legend

LABELS = {part.name: part.label for part in PARTS}
Q = 0.95
LEAST_TOLD = 0.05  # of TTFT: what is less is no cause to name
AT_ONCE = 20_000  # requests of all variants, up to which advice is tried unasked


def _splits(runs: Sequence[Run], scenario: Scenario) -> list[Why]:
    pairs = zip(runs, scenario.variants, strict=True)
    return [causes.why_variant(run, scenario, variant) for run, variant in pairs]


def _rows(values: dict[str, np.ndarray], shares: bool) -> pd.DataFrame:
    """Rows (row, name, value, text) of parts, in % or ms."""
    rows = []
    for row, parts in values.items():
        whole = parts.sum()
        for part, ms in zip(PARTS, parts, strict=True):
            if ms > 1e-9:
                share = 100 * ms / whole
                text = f"{duration(ms)}, {share:.1f} %"
                rows.append((row, part.name, share if shares else ms, text))
    return pd.DataFrame(rows, columns=["row", "name", "value", "text"])


def totals(runs: Sequence[Run], shown: Sequence[Run], scenario: Scenario, dark: bool) -> None:
    """What the slowest requests of each variant waited for, of those that arrived in the window."""
    st.subheader("Why did it wait?", anchor=False)
    whole = _splits(runs, scenario)  # whatever the window
    found = [
        [causes.total(split, half, Q, run.ids) for split, run in zip(whole, shown, strict=True)]
        for half in (TTFT, DECODING)
    ]
    outcomes, present = _outcomes(found, shown, scenario), set()
    for column, half in zip(st.columns(2), (TTFT, DECODING), strict=True):
        parts, said = {}, []
        for k, t in enumerate(found[half]):
            label, policy = shown[k].label, scenario.variants[k].policy
            parts[f"{label} ({duration(t.at)})"] = t.parts / max(t.requests, 1)
            outcome = f" *{outcomes[half, k]}*" if (half, k) in outcomes else ""
            said.append(f"- {label}: {advice(t, policy)}{outcome}")
        name = ("TTFT", "Decode time")[half]
        title = ("% of TTFT", "% of decode time")[half] + ", the slowest 5 %"
        rows = _rows(parts, shares=True)
        with column:
            if rows.empty:
                st.caption(f"{name}: there is none to explain.")
                continue
            chart = charts.causes(rows, title, LABELS, dark)
            st.markdown(f"**{name} p95**")
            st.vega_lite_chart(chart, key=f"causes-{half}", alt=" ".join(said))
            st.markdown("\n".join(said))
            present |= set(rows["name"])
            file = f"causes-{name.lower().replace(' ', '-')}"
            export_chart(file, scenario, lambda rows=rows: rows, chart, f"Causes of {name} p95")
    _legend(present, dark)
    with st.expander("How latencies are split", icon=":material/rule:"):
        st.markdown(RULE + "\n" + "\n".join(f"- **{p.label}**: {p.about}" for p in PARTS))
        st.markdown(f"**A case worked by hand.** {worked.TOLD} [Open it]({worked.LINK})")
        st.table(worked.steps(), border="horizontal", hide_index=True)
        st.table(worked.split(), border="horizontal")


def _outcomes(
    found: Sequence[Sequence[Total]], shown: Sequence[Run], scenario: Scenario
) -> dict[tuple[int, int], str]:
    """What came of trying each advice, by (half, variant): at once, or when it is asked for."""
    key = (scenario.link(), scenario.traffic.trace)
    requests = len(shown[0].requests) * len(shown)
    if requests > AT_ONCE and st.session_state.get("tries") != key:
        left, right = st.columns([1, 3], vertical_alignment="center")
        if not left.button("Try the advice", icon=":material/science:"):
            right.caption("Runs the same requests with each limit changed as the advice below has.")
            return {}
        st.session_state.tries = key
    return _tries(*key, found, shown, scenario, controls.trace())


@st.cache_data(max_entries=16, show_spinner="Trying the advice")
def _tries(link: str, trace: str, _found, _shown, _scenario, _trace) -> dict:
    workload, outcomes = draw(_scenario.traffic, _trace), {}
    for half, totals in enumerate(_found):
        for k, variant in enumerate(_scenario.variants):
            outcome = tried(totals[k], _shown[k], _scenario, variant, workload)
            if outcome:
                outcomes[half, k] = outcome
    return outcomes


def _legend(present: set[str], dark: bool) -> None:
    """Which colour is which part, of those that there are."""
    legend({p.label: charts.CAUSES[p.name][dark] for p in PARTS if p.name in present})


RULE = """While a request waits, the time of each step goes to the limit that stopped the scheduler
from taking it (a seat, KV blocks, token budget, or the one ahead of it in the line), as the
scheduler itself recorded. Before it stands in the line, time goes to the front end (HTTP,
tokeniser), a constant of the cost and a part of its own; until the scheduler looks, to the step in
progress. Inside a step, cost goes to overhead, own tokens, others' decodes,
others' prompts, in that order, each by what adding it to the ones before it costs; padding counts
as the others'. The parts of a request add up to its measured TTFT and decode time (first to last
token).
"""


def request(runs: Sequence[Run], scenario: Scenario, i: int, dark: bool) -> None:
    """Why request i waited under every variant: in a sentence, its figures and split, and who."""
    whole, present = _splits(runs, scenario), set()
    delays = [split.delayed_by(i) for split in whole]
    st.markdown("\n".join(map(_told, whole, delays, [i] * len(whole))))
    st.table(tables.one_request(runs, i), border="horizontal")
    for column, half in zip(st.columns(2), (TTFT, DECODING), strict=True):
        parts = {split.run.label: split.parts_of(np.array([i]))[0, half] for split in whole}
        rows = _rows(parts, shares=False)
        name = ("TTFT", "Decode time")[half]
        with column:
            if rows.empty:
                st.caption(f"{name}: none.")
                continue
            chart = charts.causes(rows, f"{name} of request {i}, ms", LABELS, dark)
            st.vega_lite_chart(
                chart, key=f"causes-request-{half}", alt=f"{name} of request {i} by cause"
            )
            present |= set(rows["name"])
    _legend(present, dark)
    for k, column in enumerate(st.columns(len(whole))):
        with column:
            _delays(runs, k, whole[k], delays[k], i)


def _told(split: Why, delays: pd.DataFrame, i: int) -> str:
    """What request i waited for under one variant, as an entry of a list."""
    parts = split.parts_of(np.array([i]))[0, TTFT]
    if not parts.sum() > 0:
        return f"- {split.run.label}: it has no first token."
    largest = [k for k in np.argsort(-parts)[:2] if parts[k] > LEAST_TOLD * parts.sum()]
    causes = " and ".join(f"{duration(parts[k])} {PARTS[k].label}" for k in largest)
    said = f"- {split.run.label}: its first token comes after {duration(parts.sum())}, {causes}"
    if len(delays) and delays["ms"].iloc[0] > 0:
        who = delays.iloc[0]
        said += f"; in all request {who['request']} delayed it most, by {duration(who['ms'])}"
    return f"{said}."


def _delays(runs: Sequence[Run], k: int, split: Why, rows: pd.DataFrame, i: int) -> None:
    """Who delayed request i under variant k, and ways to go there."""
    rows = pd.DataFrame(rows[rows["ms"] > 0])
    st.markdown(f"**{split.run.label}**: {len(rows):,} requests delayed request {i}")
    place = st.container(gap=None)
    for row in causes.rows_of(pd.DataFrame(rows.head(4))):
        tokens = f", {row.tokens:,} tokens" if row.tokens else ""
        place.button(
            f"{duration(row.ms)} by request {row.request}",
            key=f"go-{split.run.label}-{row.request}-{row.how}",
            help=f"{row.how}{tokens}. Go there.",
            icon=":material/arrow_forward:",
            type="tertiary",
            on_click=go_to,
            args=(runs, k, int(row.request)),
        )


def go_to(runs: Sequence[Run], k: int, i: int) -> None:
    """Pick request i and show it from its arrival to its last token under variant k."""
    r = runs[k].requests[i]
    share.pick(i)
    if r["refused"]:
        return
    margin = max(20.0, 0.1 * (r["last"] - r["arrival"]))
    order(i, r["arrival"] - margin, r["last"] + margin)


def order(picked: int | None, t0: float, t1: float) -> None:
    """Have the timeline go there when the page is drawn next."""
    serial = st.session_state.get("order", {}).get("serial", 0) + 1
    st.session_state.order = {"serial": serial, "picked": picked, "t0": float(t0), "t1": float(t1)}


def jumps(runs: Sequence[Run], shown: Sequence[Run], scenario: Scenario) -> None:
    """Buttons that go to the next worst request, preemption or long step of one variant, of the
    requests shown."""
    state = st.session_state
    labels = [run.label for run in runs]
    last = len(runs[0].requests) - 1
    with st.container(horizontal=True, vertical_alignment="bottom"):
        usual = scenario.baseline
        label = st.selectbox("Jump within", labels, index=usual, key="jump-run", width=180)
        k = labels.index(label)
        st.number_input(
            "Go to request",
            0,
            last,
            None,
            key="jump-request",
            width=165,
            placeholder=f"0 to {last:,}",
            on_change=_go_to_number,
            args=(runs, k),
        )
        measure = st.selectbox(
            "Metric", MEASURES, format_func=MEASURES.__getitem__, key="jump-metric", width=120
        )
        st.button(
            "Next worst",
            on_click=_next_worst,
            args=(runs, k, measure, shown),
            help=f"Of the requests at or beyond p99 of {MEASURES[measure]}, the worst first",
        )
        lost = np.count_nonzero(shown[k].segments["phase"] == PREEMPTED)
        st.button(
            "Next preemption",
            on_click=_next_preemption,
            args=(shown, k),
            disabled=not lost,
            help=f"There are {lost:,}",
        )
        limit = float(scenario.slo.tpot_slo)
        over = st.number_input(
            "Steps over, ms", value=limit, min_value=0.0, key="jump-over", width=140
        )
        st.button("Next long step", on_click=_next_step, args=(runs, k, over, shown))
    if said := state.pop("jumped", None):
        st.caption(said)


def _go_to_number(runs: Sequence[Run], k: int) -> None:
    number = st.session_state["jump-request"]
    if number is not None:
        go_to(runs, k, number)


def _next_worst(runs: Sequence[Run], k: int, measure: str, shown: Sequence[Run]) -> None:
    run = runs[k]
    found = causes.worst(run, measure, ids=shown[k].ids)
    if not len(found):
        st.session_state.jumped = f"No request of {run.label} has a {MEASURES[measure]}."
        return
    now = share.picked(len(run.requests))
    place = np.flatnonzero(found == now)
    j = (int(place[0]) + 1) % len(found) if len(place) else 0
    go_to(runs, k, int(found[j]))
    st.session_state.jumped = (
        f"Request {found[j]}: number {j + 1} of the {len(found)} at or beyond p99 of"
        f" {MEASURES[measure]} under {run.label}."
    )


def _after(times: np.ndarray) -> int:
    """The place of the first of sorted times after the last jump's; at the end, from the front."""
    k = int(np.searchsorted(times, st.session_state.get("jumped-to", -1.0), side="right"))
    return k if k < len(times) else 0


def _next_preemption(shown: Sequence[Run], k: int) -> None:
    segments = shown[k].segments
    lost = segments[segments["phase"] == PREEMPTED]
    lost = lost[np.argsort(lost["t0"], kind="stable")]
    mark = lost[_after(lost["t0"])]
    t, i = float(mark["t0"]), int(mark["request"])
    st.session_state["jumped-to"] = t
    share.pick(i)
    order(i, t - 250, t + 250)
    st.session_state.jumped = f"Request {i} is preempted at {t / 1e3:,.3f} s."


def _next_step(runs: Sequence[Run], k: int, over: float, shown: Sequence[Run]) -> None:
    run, part = runs[k], shown[k]
    steps = run.steps if run is part else during(run, part)
    long = steps[steps["ms"] > over]
    if not len(long):
        st.session_state.jumped = f"No step of {run.label} takes longer than {duration(over)}."
        return
    step = long[_after(long["t0"])]
    st.session_state["jumped-to"] = float(step["t0"])
    order(None, step["t0"] - 5 * step["ms"], step["t0"] + 6 * step["ms"])
    st.session_state.jumped = (
        f"A step of {duration(step['ms'])} at {step['t0'] / 1e3:,.3f} s: {step['prefill']:,} prompt"
        f" tokens beside {step['decodes']:,} decodes."
    )
