"""A run that is watched while it goes: what is done to it is a script, and time is asked for.

The state at time t is a function of the scenario, the script and t: nothing depends on when it was
looked at. An action at t concerns requests that arrive and steps that begin at t or later.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numba
import numpy as np

from .costs import COST, COSTS
from .engine import DONE, FULL, PAUSED, STUCK, commit, idles, is_full, open_step
from .jit import jit
from .parameter import ScenarioError
from .policies import PLAN, POLICIES, in_force
from .run import Run, _requests, door, opened, pool, stuck
from .scenario import LIMITS as LIMIT_PARAMETERS
from .scenario import TRAFFIC, Scenario, Variant
from .state import ADMITTED, DECODE, HELD, LIMITS, SEGMENT, STATE, STOPS, enlarged
from .traffic import LONGEST
from .workload import Workload, draw

CHANGES = ("chunk", "max_num_batched_tokens")  # limits that may change while it goes
MOST = 200  # actions of a script


class Action(NamedTuple):
    """`5000:prompt:16384:64:0`, `7000:rate:50`, `8000:chunk:64`, `9000:policy:1:chunked`."""

    t: int  # ms
    kind: str  # prompt, rate, policy, or one of CHANGES
    values: tuple[str, ...]

    def __str__(self) -> str:
        return ":".join([str(self.t), self.kind, *self.values])

    @property
    def words(self) -> str:
        """As a person says it."""
        if self.kind == "prompt":
            prompt, output, priority = (*self.values, "0")[:3]
            urgent = f", priority {priority}" if priority != "0" else ""
            said = f"a prompt of {int(prompt):,} tokens, output {int(output):,}{urgent}"
        elif self.kind == "policy":
            said = f"variant {self.values[0]} becomes {self.values[1]}"
        else:
            said = f"{self.kind} becomes {self.values[0]}"
        return f"{self.t / 1e3:,.3f} s: {said}"


def parse(text: str, scenario: Scenario) -> tuple[Action, ...]:
    """The script in `text`, in order of time. ScenarioError for the first action that can't be."""
    parts = [part for part in text.split(";") if part]
    if len(parts) > MOST:
        raise ScenarioError(f"live has {len(parts)} actions: give at most {MOST}")
    actions = [_action(part, scenario) for part in parts]
    return tuple(sorted(actions, key=lambda action: action.t))


def written_script(actions: Sequence[Action]) -> str:
    return ";".join(map(str, actions))


def _action(text: str, scenario: Scenario) -> Action:
    t, _, rest = text.partition(":")
    kind, *values = rest.split(":")
    if not t.isdecimal() or len(t) > 9:
        raise ScenarioError(f"live {text[:40]!r} begins with no whole ms: write {EXAMPLE}")
    read = {"prompt": _prompt, "rate": _rate, "policy": _policy} | dict.fromkeys(CHANGES, _limit)
    if kind not in read:
        raise ScenarioError(f"live {text[:40]!r} is no action: write {EXAMPLE}")
    read[kind](text[:40], kind, values, scenario)
    return Action(int(t), kind, tuple(values))


EXAMPLE = "5000:prompt:16384:64, 7000:rate:50, 8000:chunk:64 or 9000:policy:1:chunked"


def _whole(text: str, value: str, low: int, high: int) -> int:
    if not (value.isdecimal() and len(value) < 10 and low <= int(value) <= high):
        raise ScenarioError(f"live {text!r}: {value[:20]!r} is not from {low:,} to {high:,}")
    return int(value)


def _prompt(text, kind, values, scenario) -> None:
    if scenario.traffic.arrivals == "closed":
        raise ScenarioError(f"live {text!r}: nobody drops in on a closed loop: choose arrivals")
    if not 2 <= len(values) <= 3:
        raise ScenarioError(f"live {text!r} needs prompt, output and perhaps priority: {EXAMPLE}")
    for value in values[:2]:
        _whole(text, value, 1, LONGEST)
    for value in values[2:]:
        _whole(text, value, 0, 1_000_000)


def _rate(text, kind, values, scenario) -> None:
    if "rate" not in scenario.traffic.uses:
        raise ScenarioError(f"live {text!r}: arrivals {scenario.traffic.arrivals} have no rate")
    TRAFFIC["rate"].parse(values[0] if values else "")


def _limit(text, kind, values, scenario) -> None:
    LIMIT_PARAMETERS[kind].parse(values[0] if values else "")
    for variant in scenario.variants:
        own = dict(variant.changes) | {kind: int(values[0])}
        replace(scenario, variants=(Variant(variant.name, tuple(own.items())),), baseline=0).check()


def _policy(text, kind, values, scenario) -> None:
    if len(values) != 2:
        raise ScenarioError(f"live {text!r} needs a variant's number and a policy: {EXAMPLE}")
    k = _whole(text, values[0], 0, len(scenario.variants) - 1)
    fitting = interchangeable(scenario.variants[k].policy)
    if values[1] not in fitting:
        raise ScenarioError(
            f"live {text!r}: {scenario.variants[k].policy} can become"
            f" {', '.join(fitting) or 'no other'} while it goes"
        )


