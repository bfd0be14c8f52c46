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


def replayed(folder: Path, capsys, **recordings) -> tuple[int, str]:
    """Exit code and output for a folder that holds these recordings."""
    for name, content in recordings.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    code = main(["golden", str(folder)])
    return code, capsys.readouterr().out


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recordings of SGLang are not here")
def test_the_recordings_of_sglang_are_all_equal(capsys):
    assert main(["golden", str(SHARED)]) == 0
    assert capsys.readouterr().out == "10 of 10 equal\n"


@pytest.mark.parametrize("mode", ["step", "time"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        LPM,
        LPM | {"page_size": 4, "max_total_num_tokens": 512},
        {"page_size": 16, "max_total_num_tokens": 320},
        UNCACHED | {"schedule_conservativeness": 0.05},
        UNCACHED | {"page_size": 4, "schedule_conservativeness": 0.05},
        UNCACHED | {"chunked_prefill_size": -1},
        UNCACHED | {"ignore_eos": True, "max_running_requests": 4},
        {"enable_mixed_chunk": True, "max_total_num_tokens": 512},
        LPM | {"enable_mixed_chunk": True, "page_size": 16, "max_total_num_tokens": 1024},
        {"max_running_requests": 2, "schedule_conservativeness": 1.0},
    ],
    ids=str,
)
def test_recordings_of_the_naive_twin_are_equal(tmp_path, capsys, mode, config):
    gap = 4000 if mode == "time" else 3
    made = {f"seed{k}": recording(mode, seed=k, gap=gap, **config) for k in range(3)}
    code, out = replayed(tmp_path, capsys, **made)
    assert (code, out) == (0, "3 of 3 equal\n")


@pytest.fixture(scope="module")
def eventful() -> dict:
    """A recording with every key of a step."""
    made = recording("time", seed=0, requests=40, gap=4000, **EVENTFUL)
    assert {key for step in made["steps"] for key in step} == set(KEYS)
    return made


EVENTFUL = {"schedule_conservativeness": 0.02, "page_size": 4}
KEYS = ("i", "t0", "t1", "arr", "k", "p", "d", "new", "res", "hit", "part", "ret")
KEYS = (*KEYS, "fin", "fs", "fb", "av", "q", "full", "r")


def other(value):
    """The same with one thing changed, wherever the first one stands."""
    if isinstance(value, list):
        return [other(value[0]), *value[1:]]
    return {"P": "M", "D": "I", "M": "P", "I": "D"}[value] if isinstance(value, str) else value + 1


@pytest.mark.parametrize("key", KEYS)
def test_one_thing_changed_in_one_step_is_noticed_and_named(tmp_path, capsys, eventful, key):
    changed = copy.deepcopy(eventful)
    shown = "fb" if key == "fs" else key  # without it what is recorded as free is so at the end
    places = [k for k, step in enumerate(changed["steps"]) if step.get(key) and step.get(shown)]
    k = places[len(places) // 2]
    where = changed["steps"][k]["i"] + (key == "i")
    changed["steps"][k][key] = other(changed["steps"][k][key])
    code, out = replayed(tmp_path, capsys, changed=changed, equal=eventful)
    assert code == 1
    assert out.startswith(f"changed.json: step {k} ({where}), {key}: ")
    assert out.endswith("\n1 of 2 equal\n")


def test_repeated_decodes_may_be_written_as_their_number(tmp_path, capsys, eventful):
    short, last = copy.deepcopy(eventful), []
    for step in short["steps"]:
        now = step.get("d", last)
        if step.get("d") == last:
            step["d"] = len(last)
        last = now
    assert any(isinstance(step.get("d"), int) for step in short["steps"])
    assert replayed(tmp_path, capsys, short=short) == (0, "1 of 1 equal\n")


@pytest.mark.parametrize(
    ("key", "value"), [("end", "stalled"), ("totals", {"steps": 0}), ("totals", {})]
)
def test_an_end_or_totals_that_differ_are_noticed(tmp_path, capsys, eventful, key, value):
    code, out = replayed(tmp_path, capsys, changed=eventful | {key: value})
    assert code == 1
    assert f"changed.json: {key}: " in out


def test_a_step_less_or_more_than_ours_is_noticed(tmp_path, capsys, eventful):
    less, more = copy.deepcopy(eventful), copy.deepcopy(eventful)
    less["steps"].pop()
    more["steps"].append(more["steps"][-1])
    code, out = replayed(tmp_path, capsys, less=less, more=more)
    assert code == 1
    assert "less.json: a step more than recorded" in out
    assert out.endswith("0 of 2 equal\n")


def test_a_request_that_the_door_refuses_is_named(tmp_path, capsys):
    made = recording(requests=4)
    made["workload"][2]["prompt_len"] = 154
    code, out = replayed(tmp_path, capsys, made=made)
    assert code == 1
    assert "request 2 of 154 tokens is refused at the door" in out
