"""Drawings of a comparison: charts from runs, the timeline as a picture; no Streamlit.

What a page shows and what a file holds come from here alike.
"""

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

from sim.bins import IDLE, cells, counted, spread
from sim.explain import duration, lost_and_refused, why_waited
from sim.metrics import METRICS
from sim.run import Run
from sim.scenario import Scenario
from sim.state import DECODE, HELD, PHASES, PREEMPTED, STALL

from . import charts
from .palette import variant_colours
from .timeline import seats_taken, shade_scale

CELLS = 2_000_000  # of a panel at most, whatever its seats


class Shown(NamedTuple):
    """A metric that the page draws: what its values are counted in, and which limit is its own."""

    metric: str
    of: str
    limit: str


SHOWN = (
    Shown("itl", "tokens", "tpot_slo"),
    Shown("ttft", "requests", "ttft_slo"),
    Shown("tpot", "requests", "tpot_slo"),
)


def distribution(
    runs: Sequence[Run],
    scenario: Scenario,
    shown: Shown,
    dark: bool,
    cumulative: bool,
    on_slide: bool = False,
):
    """The bins of a metric under every variant, and their chart; no chart where it has no value."""
    metric = METRICS[shown.metric]
    samples = {run.label: metric.of(run) for run in runs}
    log = spread(samples)
    bins = counted(samples, log)
    if bins.empty:
        return bins, None
    p95 = [sample.quantile(0.95) for sample in samples.values()]
    marks = pd.DataFrame(
        {"variant": list(samples), "p95": p95, "label": [duration(value) for value in p95]}
    )
    return bins, charts.distribution(
        bins,
        marks,
        title=metric.label,
        of=shown.of,
        log=log,
        limit=getattr(scenario.slo, shown.limit),
        colours={run.label: variant_colours(k)[dark] for k, run in enumerate(runs)},
        dark=dark,
        cumulative=cumulative,
        on_slide=on_slide,
    )


# The timeline.

LEFT, RIGHT, TOP, BOTTOM = 84, 1_256, 112, 650  # px of the panels on charts.SLIDE
NAME = 30  # px above each panel, for its name


def timeline(
    runs: Sequence[Run],
    scenario: Scenario,
    window: tuple[float, float],
    dark: bool,
    title: str,
    stamp: str,
) -> str:
    """Who held which seat within `window` (ms) under every variant: an SVG of charts.SLIDE."""
    wide, tall = charts.SLIDE
    ink, ground = charts.INK[dark], charts.GROUND[dark]
    each = (BOTTOM - TOP) / len(runs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}"'
        f' font-family="{charts.FONT}" font-size="14" fill="{ink}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{wide}" height="{tall}" fill="{ground}"/>',
        _text(24, 44, title, 26, weight=700),
        _text(24, tall - 16, stamp if len(stamp) < 200 else f"{stamp[:199]}…", 12, opacity=0.75),
        *_legend(runs, scenario, dark),
        *_axis(window),
    ]
    for k, run in enumerate(runs):
        y, height = TOP + k * each + NAME, each - NAME - 6
        lines = 2 * max(1, int(height))
        image = seats(run, scenario, runs, window, 2 * (RIGHT - LEFT), lines, dark)
        colour, note = variant_colours(k)[dark], f"{why_waited(run)} {lost_and_refused(run)}"
        size = min(15.0, each / 5)
        parts += [
            f'<rect x="{LEFT}" y="{y - 19}" width="12" height="12" fill="{colour}"/>',
            _text(LEFT + 18, y - 8, run.label, 15, weight=700),
            _text(LEFT + 34 + 8.2 * len(run.label), y - 8, note, 13, opacity=0.75),
            _text(LEFT - 8, y + size, "seat 0", size, anchor="end", opacity=0.75),
            _text(LEFT - 8, y + height, seats_taken(run) - 1, size, anchor="end", opacity=0.75),
            f'<image x="{LEFT}" y="{y:.1f}" width="{RIGHT - LEFT}" height="{height:.1f}"'
            f' preserveAspectRatio="none" xlink:href="{_data(image)}"/>',
        ]
    return "".join([*parts, "</svg>"])