def interchangeable(policy: str) -> list[str]:
    """Policies that can take over from this one in mid-run: they keep the same books."""
    p = POLICIES[policy]
    if policy == "static":
        return []
    return [
        q.name
        for q in POLICIES.values()
        if q.name not in (policy, "static")
        and (q.paged, q.null_blocks, q.margin, q.ranks)
        == (p.paged, p.null_blocks, p.margin, p.ranks)
        and ("num_gpu_blocks" in q.keeps) == ("num_gpu_blocks" in p.keeps)
    ]


def traffic_of(scenario: Scenario, actions: Sequence[Action], trace=None) -> Workload:
    """The scenario's requests, as the script lets them come."""
    work, rate = draw(scenario.traffic, trace), scenario.traffic.rate
    for action in actions:
        if action.kind == "rate":
            later = work.arrival > action.t
            wanted = float(action.values[0])
            sooner = action.t + (work.arrival - action.t) * (rate / wanted)
            work = replace(work, arrival=np.where(later, sooner, work.arrival))
            rate = wanted
        elif action.kind == "prompt":
            prompt, output, priority = (*map(int, action.values), 0)[:3]
            work = _with(work, float(action.t), prompt, output, priority)
    return work


def _with(work: Workload, t: float, prompt: int, output: int, priority: int) -> Workload:
    k = int(np.searchsorted(work.arrival, t, side="right"))

    def put(column, value):
        return None if column is None else np.insert(column, k, value)

    known = work.priority if work.priority is not None or not priority else np.ones(len(work))
    prefix = work.prefix and (np.insert(work.prefix[0], k, -1), np.insert(work.prefix[1], k, 0))
    return Workload(
        np.insert(work.arrival, k, t),
        np.insert(work.prompt, k, prompt),
        np.insert(work.output, k, output),
        np.insert(work.limit, k, output),
        work.clients,
        put(known, priority),
        prefix,
    )


@jit(
    numba.int64(
        numba.types.FunctionType(PLAN),
        numba.types.FunctionType(COST),
        numba.float64[::1],
        STATE,
        LIMITS,
        numba.boolean,
        numba.float64,
    )
)
def advance(plan, cost, coef, s, lim, stretch, until):
    """Take every step that begins before `until` ms. Returns as `simulate`; PAUSED: done so."""
    n = s.n
    while n.now < until:
        if n.finished == len(s.requests):
            return DONE
        if is_full(s):
            return FULL
        open_step(s)
        plan(s, lim)
        ms = cost(n, coef)
        if n.prefill + n.decodes + n.pad_decodes > 0:
            left = (until - n.now) / (ms + n.host) if ms > 0.0 and stretch else 1.0
            commit(s, ms, min(n.most, max(1, int(min(left, 1e9)))))
        elif not idles(s, ms, True):
            return STUCK
    return PAUSED


