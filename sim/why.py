"""Why did it wait? TTFT and decode time of each request, split into causes that add up.

While a request waits, the time of each step goes to the limit that kept it out, as the scheduler
recorded it: a seat or the batch for everybody in the line; blocks or token budget for its head, and
for who stands behind, the one ahead. Before it stands there, time goes to the front end, whose
constant is part of the cost; and until the scheduler could see it, to the step in progress. In its
seat without a token, a prompt waits for budget. Inside a step that it has a part
in, cost goes to overhead, own tokens, others' decodes, others' prompts, in that order, each by what
adding it to the ones before it costs; padding counts as the others'. Waiting again after a
preemption, and tokens computed again, are causes of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
import pandas as pd

from .costs import COST, COSTS
from .jit import jit
from .metrics import METRICS
from .run import Run, once
from .scenario import Scenario, Variant
from .state import (
    BATCH,
    BLOCKS,
    BUDGET,
    COUNTERS,
    DECODE,
    GRANT,
    HELD,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    SEATS,
    STALL,
    STEP,
)

FRONT, ARRIVING, SEAT, JOINING, KV, TOKENS, AHEAD_KV, AHEAD_TOKENS = range(8)
AGAIN, OVERHEAD, OWN, RECOMPUTED, DECODES, PROMPTS = range(8, 14)
TTFT, DECODING = range(2)


class Part(NamedTuple):
    name: str
    label: str
    about: str


PARTS = (
    Part("front", "front end", "HTTP and tokeniser, a constant; it was in no line yet."),
    Part("step", "the step in progress", "It came while a step ran, or the scheduler napped."),
    Part("seat", "waiting for a seat", "Every seat was taken."),
    Part("batch", "waiting for the batch to end", "Nobody joins a batch that runs."),
    Part("blocks", "waiting for KV blocks", "It headed the line and its blocks were not free."),
    Part("budget", "waiting for token budget", "No tokens were left for it in the step."),
    Part("ahead_blocks", "behind one short of KV blocks", "The head of its line lacked blocks."),
    Part("ahead_budget", "behind one short of token budget", "The head of its line lacked tokens."),
    Part("preempted", "preempted, waiting again", "It had lost its seat and its KV."),
    Part("overhead", "overhead of its steps", "What a step costs with nothing in it."),
    Part("own", "its own tokens", "Its own prompt, and its own decodes."),
    Part("recomputed", "its own, computed again", "Its tokens after a preemption."),
    Part("decodes", "others' decodes", "Decodes that shared its steps."),
    Part("prompts", "others' prompts", "Prompts that shared its steps."),
)
NAMES = [part.name for part in PARTS]

# Rows [row0, row1) of the steps in which a request did one thing.
SPAN = np.dtype(
    [
        ("request", "i8"),
        ("into", "i8"),  # where its parts go
        ("kind", "i8"),  # a phase, or WAITING
        ("half", "i8"),  # TTFT or DECODING
        ("row0", "i8"),
        ("row1", "i8"),
        ("arrival", "f8"),  # in the line
        ("front", "f8"),  # ms before that
        ("idle", "f8"),  # ms of it that no step took
        ("kv", "i8"),  # of the request, at the span's begin
        ("grant", "i8"),  # where its grants begin
    ],
    align=True,
)
WAITING = 100


@jit()
def _share(cost, coef, n, row, times, span, own, kv, out):
    """The row's time for a request that is in its steps with `own` tokens. Returns the prompts'."""
    decodes = span.kind == DECODE
    n.prefill = n.prompts = n.decodes = n.pad_prefill = n.pad_decodes = n.late = n.kv = 0
    n.context = n.reread = n.attended = 0
    n.completed = row.completed  # that a prompt of it emits is the step's, and no one's own
    overhead = cost(n, coef)
    n.kv = kv
    if decodes:
        n.decodes, n.context = own, own * kv
    else:
        n.prefill, n.prompts = own, 1
        n.reread, n.attended = kv, own * kv + own * (own + 1) // 2
    with_own = cost(n, coef) if own > 0 else overhead
    n.kv = row.kv
    n.decodes, n.pad_decodes, n.context = row.decodes, row.pad_decodes, row.context
    with_decodes = cost(n, coef) if row.decodes + row.pad_decodes > 0 else with_own
    n.prefill, n.pad_prefill, n.prompts = row.prefill, row.pad_prefill, row.prompts
    n.reread, n.attended = row.reread, row.attended
    whole = cost(n, coef)
    out[OVERHEAD] += (overhead + row.ms - whole) * times  # what is no cost of tokens: the host's
    out[RECOMPUTED if span.kind == RECOMPUTE else OWN] += (with_own - overhead) * times
    out[DECODES] += (with_decodes - with_own) * times
    prompts = (whole - with_decodes) * times
    out[PROMPTS] += prompts
    return prompts


@jit()
def _is_of(grants, g, span):
    return g < len(grants) and grants[g].request == span.request


@jit(
    numba.void(
        numba.types.FunctionType(COST),
        numba.float64[::1],
        numba.from_dtype(COUNTERS),
        numba.from_dtype(STEP)[::1],
        numba.float64[::1],
        numba.from_dtype(GRANT)[::1],
        numba.from_dtype(SPAN)[::1],
        numba.float64[:, :, ::1],
        numba.float64[::1],
    )
)
def _split(cost, coef, n, steps, times, grants, spans, out, prompts):
    """Add the rows of each span with tokens, each of so many `times` its step, to out (rows,
    halves, parts); to `prompts`, where it has rows, what the prompts of others cost in each."""
    for k in range(len(spans)):
        span = spans[k]
        into, g, kv = out[span.into, span.half], span.grant, span.kv
        for at in range(span.row0, span.row1):
            row = steps[at]
            own = 0
            if span.kind == DECODE:
                own = 1 if row.decodes > 0 else 0
            else:
                while _is_of(grants, g, span) and grants[g].step1 <= at:
                    g += 1
                if _is_of(grants, g, span) and grants[g].step0 <= at:
                    own = grants[g].tokens
            cost_of_prompts = _share(cost, coef, n, row, times[at], span, own, kv, into)
            kv += own * row.repeats
            if len(prompts) > 0:
                prompts[at] += cost_of_prompts


# Where the time of a step goes for who waits, by what kept the head of the line out; and for the
# head itself. Everything else: the step in progress.
BEHIND = {SEATS: SEAT, BATCH: JOINING, BLOCKS: AHEAD_KV, BUDGET: AHEAD_TOKENS}
HEADING = {BLOCKS: KV, BUDGET: TOKENS}
SEATED = (PREFILL, DECODE, RECOMPUTE)  # with tokens in steps
# Where the time between steps goes (a queue of two has the scheduler nap), and that of the steps.
IDLE = {WAITING: ARRIVING, PREEMPTED: AGAIN} | dict.fromkeys((*SEATED, STALL), OVERHEAD)
PASSED = {PREEMPTED: AGAIN, STALL: TOKENS}


@dataclass(frozen=True, eq=False)
class Why:
    """The split of a run that was simulated with this cost model, request by request as asked."""

    run: Run
    cost: str
    coefficients: Sequence[float]

    @property
    def parts(self) -> np.ndarray:
        """Of all requests."""
        return self.parts_of(np.arange(len(self.run.requests)))

    def parts_of(self, ids: np.ndarray) -> np.ndarray:
        """(len(ids), 2, len(PARTS)) ms of each of `ids` (sorted), of TTFT and of decode time (first
        to last token); a request that was refused has none."""
        out = np.zeros((len(ids), 2, len(PARTS)))
        self._split(self.spans_of(ids), out, np.zeros(0))
        return out

    def spans_of(self, ids: np.ndarray) -> np.ndarray:
        """(k,) SPAN of the requests `ids` (sorted), by request and time."""
        spans = np.concatenate([self._waits(ids), self._seated(ids)])
        first = self.run.requests["first"][spans["request"]]
        began = np.append(self.run.steps["t0"], np.inf)[spans["row0"]]
        spans["into"] = np.searchsorted(ids, spans["request"])
        spans["half"] = np.where((spans["kind"] == WAITING) | (began < first), TTFT, DECODING)
        spans["grant"] = np.searchsorted(_grants(self.run)["request"], spans["request"])
        return spans[np.lexsort((spans["row0"], spans["request"]))]

    def _split(self, spans: np.ndarray, out: np.ndarray, prompts: np.ndarray) -> None:
        """Add the spans' time to out (rows, halves, parts); `prompts`: see the compiled part."""
        seated = np.isin(spans["kind"], SEATED)
        _add(out, spans, FRONT, "front")
        for kind, part in IDLE.items():
            _add(out, spans[spans["kind"] == kind], part, "idle")
        for kind, part in PASSED.items():
            own = spans[spans["kind"] == kind]
            for upto in _upto(self.run).values() if len(own) else ():
                _add(out, own, part, upto[own["row1"]] - upto[own["row0"]])
        self._wait(spans[spans["kind"] == WAITING], out)
        n = np.zeros(1, COUNTERS).view(np.recarray)[0]
        tables = (
            np.ascontiguousarray(t) for t in (self.run.steps, _grants(self.run), spans[seated])
        )
        steps, grants, spans = (t.view(np.recarray) for t in tables)
        coef = np.array(self.coefficients, float)
        ms = COSTS[self.cost].ms
        _split(ms, coef, n, steps, _times(self.run), grants, spans, out, prompts)

    def _wait(self, spans: np.ndarray, out: np.ndarray) -> None:
        """Add what who waits for a first seat waits for: the step that runs when it arrives, then
        each limit."""
        spans = spans[spans["row0"] < spans["row1"]]
        if not len(spans):
            return
        row0, row1, i = spans["row0"], spans["row1"], spans["request"]
        row = self.run.steps[row0]
        begun = np.ceil((spans["arrival"] - row["t0"]) / np.maximum(row["ms"], 1e-300) - 1e-9)
        begun = np.clip(begun, 0, row["repeats"])  # steps of that row, by its arrival
        until = row["t0"] + begun * row["ms"] - spans["arrival"]
        _add(out, spans, ARRIVING, np.where(begun > 0, np.maximum(until, 0.0), 0.0))
        rest = row["ms"] * np.maximum(0.0, _times(self.run)[row0] - begun)
        for stop, upto in _upto(self.run).items():
            ms = upto[row1] - upto[row0 + 1] + rest * (row["stop"] == stop)
            _add(out, spans, BEHIND.get(stop, ARRIVING), ms)
        for stop, part in HEADING.items():
            places, upto = _headed(self.run)[stop]
            first = i.astype(np.int64) * len(self.run.steps)
            low, high = (np.searchsorted(places, first + r) for r in (row0 + 1, row1))
            ms = upto[np.maximum(low, high)] - upto[low]
            ms += rest * ((row["stop"] == stop) & (row["head"] == i))
            _add(out, spans, part, ms)
            _add(out, spans, BEHIND[stop], -ms)

    def _waits(self, ids: np.ndarray) -> np.ndarray:
        """The span of each request from arrival to its first seat."""
        t0, r = self.run.steps["t0"], self.run.requests
        served = ids[r["refused"][ids] == 0]
        spans = np.zeros(len(served), SPAN)
        spans["request"], spans["kind"], spans["front"] = served, WAITING, self.run.front_ms
        spans["arrival"] = self.run.queued[served]
        before = (
            np.searchsorted(t0, spans["arrival"], side="right") - 1
        )  # the step in progress then
        spans["row0"] = np.maximum(0, before)
        spans["row1"] = np.searchsorted(t0, r["start"][served])
        spans["idle"] = _idle_until(self.run, r["start"][served]) - _idle_until(
            self.run, spans["arrival"]
        )
        return spans

    def _seated(self, ids: np.ndarray) -> np.ndarray:
        """What each request did from its first seat to its last token.

        All begins are steps' begins.
        """
        run = self.run
        asked = np.zeros(len(run.requests), bool)
        asked[ids] = True
        segments = run.segments[asked[run.segments["request"]]]
        segments = segments[segments["phase"] != HELD]
        keys = segments["phase"] != PREEMPTED, segments["t0"], segments["request"]
        segments = segments[np.lexsort(keys)]
        spans = np.zeros(len(segments), SPAN)
        spans["request"], spans["kind"] = segments["request"], segments["phase"]
        ends = segments["t1"].copy()
        lost = np.flatnonzero(segments["phase"] == PREEMPTED)
        following = (lost + 1) % max(
            1, len(segments)
        )  # until it has a seat again, unless it was done
        again = segments["request"][following] == segments["request"][lost]
        ends[lost] = np.where(again, segments["t0"][following], ends[lost])
        t0 = run.steps["t0"]
        spans["row0"], spans["row1"] = (
            np.searchsorted(t0, segments["t0"]),
            np.searchsorted(t0, ends),
        )
        spans["idle"] = _idle_until(self.run, ends) - _idle_until(self.run, segments["t0"])
        # KV when it begins to decode: the prompt's, or all that was lost and came back.
        kept = np.zeros(len(run.requests), np.int64) + run.requests["prompt"]
        decodes = segments["phase"] == DECODE
        spans["kv"][decodes] = kept[segments["request"][decodes]]
        return spans

    def of(self, i: int) -> pd.DataFrame:
        """Request i: (part, ttft, decode) ms, what plays no part left out."""
        table = pd.DataFrame(self.parts_of(np.array([i]))[0].T, columns=["ttft", "decode"])
        table.insert(0, "part", [part.label for part in PARTS])
        return pd.DataFrame(table[(table[["ttft", "decode"]].abs() > 1e-12).any(axis=1)])

    def delayed_by(self, i: int) -> pd.DataFrame:
        """Who delayed request i: (request, how, tokens, ms), the largest first.

        What prompts cost together in a step is shared by their tokens in it.
        """
        spans = self.spans_of(np.array([i]))
        return pd.concat(
            [
                self._shared(
                    i,
                    spans[np.isin(spans["kind"], SEATED)],
                    "its prompt ran in the same steps",
                ),  # fmt: skip
                self._shared(i, spans[spans["kind"] == STALL], "its prompt took the token budget"),
                self._ahead(i, spans[spans["kind"] == WAITING]),
            ]
        ).sort_values("ms", ascending=False, ignore_index=True)

    def _shared(self, i: int, spans: np.ndarray, how: str) -> pd.DataFrame:
        ms = np.zeros(len(self.run.steps))
        self._split(spans, np.zeros((1, 2, len(PARTS))), ms)
        low, high = spans["row0"].min(initial=len(ms)), spans["row1"].max(initial=0)
        steps, ms, times = self.run.steps[low:high], ms[low:high], _times(self.run)[low:high]
        g = _grants(self.run)
        g = g[(g["step1"] > low) & (g["step0"] < high)]
        for name in ("step0", "step1"):
            g[name] = np.clip(g[name] - low, 0, len(steps))
        within = np.zeros(len(steps), bool)
        for span in spans:
            rows = slice(span["row0"] - low, span["row1"] - low)
            within[rows] = True
            if span["kind"] == STALL:
                ms[rows] = steps["ms"][rows] * times[rows]
        others = steps["prefill"].astype(float)
        for grant in g[g["request"] == i]:
            others[grant["step0"] : grant["step1"]] -= grant["tokens"]
        price = np.where(others > 0, ms / np.maximum(others, 1), 0.0)
        cost = np.append(0.0, price.cumsum())
        counts = np.append(0, (within * steps["repeats"]).cumsum())
        theirs = g[(g["request"] != i) & (counts[g["step1"]] > counts[g["step0"]])]
        rows = pd.DataFrame(
            {
                "request": theirs["request"],
                "how": how,
                "tokens": theirs["tokens"] * (counts[theirs["step1"]] - counts[theirs["step0"]]),
                "ms": theirs["tokens"] * (cost[theirs["step1"]] - cost[theirs["step0"]]),
            }
        )
        return pd.DataFrame(rows.groupby(["request", "how"], as_index=False).sum())

    def _ahead(self, i: int, spans: np.ndarray) -> pd.DataFrame:
        rows = []
        for span in spans:
            steps = self.run.steps[span["row0"] : span["row1"]]
            steps = steps[np.isin(steps["stop"], (BLOCKS, BUDGET)) & (steps["head"] != i)]
            ends = steps["t0"] + steps["ms"] * steps["repeats"]
            ms = np.maximum(0.0, ends - np.maximum(steps["t0"], span["arrival"]))
            for head, stop, lasted in zip(steps["head"], steps["stop"], ms, strict=True):
                lacked = "KV blocks" if stop == BLOCKS else "token budget"
                rows.append((int(head), f"ahead in the line, short of {lacked}", 0, lasted))
        table = pd.DataFrame(rows, columns=["request", "how", "tokens", "ms"])
        return pd.DataFrame(table.groupby(["request", "how"], as_index=False).sum())


