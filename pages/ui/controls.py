"""The scenario in the sidebar, bound both ways to the address."""

import math
from collections.abc import Iterable

import streamlit as st

from sim import files, results, traces
from sim import presets as engines
from sim.bring import bring, traffic_of
from sim.parameter import ScenarioError, written
from sim.policies import POLICIES
from sim.scenario import (
    CHANGEABLE,
    COSTING,
    HOST,
    LIMITS,
    MAX_VARIANTS,
    OPENING,
    PARAMETERS,
    SLO,
    TRAFFIC,
    Scenario,
    Variant,
)
from sim.traffic import ARRIVALS, Lengths, Traffic

from . import brought, costing, keep, share, tables
from .links import LINKS
from .text import plain

MIX = ("limit_factor", "stop_tokens", "urgent", "prefixes", "prefix_tokens")


def presets() -> None:
    st.sidebar.title("Slotscope", anchor=False)
    with st.sidebar.expander("Presets", icon=":material/bookmark:"):
        for label, query in LINKS.items():
            asked = Scenario.from_url("?" + query)[0].to_query() or {"arrivals": ["module"]}
            st.page_link("pages/compare.py", label=label, query_params=asked)


def scenario(page: str = "") -> tuple[Scenario, list[str]]:
    """Draw the sidebar. Returns what it asks for, and a sentence on each part that can't be had."""
    presets()
    state = st.session_state
    if (found := share.asked(page)) is not None:
        loaded, problems = found
        _load(loaded)
        state.loaded, state.problems = loaded, problems
    with st.sidebar:
        query = _variants() | _traffic() | _numbers("Limits of the server", LIMITS, _kept())
        _of_engines()
        _pool()
        with st.expander("Cost of a step"):
            cost = costing.control()
            query |= cost | _row([*([] if cost else COSTING), *HOST], abreast=1)
        query |= _numbers("Limits of the requests (SLO)", SLO, SLO, expanded=False)
    asked, problems = Scenario.from_query(query, math.inf)
    problems += share.write_address(asked)
    if asked == state.loaded:
        problems = [*state.problems, *problems]
    return asked, problems


def review(page: str = "") -> tuple[Scenario, list[str]]:
    """The same for whoever is only to read: what the address asks for, and nothing to change it."""
    state = st.session_state
    state.reviewed = share.asked(page) or state.reviewed
    scenario, problems = state.reviewed
    state.trace = scenario.traffic.trace
    with st.sidebar:
        st.title("Slotscope", anchor=False)
        st.badge("Read-only", icon=":material/lock:")
        copy = {name: values for name, values in share.address().items() if name != "review"}
        st.page_link("pages/compare.py", label="Open a copy to change", query_params=copy)
        st.markdown(
            "\n\n".join(
                f"{plain(label)}  \n**{plain(value)}**"
                for label, value in tables.said_once(scenario).items()
            )
        )
    return scenario, problems


def trace() -> traces.Workload | None:
    """The content of the file that the traffic names, if this session or the server has it."""
    name = st.session_state.get("trace") or ""
    found = st.session_state.get("files", {}).get(name)
    if found is None and name:
        found = brought.from_folder(name)
    return brought.from_store(name) if found is None and name else found


def _load(scenario: Scenario) -> None:
    """Set every control to what `scenario` says."""
    state = st.session_state
    for name in PARAMETERS:
        state[name] = scenario.value(name)
    state.arrivals, state.trace = scenario.traffic.arrivals, scenario.traffic.trace
    state.list = scenario.traffic.list
    for name in ("prompt", "output"):
        lengths = getattr(scenario.traffic, name)
        state[name] = lengths.kind
        for part in Lengths.FORMS[lengths.kind]:
            state[f"{name}.{part}"] = float(lengths[part])
    costing.load(scenario.model)
    state.variants = []
    for variant in scenario.variants:
        _add(variant)
    state.baseline = state.variants[scenario.baseline]


def _add(variant: Variant) -> None:
    state = st.session_state
    number = state.variant_count = state.get("variant_count", 0) + 1
    state.variants = [*state.variants, number]
    state[f"{number}.policy"] = variant.name
    own = dict(variant.changes)
    for name in (*CHANGEABLE, "cost"):
        state[f"{number}.{name}"] = own.get(name)


