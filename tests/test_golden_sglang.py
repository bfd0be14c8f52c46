"""Recordings of SGLang's scheduler, and of its naive twin in their form, replayed."""

import copy
import json
import random
from pathlib import Path

import naive_sglang
import pytest
from naive_vllm import Request

from sim.__main__ import main
from sim.state import Limits

SHARED = Path(__file__).parents[2] / "shared" / "golden" / "sglang"

CONFIG = {
    "max_running_requests": 6,
    "max_total_num_tokens": 256,
    "page_size": 1,
    "context_len": 160,
    "chunked_prefill_size": 32,
    "max_prefill_tokens": 128,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 0.3,
    "disable_radix_cache": False,
    "enable_mixed_chunk": False,
    "ignore_eos": False,
    "disable_overlap_schedule": True,
}
COST_US = {"base_us": 200, "prefill_token_us": 20, "decode_base_us": 400, "decode_seq_us": 30}
LPM = {"schedule_policy": "lpm"}
UNCACHED = {"disable_radix_cache": True}


def rows(seed: int, requests: int, gap: int, longest: int = 70) -> list[dict]:
    """Prompts that begin with one of three streams, or with what an earlier request has said."""
    rng, now, made = random.Random(seed), 0, []
    for rid in range(requests):
        now += rng.choice([0, 0, rng.randint(0, gap), rng.randint(0, gap)])
        prompt, output = rng.randint(1, longest), rng.randint(1, 40)
        shared = min(prompt, rng.choice([0, rng.randint(0, longest), 40]))
        pieces = [[rng.choice("abc"), 0, shared]]
        if rid > 3 and rng.random() < 0.3:
            before = made[rng.randrange(rid)]
            own = [*before["segments"], [f"{before['rid']}.out", 0, before["out_len"]]]
            if sum(piece[2] for piece in own) < longest:
                pieces, shared = own, sum(piece[2] for piece in own)
                prompt = max(prompt, shared)
        pieces = [piece for piece in [*pieces, [f"{rid}", 0, prompt - shared]] if piece[2]]
        row = {"rid": rid, "arrival": now, "prompt_len": prompt, "out_len": output}
        if rng.random() < 0.5:
            row["max_new"] = output + rng.randint(0, 30)
        made.append(row | {"segments": pieces})
    return made


def requests_of(made: list[dict], page: int) -> list[Request]:
    requests = []
    for row in made:
        pieces = [*row["segments"], [f"{row['rid']}.out", 0, row["out_len"]]]
        tokens = [(stream, at + k) for stream, at, size in pieces for k in range(size)]
        pages = [tuple(tokens[k : k + page]) for k in range(0, len(tokens) - page + 1, page)]
        limit = row.get("max_new", row["out_len"])
        r = Request(
            row["rid"], row["arrival"], row["prompt_len"], row["out_len"], limit, 0.0, pages
        )
        r.opening = tuple(tokens[:32])
        requests.append(r)
    return requests


def limits_of(config: dict) -> Limits:
    return Limits(
        max_num_seqs=config["max_running_requests"],
        block_size=config["page_size"],
        num_gpu_blocks=config["max_total_num_tokens"] // config["page_size"],
        max_model_len=config["context_len"],
        chunked_prefill_size=config["chunked_prefill_size"],
        max_prefill_tokens=config["max_prefill_tokens"],
        schedule_conservativeness=config["schedule_conservativeness"],
        enable_prefix_caching=int(not config["disable_radix_cache"]),
        enable_mixed_chunk=int(config["enable_mixed_chunk"]),
        ignore_eos=int(config["ignore_eos"]),
    )


def recording(mode="step", seed=1, requests=24, gap=3, longest=70, **config) -> dict:
    """A run of the naive twin, in the form of SGLang's recordings."""
    config = CONFIG | config
    made = rows(seed, requests, gap, longest)
    if config["ignore_eos"]:
        made = [row | {"max_new": row["out_len"]} for row in made]
    twin = {"fcfs": naive_sglang.Sglang, "lpm": naive_sglang.SglangLpm}[config["schedule_policy"]]
    cost = tuple(COST_US.values()) if mode == "time" else (1, 0, 0, 0)
    twin = twin(requests_of(made, config["page_size"]), limits_of(config), cost)
    assert not twin.refused
    twin.run()
    if mode == "time":
        for index, (entry, step) in enumerate(zip(twin.log, twin.steps, strict=True)):
            entry |= {"i": index, "t0": int(step.t0), "t1": int(step.t0 + step.ms)}
    for row in made:
        row["arrival_us" if mode == "time" else "arrival_step"] = row.pop("arrival")
    return {
        "name": "twin",
        "mode": mode,
        "config": config,
        "end": twin.died or ("stalled" if twin.unfinished else "drained"),
        "cost_us": COST_US,
        "workload": made,
        "steps": twin.log,
    }
