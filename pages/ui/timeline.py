"""The slot timeline as a component: packs runs into bytes, mounts timeline.js, hears of clicks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import streamlit as st
from streamlit.components import v2

from sim import __version__
from sim.detail import events, index, most, steps_between, ticks_between, worst_itl
from sim.explain import lost_and_refused, why_waited
from sim.metrics import again, longest_wait, wait
from sim.run import Run, once
from sim.scenario import Scenario
from sim.state import PREEMPTED, PREFILL, RECOMPUTE

from .palette import variant_colours

HERE = Path(__file__).parent
KEY = "timeline"
LEGIBLE = 60_000.0  # ms of a run that one screen still shows request by request
WHOLE = 400_000  # rows of all runs that the page is sent at once; of more, what its window needs
RAW = 25_000  # rows of a window that are sent as they are; of more, the shares of a grid
GRIDS = 1_300_000  # bytes of all grids
COLUMNS, WIDE = 1_500, 200  # of a window's grid unless asked otherwise; of the whole run's
LINES = 160  # rows of a grid at most: px that a panel is high
SHARE = 250  # in a grid, all of a column
_mount = v2.component(
    "slot_timeline",
    html="<div></div>\n",
    css=(HERE / "timeline.css").read_text(),
    js=(HERE / "timeline.js").read_text(),
)


def shade_scale(runs: Sequence[Run], scenario: Scenario) -> tuple[float, float]:
    """ms at which a decode is palest (the shortest gap of all runs) and darkest (TPOT limit)."""
    decoding = np.concatenate([run.ticks()["ms"] for run in runs])
    floor = float(decoding.min()) if len(decoding) else 0.0
    limit = scenario.slo.tpot_slo
    return (floor, limit) if floor < limit else (limit / 2, limit)


def opening_window(runs: Sequence[Run], baseline: int) -> tuple[float, float]:
    """ms: until the first variant is done, so that a slow one squashes nobody.

    Of a long run, the stretch about the request that waited longest in the baseline, or about its
    first preemption where nobody waited to speak of.
    """
    end = min(run.total for run in runs)
    if end <= LEGIBLE:
        return 0.0, end
    run = runs[baseline]
    longest = run.requests[longest_wait(run)]
    middle = (longest["arrival"] + longest["first"]) / 2
    if len(again(run)[0]) and wait(run).max() < LEGIBLE / 100:
        middle = again(run)[0][0]
    start = middle - LEGIBLE / 4
    start = float(np.clip(start, 0.0, end - LEGIBLE / 2))
    return start, start + LEGIBLE / 2


class Window(NamedTuple):
    """What the canvas asks for: ms, and px that there are for it."""

    t0: float
    t1: float
    columns: int = COLUMNS


def is_large(runs: Sequence[Run]) -> bool:
    """Whether a page is to be sent only what its window needs."""
    tables = ("segments", "steps", "requests")
    return sum(len(getattr(run, table)) for run in runs for table in tables) > WHOLE


def pack(
    runs: Sequence[Run],
    scenario: Scenario,
    *,
    live: tuple[float, float] | None = None,
    now: float | None = None,
    window: Window | None = None,
    picked: int | None = None,
) -> bytes:
    """Little-endian: u4 length of a JSON header, the header, then its columns, each 8-aligned.

    live: of runs that go on, the window (ms) that the timeline follows; `now`: ms, where what is
    drawn of steps ends. With `window` only what it
    needs, and the request `picked`, wherever it is: for large runs, whose canvas asks again.
    """
    opening = live or opening_window(runs, scenario.baseline)
    whole = max(*(run.total for run in runs), *(live or (0.0, 0.0)))
    if window:
        columns, told = _part(runs, window, whole, picked)
    else:
        columns, told = _whole(runs, live is not None), {}
    listed, blocks, at = [], [], 0
    for name, values in columns.items():
        kind = "u1" if name.endswith(".phase") else values.dtype.str[1:]
        kind = kind if kind in ("f8", "f4", "u1") else "i4"
        block = values.astype(f"<{kind}").tobytes()
        listed.append({"name": name, "kind": kind, "at": at, "n": values.size})
        blocks.append(block + bytes(-len(block) % 8))
        at += len(blocks[-1])
    variants = told.pop("variants", [{}] * len(runs))
    header = json.dumps(
        {
            "columns": listed,
            "variants": [
                {
                    "label": run.label,
                    "seats": run.seats if live else seats_taken(run),
                    "total": run.total,
                    "blocks": run.blocks,
                    "blockSize": run.block_size,
                    "front": run.front_ms,
                    "note": "" if live else _note(run),
                    "colours": variant_colours(k),
                }
                | variants[k]
                for k, run in enumerate(runs)
            ],
            "shade": shade_scale(runs, scenario),
            "live": live is not None,
            "now": now,
            "window": opening,
            "whole": whole,
            "stamp": f"slotscope {__version__} · seed {scenario.traffic.seed}",
            "link": scenario.link(),
        }
        | told
    ).encode()
    return len(header).to_bytes(4, "little") + header + b"".join(blocks)


def _whole(runs: Sequence[Run], live: bool) -> dict[str, np.ndarray]:
    """Every row of the runs."""
    columns, every = _asked(runs[0].requests), slice(None)
    for k, run in enumerate(runs):
        seats = run.seats if live else seats_taken(run)
        columns |= _rows(k, run, seats, run.segments, every, run.steps, run.ticks())
        columns[f"{k}.lost"], columns[f"{k}.back"] = again(run)
    return columns


def _asked(requests: np.ndarray) -> dict[str, np.ndarray]:
    return {f"all.{name}": requests[name] for name in ("arrival", "prompt", "output")}


def _rows(
    k: int,
    run: Run,
    seats: int,
    segments: np.ndarray,
    ids: Any,
    steps: np.ndarray,
    ticks: np.ndarray,
) -> dict[str, np.ndarray]:
    """The columns of variant k: these segments, requests, steps and ticks."""
    segments = segments[np.lexsort((segments["t0"], segments["seat"]))]
    columns = {n: segments[n] for n in ("t0", "t1", "request", "tokens", "phase")}
    columns["offset"] = np.searchsorted(segments["seat"], np.arange(seats + 1))
    columns |= {n: run.requests[n][ids] for n in ("start", "first", "last", "finish")}
    columns |= {
        "stepT0": steps["t0"],
        "stepMs": steps["ms"],
        "stepRepeats": steps["repeats"],
        "stepPrefill": steps["prefill"],
        "stepDecodes": steps["decodes"],
        "tickT0": ticks["t0"],
        "tickMs": ticks["ms"],
        "tickRepeats": ticks["repeats"],
    }
    if run.blocks:
        columns |= {"stepFree": steps["free"], "stepKv": steps["kv"].astype(float)}
    return {f"{k}.{name}": values for name, values in columns.items()}


def _part(
    runs: Sequence[Run], window: Window, whole: float, picked: int | None
) -> tuple[dict[str, np.ndarray], dict]:
    """What a window of large runs needs, and what the header says of it.

    The window's rows, and those about it as far as there is room, or else its grid; the whole run's
    grid; and the request picked.
    """
    raw = _room(runs, window)
    t0, t1 = raw or (0.0, 0.0)
    segments = [run.segments[_shown(run, raw, picked)] for run in runs]
    lit = np.array([] if picked is None else [picked], np.int64)
    ids = np.unique(np.concatenate([lit, *(own["request"] for own in segments)]))
    columns, variants = {"all.ids": ids, **_asked(runs[0].requests[ids])}, []
    planes = sum(min(seats_taken(run), LINES) * len(index(run).phases) for run in runs)
    wide = min(WIDE, GRIDS // 2 // planes)
    near = min(window.columns, GRIDS // planes - wide)
    for k, (run, own) in enumerate(zip(runs, segments, strict=True)):
        prompts = own[
            np.isin(own["phase"], (PREFILL, RECOMPUTE)) & (own["t1"] > t0) & (own["t0"] < t1)
        ]
        since, until = prompts["t0"].min(initial=t0), prompts["t1"].max(initial=t1)
        steps, ticks = steps_between(run, since, until), ticks_between(run, t0, t1)
        columns |= _rows(k, run, seats_taken(run), own, ids, steps, ticks)
        e = events(run)
        for name in ("arrivals", "starts", "ends", "lost", "back"):
            times = getattr(e, name)
            low, high = np.searchsorted(times, (t0, t1), side="right")
            columns[f"{k}.{name}"] = times[low:high]
        columns |= {f"{k}.wide.{n}": v for n, v in _overview(run, whole, wide).items()}
        if raw is None:
            grid = _grid(run, window.t0, window.t1, near)
            columns |= {f"{k}.near.{n}": v for n, v in grid.items()}
        variants.append(
            {
                "phases": [*index(run).phases, *([PREEMPTED] if len(index(run).lost) else [])],
                "planes": index(run).phases,
                "waiting": int(e.waiting(np.array([t0]))[0]),
                "running": int(e.running(np.array([t0]))[0]),
            }
        )
    part = {"asked": window, "raw": raw, "share": SHARE, "near": near, "wide": wide}
    return columns, {"part": part, "variants": variants}


def _room(runs: Sequence[Run], window: Window) -> tuple[float, float] | None:
    """The window with as much about it as is sent row by row; None if even the window is not."""
    for about in (1.0, 0.25, 0.0):
        margin = about * (window.t1 - window.t0)
        t0, t1 = max(0.0, window.t0 - margin), window.t1 + margin
        rows = 0
        for run in runs:
            rows += index(run).count(t0, t1)
            rows += len(steps_between(run, t0, t1)) + len(ticks_between(run, t0, t1))
        if rows <= RAW:
            return t0, t1
    return None


def _shown(run: Run, raw: tuple[float, float] | None, picked: int | None) -> np.ndarray:
    """The places of the segments in `raw` and of the request picked."""
    own = np.flatnonzero(run.segments["request"] == (-1 if picked is None else picked))
    return np.union1d(own, index(run).slice(*raw)) if raw else own


def _grid(run: Run, t0: float, t1: float, columns: int) -> dict[str, np.ndarray]:
    """The exact shares of [t0, t1) ms in units of 1 / SHARE, what is rounded off a column carried
    to the next; and what the strips show."""
    shares = index(run).shares(t0, t1, columns, min(seats_taken(run), LINES))
    upto = np.rint(SHARE * shares.clip(0).cumsum(axis=2))
    ends, of_steps = np.linspace(t0, t1, columns + 1)[1:], most(run, t0, t1, columns)
    return {
        "share": np.diff(upto, prepend=0.0, axis=2).astype(np.uint8),
        "itl": worst_itl(run, t0, t1, columns).astype("f4"),
        "waiting": events(run).waiting(ends),
        "running": events(run).running(ends),
        "lost": index(run).preempted(t0, t1, columns),
        **{name: values.astype("f4") for name, values in of_steps.items()},
    }


@once
def _overview(run: Run, whole: float, columns: int) -> dict[str, np.ndarray]:
    return _grid(run, 0.0, whole, columns)


@once
def seats_taken(run: Run) -> int:
    """Seats from 0 on that anybody ever sat on: the rest would be blank rows."""
    return int(run.segments["seat"].max()) + 1


def _note(run: Run) -> str:
    return f"{why_waited(run)} {lost_and_refused(run)}{_unused(run)}"


def _unused(run: Run) -> str:
    taken = seats_taken(run)
    return f" {taken} of {run.seats} seats ever taken." if taken < run.seats else ""


_remote = v2.component("timeline_remote", html="<div></div>\n", js=(HERE / "remote.js").read_text())


def remote(order: dict | None) -> None:
    """Tell the timeline to go somewhere, without sending it its data again.

    order: {serial, picked, t0, t1}; a serial that was obeyed already is not obeyed again.
    """
    _remote(key="timeline-remote", data=order or {}, height=1)


def asked(link: str) -> Window | None:
    """What the canvas asked for last, of the runs of this link."""
    view = (st.session_state.get(KEY) or {}).get("view")
    if not view or view["link"] != link:
        return None
    t0, t1 = float(view["t0"]), float(view["t1"])
    return Window(t0, max(t1, t0 + 1.0), min(10_000, max(1, int(view["columns"]))))


def timeline(packed: bytes, alt: str, picked: int | None, brush: tuple[float, float] | None = None):
    """Mount it. The result has `pick` (a request's id), `chart` and `brush` ({t0, t1}, ms; the
    latter {} for no brush) and `failed`; `asked` tells the window that large runs are wanted in.

    `picked` is the request lit and `brush` the window marked at first; after that the canvas keeps
    both, so that a click does not send the whole block again.
    """
    at_first = {"picked": -1 if picked is None else picked, "alt": alt, "brush": brush}
    first = json.dumps(at_first).encode()
    return _mount(
        key=KEY,
        data=len(first).to_bytes(4, "little") + first + packed,
        height="content",
        on_pick_change=lambda: None,
        on_chart_change=lambda: None,
        on_brush_change=lambda: None,
        on_failed_change=lambda: None,
        on_view_change=lambda: None,
    )
