"""The parts of the page that takes one step apart."""

from dataclasses import replace

import pandas as pd
import streamlit as st

from sim import claims
from sim.anatomy import (
    LINES,
    MODULE,
    Step,
    free_chunk,
    full_tpot,
    intensity,
    lone_ttft,
    parts,
    ridge,
    step_ms,
    ttft_as_written,
)
from sim.hardware import DEVICES
from sim.parameter import ScenarioError
from sim.pricing import StepCost
from sim.scenario import Scenario

from . import costing, stepcharts
from .text import dark, legend, plain, unbroken

EXAMPLES = {
    "Llama-3.1-8B on an H100 SXM, as fitted": (costing.FIRST, Step(decodes=32, prefill=128)),
    "Module 08: 32 decodes on its 8B": (MODULE["decode"], Step(decodes=32)),
    "Module 08: a prompt of 2048 on its 7B": (
        MODULE["prefill"],
        Step(decodes=0, context=1, prefill=2048),
    ),
    "Module 08: a chunk of 120 beside 32 decodes": (
        MODULE["prefill"],
        Step(decodes=32, context=1, prefill=120),
    ),
}


SAID_BY_MODULE = (  # numbers of sim.claims
    (MODULE["decode"], ("1", "2", "3", "4", "5", "6", "7")),
    (MODULE["prefill"], ("12", "13", "14", "15", "16", "17")),
)
LANES = {"read": ("overhead", "weights", "KV"), "compute": ("GEMM", "attention", "network")}
SAID = {
    "weights": "reading the weights",
    "KV": "reading the KV",
    "GEMM": "the matrix products",
    "attention": "attention",
    "network": "the all-reduces",
    "overhead": "overhead",
}


def controls() -> tuple[StepCost, Step]:
    """The step and its cost, bound to the address."""
    state = st.session_state
    _from_address()
    with st.sidebar:
        st.title("Step cost", anchor=False)
        st.selectbox(
            "Start from", EXAMPLES, key="step.example", on_change=_load, placeholder="an example"
        )
        if "step.decodes" not in state or "cost.device" not in state:
            _load()
        step = Step(
            decodes=st.slider("Decoding sequences", 0, 512, key="step.decodes"),
            context=st.slider("Context of each, tokens", 1, 32_768, key="step.context"),
            prefill=st.slider("Prompt tokens in the step", 0, 8_192, key="step.prefill"),
            before=st.slider("Of that prompt, tokens before", 0, 131_072, key="step.before"),
        )
        cost = costing.roofline()
    state["step.address"] = {"cost": str(cost), "step": str(step)}
    if state["step.address"] != st.query_params.to_dict():
        st.query_params.from_dict(state["step.address"])
    return cost, step


def _load() -> None:
    _show(*EXAMPLES[st.session_state.get("step.example") or next(iter(EXAMPLES))])


def _show(cost: StepCost, step: Step) -> None:
    costing.load(cost)
    for name in ("decodes", "context", "prefill", "before"):
        st.session_state[f"step.{name}"] = getattr(step, name)


def _from_address() -> None:
    """Show what a link asks for, or say what is wrong with it."""
    state, asked = st.session_state, st.query_params.to_dict()
    if not {"cost", "step"} & set(asked) or asked == state.get("step.address"):
        return
    cost, step = next(iter(EXAMPLES.values()))
    try:
        cost = StepCost.parse(asked.get("cost", str(cost)))
        step = Step.parse(asked.get("step", str(step)))
        if cost.kind != "roofline":
            raise ScenarioError(f"cost {cost.kind} has no parts: give a roofline")
    except ScenarioError as error:
        st.warning(f"{plain(str(error))}. This is the first example.")
    state["step.example"] = None
    _show(cost, step)


def verdict(cost: StepCost, step: Step) -> None:
    """The step in a sentence, and its two figures."""
    ms, shares = step_ms(cost, step), parts(cost, step)
    if step.decodes + step.prefill == 0:
        st.info("An empty step: raise the decoding sequences or the prompt tokens.")
        st.stop()
    largest = max(shares, key=lambda name: shares[name])
    said = (
        f"This step takes {ms:,.2f} ms; {SAID[largest]} would alone take"
        f" {100 * shares[largest] / ms:.0f} % of that."
    )
    st.subheader(unbroken(said), anchor=False)
    columns = st.columns(4)
    free = free_chunk(cost, step.decodes)
    columns[0].metric("Step", f"{ms:,.2f} ms")
    columns[1].metric("Output of the decodes", f"{1e3 * step.decodes / ms:,.0f} tok/s")
    columns[2].metric(
        f"Free chunk beside {step.decodes}",
        f"{free:,} tokens",
        help="From this many prompt tokens on, computing takes longer than reading the weights",
    )
    columns[3].metric("… beside none", f"{free_chunk(cost, 0):,} tokens")


