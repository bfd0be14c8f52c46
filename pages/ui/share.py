"""The address bar and the session: what a link says is what the controls show, and back."""

import gc
import math

import streamlit as st

from sim.scenario import MAX_LINK, PAGE, Scenario
from sim.store import StoreError

from . import keep


def enter() -> None:
    """Send a server's first visitor, who came by a page's own path, through the entrypoint."""
    if "page" not in st.session_state:
        path = (st.context.url or "").partition("?")[0].rpartition("/")[2]
        st.session_state.came_to = path, address()
        st.switch_page("app.py")
    _settle(st.session_state.page)


@st.cache_resource(show_spinner=False)
def _settle(page: str) -> None:
    """Spare the garbage collector what a page has loaded for good.

    Streamlit collects after every rerun, in the midst of all viewers' time.
    """
    gc.collect()
    gc.freeze()


def back_to_the_page(pages) -> None:
    """Where `enter` came from."""
    if came_to := st.session_state.pop("came_to", None):
        path, query = came_to
        for page in pages:
            if page.url_path == path:
                st.switch_page(page, query_params=query)


def address() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def asked(page: str = "") -> tuple[Scenario, list[str]] | None:
    """The scenario that the address asks for, where it is not the one that the controls wrote.

    `?run=` names one that is kept here. Whoever goes to another page and asks for nothing there
    takes the scenario along.
    """
    state, now = st.session_state, address()
    turned = state.get("page", page) != page
    state.page = page
    query = {name: values for name, values in now.items() if name not in PAGE}
    if turned and not query and "run" not in now and "scenario" in state:
        return state.scenario, state.notices  # controls forget what they showed
    if state.get("address") == now and not turned:
        return None
    # A link from this page to itself changes what we read, and not what the browser shows.
    state.came_by_link = "address" in state
    state.address, state.opened = now, None
    if "run" not in now:
        return Scenario.from_query(query)
    try:
        content = keep.store().get(now["run"][-1])
        scenario, problems = Scenario.from_query(keep.query_of(content), math.inf)
    except StoreError as error:
        return Scenario(), [str(error)]
    if content.kind == keep.TRACE and scenario == Scenario():
        problems = [f"{content.about['file']} has figures and no requests: see Bring your own"]
    state.opened = content._replace(data=b""), scenario
    return scenario, problems


def opened(scenario: Scenario) -> keep.Content | None:
    """What `?run=` opened, as long as the scenario is still that one; its data left out."""
    content, of = st.session_state.get("opened") or (None, None)
    return content if scenario == of else None


def write_address(scenario: Scenario) -> list[str]:
    """Have the address show the scenario; a sentence where it can't.

    One that is too long for a link is kept here, and the address names it.
    """
    content, problems = opened(scenario), []
    if content is None and len(scenario.link()) > MAX_LINK:
        try:
            content = keep.keep_link(scenario)
            st.session_state.opened = content, scenario
        except StoreError as error:
            problems = [f"no link can show this scenario, {error}"]
    query = {"run": [content.name]} if content else {} if problems else scenario.to_query()
    query |= {n: v for n, v in address().items() if n in PAGE and n != "run"}
    if query != address() or st.session_state.pop("came_by_link", False):
        st.query_params.from_dict(query)
    st.session_state.address = query
    return problems


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


def in_review() -> bool:
    """Whether the link was sent to be read, not to be worked on."""
    return "review" in st.query_params


def link(scenario: Scenario, review: bool = False) -> str:
    """The page's whole address for the scenario, the window brushed and the request picked; for
    reading only, if so."""
    content = opened(scenario)
    path = f"/?run={content.name}" if content else scenario.link()
    marks = [f"window={of_page('window')}"] if window() else []
    marks += [f"request={at}"] if (at := of_page("request")) else []
    marks += ["review=1"] if review else []
    joint = "&" if "?" in path else "?"
    return f"{host()}{path}{joint if marks else ''}{'&'.join(marks)}"


def live_script() -> str:
    """The script of the live session that the address names or holds."""
    content = opened(st.session_state.scenario)
    kept = content.about["live"] if content and content.kind == keep.LIVE else ""
    return st.query_params.get("live", kept)


def of_page(name: str) -> str | None:
    """What the address says of `name`, one of PAGE."""
    return st.query_params.get(name)


def drop_of_page(name: str) -> None:
    """A control says otherwise now."""
    st.query_params.pop(name, None)


def keep_of_page(values: dict[str, str]) -> None:
    """Write the page's own part of the address; what is empty is as usual and left out."""
    for name, value in values.items():
        if value and st.query_params.get(name) != value:
            st.query_params[name] = value
        elif not value:
            st.query_params.pop(name, None)


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
    """Have the address hold the script of a live session, or name the one that has it."""
    scenario = st.session_state.scenario
    content = opened(scenario)
    if content and content.kind == keep.LIVE:
        if content.about["live"] == script:
            script = ""
        else:
            st.session_state.opened = None
            write_address(scenario)
    if script:
        st.query_params["live"] = script
    else:
        st.query_params.pop("live", None)
    st.session_state.address = address()


def host() -> str:
    """Scheme and host of the page, for a link that leaves it."""
    return "/".join((st.context.url or "").split("/")[:3])