def _variant(number: int) -> str:
    """The variant's text in a link, from its controls."""
    state = st.session_state
    policy = state[f"{number}.policy"]
    own = {name: state.get(f"{number}.{name}") for name in (*_changeable(policy), "cost")}
    return ":".join([policy, *(f"{n}={written(v)}" for n, v in own.items() if v not in (None, ""))])


def _changeable(policy: str) -> Iterable[str]:
    return (*POLICIES[Variant(policy).policy].keeps, *COSTING, *HOST)


def _label(number: int) -> str:
    try:
        return Variant.parse(_variant(number)).label
    except ScenarioError:
        return _variant(number)


def _variants() -> dict[str, list[str]]:
    state = st.session_state
    st.subheader("Variants")
    for number in state.variants:
        with st.popover(_label(number), width="stretch", icon=":material/tune:"):
            _variant_controls(number)
    if len(state.variants) < MAX_VARIANTS:
        with st.popover("Add a variant", icon=":material/add:", width="stretch"):
            _adding()
    st.selectbox("Measured against", state.variants, format_func=_label, key="baseline")
    texts = [_variant(number) for number in state.variants]
    return {"v": texts, "baseline": [str(state.variants.index(state.baseline))]}


def _variant_controls(number: int) -> None:
    state = st.session_state
    named = state[f"{number}.policy"]
    options = [*POLICIES, *([named] if named not in POLICIES else [])]
    st.selectbox("Policy", options, format_func=_named, key=f"{number}.policy")
    variant = Variant(state[f"{number}.policy"])
    policy = POLICIES[variant.policy]
    st.caption(f"{policy.about} {policy.note}")
    if variant.preset:
        _engine(number, variant.preset)
    usual = variant.preset.defaults if variant.preset else {}
    for name in _changeable(policy.name):
        parameter = PARAMETERS[name]
        st.number_input(
            parameter.label,
            value=None,
            step=1 if isinstance(parameter.default, int) else 0.01,
            format=None if isinstance(parameter.default, int) else "%.4g",
            key=f"{number}.{name}",
            placeholder=f"{usual[name]:,} by default" if name in usual else "as for all",
        )
    st.text_input(
        "Cost model of its own",
        key=f"{number}.cost",
        placeholder="as for all",
        help="linear, roofline/h100-pcie/llama-3.1-8b or calibrated/step_ms=6.5/prefill_ms=0.024",
    )
    if len(state.variants) > 1:
        st.button(
            "Remove",
            key=f"{number}.remove",
            icon=":material/delete:",
            on_click=_remove,
            args=(number,),
        )


def _named(name: str) -> str:
    variant = Variant(name)
    return variant.preset.label if variant.preset else POLICIES[name].label


def _engine(number: int, engine: engines.Preset) -> None:
    """Which limits are the version's defaults, which were changed, and the command for them."""
    state = st.session_state
    own = {name: state.get(f"{number}.{name}") for name in LIMITS}
    changed = {name: value for name, value in own.items() if value is not None}
    kept = {name: value for name, value in engine.defaults.items() if name not in changed}
    st.caption(
        f"Defaults of {engine.label}: {_listed(kept)}. Changed: {_listed(changed) or 'nothing'}."
        f" Source: {engine.source}."
    )
    st.code(engines.command(engine, changed), language="bash", wrap_lines=True)


def _listed(values: dict) -> str:
    return ", ".join(f"{name} {value:,.15g}" for name, value in values.items())


def _adding() -> None:
    """Another policy, an engine with its version's defaults, or what a command line says."""
    st.button("Another policy", on_click=_add_another)
    st.markdown("**An engine**, with its version's defaults")
    version = st.selectbox(
        "Version",
        engines.ENGINES,
        format_func=lambda v: engines.ENGINES[v].label,
        key="new.version",
    )
    engine = engines.ENGINES[version]
    gpu = st.selectbox(
        "GPU", engines.GPUS, format_func=lambda g: engines.GPUS[g].label, key="new.gpu"
    )
    usage = st.selectbox(
        "Started as", engine.usages, format_func=lambda u: engines.USAGES[u], key="new.usage"
    )
    name = f"{engine.program}-{version}-{gpu}-{usage}"
    if note := POLICIES[next(iter(engine.policies.values()))].note:
        st.caption(note)
    st.button("Add this engine", on_click=_add, args=(Variant(name),))
    st.text_area(
        "Or paste its command", key="new.command", placeholder="vllm serve MODEL --max-num-seqs 64"
    )
    st.button("Add with these flags", on_click=_add_command, args=(name,))
    if said := st.session_state.pop("new.said", None):
        st.caption(said)


