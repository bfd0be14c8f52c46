"""The slot timeline as a component: packs runs into bytes, mounts timeline.js, hears of clicks."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from streamlit.components import v2

from sim import __version__
from sim.explain import lost_and_refused, why_waited
from sim.metrics import again, longest_wait
from sim.run import Run
from sim.scenario import Scenario

from .palette import variant_colours

HERE = Path(__file__).parent
LEGIBLE = 60_000.0  # ms of a run that one screen still shows request by request
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
    if len(again(run)[0]) and longest["start"] - longest["arrival"] < LEGIBLE / 100:
        middle = again(run)[0][0]
    start = middle - LEGIBLE / 4
    start = float(np.clip(start, 0.0, end - LEGIBLE / 2))
    return start, start + LEGIBLE / 2


def pack(runs: Sequence[Run], scenario: Scenario, live: tuple[float, float] | None = None) -> bytes:
    """Little-endian: u4 length of a JSON header, the header, then its columns, each 8-aligned.

    live: of runs that go on, the window (ms) that the timeline follows.
    """
    seats = [run.seats if live else seats_taken(run) for run in runs]
    first = runs[0].requests
    columns = {
        "all.arrival": first["arrival"],
        "all.prompt": first["prompt"],
        "all.output": first["output"],
    }
    for k, run in enumerate(runs):
        order = np.lexsort((run.segments["t0"], run.segments["seat"]))
        segments, steps, ticks = run.segments[order], run.steps, run.ticks()
        lost, back = again(run)
        if run.blocks:
            columns |= {f"{k}.stepFree": steps["free"], f"{k}.stepKv": steps["kv"].astype(float)}
        offset = np.searchsorted(segments["seat"], np.arange(seats[k] + 1))
        columns |= {
            f"{k}.{name}": segments[name] for name in ("t0", "t1", "request", "tokens", "phase")
        }
        columns |= {
            f"{k}.{name}": run.requests[name] for name in ("start", "first", "last", "finish")
        }
        columns |= {
            f"{k}.offset": offset,
            f"{k}.stepT0": steps["t0"],
            f"{k}.stepMs": steps["ms"],
            f"{k}.stepRepeats": steps["repeats"],
            f"{k}.stepPrefill": steps["prefill"],
            f"{k}.stepDecodes": steps["decodes"],
            f"{k}.tickT0": ticks["t0"],
            f"{k}.tickMs": ticks["ms"],
            f"{k}.tickRepeats": ticks["repeats"],
            f"{k}.lost": lost,
            f"{k}.back": back,
        }
    listed, blocks, at = [], [], 0
    for name, values in columns.items():
        kind = "f8" if values.dtype.kind == "f" else "u1" if name.endswith(".phase") else "i4"
        block = values.astype(f"<{kind}").tobytes()
        listed.append({"name": name, "kind": kind, "at": at, "n": len(values)})
        blocks.append(block + bytes(-len(block) % 8))
        at += len(blocks[-1])
    header = json.dumps(
        {
            "columns": listed,
            "variants": [
                {
                    "label": run.label,
                    "seats": seats[k],
                    "total": run.total,
                    "blocks": run.blocks,
                    "blockSize": run.block_size,
                    "note": "" if live else _note(run),
                    "colours": variant_colours(k),
                }
                for k, run in enumerate(runs)
            ],
            "shade": shade_scale(runs, scenario),
            "live": live is not None,
            "window": live or opening_window(runs, scenario.baseline),
            "whole": max(*(run.total for run in runs), *(live or (0.0, 0.0))),
            "stamp": f"slotscope {__version__} · seed {scenario.traffic.seed}",
            "link": scenario.link(),
        }
    ).encode()
    return len(header).to_bytes(4, "little") + header + b"".join(blocks)


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


def timeline(packed: bytes, alt: str, picked: int | None, brush: tuple[float, float] | None = None):
    """Mount it. The result has `pick` (a request's id), `chart` and `brush` ({t0, t1}, ms; the
    latter {} for no brush) and `failed`.

    `picked` is the request lit and `brush` the window marked at first; after that the canvas keeps
    both, so that a click does not send the whole block again.
    """
    at_first = {"picked": -1 if picked is None else picked, "alt": alt, "brush": brush}
    first = json.dumps(at_first).encode()
    return _mount(
        key="timeline",
        data=len(first).to_bytes(4, "little") + first + packed,
        height="content",
        on_pick_change=lambda: None,
        on_chart_change=lambda: None,
        on_brush_change=lambda: None,
        on_failed_change=lambda: None,
    )
