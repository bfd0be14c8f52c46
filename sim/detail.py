"""What a window of a run holds, at the detail that fits: shares of a grid, or the rows themselves.

A run of a million requests has millions of segments. Its index has, for each seat and phase, the
time spent up to each segment; so how much of any column of any window a phase takes is a difference
of two look-ups, exact however much there is, and the segments of a window are slices.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numba
import numpy as np

from .jit import jit
from .metrics import again
from .run import TICK, Run, once
from .state import PHASES, PREEMPTED, STEP

# What `steps` has of each column: its largest; held: KV blocks that are not free.
OF_STEPS = ("prefill", "decodes", "ms", "kv", "held")


@dataclass(frozen=True, eq=False)
class Index:
    """Segments by seat, phase and time; the moments of preemption, which last no time, apart."""

    seats: int  # from 0 on, that anybody ever sat on
    order: np.ndarray  # (k,) their places in run.segments
    t0: np.ndarray  # (k,) ms
    t1: np.ndarray
    before: np.ndarray  # (k,) ms in this phase on this seat until t0
    offsets: np.ndarray  # (seats * phases + 1,) where those of each seat and phase begin
    lost: np.ndarray  # (l,) places in run.segments of the moments of preemption, by time
    lost_at: np.ndarray  # (l,) ms

    @cached_property
    def phases(self) -> list[int]:
        """The phases that anybody is ever in."""
        sizes = np.diff(self.offsets).reshape(self.seats, len(PHASES))
        return np.flatnonzero(sizes.sum(axis=0)).tolist()

    def group(self, seat: int, phase: int) -> slice:
        k = seat * len(PHASES) + phase
        return slice(int(self.offsets[k]), int(self.offsets[k + 1]))

    def upto(self, seat: int, phase: int, t: np.ndarray) -> np.ndarray:
        """ms that the seat has spent in the phase by each time of `t`."""
        own = self.group(seat, phase)
        if own.start == own.stop:
            return np.zeros(len(t))
        t0, t1 = self.t0[own], self.t1[own]
        last = np.maximum(np.searchsorted(t0, t, side="right") - 1, 0)
        return self.before[own][last] + np.clip(t, t0[last], t1[last]) - t0[last]

    def shares(self, t0: float, t1: float, columns: int, rows: int = 0) -> np.ndarray:
        """(len(self.phases), rows, columns): the share of each column of [t0, t1) ms that each of
        the phases takes. Rows are seats, or where they are fewer, the mean of their seats."""
        rows, edges = rows or self.seats, np.linspace(t0, t1, columns + 1)
        shares = np.zeros((len(self.phases), rows, columns))
        seats_of = [
            range(r * self.seats // rows, (r + 1) * self.seats // rows) for r in range(rows)
        ]
        for k, phase in enumerate(self.phases):
            for row, seats in enumerate(seats_of):
                upto = sum(self.upto(seat, phase, edges) for seat in seats)
                shares[k, row] = np.diff(upto) * (columns / (t1 - t0) / len(seats))
        return shares

    def count(self, t0: float, t1: float) -> int:
        """How many segments have a part in [t0, t1) ms."""
        lasting = sum(high - low for low, high in self._slices(t0, t1))
        return lasting + int(np.diff(np.searchsorted(self.lost_at, (t0, t1)))[0])

    def preempted(self, t0: float, t1: float, columns: int) -> np.ndarray:
        """(columns,) how many seats were lost to preemption in each column of [t0, t1) ms."""
        return np.diff(np.searchsorted(self.lost_at, np.linspace(t0, t1, columns + 1)))

    def slice(self, t0: float, t1: float) -> np.ndarray:
        """Their places in run.segments."""
        parts = [self.order[low:high] for low, high in self._slices(t0, t1)]
        low, high = np.searchsorted(self.lost_at, (t0, t1))
        return np.concatenate([self.lost[low:high], *parts])

    def _slices(self, t0: float, t1: float) -> list[tuple[int, int]]:
        found = []
        for begin, end in pairwise(self.offsets.tolist()):
            if begin == end:
                continue
            low = begin + int(np.searchsorted(self.t1[begin:end], t0, side="right"))
            high = begin + int(np.searchsorted(self.t0[begin:end], t1))
            if high > low:
                found.append((low, high))
        return found


@once
def index(run: Run) -> Index:
    """Of a run, made once: it takes 28 bytes a segment."""
    s = run.segments
    seats = int(s["seat"].max(initial=-1)) + 1
    group = s["seat"].astype(np.int32) * len(PHASES) + s["phase"]
    lasting = np.flatnonzero(s["phase"] != PREEMPTED).astype(np.int32)
    order = lasting[np.lexsort((s["t0"][lasting], group[lasting]))]
    group, t0, t1 = group[order], s["t0"][order], s["t1"][order]
    offsets = np.searchsorted(group, np.arange(seats * len(PHASES) + 1))
    upto = np.append(0.0, np.cumsum(t1 - t0))[:-1]
    before = upto - upto[np.minimum(offsets[group], max(0, len(upto) - 1))]
    lost = np.flatnonzero(s["phase"] == PREEMPTED).astype(np.int32)
    lost = lost[np.argsort(s["t0"][lost], kind="stable")]
    return Index(seats, order, t0, t1, before, offsets, lost, s["t0"][lost])


@jit()
def _columns(row, t0, scale, columns):
    """(first, last + 1) of the columns that a row of like steps has a part in; none if before."""
    ended = row.t0 + row.ms * row.repeats
    if ended <= t0:
        return 0, 0
    first = max(0, int(np.floor((row.t0 - t0) * scale)))
    return first, min(columns, max(first + 1, int(np.ceil((ended - t0) * scale))))


@jit(
    numba.void(
        numba.from_dtype(STEP)[::1],
        numba.float64,
        numba.float64,
        numba.int64,
        numba.float64[:, ::1],
    )
)
def _of_steps(steps, t0, scale, blocks, most):
    for k in range(len(steps)):
        row = steps[k]
        first, last = _columns(row, t0, scale, most.shape[1])
        for x in range(first, last):
            most[0, x] = max(most[0, x], row.prefill)
            most[1, x] = max(most[1, x], row.decodes)
            most[2, x] = max(most[2, x], row.ms)
            most[3, x] = max(most[3, x], row.kv)
            most[4, x] = max(most[4, x], blocks - row.free)


@jit(numba.void(numba.from_dtype(TICK)[::1], numba.float64, numba.float64, numba.float64[::1]))
def _of_ticks(ticks, t0, scale, worst):
    for k in range(len(ticks)):
        row = ticks[k]
        first, last = _columns(row, t0, scale, len(worst))
        for x in range(first, last):
            worst[x] = max(worst[x], row.ms)


@once
def _begins(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ms at which run.steps begin, and run.ticks(); and when each tick and all before it were over:
    one may begin before another and end after it."""
    ticks = run.ticks()
    over = np.maximum.accumulate(ticks["t0"] + ticks["ms"] * ticks["repeats"])
    return np.ascontiguousarray(run.steps["t0"]), np.ascontiguousarray(ticks["t0"]), over