def _add_command(name: str) -> None:
    """The engine chosen, with the limits of the command pasted."""
    state = st.session_state
    if not name.startswith("vllm-"):
        state["new.said"] = "A vllm serve command is vLLM's: choose a version of it."
        return
    try:
        limits, scheduling, unknown = engines.parse_serve(state["new.command"])
        variant = engines.with_scheduling(name, scheduling)
        _add(Variant.parse(":".join([variant, *(f"{n}={written(v)}" for n, v in limits.items())])))
    except ScenarioError as error:
        state["new.said"] = f"{error}."
        return
    state["new.said"] = (
        f"Not known here, and left out: {', '.join(unknown)}." if unknown else "Added."
    )


def _remove(number: int) -> None:
    state = st.session_state
    state.variants = [n for n in state.variants if n != number]
    if state.baseline == number:
        state.baseline = state.variants[0]


def _add_another() -> None:
    """One that is not there yet: an opening variant, or chunking with the next smaller chunk."""
    present = {_variant(number) for number in st.session_state.variants}
    smaller = (Variant("chunked", (("chunk", 2**k),)) for k in range(8, 1, -1))
    _add(next(v for v in (*OPENING, *smaller) if str(v) not in present))


def _traffic() -> dict[str, list[str]]:
    state = st.session_state
    st.subheader("Traffic")
    st.selectbox("Arrivals", ARRIVALS, key="arrivals", format_func=lambda a: f"{a}: {ARRIVALS[a]}")
    query = {"arrivals": [state.arrivals]}
    names = Scenario.from_query({"arrivals": [state.arrivals]})[0].traffic.uses
    query |= _row(n for n in names if n in TRAFFIC and n not in ("as_printed", *MIX))
    if "list" in names:
        state.setdefault("list", Traffic().list)
        st.text_area("Requests", key="list", help="arrival_ms:prompt:output[:priority], ; between")
        query["list"] = [state.list]
    for name in ("prompt", "output"):
        if name in names:
            query[name] = [_lengths(name)]
    if "urgent" in names:
        with st.expander("Declared limits, priorities, shared prefixes"):
            query |= _row(MIX, abreast=1)
    if "as_printed" in names:
        state.as_printed = bool(state.get("as_printed", False))
        st.checkbox(TRAFFIC["as_printed"].label, key="as_printed")
        query["as_printed"] = [str(int(state.as_printed))]
    _upload()
    if "trace" in (state.arrivals, *(text.partition(":")[0] for v in query.values() for text in v)):
        query["trace"] = [state.trace]
    return query


def _lengths(name: str) -> str:
    state = st.session_state
    label = {"prompt": "Prompt lengths", "output": "Output lengths"}[name]
    kinds = [k for k in Lengths.FORMS if state.arrivals != "module" or k == "lognormal"]
    if state.get(name) not in kinds:
        state[name] = kinds[0]
    st.selectbox(label, kinds, key=name)
    parts = Lengths.FORMS[state[name]]
    usual = {"median": 512.0, "sigma": 0.8, "low": 16.0, "high": 2048.0, "tokens": 512.0}
    for column, part in zip([*st.columns(2), *st.columns(2)], parts, strict=False):
        state.setdefault(f"{name}.{part}", usual[part])
        step = 0.1 if part == "sigma" else 1.0
        column.number_input(
            f"{name} {part}",
            step=step,
            format="%.6g",
            key=f"{name}.{part}",
            persist_state="session",
        )
    return ":".join([state[name], *(written(state[f"{name}.{part}"]) for part in parts)])


def _upload() -> None:
    state = st.session_state
    labels = ", ".join(f.label for f in (*traces.TRACES.values(), *results.RESULTS.values()))
    st.file_uploader(
        "Drop a trace, or a benchmark's result",
        key="upload",
        on_change=_take,
        max_upload_size=files.MAX_UPLOAD_MB,
        help=f"{labels}; up to {files.MAX_UPLOAD_MB} MB (SLOTSCOPE_MAX_UPLOAD_MB)",
    )
    if problem := state.get("upload_problem"):
        st.error(problem)
    elif state.get("upload_note"):
        st.caption(state.upload_note)


