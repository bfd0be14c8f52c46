"""Runs at hand for all viewers, as many as there is room for; others run again when wanted."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from threading import Lock
from weakref import WeakKeyDictionary, WeakValueDictionary

import streamlit as st

from sim.run import Run, serve_variant
from sim.scenario import Scenario
from sim.window import Windowed, counted
from sim.workload import Workload, draw

ROOM = 2_000_000  # requests of runs that stay at hand though nobody draws them
LEAST = 10_000  # that a run counts for: a small one has steps, and tables made of it, as well
shelf: OrderedDict[tuple, Run] = OrderedDict()  # the one used last stands last
in_use: WeakValueDictionary[tuple, Run] = WeakValueDictionary()  # and parts of them
took: WeakKeyDictionary[Run, float] = WeakKeyDictionary()  # seconds to simulate it
lock = Lock()  # viewers come at the same time


class Runs(Sequence[Run]):
    """The runs of a scenario; of one with a window, of those who count.

    A session keeps what its fragments and buttons were given for minutes after its viewer has left.
    So they are given these: no tables, but the way to the shelf, or to simulate again.
    """

    def __init__(self, scenario: Scenario, trace: Workload | None):
        self.scenario, self.trace = scenario, trace
        self._keys = [
            (
                scenario.traffic,
                variant,
                scenario.limits_of(variant),
                scenario.cost_of(variant),
                scenario.host_of(variant),
            )
            for variant in scenario.variants
        ]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, k: int) -> Run:  # type: ignore[override]
        return self.taken()[k]

    def __iter__(self) -> Iterator[Run]:
        return iter(self.taken())

    @property
    def seconds(self) -> float:
        """What it took to simulate them."""
        return sum(took[run] for run in self)

    def taken(self, tell: Callable[[float, str], object] = lambda done, doing: None) -> list[Run]:
        """All of them. ScenarioError as `Scenario.check`; what `tell` raises ends a run."""
        runs, workload = [], None
        for key, variant in zip(self._keys, self.scenario.variants, strict=True):
            with lock:
                run = shelf.pop(key, None) or in_use.get(key)
            if run is None:
                if workload is None:
                    workload = draw(self.scenario.traffic, self.trace)
                    self.scenario.check(len(workload))
                self._make_room(len(workload))

                def go_on(done, label=variant.label):
                    tell(done, f"Simulating {label}")

                began = time.perf_counter()
                run = serve_variant(self.scenario, variant, workload, go_on)
                took[run] = time.perf_counter() - began
            with lock:
                shelf[key] = in_use[key] = run
            runs.append(self._part(key, run))
        self._make_room(0)
        return runs

    def _part(self, key: tuple, run: Run) -> Run:
        """Who counts of the run."""
        if not isinstance(self.scenario, Windowed):
            return run
        key = (*key, self.scenario.window)
        part = in_use.get(key)
        if part is None:
            part = in_use[key] = counted(run, self.scenario)
        return part

    def _make_room(self, requests: int) -> None:
        """Take others off the shelf, the one used longest ago first, until so many fit."""
        with lock:
            taken = requests + sum(map(_size, shelf.values()))
            for key in list(shelf):
                if taken <= ROOM:
                    return
                if key not in self._keys:
                    taken -= _size(shelf.pop(key))


def _size(run: Run) -> int:
    return max(LEAST, len(run.requests))


def fragment(draw: Callable) -> Callable:
    """`st.fragment` for what draws Runs, which nobody takes away meanwhile."""

    @st.fragment
    @wraps(draw)
    def drawing(*given):
        held = [list(each) for each in given if isinstance(each, Runs)]
        draw(*given)
        held.clear()

    return drawing
