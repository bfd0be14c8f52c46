"""The parts of the device page, in the order in which a person needs them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from gpu_probe import MODELS, jobs
from gpu_probe.calibrate import calibrate, cost_of, said_of, written
from gpu_probe.jobs import Job
from gpu_probe.predict import errors, predicted
from sim.bins import coalesced
from sim.explain import duration
from sim.metrics import FIGURES, unsupported
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.record import Record
from sim.run import Run
from sim.scenario import Scenario
from sim.state import PHASES

from . import compare, device_charts, drawings, share
from .charts import gantt
from .controls import trace as trace_at_hand
from .palette import variant_colours
from .tables import number, one_request
from .text import dark, plain
from .timeline import Window, asked, is_large, opening_window, pack, shade_scale
from .timeline import timeline as canvas

EVERY = 0.2  # seconds between two looks at a run in progress
RECENT = 1_000  # steps that are shown of a run that is not over
POINTS = 3_000  # of a chart
MEMORY = {
    "used": "device, NVML used",
    "reserved": "torch reserved",
    "allocated": "torch allocated",
    "rss": "process memory (RSS)",
}


@st.cache_data(ttl=60, show_spinner=False)
def cards() -> list[str]:
    return jobs.cards()


def ground() -> None:
    """What the page is on, and what its times are."""
    share.enter()
    compare.notice(st.session_state.notices)
    found = cards()
    st.subheader("The same scheduler, on a device", anchor=False)
    where = (
        f"The device is **{found[0]}**."
        if found
        else "**No GPU here**: no NVIDIA driver answers. The loop runs on this machine's CPU."
    )
    st.markdown(
        f"{where} A decoder with random weights and a paged KV cache computes every step that the"
        " policy plans. The clock goes on by what each step took; a gap in which nobody is there is"
        " not waited for."
    )


def controls() -> Job | None:
    """Start a run or choose one that is kept. Returns the one to show."""
    scenario: Scenario = st.session_state.scenario
    devices = ["cuda", "cpu"] if cards() else ["cpu"]
    with st.container(border=True):
        columns = st.columns([3, 2, 1, 1, 1], vertical_alignment="bottom")
        numbers = range(len(scenario.variants))
        variant = columns[0].selectbox(
            "Variant of the scenario",
            numbers,
            scenario.baseline,
            format_func=lambda k: scenario.variants[k].label,
        )
        model = columns[1].selectbox("Model", MODELS, MODELS.index("small"), key="device.model")
        device = columns[2].selectbox("Device", devices, key="device.device")
        requests = columns[3].number_input("Requests", 1, 100_000, 40, key="device.requests")
        # A click is heard of before the script: a look that ends just then would take it along.
        columns[4].button(
            "Start",
            type="primary",
            icon=":material/play_arrow:",
            width="stretch",
            on_click=lambda: st.session_state.update({"device.asked": True}),
        )
        if st.session_state.pop("device.asked", False):
            _start(scenario, variant or 0, model, device, int(requests))
        if said := st.session_state.pop("device.said", None):
            st.error(f"{plain(said)}.")
        return _chosen()


def _start(scenario: Scenario, variant: int, model: str, device: str, requests: int) -> None:
    state = st.session_state
    try:
        scenario.check()
        if "trace" in scenario.traffic.uses and trace_at_hand() is None:
            raise ScenarioError("the scenario's trace is not here: drop its file in the sidebar")
        job = jobs.start(
            scenario,
            variant,
            model=model,
            device=device,
            requests=requests,
            trace=trace_at_hand(),
        )
    except ScenarioError as error:
        state["device.said"] = str(error)
        return
    state["device.kept"] = job


def _chosen() -> Job | None:
    """One of the runs that are kept, or a file that is dropped."""
    kept = jobs.jobs()
    left, right = st.columns([5, 2], vertical_alignment="bottom")
    if kept:
        if st.session_state.get("device.kept") not in kept:
            st.session_state["device.kept"] = kept[0]
        left.selectbox("Run", kept, format_func=lambda job: job.label, key="device.kept")
    else:
        left.caption("No run is kept here yet.")
    with right.popover("Open a file", icon=":material/upload_file:", width="stretch"):
        dropped = st.file_uploader("Drop a run.parquet", type="parquet", key="device.upload")
    if dropped is not None:
        left.caption(f"Shown is the file {plain(dropped.name)}: take it away to see the run.")
        return None
    return st.session_state["device.kept"] if kept else None


def live(job: Job | None) -> None:
    """A run in progress, looked at a few times a second; then the page is drawn anew."""
    if job and job.runs:
        _live(job)
        st.stop()


@st.fragment(run_every=EVERY)
def _live(job: Job) -> None:
    if not job.runs:
        st.rerun()
    record, about = job.record(), job.about
    left, right = st.columns([5, 1], vertical_alignment="center")
    right.button(
        "End it now" if job.stopping else "Stop",
        icon=":material/stop:",
        on_click=job.stop,
        width="stretch",
        key="device.stop",
    )
    said, share_done = "Loading torch, making weights, warming up", 0.0
    if record is not None:
        run, done = record.run, record.about["requests_done"]
        share_done = min(1.0, done / max(1, about["requests"]))
        said = (
            f"{done:,} of {len(run.requests):,} requests, {len(run.steps):,} steps,"
            f" {run.total / 1e3:,.1f} s of the run's time"
        )
    if job.stopping:
        said += "; it stops when the step that it computes is over"
    left.progress(share_done, said)
    if record is not None:
        charts(record)


def charts(record: Record) -> None:
    """Slots, step times, memory and KV of the last steps of a run that is not over."""
    run = record.run
    if not len(run.steps):
        return
    begin = run.steps["t0"][-RECENT:][0]
    if len(run.steps) > RECENT:
        st.caption(f"Shown are the last {RECENT:,} steps.")
    shown = run.segments[run.segments["t1"] > begin]
    phases = np.array(PHASES)
    holding = pd.DataFrame(
        {
            "t0": np.maximum(shown["t0"], begin) / 1e3,
            "t1": shown["t1"] / 1e3,
            "seat": shown["seat"],
            "request": shown["request"],
            "phase": phases[shown["phase"]],
        }
    )
    taken = int(run.segments["seat"].max(initial=0)) + 1
    present = tuple(phases[np.unique(run.segments["phase"])].tolist())
    left, right = st.columns(2)
    with left:
        chart = device_charts.slots(holding, taken, present, dark())
        st.vega_lite_chart(chart, key="device.slots", alt="Who holds which seat")
        _memory(record, begin)
    with right:
        _step_times(run, begin)
        _kv(record, begin=begin)


def _step_times(run: Run, begin: float = 0.0) -> None:
    rows = run.steps[run.steps["t0"] >= begin]
    each = max(1, -(-len(rows) // POINTS))
    rows = rows[::each]
    times = pd.DataFrame(
        {
            "t": rows["t0"] / 1e3,
            "ms": rows["ms"],
            "kind": np.where(rows["prefill"] > 0, "mixed", "decode only"),
        }
    )
    title = "Step times" + (f", one of {each}" if each > 1 else "")
    chart = device_charts.steps(times, title, dark())
    st.vega_lite_chart(chart, key="device.steps", alt="Milliseconds of each step")


def _memory(record: Record, begin: float = 0.0) -> None:
    samples, steps = record.beside["memory"], record.run.steps
    samples = samples[samples["t"] >= begin]
    lines = {
        label: (samples["t"], samples[name])
        for name, label in MEMORY.items()
        if np.isfinite(samples[name]).any()
    }
    peaks, inside = record.beside["step_memory"]["peak"], steps["t0"] >= begin
    if np.isfinite(peaks).any():
        lines["torch, peak of a step"] = steps["t0"][inside], peaks[inside]
    chart = device_charts.memory(lines, "Memory", dark())
    st.vega_lite_chart(chart, key="device.memory", alt="Memory by time")


def _kv(record: Record, simulated: Run | None = None, begin: float = 0.0) -> None:
    """Blocks in use, and the tokens that the simulator has there."""
    samples = record.beside["memory"]
    samples = samples[samples["t"] >= begin]
    lines = {"measured: blocks in use": (samples["t"], samples["kv"])}
    if simulated and (bytes_of := record.about.get("token_bytes")):
        steps = simulated.steps
        there = steps["kv"] + steps["prefill"] + steps["decodes"]  # once the step is computed
        lines["simulated: tokens there"] = steps["t0"], there * bytes_of
    chart = device_charts.memory(lines, "KV cache", dark())
    st.vega_lite_chart(chart, key="device.kv", alt="Bytes of KV by time")


def record(job: Job | None) -> Record:
    """What the chosen run, or the dropped file, has measured; without any, say so and stop."""
    dropped = st.session_state.get("device.upload")
    try:
        if dropped is not None:
            return jobs.opened(dropped.getvalue(), dropped.name)
        if job is None:
            st.info(
                "Start a run, or drop the file that `python -m gpu_probe serve` wrote elsewhere:"
                " Open a file."
            )
            st.stop()
        found = job.record()
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        keep()
        st.stop()
    if found is None or not found.about["finished"]:
        _ended_early(job, found)
    if found is None:
        keep()
        st.stop()
    return found


def _ended_early(job: Job | None, found: Record | None) -> None:
    said = (job and job.last_words()) or "its process ended without a word, as one that is killed"
    if job and job.stopping:
        said = "it was stopped"
    kept = (
        f"What it had measured is kept: {found.about['requests_done']:,} of"
        f" {len(found.run.requests):,} requests, {len(found.run.steps):,} steps."
        if found
        else "It had not measured anything yet."
    )
    st.warning(f"The run ended early: {plain(said)}. {kept}")


def compared(record: Record) -> None:
    """Measured beside simulated, on one axis."""
    run, about = record.run, record.about
    if not about["finished"]:
        charts(record)
        return
    scenario = Scenario.from_query(about.get("query", {}))[0]
    repeats, others = _kin(record)
    top = st.container()
    name, cost, coefficients, sentence = _cost(record, others, scenario)
    simulated = predicted(record, cost, coefficients, f"simulated, {name}")
    measured = replace(run, label=f"measured on {run.source}")
    with top:
        _verdict(measured, simulated, repeats, sentence)
    runs, scenario = [measured, simulated], replace(scenario, baseline=0)
    _timeline(runs, scenario, about["date"])
    colours = {r.label: variant_colours(k)[dark()] for k, r in enumerate(runs)}
    compare.legend(colours)
    for column, shown in zip(st.columns(3), drawings.SHOWN, strict=True):
        with column:
            compare.distribution(runs, scenario, shown, False)
    first, second, third = st.columns(3)
    with first:
        _step_times(run)
    with second:
        _memory(record)
    with third:
        _kv(record, simulated)
    with st.expander("All figures, measured and simulated", icon=":material/table_chart:"):
        table = {
            r.label: {f.label: number(f.of(r, scenario.slo), f.unit) for f in FIGURES.values()}
            for r in runs
        }
        st.table(pd.DataFrame(table), border="horizontal")
        if small := unsupported(measured):
            labels = ", ".join(FIGURES[n].label for n in FIGURES if n in small)
            st.caption(f"Too few requests for a 95 % upper bound: {labels}.")


@st.fragment
def _timeline(runs: list[Run], scenario: Scenario, made: str) -> None:
    """One above the other; and, as on Compare, the request or the stretch that is asked for.

    made: the run's date, since what was asked for goes with it.
    """
    if st.session_state.get("device.seen", {}).get("made") != made:
        st.session_state["device.seen"] = {"made": made}
    seen: dict[str, Any] = st.session_state["device.seen"]
    with st.container(key="timeline-box"):
        view = None
        if is_large(runs):  # it asks for what its window needs
            view = asked(scenario.link()) or Window(*opening_window(runs, scenario.baseline))
        packed = pack(runs, scenario, window=view, picked=seen.get("pick"))
        result = canvas(packed, "Measured above, simulated below", None)
    if result.pick is not None:
        seen["pick"] = int(result.pick)
    if result.chart:
        seen["window"] = result.chart["t0"], result.chart["t1"]
    elif result.failed:
        seen["window"] = opening_window(runs, scenario.baseline)
    if window := seen.get("window"):
        _gantt(runs, scenario, window)
    if (picked := seen.get("pick")) is None:
        st.caption("Click a request in the timeline to see it measured and simulated.")
        return
    r = runs[0].requests[picked]
    st.markdown(
        f"**Request {picked}** arrived at {r['arrival'] / 1e3:,.3f} s with a prompt of"
        f" {r['prompt']:,} tokens and emits {r['output']:,}."
    )
    st.table(one_request(runs, picked), border="horizontal", alt=f"Request {picked}")


def _gantt(runs: list[Run], scenario: Scenario, window: tuple[float, float]) -> None:
    title = f"Timeline from {duration(window[0])} to {duration(window[1])}"
    seats = {run.label: run.seats for run in runs}
    with st.container(border=True):
        left, right = st.columns([6, 1], vertical_alignment="center")
        left.markdown(f"**{title}**, as a chart")
        seen = st.session_state["device.seen"]
        right.button("Close", type="tertiary", on_click=seen.pop, args=("window",))
        chart = gantt(coalesced(runs, *window), shade_scale(runs, scenario), dark(), seats)
        with st.container(key="gantt"):  # as wide as a slide, on a narrow page too
            st.html("<style>.st-key-gantt { overflow-x: auto; }</style>")
            st.altair_chart(chart, alt=title)


def _kin(record: Record) -> tuple[list[Run], list[tuple[Job, Record]]]:
    """(Finished runs of the same thing, this one included; others on the same device and model.)"""
    same, others = [record.run], []
    for job in jobs.jobs():
        if job.runs or not job.path.exists():
            continue
        try:
            other = job.record()
        except ScenarioError:  # of another version
            continue
        if other is None or not other.about["finished"]:
            continue
        if other.about["date"] == record.about["date"]:
            continue
        if any(other.about[n] != record.about[n] for n in ("device", "model", "attention")):
            continue
        alike = ("policy", "limits", "query", "requests")
        if all(other.about.get(n) == record.about.get(n) for n in alike):
            same.append(other.run)
        else:
            others.append((job, other))
    return same, others


def _cost(record: Record, others, scenario: Scenario):
    """(name, cost model, coefficients, what a reader must know of it), as chosen."""
    choices = {"fitted on this run": record} | {f"fitted on {j.label}": r for j, r in others}
    names = [*choices, "of the scenario"]
    chosen = st.selectbox("Simulated with a cost model", names, key="device.cost")
    if chosen == "of the scenario":
        pricing = scenario.cost_of(scenario.variants[scenario.baseline])
        said = "The scenario's own cost model was not made for this device."
        return "the scenario's cost", pricing.cost, pricing.coefficients, said
    try:
        fit = calibrate(choices[chosen].run)
    except ScenarioError as error:
        st.error(f"{error}.")
        st.stop()
    share_link(fit, choices[chosen], scenario)
    said = (
        "The model was fitted on this very run: its error here is no prediction."
        if chosen == "fitted on this run"
        else "The model was fitted on another run: this is a prediction."
    )
    return chosen, fit.cost, fit.coefficients.tolist(), said


def share_link(fit, source: Record, scenario: Scenario) -> None:
    """The fit as the compare page's cost model, and as a file."""
    said = said_of(fit, source)
    left, right = st.columns([4, 1], vertical_alignment="center")
    query = replace(scenario, model=cost_of(fit, source)).to_query()
    left.page_link(
        "pages/compare.py",
        label=f"Compare policies with the cost “{said['name']}”",
        icon=":material/compare_arrows:",
        query_params=query,
    )
    right.download_button(
        "cost.json",
        written(said),
        "cost.json",
        "application/json",
        icon=":material/download:",
        on_click="ignore",
        width="stretch",
    )
    st.caption(
        f"Fitted on {said['steps']:,} steps: a step's time is off by {said['median_error']:.1%} in"
        f" the median, by {said['p95_error']:.1%} at p95."
    )


