"""Links to the comparison, and its place in the Library."""

from collections.abc import Callable, Sequence

import streamlit as st

from sim.live import Session
from sim.run import Run
from sim.scenario import Scenario
from sim.store import StoreError, day

from . import keep, share, visitor
from .text import plain


def sharing(runs: Sequence[Run], scenario: Scenario) -> None:
    """A popover with the links, and the form that saves."""
    # Opening it asks the server, who alone knows what has been picked since.
    with st.popover("Share", icon=":material/share:", on_change="rerun"):
        st.markdown("**Link**")
        st.code(share.link(scenario), language=None, wrap_lines=True)
        st.markdown("**Read-only, for a review**")
        st.code(share.link(scenario, review=True), language=None, wrap_lines=True)
        st.markdown("**Save in the Library**")
        _form("save", _save, runs, scenario)


def session(session: Session) -> None:
    """The same of a live session; its own link while it is as it was saved."""
    with st.popover("Save in the Library", icon=":material/share:"):
        _form("live", _save_live, session)


def _form(key: str, save: Callable[..., None], *args) -> None:
    """Title and tags, for whoever may write; below, what became of it."""
    if not visitor.may_write():
        st.caption(plain(visitor.why_not()))
        visitor.log_in()
        return
    with st.form(key, border=False):
        st.text_input("Title", key=f"{key}.title", max_chars=200)
        st.text_input("Tags", key=f"{key}.tags", placeholder="a comma between", max_chars=200)
        st.form_submit_button("Save", on_click=save, args=args)
    if said := st.session_state.pop(f"{key}.said", None):
        st.markdown(plain(said))


def _save_live(session: Session) -> None:
    state, scenario = st.session_state, session.scenario
    title = state["live.title"].strip() or "Live session"
    try:
        name = keep.save_live(session, title, state["live.tags"].split(","))
        state.opened = keep.store().get(name)._replace(data=b""), scenario
        share.set_live(state.opened[0].about["live"])
        state["live.said"] = "Saved. The address names it now."
    except StoreError as error:
        state["live.said"] = f"Not saved: {error}."


def _save(runs: Sequence[Run], scenario: Scenario) -> None:
    state = st.session_state
    title = state["save.title"].strip() or " / ".join(run.label for run in runs)
    try:
        name = keep.save(scenario, runs, title, state["save.tags"].split(","))
        state.opened = keep.store().get(name)._replace(data=b""), scenario
        state["save.said"] = "Saved. The address names it now."
    except StoreError as error:
        state["save.said"] = f"Not saved: {error}."


def opened(runs: Sequence[Run], scenario: Scenario) -> None:
    """Where the comparison came from the Library: its title, and whether its figures still hold."""
    content = share.opened(scenario)
    if content is None or content.kind == keep.LIVE:  # whose figures are of more than the scenario
        return
    try:
        saved = keep.store().saved(content.name)
    except StoreError as error:
        st.warning(plain(f"{error}."))
        return
    if saved:
        by = f" by {saved.owner}" if saved.owner else ""
        tags = "".join(f" · {tag}" for tag in saved.tags)
        st.caption(f"**{plain(saved.title)}** · {plain(f'saved {day(saved.at)}{by}{tags}')}")
    if changed := keep.changed_since(content.about, runs, scenario):
        st.warning(
            plain(
                f"{len(changed)} figures differ from when this was saved, by slotscope"
                f" {content.about['version']}: {', '.join(changed[:3])}."
            )
        )