def _take() -> None:
    """A file was dropped, or taken away."""
    state = st.session_state
    state.upload_problem = state.upload_note = None
    file = state.upload
    if file is None:
        return
    try:
        found = bring(file.getvalue(), file.name)
    except ScenarioError as error:
        state.upload_problem = str(error)
        return
    brought.keep(found)
    ready = found.workloads()
    if not ready:
        state.upload_note = f"{found.label}: figures and no requests. See the page Bring your own"
        return
    name, (workload, _) = next(iter(ready.items()))
    traffic = traffic_of(name, workload)
    state.upload_note = f"{found.label}: {len(workload):,} requests"
    if workload.arrival[-1] >= 0:
        state.upload_note += f" over {workload.arrival[-1] / 1e3:,.0f} s"
    if found.bad_rows:
        state.upload_note += f"; {found.bad_rows:,} bad rows are listed on the page Bring your own"
    state.upload_note += f". {keep.keep_trace(file.getvalue(), found)}"
    if state.trace and state.trace != name:
        state.upload_note += f". This is not the file {state.trace} that the link was made with"
    if state.trace != name and traffic.first:
        state.first = traffic.first
    state.trace, state.arrivals = name, traffic.arrivals
    for part in ("prompt", "output"):
        if part in traffic.uses:
            state[part] = getattr(traffic, part).kind


def _pool() -> None:
    """num_gpu_blocks from a GPU's memory, where any policy keeps it."""
    state = st.session_state
    if "num_gpu_blocks" not in _kept():
        return
    with st.popover("KV pool from GPU memory", icon=":material/memory:", width="stretch"):
        gpu = st.selectbox("GPU", engines.GPUS, format_func=lambda g: engines.GPUS[g].label)
        weights = st.number_input("Weights, GiB", value=14.9, step=0.1)
        share = st.number_input("gpu_memory_utilization", value=0.9, step=0.01)
        kib = st.number_input("KV of a token, KiB", value=128.0, step=1.0)
        try:
            memory = engines.GPUS[gpu].memory_gib
            blocks = engines.pool_blocks(memory, weights, share, kib, int(state.block_size))
        except ScenarioError as error:
            st.error(f"{error}.")
            return
        st.caption(
            f"{memory:.1f} GiB x {share:g} - {weights:g} GiB of weights leave {blocks:,} blocks of"
            f" {state.block_size} tokens. Source: {engines.GPUS[gpu].source}."
        )
        st.button(
            f"Use {blocks:,} blocks", on_click=state.update, args=({"num_gpu_blocks": blocks},)
        )


def _of_engines() -> None:
    """Which of these limits an engine does not take, as long as it has its version's."""
    state = st.session_state
    variants = [Variant.parse(_variant(number)) for number in state.variants]
    own = sorted({n for v in variants if v.preset for n in v.preset.defaults} & set(_kept()))
    if own:
        st.caption(
            f"An engine starts with its version's {', '.join(own)}: change these in its variant."
        )


def _kept() -> set[str]:
    """Limits that any of the chosen policies keeps."""
    state = st.session_state
    used = (POLICIES[Variant(state[f"{n}.policy"]).policy] for n in state.variants)
    return {name for policy in used for name in policy.keeps}


def _numbers(
    title: str, names: Iterable[str], wanted, expanded: bool = True
) -> dict[str, list[str]]:
    with st.expander(title, expanded=expanded):
        return _row((name for name in names if name in wanted), abreast=1)


def _row(names: Iterable[str], abreast: int = 2) -> dict[str, list[str]]:
    """Number controls, so many abreast. Their range is left to the scenario's check."""
    state, query = st.session_state, {}
    names = list(names)
    for k in range(0, len(names), abreast):
        for column, name in zip(st.columns(abreast), names[k : k + abreast], strict=False):
            parameter = PARAMETERS[name]
            whole = isinstance(parameter.default, int)
            state.setdefault(name, parameter.default)
            state[name] = int(state[name] or 0) if whole else float(state[name] or 0)
            column.number_input(
                parameter.label,
                key=name,
                step=1 if whole else _step(parameter.default),
                format=None if whole else "%.6g",
                help=f"{name}: {parameter.span}",
                persist_state="session",  # what another kind of arrivals has no use for, stays
            )
            query[name] = [written(state[name])]
    return query


def _step(usual: float) -> float:
    return 1.0 if usual >= 10 else 0.1 if usual >= 1 else 0.01
