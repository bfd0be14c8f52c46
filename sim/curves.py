"""What a sweep's table shows: curves with their seeds, knees, what binds, what is feasible.

Pure functions of tables.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from .capacity import growth_of
from .points import BINDING
from .scenario import Variant

BINDS_FROM = 5.0  # % of the time
BUSY_FROM = 95.0  # % of the time
LIMITS = tuple(name for name in BINDING if name != "compute")
STRIP = (*LIMITS, "compute", "nothing")
KNEE_FROM = 0.1  # of the way from the first point to the last


def label(variant: str) -> str:
    """A variant's text in a row, as a person says it."""
    return Variant.parse(variant).label


def bands(table: pd.DataFrame, names: Sequence[str], figures: Sequence[str]) -> pd.DataFrame:
    """(points x figures) variant, the swept `names`, figure; mean, low, high over the seeds."""
    figures = [f for f in figures if f in table]
    long = table.melt(["variant", *names, "seed"], figures, "figure").dropna(subset="value")
    by = long.groupby(["variant", *names, "figure"], sort=False)["value"]
    spread = by.agg(mean="mean", low="min", high="max").reset_index()
    return spread.assign(label=[label(v) for v in spread["variant"]])


def points(table: pd.DataFrame, names: Sequence[str], share: float) -> pd.DataFrame:
    """A row a point: the mean of each figure over the seeds; `feasible`, whether the share of
    requests keeps the SLO and the queue does not grow; `binds`; `user_tok_s` and `tok_s`; a
    `problem` where it can't be run.
    """
    keys = ["variant", *names]
    ran = table.loc[table["problem"] == ""]
    frame = table.groupby(keys, sort=False)["problem"].first().to_frame()
    means = ran.drop(columns="seed").groupby(keys, sort=False).mean(numeric_only=True)
    frame = frame.join(means)
    tested = ran[[*keys, "growth", "offered", "arrived"]].groupby(keys, sort=False)
    grows = {key: growth_of(group.to_dict("records")).grows for key, group in tested}
    frame["grows"] = [grows.get(key, False) for key in frame.index]
    frame["problem"] = frame["problem"].where(frame["attainment"].isna(), "")
    frame["feasible"] = (frame["attainment"] >= share) & ~frame["grows"]
    frame["user_tok_s"] = 1e3 / frame["tpot_p50"].where(frame["tpot_p50"] > 0)
    frame = frame.reset_index()
    frame["binds"] = [binding(row) for row in frame.to_dict("records")]
    frame["label"] = [label(v) for v in frame["variant"]]
    return frame


def binding(row: dict) -> str:
    """Which limit keeps the head of the line out most, if any does for BINDS_FROM % of the time.

    Else "compute" where the server is busy all the time, or "nothing". "" where nothing ran.
    """
    if row["problem"]:
        return ""
    worst = max(LIMITS, key=lambda name: row[f"time_{name}"])
    if row[f"time_{worst}"] >= BINDS_FROM:
        return worst
    return "compute" if 100 - row["time_idle"] >= BUSY_FROM else "nothing"


def knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """Where a curve turns: the point farthest from the chord between its ends, both axes scaled to
    0 to 1 (Satopaa and others 2011, without smoothing). None where it hardly turns."""
    along, height = np.asarray(x, float), np.asarray(y, float)
    if len(along) < 3 or np.ptp(along) == 0 or np.ptp(height) == 0 or np.isnan(height).any():
        return None
    chord = height[0] + (height[-1] - height[0]) * (along - along[0]) / (along[-1] - along[0])
    away = np.abs(height - chord) / np.ptp(height)
    place = int(away.argmax())
    return place if away[place] >= KNEE_FROM else None


def knees(curves: pd.DataFrame, axis: str) -> pd.DataFrame:
    """The rows of `bands` at which a curve turns."""
    rows = []
    for _, curve in curves.groupby(["variant", "figure"], sort=False):
        place = knee(curve[axis].tolist(), curve["mean"].tolist())
        if place is not None:
            rows.append(curve.iloc[place])
    return pd.DataFrame(rows, columns=curves.columns)


def front(frame: pd.DataFrame, x: str = "user_tok_s", y: str = "tok_s") -> pd.Series:
    """Which points no other beats in both; False where one of the two is nan."""
    values = frame[[x, y]].to_numpy(float)
    order = np.lexsort((-values[:, 1], -values[:, 0]))
    best, on = -math.inf, np.zeros(len(frame), bool)
    for i in order:
        if np.isfinite(values[i]).all() and values[i, 1] > best:
            best, on[i] = values[i, 1], True
    return pd.Series(on, frame.index)


def edges(feasible: np.ndarray) -> pd.DataFrame:
    """(k,) x, x2, y, y2: the border of the cells (rows y, columns x) that are True, in cells."""
    padded = np.pad(feasible, 1)
    rows = []
    for y, x in zip(*np.nonzero(padded[:, 1:] != padded[:, :-1]), strict=True):
        rows.append((x, x, y - 1, y))
    for y, x in zip(*np.nonzero(padded[1:] != padded[:-1]), strict=True):
        rows.append((x - 1, x, y, y))
    return pd.DataFrame(rows, columns=["x", "x2", "y", "y2"], dtype=float)


def binds_above(frame: pd.DataFrame, axis: str, variant: str) -> tuple[float, str] | None:
    """From which value on a limit binds, to the end of the axis, and which does at first."""
    own = frame.loc[(frame["variant"] == variant) & (frame["problem"] == "")].sort_values(by=axis)
    free = ~own["binds"].isin(LIMITS)
    bound = own.loc[free[::-1].cumsum()[::-1] == 0]
    if bound.empty:
        return None
    return float(bound[axis].iloc[0]), str(bound["binds"].iloc[0])