def _verdict(measured: Run, simulated: Run, repeats: list[Run], sentence: str) -> None:
    table = errors(repeats, {"simulated": simulated})
    off = table.loc["simulated, error in %"]
    st.markdown(
        f"#### The simulator is off the clock by {_percent(off['busy'])} in busy time,"
        f" {_percent(off['TTFT p50'])} in TTFT p50, {_percent(off['TPOT p50'])} in TPOT p50"
    )
    st.markdown(sentence)
    shown = table.map(lambda v: "–" if np.isnan(v) else f"{v:,.{2 if v < 100 else 0}f}")
    for row in shown.index:
        if "error" in row:
            shown.loc[row] = [_percent(v) for v in table.loc[row]]
    st.table(shown, border="horizontal", alt="Measured figures, their noise, and the errors")
    if len(repeats) == 1:
        st.caption("One run says nothing of its own noise: start the same again to see it.")
    else:
        st.caption(f"Measured: median of {len(repeats)} runs; noise: half their range.")


def _percent(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f} %"  # no -0.0


def keep() -> None:
    """The run as a file, or gone."""
    job = st.session_state.get("device.kept")
    if job is None or st.session_state.get("device.upload") is not None:
        return
    with st.container(horizontal=True):
        if job.path.exists():
            st.download_button(
                "run.parquet",
                lambda: job.path.read_bytes(),
                "run.parquet",
                "application/vnd.apache.parquet",
                icon=":material/download:",
                on_click="ignore",
            )
        with st.popover("Forget it", icon=":material/delete:"):
            st.button("Remove this run from the disk", on_click=job.forget)


def provenance(record: Record) -> str:
    a = record.about
    versions = ", ".join(f"{name} {value}" for name, value in a["versions"].items())
    kept = [name for name in POLICIES[a["policy"]].keeps if name in a["limits"]]
    limits = ", ".join(f"{name} {a['limits'][name]:,g}" for name in kept)
    return (
        f"{a['device']} · {a['model']} in {a['dtype']} · attention: {a['attention']} · clock:"
        f" {a['clock']} · memory: {a['memory']} · {a['driver']} · {versions} ·"
        f" {a['date'][:16].replace('T', ' ')} UTC · {a['policy']}: {limits}."
        f" {share.host()}"
    )
