"""Recordings of SGLang's scheduler, replayed: every key of every step."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .batch import decay_ratio
from .costs import COSTS
from .engine import commit, is_full, open_step
from .golden import recording
from .memory import kv_of
from .policies import POLICIES
from .run import door, opened
from .state import DEATHS, PREEMPTED, Limits, State, enlarged
from .workload import Workload

NAMES = {
    "max_running_requests": "max_num_seqs",
    "page_size": "block_size",
    "context_len": "max_model_len",
}
STEPS = 8  # without anything to do, after which a recording ends as stalled


@recording("config", "workload", "steps", "mode", "config.max_running_requests", "config.page_size")
def sglang(r: dict) -> str | None:
    """Decisions of SGLang 0.5.18's scheduler; time in microseconds or in steps."""
    limits, rows, timed = _limits(r["config"]), r["workload"], r["mode"] == "time"
    policy = {"fcfs": "sglang", "lpm": "sglang_lpm"}[r["config"]["schedule_policy"]]
    arrival, prompt, output = (
        np.array([row[name] for row in rows])
        for name in ("arrival_us" if timed else "arrival_step", "prompt_len", "out_len")
    )
    limit = np.array([row.get("max_new", row["out_len"]) for row in rows])
    identities = _identities(rows, limits.block_size) if limits.enable_prefix_caching else None
    work = Workload(arrival.astype(float), prompt, output, limit, 0, None, None, identities)
    for i in np.flatnonzero(door(work, policy, limits))[:1]:
        return f"request {i} of {prompt[i]} tokens is refused at the door, recorded as served"
    names = ("base_us", "prefill_token_us", "decode_base_us", "decode_seq_us")
    cost = [r["cost_us"][name] for name in names] if timed else [1.0, 0.0, 0.0, 0.0]
    s = opened(work, policy, limits)
    ours = _steps(s, policy, limits, np.array(cost, float), timed)
    totals: dict[str, int] = dict.fromkeys(TOTALS, 0)
    for k, theirs in enumerate(_written_out(r["steps"])):
        got = next(ours, None)
        where = f"step {k} ({theirs['i']})"
        if got is None:
            return f"{where}: recorded, but we are done"
        for key in sorted(theirs.keys() | got.keys()):
            if got.get(key) != theirs.get(key):
                return f"{where}, {key}: {got.get(key)}, recorded {theirs.get(key)}"
        _count(totals, got)
    extra = next(ours, None)
    if extra is not None:
        return f"a step more than recorded: {extra}"
    end = "drained" if s.n.finished == len(rows) else DEATHS[s.n.died] or "stalled"
    whole: dict[str, Any] = {"totals": totals, "end": end}
    for key, value in whole.items():
        if value != r.get(key, value):
            return f"{key}: {value}, recorded {r[key]}"
    return None


def _limits(config: dict) -> Limits:
    usual = Limits()._asdict()
    named = {NAMES.get(name, name): value for name, value in config.items()}
    known = {name: type(usual[name])(value) for name, value in named.items() if name in usual}
    return Limits(**known)._replace(
        num_gpu_blocks=config["max_total_num_tokens"] // config["page_size"],
        enable_prefix_caching=int(not config["disable_radix_cache"]),
    )


