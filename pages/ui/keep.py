"""What the server keeps: uploaded traces, saved runs; at hand for every page."""

import json
from collections.abc import Sequence

import streamlit as st

from sim import __version__
from sim.bring import Brought, bring, traffic_of
from sim.explain import verdicts
from sim.live import Session, written_script
from sim.run import Run
from sim.scenario import Scenario
from sim.store import Content, Store, StoreError
from sim.table import as_dict

from . import drawings, visitor
from .timeline import opening_window

# Kinds of content: a saved comparison, a file, a scenario too long for a link, a live session.
SCENARIO, TRACE, LINK, LIVE = "scenario", "trace", "link", "live"


@st.cache_resource(show_spinner=False)
def store() -> Store:
    return Store()


def query_of(content: Content) -> dict[str, list[str]]:
    """The scenario that content opens, as an address has it. StoreError if it opens none."""
    if content.kind in (SCENARIO, LINK, LIVE):
        return json.loads(content.data)["query"]
    if content.kind == TRACE:
        for name, (workload, _) in _trace(content.name).workloads().items():
            return Scenario(traffic=traffic_of(name, workload)).to_query()
        return {}  # figures alone: there is something to read, and nothing to simulate
    raise StoreError(f"{content.name!r} holds a {content.kind}, which this page does not open")


@st.cache_resource(max_entries=4, show_spinner=False)
def _trace(name: str) -> Brought:
    content = store().get(name)
    return bring(content.data, content.about.get("file", name))


def trace(name: str) -> Brought | None:
    """The file that holds the requests of that name, if it is kept here."""
    try:
        return _trace(name.partition(".")[0])
    except StoreError:
        return None


def keep_trace(data: bytes, found: Brought) -> str:
    """Keep an uploaded file; a sentence on whether its link shows it to others."""
    about = {"file": found.filename, "label": found.label}
    if not visitor.may_write():
        return "The link asks whoever opens it for the file"
    try:
        store().put(TRACE, data, about)
    except StoreError as error:
        return f"The link asks for the file, since {error}"
    return f"Kept on this server: the link shows it, and so does bring?run={found.name}"


def keep_link(scenario: Scenario) -> Content:
    """Keep a scenario that no link can hold. StoreError if it can't be kept."""
    if not visitor.may_write():
        raise StoreError(f"it has {len(scenario.link()):,} characters: {visitor.why_not()}")
    data = json.dumps({"query": scenario.to_query()}, sort_keys=True).encode()
    return store().get(store().put(LINK, data, {}, _needs(scenario)))._replace(data=b"")


def _needs(scenario: Scenario) -> str | None:
    """The name of the trace that it is nothing without, if it has one."""
    if "trace" not in scenario.traffic.uses:
        return None
    return store().get(scenario.traffic.trace.partition(".")[0]).name


def save_live(session: Session, title: str, tags: Sequence[str]) -> str:
    """Put a live session on the shelf, with the figures that it ends with; its name."""
    runs = Session(session.scenario, session.actions, session.trace).finish()
    return save(session.scenario, runs, title, tags, written_script(session.actions))


def save(
    scenario: Scenario,
    runs: Sequence[Run],
    title: str,
    tags: Sequence[str],
    live: str | None = None,
) -> str:
    """Put the comparison on the shelf; its name. StoreError if it can't be kept.

    live: the script of the session that the runs are of, if they are of one.
    """
    query, kind = scenario.to_query(), SCENARIO if live is None else LIVE
    said = {"query": query, "version": __version__} | ({} if live is None else {"live": live})
    about = as_dict(runs, scenario) | {
        "baseline": scenario.baseline,
        "seed": scenario.traffic.seed,
        "verdicts": verdicts(runs, scenario.baseline),
        "live": live or "",
    }
    data = json.dumps(said, sort_keys=True).encode()
    name = store().put(kind, data, about, _needs(scenario))
    window = opening_window(runs, scenario.baseline)
    store().save(
        name,
        title,
        tags,
        owner=visitor.name(),
        picture=drawings.thumbnail(runs, scenario, window),
        words=" ".join([*about["figures"], *about["verdicts"], scenario.link()]),
    )
    return name


def changed_since(about: dict, runs: Sequence[Run], scenario: Scenario) -> list[str]:
    """Figures that differ from when the run was saved, as `variant: figure`."""
    now, then = as_dict(runs, scenario)["figures"], about.get("figures", {})
    return [
        f"{label}: {name}"
        for label, figures in then.items()
        for name, value in figures.items()
        if now.get(label, {}).get(name) != value
    ]
