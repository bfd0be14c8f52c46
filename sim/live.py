"""A run that is watched while it goes: what is done to it is a script, and time is asked for.

The state at time t is a function of the scenario, the script and t: nothing depends on when it was
looked at. An action at t concerns requests that arrive and steps that begin at t or later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from .costs import COSTS
from .engine import FOREVER, FULL, STUCK, simulate
from .parameter import ScenarioError
from .policies import POLICIES, in_force
from .run import Run, _requests, door, opened, pool, stuck
from .scenario import LIMITS, TRAFFIC, Scenario, Variant
from .state import ADMITTED, DECODE, HELD, SEGMENT, STOPS, Limits, enlarged
from .traffic import LONGEST, Traffic
from .workload import Workload, draw

# Limits that a plan looks at anew in each step; with the others a server is built.
CHANGES = (
    "max_num_seqs",
    "chunk",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "watermark",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "schedule_conservativeness",
)
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
    actions = sorted((_action(part, scenario) for part in parts), key=lambda action: action.t)
    variants = list(scenario.variants)
    for action in actions:  # each must fit what those before it have made of the variants
        for k, variant in enumerate(variants):
            variants[k] = _after(action, k, variant, scenario)
            if variants[k] != variant:
                replace(scenario, variants=(variants[k],), baseline=0).check()
    return tuple(actions)


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
        _whole(text, value.removeprefix("-"), 0, 1_000_000)


def _rate(text, kind, values, scenario) -> None:
    if "rate" not in scenario.traffic.uses:
        raise ScenarioError(f"live {text!r}: arrivals {scenario.traffic.arrivals} have no rate")
    TRAFFIC["rate"].parse(values[0] if values else "")


def _limit(text, kind, values, scenario) -> None:
    LIMITS[kind].parse(values[0] if values else "")


def _policy(text, kind, values, scenario) -> None:
    if len(values) != 2:
        raise ScenarioError(f"live {text!r} needs a variant's number and a policy: {EXAMPLE}")
    _whole(text, values[0], 0, len(scenario.variants) - 1)


def _after(action: Action, k: int, variant: Variant, scenario: Scenario) -> Variant:
    """What variant k is from the action on. ScenarioError if it can't become that."""
    own = dict(variant.changes)
    if action.kind in CHANGES:
        own[action.kind] = LIMITS[action.kind].parse(action.values[0])
        return Variant(variant.name, tuple(own.items()))
    if action.kind != "policy" or int(action.values[0]) != k:
        return variant
    limits = scenario.limits_of(variant)
    fitting = interchangeable(variant.policy, limits)
    if action.values[1] not in fitting:
        raise ScenarioError(
            f"live {str(action)!r}: {variant.policy} can become"
            f" {', '.join(fitting) or 'no other'} while it goes"
        )
    usual = scenario.limits._asdict()  # of a preset, the limits stay as they are
    own |= {name: value for name, value in limits._asdict().items() if value != usual[name]}
    return Variant(action.values[1], tuple(own.items()))