def _add(out: np.ndarray, spans: np.ndarray, part: int, ms: np.ndarray | str) -> None:
    """Add ms, or a column of the spans, to a part of out where each span's go."""
    np.add.at(
        out[:, :, part], (spans["into"], spans["half"]), spans[ms] if isinstance(ms, str) else ms
    )


def why(run: Run, cost: str, coefficients: Sequence[float]) -> Why:
    """Split the latencies of a run whose steps took what `cost` says."""
    return Why(run, cost, tuple(coefficients))


def why_variant(run: Run, scenario: Scenario, variant: Variant) -> Why:
    """The same of a run of this variant of the scenario."""
    price = scenario.cost_of(variant)
    return why(run, price.cost, price.coefficients)


# What the split asks of a run, whatever its steps cost: made once.


@once
def _grants(run: Run) -> np.ndarray:
    """(m,) GRANT, by request and time."""
    return run.grants[np.lexsort((run.grants["step0"], run.grants["request"]))]


@once
def _times(run: Run) -> np.ndarray:
    """(rows,) each row's repeats, as its begin and end have them, with their rounding."""
    steps = run.steps
    lasted, none = _ends(run) - steps["t0"], np.zeros(len(steps))
    return np.divide(lasted, steps["ms"], out=none, where=steps["ms"] > 0)