def bars(cost: StepCost, step: Step) -> None:
    """What the step is made of, with memory and compute added, as fitted, and overlapped."""
    rows, ends = [], []
    for name, overlap in _overlaps(cost).items():
        own = _with(cost, overlap=overlap)
        rows += [{"how": name, **bar} for bar in _in_time(parts(own, step))]
        ms = step_ms(own, step)
        ends.append({"how": name, "ms": ms, "text": f"{ms:,.2f} ms"})
    present = {row["part"] for row in rows}
    legend({name: pair[dark()] for name, pair in stepcharts.PARTS.items() if name in present})
    st.altair_chart(
        stepcharts.bars(pd.DataFrame(rows), pd.DataFrame(ends), dark()),
        alt="Parts of the step in ms",
        key="step-bars",
    )
    st.caption(
        "sum: computing begins when all is read; max: the shorter of the two hides in the longer."
    )


def _in_time(ms: dict[str, float]) -> list[dict]:
    """The parts of a step one after the other, computing as early as its overlap lets it."""
    bars, t = [], 0.0
    for lane, names in LANES.items():
        t += ms["hidden by overlap"] if lane == "compute" else 0.0
        for name in names:
            if ms[name] > 0:
                bars.append({"lane": lane, "part": name, "t0": t, "t1": t + ms[name]})
            t += ms[name]
    return bars


def _overlaps(cost: StepCost) -> dict[str, float]:
    own = cost.knobs.overlap
    between = {} if own in (0.0, 1.0) else {f"overlap {own:g}": own}
    return {"sum": 0.0} | between | {"max": 1.0}


def _with(cost: StepCost, **knobs: float) -> StepCost:
    kept = tuple((n, v) for n, v in cost.numbers if n not in knobs)
    return replace(cost, numbers=(*kept, *knobs.items()))


def roofline(cost: StepCost, step: Step) -> None:
    """Where the step and its halves sit under the device's roof."""
    device, llm = DEVICES[cost.device], cost.model
    edge = ridge(device, llm)
    points = {"this step": step}
    if step.decodes and step.prefill:
        points |= {"its decodes": replace(step, prefill=0), "its prompt": replace(step, decodes=0)}
    rows = []
    for name, part in points.items():
        x, y = intensity(cost, part)
        rows.append({"name": name, "intensity": x, "tflops": y})
    roof = pd.DataFrame(
        {
            "intensity": [0.5, edge, 20 * edge],
            "tflops": [0.5 * device.bandwidth_tb_s, edge * device.bandwidth_tb_s]
            + [edge * device.bandwidth_tb_s],
        }
    )
    st.subheader("Under the roof", anchor=False)
    left, right = st.columns([3, 2])
    with left:
        st.altair_chart(
            stepcharts.roofline(roof, pd.DataFrame(rows), edge, dark()),
            alt="Roofline of the device with this step",
            key="step-roof",
        )
    right.markdown(
        f"The ridge of the {device.label} lies at **{edge:.0f} FLOP a byte**"
        f" ({edge * device.bandwidth_tb_s:,.0f} TFLOP/s over {device.bandwidth_tb_s:g} TB/s); at"
        f" MFU {cost.knobs.mfu:.2g} and MBU {cost.knobs.mbu:.2g} at"
        f" {edge * cost.knobs.mfu / cost.knobs.mbu:.0f}. Left of it a step waits for memory, right"
        " of it for arithmetic: decodes sit left, prompts right."
    )


def curves(cost: StepCost, step: Step) -> None:
    """Step time and output against the batch, and against the chunk."""
    batches = sorted({*range(1, 17), *range(16, 513, 8)})
    kinds = _overlaps(cost)
    rows, chunks = [], []
    for name, overlap in kinds.items():
        own = _with(cost, overlap=overlap)
        for n in batches:
            ms = step_ms(own, replace(step, decodes=n, prefill=0))
            rows.append({"how": name, "x": n, "ms": ms, "tok/s": 1e3 * n / ms})
        for n in range(0, 1025, 8):
            ms = step_ms(own, replace(step, prefill=n))
            chunks.append({"how": name, "x": n, "ms": ms})
    st.subheader("Against batch size and chunk", anchor=False)
    batch, chunk = pd.DataFrame(rows), pd.DataFrame(chunks)
    colours = stepcharts.kinds(kinds, dark())
    legend(colours, "dashed: the free chunk")
    for column, (data, y, title, mark) in zip(
        st.columns(3),
        (
            (batch, "ms", "decoding sequences", None),
            (batch, "tok/s", "decoding sequences", None),
            (
                chunk,
                "ms",
                f"prompt tokens beside {step.decodes} decodes",
                free_chunk(cost, step.decodes),
            ),
        ),
        strict=True,
    ):
        column.altair_chart(
            stepcharts.curve(data, y, title, mark, colours, dark()),
            alt=f"{y} against {title}",
            key=f"step-{y}-{title[:8]}",
        )


