"""The live page: a clock, a session on it, and what may be done to it."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import streamlit as st

from sim.explain import duration
from sim.live import CHANGES, Session, interchangeable, parse, written_script
from sim.metrics import METRICS
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.run import Run
from sim.scenario import PARAMETERS, Scenario
from sim.table import stamp

from . import controls, share, tables
from .text import plain
from .timeline import pack, timeline

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0)
EVERY = 0.2  # s between two looks
SEEN = 10_000.0  # ms of the run that the timeline shows
SOME = 4  # requests that are named while time goes on


def session() -> Session:
    """This viewer's session; where it can't be had, say why and stop."""
    share.enter()
    try:
        found = _session(st.session_state.scenario)
    except ScenarioError as error:
        st.error(f"{plain(str(error))}.")
        st.stop()
    for problem in st.session_state.pop("live-problems", []):
        st.warning(f"{plain(problem)}.")
    return found


def watch() -> None:
    """The state now, again and again while time goes on."""
    going = st.session_state.get("live-going") is not None
    st.fragment(_look, run_every=EVERY if going else None)()


# ---------------------------------------------------------------- the session and its clock


def _session(scenario: Scenario) -> Session:
    """The session of this viewer: of the scenario and of the script that the address holds."""
    state, text = st.session_state, share.live_script()
    key = (scenario.link(), text)
    if state.get("live-key") == key:
        return state["live-session"]
    try:
        actions = parse(text, scenario)
    except ScenarioError as error:
        state["live-problems"], actions = [str(error)], ()
    _pause()
    _keep(Session(scenario, actions, controls.trace()), key)
    return state["live-session"]


def _keep(session: Session, key: tuple | None = None) -> None:
    """Make it this viewer's session, and the address its script."""
    state = st.session_state
    done = written_script(session.actions)
    state["live-session"] = session
    state["live-key"] = key or (session.scenario.link(), done)
    if key is None:
        share.set_live(done)


def _pause() -> None:
    st.session_state["live-going"] = None


def _go() -> None:
    """Time goes on from here, at the speed chosen."""
    session: Session = st.session_state["live-session"]
    st.session_state["live-going"] = (time.monotonic(), session.t)


def _catch_up() -> Session:
    """Let the session be where the wall clock says; the simulation never waits for the page."""
    state = st.session_state
    session: Session = state["live-session"]
    if state.get("live-going") is not None:
        since, t = state["live-going"]
        speed = float(state.get("live-speed", 1.0))
        session.advance(t + (time.monotonic() - since) * 1e3 * speed)
        if session.done:
            _pause()
            session.finish()
    return session


def _toggle() -> None:
    _catch_up()
    if st.session_state.get("live-going") is None:
        _go()
    else:
        _pause()


def _respeed() -> None:
    """A new speed counts from now on."""
    state = st.session_state
    going = state.get("live-going")
    if going is None:
        return
    since, t = going
    before = float(state.get("live-speed-before", 1.0))
    state["live-session"].advance(t + (time.monotonic() - since) * 1e3 * before)
    _go()


def clock(session: Session) -> None:
    state = st.session_state
    going = state.get("live-going") is not None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.button(
            "Pause" if going else "Play",
            icon=":material/pause:" if going else ":material/play_arrow:",
            key="live-play",
            on_click=_toggle,
            type="primary",
        )
        st.button("Step", on_click=_step, disabled=going, help="One step of the baseline")
        st.button("To the end", on_click=_finish)
        st.button("From the start", on_click=_restart, help="The same script again")
        st.selectbox(
            "Speed",
            SPEEDS,
            index=SPEEDS.index(1.0),
            format_func=lambda speed: f"{speed:g}x",
            key="live-speed",
            on_change=_respeed,
            width=110,
        )
    state["live-speed-before"] = state["live-speed"]


def _step() -> None:
    session = _catch_up()
    if not session.done:
        session.step()


def _finish() -> None:
    _pause()
    st.session_state["live-session"].finish()


def _restart() -> None:
    _pause()
    session: Session = st.session_state["live-session"]
    _keep(Session(session.scenario, session.actions, session.trace))


# ---------------------------------------------------------------- what may be done to it