@once
def _upto(run: Run) -> dict[int, np.ndarray]:
    """By what kept the line's head out: (rows + 1,) ms that it did before each row."""
    stops, ms = run.steps["stop"], run.steps["ms"] * _times(run)
    return {k: np.append(0.0, (ms * (stops == k)).cumsum()) for k in np.unique(stops).tolist()}


@once
def _headed(run: Run) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """The same of each head of the line alone: (places (h,), ms before each (h + 1,)), a place
    being head * rows + row."""
    steps, found = run.steps, {}
    for stop in HEADING:
        rows = np.flatnonzero((steps["stop"] == stop) & (steps["head"] >= 0))
        places = steps["head"][rows].astype(np.int64) * len(steps) + rows
        order = np.argsort(places)
        ms = (steps["ms"] * _times(run))[rows[order]]
        found[stop] = places[order], np.append(0.0, ms.cumsum())
    return found


@once
def _gaps(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(rows,) ms after each row of steps in which none ran, and before it."""
    gaps = np.append(run.steps["t0"][1:], np.inf) - _ends(run)
    gaps[gaps < 1e-6] = 0.0
    return gaps, np.append(0.0, gaps[:-1].cumsum())


def _idle_until(run: Run, t: np.ndarray) -> np.ndarray:
    """ms before each of `t` in which no step ran, from the first step on."""
    ends, (gaps, whole) = _ends(run), _gaps(run)
    before = np.searchsorted(run.steps["t0"], t, side="right") - 1
    row = np.maximum(before, 0)
    inside = np.where(gaps[row] > 0, np.clip(t - ends[row], 0.0, gaps[row]), 0.0)
    return np.where(before >= 0, whole[row] + inside, 0.0)


@once
def _ends(run: Run) -> np.ndarray:
    """When each row of steps was over, ms."""
    steps = run.steps
    ends, by_product = np.append(steps["t0"][1:], run.total), steps["ms"] * steps["repeats"]
    by_product += steps["t0"]
    known = np.sort(run.served["last"])  # a row that nobody follows ends with somebody's last token
    last = known[np.maximum(0, np.searchsorted(known, by_product + 1e-6) - 1)]
    last = np.where(abs(last - by_product) < 1e-6, last, by_product)
    return np.where(abs(ends - by_product) < 1e-6, ends, last)


class Total(NamedTuple):
    """What the requests at or beyond a quantile of TTFT, or of decode time, waited for."""

    name: str
    q: float
    requests: int
    at: float  # ms, the quantile
    parts: np.ndarray  # (len(PARTS),) ms, summed over them

    @property
    def shares(self) -> np.ndarray:
        """% of each part."""
        whole = self.parts.sum()
        return 100 * self.parts / whole if whole > 0 else self.parts


def _served(run: Run, ids: np.ndarray | None) -> np.ndarray:
    """Of the requests `ids`, or of all, those that were let in."""
    served = run.requests["refused"] == 0
    return np.flatnonzero(served) if ids is None else ids[served[ids]]


def latency(run: Run, half: int) -> np.ndarray:
    """(n,) ms: TTFT (half 0) or decode time (1) of each request; nan: it was refused."""
    r = run.requests
    return r["first"] - r["arrival"] if half == TTFT else r["last"] - r["first"]


def total(split: Why, half: int, q: float, ids: np.ndarray | None = None) -> Total:
    """The parts of the requests whose TTFT (half 0) or decode time (1) is at or beyond the
    quantile q, of all or of `ids`."""
    ids = _served(split.run, ids)
    values, name = latency(split.run, half)[ids], ("TTFT", "decode time")[half]
    if not len(values):
        return Total(name, q, 0, np.nan, np.zeros(len(PARTS)))
    at = float(np.quantile(values, q))
    tail = ids[values >= at]
    return Total(name, q, len(tail), at, split.parts_of(tail)[:, half].sum(axis=0))


def worst(run: Run, metric: str, q: float = 0.99, ids: np.ndarray | None = None) -> np.ndarray:
    """Ids of the served requests, of all or of `ids`, at or beyond the quantile of a metric of
    requests, worst first."""
    ids = _served(run, ids)
    values = per_request(run, metric)[ids]
    known = np.isfinite(values)
    ids, values = ids[known], values[known]
    if not len(ids):
        return ids
    tail = values >= np.quantile(values, q)
    return ids[tail][np.argsort(-values[tail], kind="stable")]


def per_request(run: Run, metric: str) -> np.ndarray:
    """(n,) ms of each request under ttft, tpot, itl (its longest), e2e, queue or tpot_to_release;
    nan: none."""
    if metric == "itl":
        return longest_gap(run)
    r = run.requests
    several = np.where(r["output"] > 1, r["output"] - 1, np.nan)
    return {
        "ttft": r["first"] - r["arrival"],
        "tpot": (r["last"] - r["first"]) / several,
        "e2e": r["finish"] - r["arrival"],
        "queue": r["start"] - run.queued,
        "tpot_to_release": (r["finish"] - r["first"]) / several,
    }[metric]


def longest_gap(run: Run) -> np.ndarray:
    """(n,) ms: the longest gap between two tokens of each request; nan: none."""
    ticks = run.ticks()
    ms, ends = np.append(ticks["ms"], 0.0), ticks["t0"] + ticks["ms"] * ticks["repeats"]
    longest = np.full(len(run.requests), np.nan)
    segments = run.segments[run.segments["phase"] == DECODE]
    low = np.searchsorted(ticks["t0"], segments["t0"] - 1e-9)
    high = np.searchsorted(ticks["t0"], segments["t1"] - 1e-9)
    if len(ticks):  # who is preempted between two tokens has no part in that gap
        high -= ends[np.maximum(high - 1, 0)] > segments["t1"] + 1e-6
    some = high > low
    pairs = np.column_stack([low[some], high[some]]).ravel()
    if len(pairs):
        gaps = np.maximum.reduceat(ms, pairs)[::2]
        np.fmax.at(longest, _rows(run, segments["request"][some]), gaps)
    np.fmax.at(longest, _rows(run, run.gaps["request"]), run.gaps["ms"])
    return longest


def _rows(run: Run, requests: np.ndarray) -> np.ndarray:
    """Where the requests of these numbers stand in the run's table."""
    return requests if run.ids is None else np.searchsorted(run.ids, requests)


def rows_of(table: pd.DataFrame) -> Any:
    """Its rows, a column an attribute."""
    return table.itertuples()


def as_text(split: Why, i: int) -> str:
    """Request i's split as a terminal shows it."""
    r, table = split.run.requests[i], split.of(i)
    if r["refused"]:
        return f"{split.run.label}: request {i} was refused at the door."
    lines = [
        f"{split.run.label}: request {i}, prompt {r['prompt']:,}, output {r['output']:,}:"
        f" TTFT {r['first'] - r['arrival']:,.3f} ms, then {r['last'] - r['first']:,.3f} ms to its"
        " last token",
        f"  {'':<34}{'TTFT, ms':>14}{'decode, ms':>14}",
    ]
    for row in rows_of(table):
        lines.append(f"  {row.part:<34}{row.ttft:>14,.3f}{row.decode:>14,.3f}")
    sums = split.parts_of(np.array([i]))[0].sum(axis=1)
    lines.append(f"  {'together':<34}{sums[0]:>14,.3f}{sums[1]:>14,.3f}")
    delays = split.delayed_by(i).head(5)
    if len(delays):
        lines.append("  delayed most by")
    for row in rows_of(delays):
        tokens = f", {row.tokens:,} tokens" if row.tokens else ""
        lines.append(f"    request {row.request:<8} {row.ms:>12,.3f} ms  {row.how}{tokens}")
    return "\n".join(lines)


MEASURES = {name: METRICS[name].label for name in ("ttft", "tpot", "itl", "e2e", "queue")}
MEASURES["itl"] = "longest ITL"  # of a request
