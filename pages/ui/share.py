"""The address bar and the session: what a link says is what the controls show, and back."""

from collections import OrderedDict

import streamlit as st

from sim.run import Run, serve_variant
from sim.scenario import PAGE, Scenario
from sim.workload import Workload, draw

KEPT_REQUESTS = 2_000_000  # rows of runs that stay at hand for all viewers


def address() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def changed_address() -> dict[str, list[str]] | None:
    """The address's scenario parameters, where it is not the one that the controls wrote."""
    now = address()
    if st.session_state.get("address") == now:
        return None
    # A link from this page to itself changes what we read, and not what the browser shows.
    st.session_state.came_by_link = "address" in st.session_state
    st.session_state.address = now
    return {name: values for name, values in now.items() if name not in PAGE}


def come_along(page: str) -> None:
    """Whoever goes to another page and asks for nothing there takes the scenario along."""
    state = st.session_state
    if state.get("page", page) != page and not address() and "scenario" in state:
        st.query_params.from_dict(state.scenario.to_query())
        state.address = address()
    state.page = page


def write_address(scenario: Scenario) -> None:
    query = scenario.to_query() | {n: v for n, v in address().items() if n in PAGE}
    if query != address() or st.session_state.pop("came_by_link", False):
        st.query_params.from_dict(query)
    st.session_state.address = query


def picked(requests: int) -> int | None:
    """The request that the address names, if there is one of that number."""
    text = st.query_params.get("request", "")
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) < requests else None


def problem_of_pick(requests: int) -> list[str]:
    """What is wrong with the request that the address names, if anything."""
    text = st.query_params.get("request")
    if text is None or picked(requests) is not None:
        return []
    return [f"request {text[:40]!r} is none of this run: give 0 to {requests - 1:,}"]


def pick(request: int | None) -> None:
    if request is None:
        st.query_params.pop("request", None)
    else:
        st.query_params["request"] = str(request)
    st.session_state.address = address()


def window() -> tuple[float, float] | None:
    """The window of arrivals, ms, that the address names, if it names one."""
    first, _, last = st.query_params.get("window", "").partition(":")
    if not (first.isdecimal() and last.isdecimal() and len(first + last) < 24):
        return None
    return (float(first), float(last)) if int(first) < int(last) else None


def problem_of_window() -> list[str]:
    """What is wrong with the window that the address names, if anything."""
    text = st.query_params.get("window")
    if text is None or window() is not None:
        return []
    return [f"window {text[:40]!r} is none: give two whole ms, such as 5000:9000"]


def brush(window: dict | None) -> None:
    if window:
        st.query_params["window"] = f"{round(window['t0'])}:{round(window['t1'])}"
    else:
        st.query_params.pop("window", None)
    st.session_state.address = address()


def set_live(script: str) -> None:
    """Have the address hold the script of a live session."""
    if script:
        st.query_params["live"] = script
    else:
        st.query_params.pop("live", None)
    st.session_state.address = address()


def host() -> str:
    """Scheme and host of the page, for a link that leaves it."""
    return "/".join((st.context.url or "").split("/")[:3])


@st.cache_resource(show_spinner=False)
def _shelf() -> OrderedDict[tuple, Run]:
    return OrderedDict()


def runs_of(scenario: Scenario, trace: Workload | None) -> list[Run]:
    """The scenario's runs, from the shelf where they stand there already.

    ScenarioError as `Scenario.check`. A control that moves meanwhile ends the run.
    """
    shelf, runs, workload = _shelf(), [], None  # one for all viewers: another may drop a run
    bar = st.empty()
    for variant in scenario.variants:
        key = (scenario.traffic, variant, scenario.limits_of(variant), scenario.cost_of(variant))
        run = shelf.pop(key, None)
        if run is None:
            if workload is None:
                workload = draw(scenario.traffic, trace)
                scenario.check(len(workload))

            def go_on(done, label=variant.label):
                bar.progress(done, f"Simulating {label}")

            run = serve_variant(scenario, variant, workload, go_on)
        shelf[key] = run  # the one used last stands last
        runs.append(run)
    bar.empty()
    for key in list(shelf)[: -len(runs)]:
        if sum(len(r.requests) for r in list(shelf.values())) > KEPT_REQUESTS:
            shelf.pop(key, None)
    return runs