def interchangeable(policy: str, limits: Limits) -> list[str]:
    """Policies that can take over from this one in mid-run: they keep the same books."""

    def books(name: str) -> tuple:
        p, now = POLICIES[name], in_force(name, limits)
        cuts = [limit in p.keeps for limit in ("num_gpu_blocks", "max_model_len")]
        line = p.ranks, now.async_scheduling, now.enable_prefix_caching
        return p.paged, p.null_blocks, p.margin, p.radix, p.door, *cuts, *line

    if policy == "static":
        return []
    return [
        name for name in POLICIES if name not in (policy, "static") and books(name) == books(policy)
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
    ranks, prefix, hashes = work.priority, work.prefix, work.hashes
    if ranks is None and priority:
        ranks = np.zeros(len(work))
    if hashes is not None:  # its blocks are nobody else's
        hashes = hashes[0], np.insert(hashes[1], k, hashes[1][k]), hashes[2]
    return replace(
        work,
        arrival=np.insert(work.arrival, k, t),
        prompt=np.insert(work.prompt, k, prompt),
        output=np.insert(work.output, k, output),
        limit=np.insert(work.limit, k, output),
        priority=None if ranks is None else np.insert(ranks, k, priority),
        prefix=prefix and (np.insert(prefix[0], k, -1), np.insert(prefix[1], k, 0)),
        hashes=hashes,
    )


class Lane:
    """One variant on its way."""

    def __init__(self, scenario: Scenario, k: int, actions: Sequence[Action], work: Workload):
        self.scenario, self.k, self.work = scenario, k, work
        self.variant = scenario.variants[k]
        self.label = self.variant.label
        price = scenario.cost_of(self.variant)
        self.cost, self.coef = COSTS[price.cost], np.array(price.coefficients)
        self.refused = door(work, self.policy, self.limits)
        self.inside = np.flatnonzero(self.refused == ADMITTED)
        self.changes = [a for a in actions if a.kind in (*CHANGES, "policy")]
        seats = [int(a.values[0]) for a in actions if a.kind == "max_num_seqs"]
        self.state: Any = opened(
            work.rows(self.inside),
            self.policy,
            self.limits._replace(max_num_seqs=max(self.limits.max_num_seqs, *seats, 0)),
            scenario.host_of(self.variant),
            price.front_ms,
        )
        self.state.n.seats = self.limits.max_num_seqs

    @property
    def policy(self) -> str:
        return self.variant.policy

    @property
    def limits(self) -> Limits:
        return in_force(self.policy, self.scenario.limits_of(self.variant))

    def advance(self, until: float) -> None:
        """Take every step that begins before `until` ms."""
        while self.changes and self.changes[0].t <= until:
            self._advance(float(self.changes[0].t))
            self.variant = _after(self.changes.pop(0), self.k, self.variant, self.scenario)
            self.state.n.seats = self.limits.max_num_seqs
        self._advance(until)

    def _advance(self, until: float) -> None:
        plan, ms, steady = POLICIES[self.policy].plan, self.cost.ms, self.cost.steady
        limits, state = self.limits, FULL
        while state == FULL:
            state = simulate(plan, ms, self.coef, self.state, limits, steady, FOREVER, until)
            if state == FULL:
                self.state = enlarged(self.state)
        if state == STUCK:
            raise ScenarioError(stuck(self.state, self.policy, self.inside))

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
            self.label, "simulated", len(s.seats), pool(self.policy, self.limits),
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
            return {"prompts": {}, "decodes": [], "ms": 0.0, "head": -1, "stop": ""}
        step = s.steps[n.steps - 1]
        seated = s.seats[s.seats >= 0]
        prompts = {int(i): int(r.granted[i]) for i in seated if r.granted[i] > 0}
        closed = s.grants[max(0, n.grants - 3 * len(s.seats)) : n.grants]
        for grant in closed[(closed.step1 == n.steps) & (closed.step0 < n.steps)]:
            prompts[int(grant.request)] = int(grant.tokens)
        ended = s.segments[max(0, n.segments - 6 * len(s.seats)) : n.segments]
        ended = ended[(ended.phase == DECODE) & (ended.t0 <= step.t0) & (ended.t1 > step.t0)]
        going = seated[(r.phase[seated] == DECODE) & (r.since[seated] <= step.t0)]
        decodes = np.append(ended.request, going) if step.decodes else going[:0]
        return {
            "prompts": {int(self.inside[i]): tokens for i, tokens in sorted(prompts.items())},
            "decodes": np.unique(self.inside[decodes]).tolist(),
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

    @classmethod
    def of(cls, query: Mapping[str, Sequence[str]], trace=None) -> "Session":
        """The session that `to_query` wrote, from its start. ScenarioError if it can't be had."""
        scenario, problems = Scenario.from_query(query)
        if problems:
            raise ScenarioError(problems[0])
        return cls(scenario, parse(query.get("live", [""])[-1], scenario), trace)

    def to_query(self) -> dict[str, list[str]]:
        """The scenario and the script, as an address has them: all that there is to save."""
        done = {"live": [written_script(self.actions)]} if self.actions else {}
        return self.scenario.to_query() | done

    @property
    def traffic(self) -> Traffic:
        return self.scenario.traffic

    def link(self) -> str:
        """What follows the host in the page's address."""
        query = urlencode(self.to_query(), doseq=True, safe=":=,/;")
        return f"/live?{query}" if query else "/live"

    def advance(self, until: float) -> None:
        """Let the clock be `until` ms; it never goes back."""
        for lane in self.lanes:
            lane.advance(until)
        self.t = max(self.t, until)

    def act(self, kind: str, *values: str) -> "Session":
        """The same session, with this done now: as if it had been in the script from the start."""
        now = f"{int(np.ceil(self.t))}:{kind}:{':'.join(values)}"
        actions = parse(f"{written_script(self.actions)};{now}", self.scenario)
        again = Session(self.scenario, actions, self.trace)
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
