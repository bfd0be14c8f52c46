"""Recordings of other programs, replayed: equal means equal as floats, bit for bit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .costs import COSTS
from .engine import commit, idles, is_full, open_step
from .memory import kv_of
from .parameter import ScenarioError
from .policies import POLICIES
from .run import opened, serve
from .state import DECODE, PREEMPTED, Limits, State, enlarged
from .traffic import Traffic
from .workload import Workload, draw


class Recording(NamedTuple):
    """A format: the keys that tell it, some of them within `config`, and the replay of a file,

    which says what differs first.
    """

    keys: frozenset[str]
    replay: Callable[[dict], str | None]


RECORDINGS: list[Recording] = []


def recording(*keys: str):
    def register(replay):
        RECORDINGS.append(Recording(frozenset(keys), replay))
        return replay

    return register


@recording("policy", "arrival_ms", "first_tok_ms", "finish_ms", "wall_ms")
def module08(r: dict) -> str | None:
    """A run of the course module's simulator, and its draw of the traffic from the seed."""
    traffic = Traffic(
        rate=r["rate_rps"],
        duration=r["duration_s"],
        seed=r["seed"],
        as_printed=int(r["arrival_unit"] != "ms"),
    )
    drawn = draw(traffic)
    limits = Limits(r["max_num_seqs"], r["max_num_batched_tokens"], r["chunk"])
    columns = [np.array(r[name]) for name in ("arrival_ms", "prompt_len", "out_len")]
    arrival, prompt, output = columns
    run = serve(
        Workload(arrival, prompt, output, output), r["policy"], limits, tuple(r["cost"].values())
    )
    pairs = {
        "arrival_ms": drawn.arrival,
        "prompt_len": drawn.prompt,
        "out_len": drawn.output,
        "first_tok_ms": run.requests["first"],
        "finish_ms": run.requests["finish"],
        "wall_ms": np.array([run.total]),
    }
    for name, ours in pairs.items():
        theirs = np.atleast_1d(r[name])
        if len(ours) != len(theirs):
            return f"{name}: {len(ours)} values, recorded {len(theirs)}"
        for i in np.flatnonzero(ours != theirs)[:1]:
            return f"{name} of request {i}: {ours[i]!r}, recorded {theirs[i]!r}"
    return None


@recording("config", "workload", "steps", "mode")
def vllm_v1(r: dict) -> str | None:
    """Decisions of vLLM's scheduler, every key of every step, or of every pass of its asynchronous
    loop; time in microseconds or in steps."""
    config, rows = r["config"], r["workload"]
    usual = Limits()._asdict()
    limits = Limits(**{n: type(usual[n])(config[n]) for n in usual if n in config})
    policy = "vllm_v1_priority" if config["policy"] == "priority" else "vllm_v1"
    timed = r["mode"] == "time"
    arrival, prompt, output = (
        np.array([row[name] for row in rows])
        for name in ("arrival_us" if timed else "arrival_step", "prompt_len", "out_len")
    )
    priority = np.array([row.get("priority", 0) for row in rows], float)
    ids = [row.get("block_ids", []) for row in rows]
    offsets = np.append(0, np.cumsum([len(x) for x in ids]))
    identities = np.array([x for row in ids for x in row], np.int64), offsets
    work = Workload(arrival.astype(float), prompt, output, output, 0, priority, None, identities)
    cost = (
        [
            r["cost_us"][k]
            for k in ("base_us", "prefill_token_us", "decode_base_us", "decode_seq_us")
        ]
        if timed
        else [1.0, 0.0, 0.0, 0.0]
    )
    s = opened(work, policy, limits)
    ahead = limits.async_scheduling == 1
    s.n.nap = r["cost_us"]["idle_sleep_us"] if ahead and timed else 1.0
    ours = (_passes if ahead else _steps)(s, policy, limits, np.array(cost, float), timed)
    taken: list[dict] = []
    for k, theirs in enumerate(r["steps"]):
        got = next(ours, None)
        if got is None:
            return f"step {k} ({theirs['i']}): recorded, but we are done"
        taken.append(got)
        if not timed:  # a nap is a moment of the clock
            got = {key: value for key, value in got.items() if key != "sl"}
        for key in sorted(theirs.keys() | got.keys()):
            if got.get(key) != theirs.get(key):
                return (
                    f"step {k} ({theirs['i']}), {key}: {got.get(key)}, recorded {theirs.get(key)}"
                )
    extra = next(ours, None)
    if extra is not None:
        return f"a step more than recorded: {extra}"
    whole: dict = {"totals": (_totals_of_passes if ahead else _totals)(taken), "end": "drained"}
    if s.n.finished < len(rows):
        line = [int(s.waiting[(s.n.head + k) % len(s.waiting)]) for k in range(s.n.waiting)]
        whole |= {"end": "stalled", "unfinished": {"running": _running(s), "waiting": line}}
    for key in ("end", "unfinished", "totals"):
        if whole.get(key) != r.get(key):
            return f"{key}: {whole.get(key)}, recorded {r.get(key)}"
    return None


