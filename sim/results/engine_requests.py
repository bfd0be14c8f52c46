"""Requests as vLLM's engine saw them itself (LLMServingSim's bench)."""

from datetime import datetime

import numpy as np

from ..scenario import LIMITS
from . import Bads, Measured, numbers, result, run_of, spoken_notes, states_of
from .fit import of_requests

KEYS = ("input_toks", "output_toks", "arrival_time")
STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


@result(
    "vLLM engine requests",
    "json",
    "keys arrival_time, scheduled_ts, first_token_ts",
    lambda d: {*KEYS, *STAMPS} <= d.keys(),
    "input_toks output_toks queued_ts last_token_ts",
)
def engine_requests(rows, bad: Bads) -> list[Measured]:
    """arrival_time is an epoch, the *_ts are of a monotonic clock: the smallest distance between
    them, of the request that was queued at once, sets one against the other."""
    columns = {
        name: numbers([d.get(name) for _, d in rows], name, bad) for name in (*KEYS, *STAMPS)
    }
    good = np.all([np.isfinite(c) for c in columns.values()], axis=0)
    for k in np.flatnonzero(~good):
        lacking = next(name for name, c in columns.items() if not np.isfinite(c[k]))
        if rows[k][1].get(lacking) is None:
            bad.add(rows[k][0], f"{lacking} is not there")
    c = {name: values[good] for name, values in columns.items()}
    if not good.any():
        return []
    offset = float((c["queued_ts"] - c["arrival_time"]).min())
    zero = c["arrival_time"].min() + offset
    arrival = (c["arrival_time"] + offset - zero) * 1e3
    queued, start, first, last = ((c[name] - zero) * 1e3 for name in STAMPS)
    label = f"vLLM engine, {len(arrival):,} requests"
    run = run_of(
        label,
        arrival=arrival,
        prompt=c["input_toks"],
        output=c["output_toks"],
        ttft=first - arrival,
        e2e=last - arrival,
        start=start,
        total=float(last.max()),
    )
    late = float((queued - arrival).max())
    notes = [
        "two clocks: arrival_time is an epoch and the stamps are monotonic; set together by the"
        f" request that was queued at once (the others up to {late:.1f} ms later)",
        "TTFT is from arrival_time; from queued_ts its p99 is"
        f" {np.quantile(first - queued, 0.99):,.1f} ms",
    ]
    cost, fitted = of_requests(run)
    return [
        Measured(
            label=label,
            run=run,
            states=states_of(run),
            policy="vllm_v1",
            cost=cost,
            notes=[*notes, *spoken_notes(run), *fitted],
        )
    ]


@result(
    "vLLM engine run, its settings",
    "json",
    "keys engine_kwargs, vllm_version, num_requests",
    lambda d: isinstance(d.get("engine_kwargs"), dict) and "vllm_version" in d,
    "model started_at finished_at",
)
def engine_meta(rows, bad: Bads) -> list[Measured]:
    """What the engine was started with; its requests and samples stand in files beside it."""
    return [_meta(d) for _, d in rows]


def _meta(d: dict) -> Measured:
    given = {n: v for n, v in d["engine_kwargs"].items() if n in LIMITS and v is not None}
    limits = {n: float(v) for n, v in given.items() if isinstance(v, (bool, int))}
    began, ended = (datetime.fromisoformat(d[k]) for k in ("started_at", "finished_at"))
    seconds = (ended - began).total_seconds()
    unset = [n for n, v in d["engine_kwargs"].items() if n in LIMITS and v is None]
    notes = [
        f"settings alone, of {int(d['num_requests']):,} requests over {seconds:,.2f} s from"
        f" {began:%Y-%m-%d %H:%M:%S} (engine's start and end included): give requests.jsonl of the"
        " same folder for what was measured"
    ]
    notes += [f"{', '.join(unset)}: left to vLLM's own default"] if unset else []
    label = f"vLLM {d['vllm_version']}, {d.get('model', 'a model')}"
    return Measured(label=label, limits=limits, policy="vllm_v1", notes=notes)