def _act(kind: str, *values: str) -> None:
    """Do it now, under every variant; it is in the script from here on."""
    session = _catch_up()
    try:
        _keep(session.act(kind, *values))
    except ScenarioError as error:
        st.session_state["live-problems"] = [str(error)]


def doing(session: Session) -> None:
    """Forms for a prompt, and for what changes from this moment on."""
    scenario = session.scenario
    left, right = st.columns(2)
    with left, st.container(border=True, horizontal=True, vertical_alignment="bottom"):
        st.number_input("Prompt, tokens", value=16_000, min_value=1, key="drop-prompt", width=130)
        st.number_input("Output", value=64, min_value=1, key="drop-output", width=110)
        st.number_input(
            "Priority", value=0, key="drop-priority", width=100,
            help="The smaller goes first, where the policy goes by it; traffic's own are 0 and up",
        )  # fmt: skip
        st.button("Drop it in now", on_click=_drop, icon=":material/south:")
    with right, st.container(border=True, horizontal=True, vertical_alignment="bottom"):
        options = ["rate"] if "rate" in scenario.traffic.uses else []
        kept = {name for lane in session.lanes for name in POLICIES[lane.policy].keeps}
        options += [name for name in CHANGES if name in kept]
        policies = {
            f"{lane.label} becomes {name}": (str(k), name)
            for k, lane in enumerate(session.lanes)
            for name in interchangeable(lane.policy, lane.limits)
        }
        what = st.selectbox("From now on", [*options, *policies], key="change-what", width=250)
        if what in options:
            p, now = PARAMETERS[what], _now_is(what, session)
            low, high = (type(p.default)(end) for end in (p.low, p.high))
            st.number_input(
                p.label, low, high, now, key=f"change-{what}", width=210, help=f"Of {p.span}"
            )
        if what is not None:
            pair = policies.get(what)
            st.button("Change it now", on_click=_change, args=(what, pair))
    if session.actions:
        st.caption("Done last: " + plain(session.actions[-1].words))


def _now_is(name: str, session: Session) -> float:
    """What the baseline, or the first who keeps it, has of that limit now; or the rate."""
    if name == "rate":
        rates = [a.values[0] for a in session.actions if a.kind == "rate" and a.t <= session.t]
        return float(rates[-1]) if rates else session.scenario.traffic.rate
    lanes = sorted(session.lanes, key=lambda lane: lane.k != session.scenario.baseline)
    lane = next(lane for lane in lanes if name in POLICIES[lane.policy].keeps)
    return getattr(lane.limits, name)


def _drop() -> None:
    state = st.session_state
    values = [str(state[f"drop-{name}"]) for name in ("prompt", "output", "priority")]
    _act("prompt", *(values if values[2] != "0" else values[:2]))


def _change(what: str, pair: tuple[str, str] | None) -> None:
    if pair:
        _act("policy", *pair)
    else:
        _act(what, f"{st.session_state[f'change-{what}']:.15g}")


# ---------------------------------------------------------------- what is seen of it


def _look() -> None:
    """The state now: the timeline, what is in the step, the figures so far."""
    was = st.session_state.get("live-going") is not None
    session = _catch_up()
    if was and st.session_state.get("live-going") is None:
        st.rerun()  # it is over: the buttons say so
    runs = [lane.run() for lane in session.lanes]
    st.markdown(f"**{session.t / 1e3:,.2f} s** · {_said(session, runs)}")
    recent = max(0.0, session.t - 0.9 * SEEN), max(SEEN, session.t + 0.1 * SEEN)
    shown = [_recent(run, recent[0]) for run in runs]
    with st.container(key="live-box"):
        alt = f"What {len(runs)} variants do at {session.t / 1e3:.1f} s"
        packed = pack(shown, session.scenario, live=recent, now=session.t)
        timeline(packed, "Live timeline", None)
    st.table(_now(session), border="horizontal", alt=alt)
    st.table(_so_far(session, runs), border="horizontal", alt="Figures of what was served so far")


def _said(session: Session, runs: Sequence[Run]) -> str:
    """What one would say of it, looking on."""
    gaps = [METRICS["itl"].of(run).quantile(1.0) for run in runs]
    longest = ", ".join(
        f"{plain(run.label)} {duration(gap)}"
        for run, gap in zip(runs, gaps, strict=True)
        if np.isfinite(gap)
    )
    said = f"longest gap between two tokens so far: {longest}" if longest else "nobody decodes yet"
    return said + (" · all are served" if session.done else "")