def steps_between(run: Run, t0: float, t1: float) -> np.ndarray:
    """The rows of run.steps in [t0, t1) ms, and the one before."""
    begins = _begins(run)[0]
    low, high = np.searchsorted(begins, t0, side="right"), np.searchsorted(begins, t1)
    return run.steps[max(0, int(low) - 1) : int(high)]


def ticks_between(run: Run, t0: float, t1: float) -> np.ndarray:
    """Those of run.ticks() that have a part in [t0, t1) ms; some that are over by then, too."""
    _, begins, over = _begins(run)
    low, high = np.searchsorted(over, t0, side="right"), np.searchsorted(begins, t1)
    return run.ticks()[int(low) : int(high)]


def most(run: Run, t0: float, t1: float, columns: int) -> dict[str, np.ndarray]:
    """The largest of each of OF_STEPS among the steps that have a part in each column, (columns,).

    kv in tokens, held in blocks.
    """
    found = np.zeros((len(OF_STEPS), columns))
    steps = np.ascontiguousarray(steps_between(run, t0, t1))
    _of_steps(steps, t0, columns / (t1 - t0), run.blocks, found)
    return dict(zip(OF_STEPS, found, strict=True))


def worst_itl(run: Run, t0: float, t1: float, columns: int) -> np.ndarray:
    """(columns,) ms: the longest gap between tokens under each column; 0 where nobody decodes."""
    worst = np.zeros(columns)
    _of_ticks(np.ascontiguousarray(ticks_between(run, t0, t1)), t0, columns / (t1 - t0), worst)
    return worst


class Events:
    """When requests that were let in stood in the line, had a seat and left it, and lost one and
    had it back."""

    def __init__(self, run: Run):
        served = run.served
        self.arrivals = np.sort(run.queued[run.requests["refused"] == 0])
        self.starts, self.ends = (np.sort(served[name]) for name in ("start", "finish"))
        self.lost, self.back = again(run)

    def waiting(self, t: np.ndarray) -> np.ndarray:
        """How many wait for a seat at each time of `t`."""
        return self._between(self.arrivals, self.starts, t) + self._between(self.lost, self.back, t)

    def running(self, t: np.ndarray) -> np.ndarray:
        """How many have one."""
        return self._between(self.starts, self.ends, t) - self._between(self.lost, self.back, t)

    @staticmethod
    def _between(since: np.ndarray, until: np.ndarray, t: np.ndarray) -> np.ndarray:
        came, gone = (np.searchsorted(times, t, side="right") for times in (since, until))
        return came - gone


@once
def events(run: Run) -> Events:
    return Events(run)
