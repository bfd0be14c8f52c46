"""The parts of the Library: saved runs to find, open, lay side by side, delete and have back."""

import math
from collections.abc import Sequence
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from sim.metrics import FIGURES
from sim.scenario import Scenario
from sim.store import Saved, StoreError, day

from . import keep, share, tables, visitor
from .text import plain

PAGE_OF = 12  # cards


def shelf() -> list[Saved]:
    """What the search leaves of the saved runs; the first page of it, or more if asked."""
    share.enter()
    state = st.session_state
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    search = left.text_input(
        "Search", key="library.search", placeholder="words of title, tags, variants, verdict"
    )
    try:
        tags = keep.store().tags()
        tag = right.selectbox("Tag", tags, index=None, placeholder="any", key="library.tag")
        most = state.get("library.most", PAGE_OF)
        found = keep.store().shelf(search, tag or "", most=most + 1)
    except StoreError as error:
        st.error(plain(f"{error}."))
        st.stop()
    _undo()
    if not found:
        st.info(
            "Nothing saved here matches: change the search."
            if search or tag
            else "Nothing is saved yet: Share, on the page Compare, saves what it shows."
        )
    if not visitor.may_write():
        st.caption(plain(visitor.why_not()))
    visitor.log_in()
    return found


def cards(found: Sequence[Saved]) -> None:
    state = st.session_state
    most = state.get("library.most", PAGE_OF)
    for k in range(0, min(len(found), most), 3):
        for column, saved in zip(st.columns(3), found[k : min(k + 3, most)], strict=False):
            with column.container(border=True):
                _card(saved)
    if len(found) > most:
        st.button("More", on_click=lambda: state.update({"library.most": most + PAGE_OF}))


def _card(saved: Saved) -> None:
    key = f"{saved.name} {saved.owner}"
    if saved.picture:
        st.image(saved.picture, width="stretch")
    st.markdown(f"**{plain(saved.title)}**")
    by = f" by {saved.owner}" if saved.owner else ""
    st.caption(plain(" · ".join([f"{day(saved.at)}{by}", *saved.tags])))
    if verdicts := saved.about.get("verdicts"):
        st.markdown(plain(verdicts[0]))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.page_link(
            "pages/live.py" if saved.kind == keep.LIVE else "pages/compare.py",
            label="Open",
            icon=":material/open_in_new:",
            query_params={"run": saved.name},
        )
        if "figures" in saved.about:
            st.checkbox("Compare", key=f"compare {key}", on_change=_choose, args=(saved,))
        with st.popover("Link", type="tertiary"):
            for review in (False, True):
                query = {"run": saved.name} | ({"review": "1"} if review else {})
                st.caption("Read-only, for a review" if review else "To work on")
                path = "/live" if saved.kind == keep.LIVE else "/"
                st.code(f"{share.host()}{path}?{urlencode(query)}", language=None, wrap_lines=True)
        if visitor.may_write() and saved.owner == visitor.name():
            st.button(
                "Delete",
                key=f"delete {key}",
                icon=":material/delete:",
                type="tertiary",
                on_click=_delete,
                args=(saved,),
            )


def _choose(saved: Saved) -> None:
    """The two that were chosen last are the ones to compare."""
    state = st.session_state
    chosen = [s for s in state.get("library.chosen", []) if s != saved]
    if state[f"compare {saved.name} {saved.owner}"]:
        chosen.append(saved)
    for dropped in chosen[:-2]:
        state[f"compare {dropped.name} {dropped.owner}"] = False
    state["library.chosen"] = chosen[-2:]


def side_by_side() -> None:
    """What differs between the two that were chosen, in the scenario and in the figures."""
    chosen: list[Saved] = st.session_state.get("library.chosen", [])
    if len(chosen) == 1:
        st.caption(f"Choose another to compare **{plain(chosen[0].title)}** with.")
    if len(chosen) < 2:
        return
    with st.container(border=True):
        names = {"A": chosen[0], "B": chosen[1]}
        for letter, saved in names.items():
            st.markdown(f"**{letter}: {plain(saved.title)}** · {day(saved.at)}")
        st.table(figures_of(names), border="horizontal")
        differing = differences(names)
        if differing.empty:
            st.caption("Their scenarios are alike.")
        else:
            st.markdown("What differs in the scenario")
            st.table(differing, border="horizontal")


def figures_of(names: dict[str, Saved]) -> pd.DataFrame:
    """Headline figures of every variant of each, as saved; B's beside A's of the same label."""
    columns = {}
    for letter, saved in names.items():
        for label, values in saved.about["figures"].items():
            against = names["A"].about["figures"].get(label, {}) if letter == "B" else {}
            column = {}
            for name in tables.HEADLINE:
                value, base = _number(values.get(name)), _number(against.get(name))
                change = tables.difference(value, base)
                shown = tables.number(value, FIGURES[name].unit)
                column[FIGURES[name].label] = f"{shown} ({change})" if change else shown
            columns[f"{letter}: {plain(label)}"] = column
    return pd.DataFrame(columns)


def differences(names: dict[str, Saved]) -> pd.DataFrame:
    """Rows of the two scenarios whose values differ, those of all variants in one cell."""
    both = pd.DataFrame(
        {
            letter: tables.said_once(Scenario.from_query(saved.about["scenario"], math.inf)[0])
            | ({"Done live": live} if (live := saved.about.get("live")) else {})
            for letter, saved in names.items()
        }
    ).fillna("–")
    return both.loc[both["A"] != both["B"]].map(plain)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _delete(saved: Saved) -> None:
    state = st.session_state
    try:
        if visitor.may_write() and keep.store().delete(saved.name, visitor.name()):
            state["library.deleted"] = saved
    except StoreError as error:
        state["library.said"] = f"Not deleted: {error}."
    state["library.chosen"] = [s for s in state.get("library.chosen", []) if s != saved]


def _restore(saved: Saved) -> None:
    state = st.session_state
    try:
        done = visitor.may_write() and keep.store().delete(saved.name, visitor.name(), undo=True)
        state["library.said"] = "It is back." if done else "It could not be had back any more."
    except StoreError as error:
        state["library.said"] = f"Not undone: {error}."
    state.pop("library.deleted", None)


def _undo() -> None:
    state = st.session_state
    if said := state.pop("library.said", None):
        st.info(plain(said))
    if saved := state.get("library.deleted"):
        with st.container(border=True, horizontal=True, vertical_alignment="center"):
            st.markdown(f"Deleted **{plain(saved.title)}**.")
            st.button("Undo", icon=":material/undo:", on_click=_restore, args=(saved,))