def _recent(run: Run, t0: float) -> Run:
    """Of a run, what is not over yet at t0; its requests keep their numbers."""
    ends = run.steps["t0"] + run.steps["ms"] * run.steps["repeats"]
    return replace(run, steps=run.steps[ends > t0], segments=run.segments[run.segments["t1"] > t0])


def _now(session: Session) -> pd.DataFrame:
    """The step taken last under each variant, and what kept the next one out.

    Who is in it is written out where time stands still; while it goes, rows keep their height.
    """
    most = SOME if st.session_state.get("live-going") is not None else None
    rows = {}
    for lane in session.lanes:
        now, counts = lane.now(), lane.counts
        prompts = [f"{i} ({n:,})" for i, n in now["prompts"].items()]
        used, of = lane.blocks
        rows[lane.label] = {
            "waiting": f"{counts['waiting']:,}",
            "seated": f"{counts['seated']:,} of {lane.limits.max_num_seqs:,}",
            "step": duration(now["ms"]),
            "prompts (tokens)": _listed(prompts, most),
            "decodes": _listed(now["decodes"], most),
            "next one waits for": f"{now['head']}: {now['stop']}" if now["head"] >= 0 else "–",
            "KV blocks": f"{used:,} of {of:,}" if of else "–",
        }
        if any(lane.variant.label != lane.label for lane in session.lanes):
            rows[lane.label]["is now"] = lane.variant.label
    table = pd.DataFrame(rows)
    return table if (table.loc["KV blocks"] != "–").any() else table.drop(index="KV blocks")


def _listed(names: Sequence[str | int], most: int | None) -> str:
    """'17: 3, 5 to 8 and 12 more'."""
    if not names:
        return "–"
    more = f" and {len(names) - most} more" if most and len(names) > most else ""
    runs: list[list] = []  # of numbers that follow each other
    for name in names[:most]:
        if runs and isinstance(name, int) and name == runs[-1][-1] + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    said = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{len(names)}: {', '.join(said)}{more}"


def _so_far(session: Session, runs: Sequence[Run]) -> pd.DataFrame:
    rows = {}
    for lane, going in zip(session.lanes, runs, strict=True):
        run = _told(going)
        cells = {"served": f"{lane.counts['finished']:,}"}
        for name, q in (("itl", 0.99), ("itl", 1.0), ("ttft", 0.5), ("ttft", 0.99), ("tpot", 0.99)):
            key = "max" if q == 1 else f"p{100 * q:.0f}"
            value = METRICS[name].of(run).quantile(q)
            cells[f"{METRICS[name].label} {key}"] = tables.number(value, "ms")
        rows[run.label] = cells
    return pd.DataFrame(rows).T


def _told(run: Run) -> Run:
    """The run with times that are still to come as unknown ones."""
    requests = run.requests.copy()
    for name in ("start", "first", "last", "finish"):
        requests[name][np.isinf(requests[name])] = np.nan
    return replace(run, requests=requests)


def script(session: Session) -> None:
    """What was done so far, as a link and as a file."""
    with st.expander("The script of this session", icon=":material/history:"):
        if session.actions:
            st.markdown("\n".join(f"- {plain(a.words)}" for a in session.actions))
        else:
            st.caption("Nothing was done to it yet.")
        st.caption("The address holds it: whoever opens it there sees the same, number for number.")
        st.code(f"python -m sim live '{share.host()}{session.link()}'", language="bash")
        with st.container(horizontal=True):
            st.download_button(
                "Save the script",
                lambda: _saved(session),
                "slotscope-live.json",
                "application/json",
                on_click="ignore",
            )
            st.button("Forget it", on_click=_forget, disabled=not session.actions)
    st.caption(stamp(session, share.host()))


def _saved(session: Session) -> str:
    return json.dumps(session.to_query(), indent=1)


def _forget() -> None:
    _pause()
    session: Session = st.session_state["live-session"]
    _keep(Session(session.scenario, (), session.trace))