class Lane:
    """One variant on its way."""

    def __init__(self, scenario: Scenario, k: int, actions: Sequence[Action], work: Workload):
        variant = scenario.variants[k]
        self.label, self.policy, self.work = variant.label, variant.policy, work
        self.limits = in_force(self.policy, scenario.limits_of(variant))
        price = scenario.cost_of(variant)
        self.cost, self.coef = COSTS[price.cost], np.array(price.coefficients)
        self.refused = door(work, self.policy, self.limits)
        self.inside = np.flatnonzero(self.refused == ADMITTED)
        self.state: Any = opened(
            work.rows(self.inside),
            self.policy,
            self.limits,
            scenario.host_of(variant),
            price.front_ms,
        )
        self.changes = [
            a
            for a in actions
            if a.kind in CHANGES or (a.kind == "policy" and int(a.values[0]) == k)
        ]

    def advance(self, until: float) -> None:
        """Take every step that begins before `until` ms."""
        while self.changes and self.changes[0].t <= until:
            self._advance(float(self.changes[0].t))
            self._change(self.changes.pop(0))
        self._advance(until)

    def _change(self, action: Action) -> None:
        if action.kind == "policy":
            self.policy = action.values[1]
        else:
            self.limits = self.limits._replace(**{action.kind: int(action.values[0])})

    def _advance(self, until: float) -> None:
        plan, cost, steady = POLICIES[self.policy].plan, self.cost.ms, self.cost.steady
        while True:
            state = advance(plan, cost, self.coef, self.state, self.limits, steady, until)
            if state == STUCK:
                raise ScenarioError(stuck(self.state, self.policy, self.inside))
            if state != FULL:
                return
            self.state = enlarged(self.state)

    @property
    def done(self) -> bool:
        return bool(self.state.n.finished == len(self.state.requests))

    def run(self) -> Run:
        """What happened so far. Who waits has an infinite start, who runs an infinite finish; who
        has not come has neither."""
        s, n = self.state, self.state.n
        requests = _requests(s, self.work, self.inside)
        requests["refused"] = self.refused
        arrived = np.zeros(len(self.work), bool)
        arrived[self.inside[: n.arrived]] = True
        for name in ("start", "first", "last", "finish"):
            requests[name][arrived & np.isnan(requests[name])] = np.inf
        finish = requests["finish"][arrived]
        total = float(finish.max() if self.done and len(finish) else n.now)
        segments = np.concatenate([s.segments[: n.segments].view(np.ndarray), self._open()])
        steps, grants = (
            t.view(np.ndarray).copy() for t in (s.steps[: n.steps], s.grants[: n.grants])
        )
        gaps = s.gaps[: n.gaps].view(np.ndarray).copy()
        if len(self.inside) < len(self.work):
            for table in (segments, gaps, grants):
                table["request"] = self.inside[table["request"]]
            steps["head"] = np.where(steps["head"] < 0, -1, self.inside[steps["head"]])
        return Run(
            self.label, "simulated", self.limits.max_num_seqs, pool(self.policy, self.limits),
            self.limits.block_size, total, requests, steps, segments, gaps, grants,
        )  # fmt: skip

    def _open(self) -> np.ndarray:
        """The segments of who sits somewhere now, up to now."""
        s, rows = self.state, []
        for i in s.seats[s.seats >= 0].tolist():
            r = s.requests[i]
            if r.since < s.n.now:
                rows.append((r.since, s.n.now, i, int(r.phase == DECODE), r.seat, r.phase))
        return np.array(rows, SEGMENT)

    def now(self) -> dict:
        """Of the step taken last: who was in it, how many tokens each, who was kept out by what."""
        s, n = self.state, self.state.n
        r = s.requests
        if n.steps == 0:
            return {"prompts": {}, "decodes": 0, "ms": 0.0, "head": -1, "stop": ""}
        step = s.steps[n.steps - 1]
        seated = s.seats[s.seats >= 0]
        prompts = {int(i): int(r.granted[i]) for i in seated if r.granted[i] > 0}
        closed = s.grants[max(0, n.grants - 3 * len(s.seats)) : n.grants]
        for grant in closed[(closed.step1 == n.steps) & (closed.step0 < n.steps)]:
            prompts[int(grant.request)] = int(grant.tokens)
        return {
            "prompts": {int(self.inside[i]): tokens for i, tokens in sorted(prompts.items())},
            "decodes": int(step.decodes),
            "ms": float(step.ms),
            "head": int(self.inside[step.head]) if step.head >= 0 else -1,
            "stop": STOPS[step.stop],
        }

    @property
    def blocks(self) -> tuple[int, int]:
        """KV blocks held, and how many there are; 0: not accounted."""
        whole = pool(self.policy, self.limits)
        return (whole - int(self.state.n.free), whole) if whole else (0, 0)

    @property
    def counts(self) -> dict[str, int]:
        s, n = self.state, self.state.n
        held = sum(int(s.requests.phase[i]) == HELD for i in s.seats[s.seats >= 0].tolist())
        return {
            "waiting": int(n.waiting),
            "seated": int(n.running),
            "held": held,
            "finished": int(n.finished),
        }


class Session:
    """The variants of a scenario side by side on one clock, under one script."""

    def __init__(self, scenario: Scenario, actions: Sequence[Action] = (), trace=None):
        scenario.check()
        self.scenario, self.actions, self.trace = scenario, tuple(actions), trace
        self.t = 0.0
        work = traffic_of(scenario, actions, trace)
        scenario.check(len(work))
        self.lanes = [Lane(scenario, k, actions, work) for k in range(len(scenario.variants))]

    def advance(self, until: float) -> None:
        """Let the clock be `until` ms; it never goes back."""
        for lane in self.lanes:
            lane.advance(until)
        self.t = max(self.t, until)

    def act(self, kind: str, *values: str) -> "Session":
        """The same session, with this done now: as if it had been in the script from the start."""
        action = _action(f"{int(np.ceil(self.t))}:{kind}:{':'.join(values)}", self.scenario)
        again = Session(self.scenario, (*self.actions, action), self.trace)
        again.advance(self.t)
        return again

    def step(self) -> None:
        """The clock goes to the end of the baseline's next step."""
        s = self.lanes[self.scenario.baseline].state
        begins = float(s.n.now)
        if s.n.running + s.n.waiting == 0 and s.n.arrived < s.n.sendable:
            begins = max(begins, float(s.requests[s.n.arrived].arrival))
        self.advance(np.nextafter(max(begins, self.t), np.inf))
        self.advance(float(s.n.now))

    @property
    def done(self) -> bool:
        return all(lane.done for lane in self.lanes)

    def finish(self) -> list[Run]:
        """All the way. Returns the runs."""
        self.advance(np.inf)
        self.t = max(float(lane.state.n.until) for lane in self.lanes)
        return [lane.run() for lane in self.lanes]
