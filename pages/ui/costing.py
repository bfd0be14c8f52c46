"""The cost model in the sidebar: which one, of which model on which device, with which knobs."""

import math

import streamlit as st

from sim import calibrate
from sim.costs import COSTS
from sim.hardware import DEVICES, LLMS, llm_of_config
from sim.parameter import ScenarioError, written
from sim.pricing import CALIBRATED, KNOB, NUMBERS, OWN, StepCost

from . import stepcharts
from .text import dark

FIRST = StepCost("roofline", "h100-sxm", "llama-3.1-8b")


def load(model: StepCost) -> None:
    """Set the controls to what `model` says."""
    state = st.session_state
    state["cost.kind"] = model.kind
    shown = model if model.kind == "roofline" else FIRST
    state["cost.device"], state["cost.llm"] = shown.device, shown.llm
    state["cost.own"] = tuple(n for n in shown.numbers if n[0] in NUMBERS)
    for name in KNOB:
        state[f"cost.{name}"] = float(getattr(shown.knobs, name))
    state["cost.calibrated"] = model.numbers if model.kind == "calibrated" else ()
    state["cost.name"] = model.name


def control() -> dict[str, list[str]]:
    """Draw them. Returns the link's `cost`, if it is not the linear one."""
    state = st.session_state
    labels = {name: model.label for name, model in COSTS.items()}
    labels["calibrated"] = state["cost.name"] or labels["calibrated"]
    st.selectbox("Cost model", COSTS, format_func=lambda c: labels[c], key="cost.kind")
    st.caption(COSTS[state["cost.kind"]].about)
    if state["cost.kind"] == "roofline":
        return {"cost": [str(roofline())]}
    if state["cost.kind"] == "calibrated":
        return {"cost": [str(_calibrated())]}
    return {}


def roofline() -> StepCost:
    """Device, model and knobs."""
    state = st.session_state
    st.selectbox("Device", DEVICES, format_func=lambda d: DEVICES[d].label, key="cost.device")
    own = state["cost.own"]
    options = [*LLMS, *([OWN] if own and state["cost.llm"] == OWN else [])]
    st.selectbox(
        "Model",
        options,
        format_func=lambda m: LLMS[m].label if m in LLMS else "from config.json",
        key="cost.llm",
    )
    st.file_uploader(
        "or drop a config.json", key="cost.config", type="json", on_change=_take_config
    )
    if problem := state.get("cost.problem"):
        st.error(problem)
    with st.popover("Knobs", icon=":material/tune:", width="stretch"):
        for name, p in KNOB.items():
            low, high, step = float(p.low), float(p.high), 1.0 if p.unit == "devices" else 0.01
            st.number_input(
                p.label, low, high, step=step, format="%.6g", key=f"cost.{name}", help=p.span
            )
    device, llm = state["cost.device"], state["cost.llm"]
    usual = StepCost("roofline", device, llm if llm in LLMS else FIRST.llm).knobs
    knobs = tuple(
        (name, int(v) if isinstance(p.default, int) else v)
        for name, p in KNOB.items()
        if (v := state[f"cost.{name}"]) != getattr(usual, name)
    )
    if llm == OWN:
        return StepCost("roofline", device, OWN, (*own, *knobs))
    source = f"Sources: {DEVICES[device].source}; {LLMS[llm].source}."
    st.caption(source)
    return StepCost("roofline", device, llm, knobs)


def _take_config() -> None:
    state = st.session_state
    file, state["cost.problem"] = state["cost.config"], None
    if file is None:
        return
    try:
        llm = llm_of_config(file.getvalue().decode("utf-8", "replace"))
    except ScenarioError as error:
        state["cost.problem"] = f"{error}."
        return
    state["cost.own"] = StepCost.of_llm("h100-sxm", llm).numbers
    state["cost.llm"] = OWN


def _calibrated() -> StepCost:
    """From a table of measured steps, or written out in the link."""
    state = st.session_state
    st.file_uploader(
        "Measured steps",
        key="cost.steps",
        type=["csv", "log", "txt", "parquet"],
        on_change=_take_steps,
        help="An engine's log (vLLM's or TensorRT-LLM's iterations, vLLM's throughput lines,"
        " SGLang's decode batches), the parquet of `python -m gpu_probe serve`, or a CSV with a row"
        " a step:"
        f" ms, and of {', '.join(calibrate.COUNTED)} what was counted",
    )
    if problem := state.get("cost.problem"):
        st.error(problem)
    numbers = state["cost.calibrated"] or (
        ("step_ms", 6.5),
        ("prefill_ms", 0.024),
        ("decodes_ms", 0.024),
    )
    cost = StepCost("calibrated", numbers=numbers, name=state["cost.name"])
    st.caption(", ".join(f"{n} {written(round(v, 9))}" for n, v in numbers if n in CALIBRATED))
    if cost.ranges:
        tops = ", ".join(f"{name} {top:,.0f}" for name, top in cost.ranges.items())
        error, source = cost.known_error
        off = "" if math.isnan(error) else f" Off by {error:g} %, {source}."
        st.caption(f"Measured up to {tops} a step; beyond, Compare says so.{off}")
    if (fit := state.get("cost.fit")) is not None and state["cost.calibrated"]:
        with st.popover("Residuals", icon=":material/query_stats:", width="stretch"):
            st.altair_chart(
                stepcharts.residuals(fit.measured, fit.errors, dark()),
                alt="Error of each measured step against its time",
            )
            st.dataframe(fit.deciles().round(2), hide_index=True, alt="Error by tenth of the steps")
    elif not state["cost.calibrated"]:
        st.caption("Until a table is dropped: 6.5 ms a step and 24 us a token.")
    return cost


def _take_steps() -> None:
    state = st.session_state
    file, state["cost.problem"] = state["cost.steps"], None
    if file is None:
        return
    try:
        fit = calibrate.fit("calibrated", *calibrate.read_steps(file.getvalue()))
        state["cost.calibrated"], state["cost.fit"] = fit.step_cost().numbers, fit
        state["cost.name"] = ""
    except ScenarioError as error:
        state["cost.problem"] = f"{error}."