def _identities(rows: list[dict], page: int) -> tuple[np.ndarray, np.ndarray]:
    """An id for each full page of each request, alike where all tokens up to its end are."""
    ids: dict[tuple, int] = {}
    flat, offsets = [], [0]
    for row in rows:
        own = [[f"{row['rid']}.prompt", 0, row["prompt_len"]]]
        pieces = [*row.get("segments", own), [f"{row['rid']}.out", 0, row["out_len"]]]
        tokens = [(stream, at + k) for stream, at, size in pieces for k in range(size)]
        last = -1
        for k in range(len(tokens) // page):
            last = ids.setdefault((last, *tokens[k * page : (k + 1) * page]), len(ids))
            flat.append(last)
        offsets.append(len(flat))
    return np.array(flat, np.int64), np.array(offsets)


def _written_out(steps: list[dict]) -> Iterator[dict]:
    """The recorded steps with all that is absent for being the same as something else."""
    end, decoded = None, []
    for step in steps:
        step = dict(step)
        if isinstance(step.get("d"), int):
            if len(decoded) != step["d"]:
                raise ValueError(f"step {step['i']} repeats {step['d']} of {len(decoded)} decodes")
            step["d"] = decoded
        decoded = step.get("d", decoded)
        if "t1" in step:
            step.setdefault("t0", end)
            end = step["t1"]
        step.setdefault("fb", step.get("fs"))
        yield {key: value for key, value in step.items() if value != [] and _counts(key, value)}


def _counts(key: str, value: object) -> bool:
    """Whether a 0 under this key says more than its absence."""
    return value != 0 or key in ("i", "t0", "part", "fs", "fb")


TOTALS = ("steps", "prefill_tokens", "decode_tokens", "retractions", "aborts", "cached_tokens")
TOTALS = (*TOTALS, "full_steps")


def _count(totals: dict[str, int], step: dict) -> None:
    counts = (
        1,
        sum(tokens for _, tokens in step.get("p", [])),
        len(step.get("d", [])),
        len(step.get("ret", [])),
        0,
        sum(tokens for _, tokens in step.get("hit", [])),
        step.get("full", 0),
    )
    for name, count in zip(TOTALS, counts, strict=True):
        totals[name] += count


def _steps(s: State, policy: str, limits: Limits, cost: np.ndarray, timed: bool) -> Iterator[dict]:
    """One step after the other, as the recordings have them."""
    plan, ms, n, index = POLICIES[policy].plan, COSTS["linear"].ms, s.n, 0
    r: Any = s.requests
    page, idle = limits.block_size, 0
    while n.finished < len(r) and idle < STEPS:
        if n.waiting + n.running == 0 and r.arrival[n.arrived] > n.now:
            open_step(s)
            plan(s, limits)  # with nothing to do, which is not recorded
            n.now = r.arrival[n.arrived]
        if is_full(s):
            s = enlarged(s)
        step: dict = {"i": index if timed else int(n.now)}
        if timed:
            step["t0"] = int(n.now)
        arrived, marks, before = n.arrived, n.segments, _progress(s)
        seated, preemptions = set(before), r.preemptions.copy()
        open_step(s)
        plan(s, limits)
        if n.died:
            return
        marks = s.segments[marks : n.segments]
        lost = marks["request"][marks["phase"] == PREEMPTED].tolist()
        batch = s.batch[: n.batch + n.joining, 0].tolist()
        granted = [i for i in s.prefilling[: n.prefilling].tolist() if r.grant[i] > 0]
        joined = [i for i in granted if i not in seated]
        step["arr"] = list(range(arrived, n.arrived))
        step["k"] = ("I", "D", "P", "M")[2 * (n.prefill > 0) + (n.decodes > 0)]
        step["p"] = [[i, int(r.grant[i])] for i in granted]
        step["d"] = [i for i in batch if i not in granted] if n.decodes else []
        step["new"] = [i for i in joined if preemptions[i] == 0]
        step["res"] = [i for i in joined if preemptions[i] > 0]
        step["hit"] = [[i, int(r.cached[i])] for i in joined if r.cached[i] > 0]
        step["ret"] = [[i, *before[i]] for i in lost]
        if n.partial >= 0:
            step["part"] = int(n.partial)
        step["fs"] = int(n.free) * page
        finished, ratio = n.finished, step["k"] != "D" or lost
        idle = idle + 1 if step["k"] == "I" else 0
        commit(s, ms(n, cost), 1)
        step["fin"] = [i for i in [*granted, *step["d"]] if not np.isnan(r.finish[i])]
        assert len(step["fin"]) == n.finished - finished
        step["fb"] = int(n.free) * page
        if len(s.nodes) > 0:
            step["av"] = int(n.blank) * page
        step["q"] = [int(n.running), int(n.waiting)]
        step["full"] = int(n.full > 0)
        if ratio:
            decay_ratio(s, limits)
            step["r"] = round(float(n.ratio), 6)
        if timed:
            step["t1"] = int(n.now)
        index += 1
        yield {key: value for key, value in step.items() if value != [] and _counts(key, value)}


def _progress(s: State) -> dict[int, tuple[int, int]]:
    """(tokens with KV, output tokens) of each request that has a seat."""
    r: Any = s.requests
    rows = {}
    for i in s.seats[s.seats >= 0].tolist():
        kv = int(kv_of(s, i))
        rows[i] = (kv, max(0, kv - int(r.prompt[i]) + 1))
    return rows