def _totals(steps: list[dict]) -> dict[str, int]:
    """Of a whole run, as the recordings count them."""
    entries = [entry for step in steps for entry in step["s"]]
    return {
        "steps": len(steps),
        "sched_tokens": sum(entry[1] if isinstance(entry, list) else 1 for entry in entries),
        "preemptions": sum(len(step.get("pre", [])) for step in steps),
        "resumes": sum(len(step.get("res", [])) for step in steps),
        "cached_tokens": sum(tokens for step in steps for _, tokens in step.get("hit", [])),
    }


def _totals_of_passes(passes: list[dict]) -> dict[str, int]:
    planned = [step for step in passes if "s" in step]
    totals = _totals(planned)
    del totals["steps"]
    return totals | {
        "passes": len(passes),
        "stale_tokens": sum(len(step.get("st", [])) for step in passes),
        "empty_batches": sum(step["s"] == [] for step in planned),
        "sleeps": sum(step.get("sl", 0) for step in passes),
    }


def _steps(s: State, policy: str, limits: Limits, cost: np.ndarray, timed: bool) -> Iterator[dict]:
    """One step after the other, as the recordings have them."""
    ms, n, index = COSTS["linear"].ms, s.n, 0
    r: Any = s.requests
    idle = 0
    while n.finished < len(r) and idle < 8:
        if n.waiting + n.running == 0 and r.arrival[n.arrived] > n.now:
            n.now = r.arrival[n.arrived]
        if is_full(s):
            s = enlarged(s)
        step: dict = {"i": index if timed else int(n.now)}
        if timed:
            step["t0"] = int(n.now)
        entries, planned = _plan(s, policy, limits)
        step |= planned
        before = n.finished
        emitted = {i: _emitted(s, i) for i, _ in entries}
        if entries or "pre" in step or n.waiting:
            commit(s, ms(n, cost), 1)
        idle = 0 if entries or "pre" in step or n.arrived < len(r) else idle + 1
        done = [i for i, _ in entries if not np.isnan(r.finish[i])]
        step["nt"] = [i for i, _ in entries if i not in done and _emitted(s, i) == emitted[i]]
        step["fin"] = done
        assert len(done) == n.finished - before
        if n.free != step["fs"]:
            step["fb"] = int(n.free)
        step["q"] = [int(n.running), int(n.waiting)]
        if timed:
            step["t1"] = int(n.now)
        index += 1
        yield {key: value for key, value in step.items() if key == "s" or value != []}


def _passes(s: State, policy: str, limits: Limits, cost: np.ndarray, timed: bool) -> Iterator[dict]:
    """One pass of the asynchronous loop after the other, as the recordings have them."""
    ms, n, index = COSTS["linear"].ms, s.n, 0
    r: Any = s.requests
    flight: dict = {}  # the batch that is planned and not yet processed
    idle = 0
    while idle < 8:
        if n.waiting + n.running + n.flush + n.queued == 0:
            if n.arrived == len(r):
                return
            n.now = max(n.now, r.arrival[n.arrived])
            index = index if timed else max(index, int(n.now))
        if not timed:
            n.now = index
        if is_full(s):
            s = enlarged(s)
        step: dict = {"i": index}
        before, came = float(n.now), n.queued
        entries, planned = _plan(s, policy, limits, flight.get("tokens", []))
        lost = [row[0] for row in planned.get("pre", [])]
        asked = n.asked == 1
        step |= planned if asked else {k: v for k, v in planned.items() if k == "arr"}
        emitted = {i: _emitted(s, i) for i, _ in entries}
        running = set(_running(s)) | set(lost)
        if entries:
            commit(s, ms(n, cost) if timed else 0.0, 1)
        else:
            idles(s, 0.0, False)
        silent = [i for i, _ in entries if _emitted(s, i) == emitted[i]]
        step["nt"] = silent
        if timed:
            step["t"] = int(before)
            step |= {"t0": int(n.begins), "t1": int(n.until)} if entries else {}
        if came:
            step["u"] = flight["i"]
            step["st"] = [i for i in flight["tokens"] if i in lost]
            left = [i for i in flight["tokens"] if i in running and not np.isnan(r.finish[i])]
            step["fin"] = left
            if timed and max(before, flight["until"]) > before:
                step["te"] = int(flight["until"])
        if n.free != step.get("fs"):
            step["fb"] = int(n.free)
        step["q"] = [int(n.running), int(n.waiting)]
        slept = not entries and n.waiting + n.running + n.flush > 0
        step["sl"] = 1 if slept else []
        if asked:
            flight = {"i": index, "until": float(n.until) if entries else before}
            flight["tokens"] = [i for i, _ in entries if i not in silent]
        still = not entries and not lost and "fin" not in {k for k, v in step.items() if v}
        idle = idle + 1 if still and n.arrived == len(r) else 0
        index += 1
        yield {key: value for key, value in step.items() if key == "s" or value != []}


