"""Samples counted into bins, and segments into cells, for charts that must stay small."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from .detail import index, worst_itl
from .metrics import Sample
from .run import Run
from .state import DECODE, PHASES

BINS = 60
IDLE = len(PHASES)  # a cell where nobody sits


def spread(samples: Mapping[str, Sample]) -> bool:
    """Whether the values ask for a logarithmic axis: the middle 98 % span a factor of 20."""
    lows = [s.quantile(0.01) for s in samples.values() if len(s.values)]
    highs = [s.quantile(0.99) for s in samples.values() if len(s.values)]
    return bool(lows) and max(highs) > 20 * max(min(lows), 1e-9) and min(lows) > 0


def counted(samples: Mapping[str, Sample], log: bool) -> pd.DataFrame:
    """Rows (variant, low, high, share, upto): % of the values in [low, high), and below high.

    All variants share the edges. On a logarithmic axis the first bin holds all below it, too.
    """
    values = [s.values for s in samples.values() if len(s.values)]
    if not values:
        return pd.DataFrame(columns=["variant", "low", "high", "share", "upto"])
    low, high = min(v.min() for v in values), max(v.max() for v in values)
    if log:
        low = max(low, high / 1e6)
        edges = np.geomspace(low, max(high, low * 1.01), BINS + 1)
    else:
        edges = np.linspace(0.0, high or 1.0, BINS + 1)
    frames = []
    for name, sample in samples.items():
        clipped = np.clip(sample.values, edges[0], edges[-1])
        counts, _ = np.histogram(clipped, edges, weights=sample.weights)
        share = 100 * counts / max(counts.sum(), 1)
        frames.append(
            pd.DataFrame(
                {
                    "variant": name,
                    "low": edges[:-1],
                    "high": edges[1:],
                    "share": share,
                    "upto": share.cumsum(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def cells(run: Run, t0: float, t1: float, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The window [t0, t1) ms as a grid: the phase of each cell, and the worst ITL of each column.

    Returns (seats, columns) of phases (IDLE where nobody sits) and (columns,) ms. A cell shows one
    phase, and what it leaves out is carried to the next cell of its seat: the shares of the phases
    stay right however coarse the grid is.
    """
    exact = index(run)
    shares = np.zeros((IDLE + 1, exact.seats, columns))
    shares[exact.phases] = exact.shares(t0, t1, columns)
    shares[IDLE] = 1 - shares[:IDLE].sum(axis=0)
    phases = np.full((run.seats, columns), IDLE, np.int8)
    owed, seats = np.zeros((IDLE + 1, exact.seats)), np.arange(exact.seats)
    for x in range(columns):
        owed += shares[:, :, x]
        phases[: exact.seats, x] = owed.argmax(axis=0)
        owed[phases[: exact.seats, x], seats] -= 1
    return phases, worst_itl(run, t0, t1, columns)


def coalesced(
    runs: Sequence[Run], t0: float, t1: float, most: int = 20_000, levels: int = 9
) -> pd.DataFrame:
    """The window as at most `most` rows (variant, seat, t0, t1, phase, itl), times in ms.

    Neighbours of one phase and, among decodes, of like ITL are one row. Both the number of columns
    and what they hold follow from `cells`.
    """
    columns = 1_024
    while True:
        rows = pd.concat(
            [_runs_of_cells(run, t0, t1, columns, levels) for run in runs], ignore_index=True
        )
        if len(rows) <= most or columns == 1:
            return rows
        columns //= 2


def _runs_of_cells(run: Run, t0: float, t1: float, columns: int, levels: int) -> pd.DataFrame:
    phases, worst = cells(run, t0, t1, columns)
    top = max(worst.max(), 1e-9)
    like = np.where(
        phases == DECODE, phases + IDLE + np.ceil(levels * np.log1p(worst) / np.log1p(top)), phases
    )
    changes = np.ones_like(like, bool)
    changes[:, 1:] = like[:, 1:] != like[:, :-1]
    seat, first = np.nonzero(changes)
    flat = np.flatnonzero(changes)
    last = np.append(flat[1:], like.size) - flat + first
    width = (t1 - t0) / columns
    highest = np.maximum.reduceat(np.broadcast_to(worst, like.shape).ravel(), flat)
    rows = pd.DataFrame(
        {
            "variant": run.label,
            "seat": seat,
            "t0": t0 + first * width,
            "t1": t0 + last * width,
            "phase": phases[seat, first],
            "itl": highest,
        }
    )
    rows = rows[rows["phase"] != IDLE]
    return rows.assign(phase=[PHASES[k] for k in rows["phase"]])
