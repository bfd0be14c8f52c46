"""A run as if only the requests that arrived in a window mattered: the same times, fewer rows."""

from dataclasses import dataclass, fields, replace

import numpy as np

from .run import Run
from .scenario import Scenario
from .state import DECODE, RECOMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed(Scenario):
    """A scenario of whose requests only those count that arrive in a window, as its link says."""

    window: tuple[float, float]  # ms

    @classmethod
    def of(cls, scenario: Scenario, t0: float, t1: float) -> "Windowed":
        given = {f.name: getattr(scenario, f.name) for f in fields(Scenario)}
        return cls(window=(t0, t1), **given)

    def link(self) -> str:
        whole = Scenario.link(self)
        return f"{whole}{'&' if '?' in whole else '?'}window={'{:.0f}:{:.0f}'.format(*self.window)}"


def counted(run: Run, scenario: Scenario) -> Run:
    """Of a run of the scenario, the requests that count."""
    return within(run, *scenario.window) if isinstance(scenario, Windowed) else run


def within(run: Run, t0: float, t1: float) -> Run:
    """The requests that arrived in [t0, t1) ms, with their tokens, seats and gaps, nothing else.

    Steps keep their times and what kept the line's head out; of their decodes, those requests'.
    Figures a second count from t0 to the last release among them.
    """
    arrival = run.requests["arrival"]
    ids = np.flatnonzero((arrival >= t0) & (arrival < t1))
    mine = np.zeros(len(arrival), bool)
    mine[ids] = True
    segments = run.segments[mine[run.segments["request"]]]
    gaps = run.gaps[mine[run.gaps["request"]]]
    steps = run.steps.copy()
    decodes = segments[segments["phase"] == DECODE]
    began, ended = (np.searchsorted(steps["t0"], decodes[t]) for t in ("t0", "t1"))
    present = np.bincount(began, minlength=len(steps) + 1)
    present = (present - np.bincount(ended, minlength=len(steps) + 1)).cumsum()[:-1]
    steps["late"] = _late(run, gaps, segments)
    steps["decodes"] = np.where(run.steps["decodes"] > 0, present, 0)
    finish = run.requests["finish"][ids]
    total = float(np.nanmax(finish)) if np.isfinite(finish).any() else t0
    return replace(
        run,
        requests=run.requests[ids],
        ids=ids,
        begin=max(t0, 0.0),
        total=total,
        steps=steps,
        segments=segments,
        gaps=gaps,
        grants=run.grants[mine[run.grants["request"]]],
    )


def during(run: Run, part: Run) -> np.ndarray:
    """The whole run's steps, of everybody, from the begin of a window to its last release."""
    ends = run.steps["t0"] + run.steps["ms"] * run.steps["repeats"]
    return run.steps[(ends > part.begin) & (run.steps["t0"] < part.total)]


def _late(run: Run, gaps: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Of each step's decodes, those whose gap stands in `gaps`; there are also gaps whose token is
    of a prompt that was computed again."""
    again = segments[segments["phase"] == RECOMPUTE]
    late = ~np.isin(gaps["request"] + 1j * gaps["t"], again["request"] + 1j * again["t1"])
    rows = np.searchsorted(run.steps["t0"], gaps["t"][late]) - 1
    return np.bincount(rows, minlength=len(run.steps))