def _plan(
    s: State, policy: str, limits: Limits, in_flight: list[int] | None = None
) -> tuple[list[tuple[int, int]], dict]:
    """Plan a step: (id and tokens of all in it, in the order of admission, what is recorded of it).

    in_flight: whose last token so far is not processed yet; None: the scheduler knows no such.
    """
    n = s.n
    r: Any = s.requests
    arrived, seated = n.arrived, set(s.seats[s.seats >= 0].tolist())
    preemptions = r.preemptions.copy()
    computed = {i: (int(kv_of(s, i)), _emitted(s, i)) for i in seated}
    marks = n.segments
    open_step(s)
    POLICIES[policy].plan(s, limits)
    marks = s.segments[marks : n.segments]
    lost = marks["request"][marks["phase"] == PREEMPTED].tolist()
    running = _running(s)
    entries = [(i, 1 if r.phase[i] == DECODE else int(r.grant[i])) for i in running]
    entries = [(i, t) for i, t in entries if t > 0 and (r.phase[i] != DECODE or n.decodes > 0)]
    joined = [i for i in running if i not in seated or i in lost]
    step = {
        "arr": list(range(arrived, n.arrived)),
        "s": [i if t == 1 else [i, t] for i, t in entries],
        "new": [i for i in joined if preemptions[i] == 0],
        "res": [i for i in joined if preemptions[i] > 0],
        "hit": [[i, int(kv_of(s, i))] for i in joined if kv_of(s, i) > 0],
        "pre": [[i, *computed[i]] for i in lost],
        "fs": int(n.free),
    }
    if in_flight is not None:
        known = [(i, kv, outputs, int(i in in_flight)) for i, kv, outputs in step["pre"]]
        step["pre"] = [[i, kv, outputs - unknown, unknown] for i, kv, outputs, unknown in known]
    return entries, {key: value for key, value in step.items() if key == "s" or value != []}


def _emitted(s: State, i: int) -> int:
    r = s.requests[i]
    return int(r.output - (r.ends - s.n.ticks) if r.phase == DECODE else r.emitted)


def _running(s: State) -> list[int]:
    """Ids in order of admission."""
    ids, i = [], int(s.n.eldest)
    while i >= 0:
        ids.append(i)
        i = int(s.requests[i].after)
    return ids


def replay(path: Path) -> str | None:
    """What differs first between the recording at `path` and our run; None where all is equal."""
    try:
        content = json.loads(path.read_text())
        config = content.get("config") or {}
        keys = content.keys() | {f"config.{name}" for name in config}
        form = max(
            (f for f in RECORDINGS if f.keys <= keys), key=lambda f: len(f.keys), default=None
        )
        return form.replay(content) if form else "no recording of a known format"
    except (OSError, ValueError, AttributeError) as error:
        return f"can't be read: {error}"
    except (KeyError, TypeError, IndexError) as error:
        return f"lacks or misstates a field: {error!r}"


def replay_all(path: Path) -> dict[Path, str | None]:
    """The same for a file, or for each *.json of a folder. ScenarioError if there is none."""
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths or not paths[0].is_file():
        raise ScenarioError(f"{path} holds no recording: give a .json file or a folder of them")
    return {p: replay(p) for p in paths}


# A format of its own file registers itself when that is read.
from . import golden_sglang  # noqa: E402, F401