def thumbnail(
    runs: Sequence[Run], scenario: Scenario, window: tuple[float, float], wide: int = 640
) -> bytes:
    """The panels alone, one above the other, on no ground: a small PNG."""
    tall = max(24, 200 // len(runs))
    whole = np.zeros((len(runs) * (tall + 6), wide, 4), np.uint8)
    for k, run in enumerate(runs):
        image = seats(run, scenario, runs, window, wide - 10, tall, False)
        top = k * (tall + 6)
        whole[top : top + tall, :6] = [*_rgb(variant_colours(k)[0]), 255]
        whole[top : top + tall, 10:] = image
    return _png(whole)


def seats(
    run: Run,
    scenario: Scenario,
    runs: Sequence[Run],
    window: tuple[float, float],
    columns: int,
    lines: int,
    dark: bool,
) -> np.ndarray:
    """(lines, columns, 4) RGBA, as the canvas paints a panel; clear where nobody sits."""
    taken = seats_taken(run)
    cut = min(columns, max(1, CELLS // run.seats))
    phases, worst = cells(run, *window, cut)
    phases = phases[:taken]
    floor, limit = shade_scale(runs, scenario)
    place = 2 * np.clip((worst - floor) / (limit - floor), 0, 1)
    stops = np.array([_rgb(stop) for stop in charts.RAMP[dark]], float)
    ramp = np.array([np.interp(place, [0, 1, 2], stops[:, c]) for c in range(3)]).T
    colours = np.zeros((IDLE + 1, 4))
    for k, phase in enumerate(PHASES):
        if k != DECODE:
            colours[k] = [*_rgb(charts.PHASE_COLOURS[phase][dark]), 255]
    colours[DECODE, 3] = 255
    image = colours[phases]
    image[..., :3] = np.where((phases == DECODE)[..., None], ramp.round(), image[..., :3])
    small = Image.fromarray(image.astype(np.uint8))
    if taken > lines:  # several seats share a line
        return np.asarray(small.resize((columns, lines), Image.Resampling.BOX))
    row = np.minimum(np.arange(lines) * taken // lines, taken - 1)
    column = np.arange(columns) * cut // columns
    large = image[row][:, column].astype(np.uint8)
    # Padding and stalls carry a texture, for whoever does not tell the colours apart.
    idle = np.isin(phases, (HELD, STALL))[row][:, column]
    large[idle & ((np.add.outer(np.arange(lines), np.arange(columns)) % 9) == 0), 3] = 90
    if lines >= 4 * taken:
        large[np.flatnonzero(np.diff(row, append=taken)), :, 3] = 0
    for seat, t0 in _lost(run, window):
        x = int((t0 - window[0]) / (window[1] - window[0]) * columns)
        large[row == seat, max(0, x - 1) : x + 2] = colours[PREEMPTED]
    return large


def _lost(run: Run, window: tuple[float, float]) -> list[tuple[int, float]]:
    marks = run.segments[run.segments["phase"] == PREEMPTED]
    marks = marks[(marks["t0"] >= window[0]) & (marks["t0"] < window[1])]
    return list(zip(marks["seat"].tolist(), marks["t0"].tolist(), strict=True))


def _legend(runs: Sequence[Run], scenario: Scenario, dark: bool) -> list[str]:
    floor, limit = shade_scale(runs, scenario)
    stops = "".join(
        f'<stop offset="{k / 2}" stop-color="{stop}"/>' for k, stop in enumerate(charts.RAMP[dark])
    )
    scale = f"{duration(floor)} to {duration(limit)} (TPOT limit)"
    told = f"decode, by the longest ITL under each pixel: {scale}"
    parts = [
        f'<defs><linearGradient id="ramp">{stops}</linearGradient></defs>',
        '<rect x="24" y="68" width="110" height="14" fill="url(#ramp)"/>',
        _text(142, 80, told, 14),
    ]
    present = sorted({int(k) for run in runs for k in np.unique(run.segments["phase"])} - {DECODE})
    x = 560
    for phase in present:
        colour = charts.PHASE_COLOURS[PHASES[phase]][dark]
        parts.append(f'<rect x="{x}" y="68" width="14" height="14" fill="{colour}"/>')
        parts.append(_text(x + 20, 80, PHASES[phase], 14))
        x += 120
    return parts


def _axis(window: tuple[float, float]) -> list[str]:
    """Seconds under the panels, at round numbers."""
    t0, t1 = (t / 1e3 for t in window)
    rough = (t1 - t0) / 10
    power = 10 ** np.floor(np.log10(rough))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough)
    digits = max(0, int(-np.floor(np.log10(step) + 1e-9)))
    parts = []
    for t in np.arange(np.ceil(t0 / step), np.floor(t1 / step) + 1) * step:
        x = LEFT + (t - t0) / (t1 - t0) * (RIGHT - LEFT)
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP + 8}" width="1" height="{BOTTOM - TOP}" opacity="0.15"/>'
        )
        parts.append(_text(x, BOTTOM + 24, f"{t:.{digits}f} s", 14, anchor="middle"))
    return parts


def _text(x, y, text, size, *, anchor="start", weight=400, opacity=1.0) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' font-weight="{weight}" opacity="{opacity}">{escape(str(text))}</text>'
    )


def _rgb(colour: str) -> list[int]:
    return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]


def _png(image: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(image).save(out, "png", optimize=True)
    return out.getvalue()


def _data(image: np.ndarray) -> str:
    return f"data:image/png;base64,{base64.b64encode(_png(image)).decode()}"