def sum_or_max(cost: StepCost) -> None:
    """The line that measured steps lie on, beside what memory and compute give added and not."""
    line = LINES.get((cost.device, cost.llm)) if cost.knobs.tp == 1 else None
    if line is None:
        return
    kinds, counts = _overlaps(cost), range(0, 1001, 10)
    rows = [{"how": stepcharts.MEASURED, "x": n, "ms": line.at(n)} for n in counts]
    for name, overlap in kinds.items():
        own = _with(cost, overlap=overlap)
        rows += [{"how": name, "x": n, "ms": step_ms(own, line.step(n))} for n in counts]
    data = pd.DataFrame(rows)
    st.subheader("Sum or max? What was measured", anchor=False)
    left, right = st.columns([3, 2])
    colours = stepcharts.kinds([*kinds, stepcharts.MEASURED], dark())
    with left:
        legend(colours)
        st.altair_chart(
            stepcharts.curve(data, "ms", "tokens of the step", None, colours, dark()),
            alt="Step time against tokens: measured line, sum and max",
            key="step-line",
        )
    right.markdown(
        f"Steps of {line.source} lie on a straight line: **{line.ms:g} ms +"
        f" {1e3 * line.ms_per_token:g} µs a token**, over {line.least} to {line.most} tokens. So"
        " does a sum of memory and compute; a max is flat, then bends. All at the MFU of the knobs,"
        " with the prompts and contexts of those runs."
    )
    table = data[data["x"].isin((100, 400, 800))].pivot(index="x", columns="how", values="ms")
    shown = table[[stepcharts.MEASURED, *kinds]].T.round(1).rename(columns=str)
    shown = shown.rename_axis("ms at tokens").reset_index()
    right.dataframe(shown, hide_index=True, alt="ms at 100, 400 and 800 tokens")


def of_the_module(cost: StepCost) -> None:
    """What the module says of this example, its unit slips marked."""
    priced = cost.pricing(())
    numbers = next((ns for made, ns in SAID_BY_MODULE if made.pricing(()) == priced), ())
    if not numbers:
        return
    rows = [x for x in claims.arithmetic() if x.number in numbers]
    st.subheader("What the module says of it", anchor=False)
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "claim": f"{x.number}. {x.claim}",
                    "verdict": "⚠ " * (x.verdict == claims.SLIP) + x.verdict,
                    "computed": x.computed,
                    "note": x.note,
                }
                for x in rows
            ]
        ),
        hide_index=True,
        alt="The module's claims on this step with their verdicts",
    )


def formulas(cost: StepCost, step: Step) -> None:
    """TTFT and TPOT by formula beside the simulation."""
    prompt = min(step.prefill + step.before or step.context, 32_768)
    chunk = max(1, min(prompt, 2_048))
    formula, simulated = lone_ttft(cost, prompt, chunk)
    what = f"TTFT of {prompt:,} tokens alone, chunks of {chunk:,}"
    rows = [
        (what, "front end + sum of its chunks' steps", formula, simulated, "ms"),
        (what, "the module's: ceil(L / chunk) x t_step, no wait",
         ttft_as_written(cost, prompt, chunk), simulated, "ms"),
    ]  # fmt: skip
    if step.decodes:
        formula, simulated = full_tpot(cost, step.decodes, step.context)
        what = f"{step.decodes} sequences around {step.context:,} tokens"
        rows += [
            (f"TPOT of {what}", "t_step at the mean context", formula, simulated, "ms"),
            (f"Output of {what}", "B / t_step", 1e3 * step.decodes / formula,
             1e3 * step.decodes / simulated, "tok/s"),
        ]  # fmt: skip
    st.subheader("By formula and by simulation", anchor=False)
    st.dataframe(
        pd.DataFrame(rows, columns=["what", "formula", "by formula", "simulated", "unit"]),
        hide_index=True,
        alt="TTFT and TPOT by formula beside the simulation",
        column_config={
            name: st.column_config.NumberColumn(format="%.3f")
            for name in ("by formula", "simulated")
        },
    )


def provenance(cost: StepCost) -> str:
    asked = Scenario(model=cost).to_query()
    st.page_link(
        "pages/compare.py",
        label="Compare policies at this cost",
        icon=":material/compare_arrows:",
        query_params=asked,
    )
    llm = cost.model
    return (
        f"{cost.label}. {llm.params / 1e9:.3g} billion parameters of {llm.weight_bytes:g} bytes,"
        f" {llm.kv_per_token / 1024:,.0f} KiB of KV a token."
        f" Sources: {DEVICES[cost.device].source}; {llm.source}. Knobs: see Fidelity."
    )
