"""Recordings of vLLM's scheduler, and of the naive twin in their form, through the command line."""

import copy
import json
import random
from pathlib import Path

import naive_vllm as naive
import pytest

from sim.__main__ import main
from sim.state import Limits

SHARED = Path(__file__).parents[2] / "shared" / "golden"

CONFIG = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "block_size": 4,
    "num_gpu_blocks": 31,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 16,
    "long_prefill_token_threshold_adaptive": False,
    "policy": "fcfs",
    "enable_prefix_caching": False,
    "max_model_len": 96,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "async_scheduling": False,
}
COST_US = {"base_us": 200, "prefill_token_us": 20, "decode_base_us": 400, "decode_seq_us": 30}
PRIORITY = {"policy": "priority"}
CACHING = {"enable_prefix_caching": True, "num_gpu_blocks": 45}


def rows(seed: int, requests: int, gap: int) -> list[dict]:
    """Requests whose prompts are cut from four streams; `gap`: ticks between two, at most."""
    rng, now, made = random.Random(seed), 0, []
    for rid in range(requests):
        now += rng.randint(0, gap)
        prompt, output = rng.randint(1, 50), rng.randint(1, 40)
        stream, shared = rng.randint(0, 3), rng.randint(0, 40)
        made.append(
            {
                "rid": rid,
                "arrival": now,
                "prompt_len": prompt,
                "out_len": output,
                "priority": rng.randint(0, 2),
                "tokens": [
                    (stream, k) if k < min(prompt, shared) else (f"own {rid}", k)
                    for k in range(prompt + output)
                ],
            }
        )
    return made


def chained(made: list[dict], block: int):
    """Give each request an id for each of its full blocks, alike where all tokens up to it are."""
    ids: dict[tuple, int] = {}
    for row in made:
        tokens = row.pop("tokens")
        fronts = (tuple(tokens[: k + block]) for k in range(0, len(tokens) - block + 1, block))
        row["block_ids"] = [ids.setdefault(front, len(ids)) for front in fronts]


def recording(
    mode: str = "step", seed: int = 1, requests: int = 24, gap: int = 3, **config
) -> dict:
    """A run of the naive twin, in the form of vLLM's recordings."""
    config = CONFIG | config
    limits = Limits(**{k: v for k, v in config.items() if k in Limits._fields})
    made = rows(seed, requests, gap)
    chained(made, limits.block_size)
    policy = "vllm_v1_priority" if config["policy"] == "priority" else "vllm_v1"
    ahead = config["async_scheduling"]
    cost = tuple(COST_US.values()) if mode == "time" else (1, 0, 0, 0)
    kind = naive.POLICIES[policy]
    if ahead:
        kind = naive.ASYNCHRONOUS[policy]
        if mode == "step":
            kind, cost = naive.by_passes(kind), (0, 0, 0, 0)
    twin = kind(
        [
            naive.Request(
                row["rid"],
                row["arrival"],
                row["prompt_len"],
                row["out_len"],
                row["out_len"],
                row["priority"],
                row["block_ids"] if config["enable_prefix_caching"] else [],
            )
            for row in made
        ],
        limits,
        cost,
    )
    twin.why_refused = lambda r: ""
    twin.unsent, twin.refused = list(twin.requests), {}
    if ahead:
        twin.nap = 1000.0
    twin.run()
    steps = twin.log
    passes = {
        "passes": len(steps),
        "stale_tokens": sum(len(s.get("st", [])) for s in steps),
        "empty_batches": sum(s.get("s") == [] for s in steps),
        "sleeps": sum(s.get("sl", 0) for s in steps),
    }
    if ahead:
        moments = ("t", "t0", "t1", "te")
        for step in steps:
            step |= {key: int(step[key]) for key in moments if key in step}
        if mode == "step":
            steps = [{k: v for k, v in s.items() if k not in (*moments, "sl")} for s in steps]
    elif mode == "time":
        for index, (entry, step) in enumerate(zip(twin.log, twin.steps, strict=True)):
            entry |= {"i": index, "t0": int(step.t0), "t1": int(step.t0 + step.ms)}
    for row in made:
        row["arrival_us" if mode == "time" else "arrival_step"] = row.pop("arrival")
    running, waiting = ([r.id for r in line] for line in (twin.running, twin.waiting))
    unfinished = {"unfinished": {"running": running, "waiting": waiting}} if twin.unfinished else {}
    return {
        "name": "twin",
        "mode": mode,
        "config": config,
        "end": "stalled" if twin.unfinished else "drained",
        "cost_us": COST_US | ({"idle_sleep_us": 1000} if ahead else {}),
        "workload": made,
        "steps": steps,
        "totals": (passes if ahead else {"steps": len(steps)})
        | {
            "sched_tokens": sum(
                e[1] if isinstance(e, list) else 1 for s in steps for e in s.get("s", [])
            ),
            "preemptions": sum(len(s.get("pre", [])) for s in steps),
            "resumes": sum(len(s.get("res", [])) for s in steps),
            "cached_tokens": sum(hit[1] for s in steps for hit in s.get("hit", [])),
        },
    } | unfinished


def replayed(folder: Path, capsys, **recordings) -> tuple[int, str]:
    """Exit code and output for a folder that holds these recordings."""
    for name, content in recordings.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    code = main(["golden", str(folder)])
    return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def eventful() -> dict:
    """A recording with every key of a step: hits and preemptions among them."""
    found = recording("time", seed=5, requests=40, gap=4000, num_gpu_blocks=36, **PRIORITY)
    cached = recording("time", seed=5, requests=40, gap=4000, **PRIORITY | CACHING)
    assert any("pre" in step for step in found["steps"])
    assert any("hit" in step for step in cached["steps"])
    assert any("pre" in step for step in cached["steps"])
    return cached


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recordings of vLLM are not here")
def test_the_recordings_of_vllm_are_all_equal(capsys):
    assert main(["golden", str(SHARED / "vllm_v1")]) == 0
    assert capsys.readouterr().out == "22 of 22 equal\n"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the recordings of vLLM are not here")
def test_the_recordings_of_its_asynchronous_loop_are_all_equal(capsys):
    assert main(["golden", str(SHARED / "vllm_v1_async")]) == 0
    assert capsys.readouterr().out == "14 of 14 equal\n"


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("mode", ["step", "time"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        PRIORITY,
        CACHING,
        PRIORITY | CACHING,
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 96},
        {"scheduler_reserve_full_isl": False, "watermark": 0.05},
        {"long_prefill_token_threshold_adaptive": True, "max_num_seqs": 12},
        {"long_prefill_token_threshold": 0, **CACHING},
        {"block_size": 1, "num_gpu_blocks": 120, **PRIORITY},
        {"max_model_len": 60},
        {"max_model_len": 60, **CACHING},
    ],
    ids=str,
)
def test_recordings_of_the_naive_twin_are_equal(tmp_path, capsys, mode, config, ahead):
    gap, config = 4000 if mode == "time" else 3, config | {"async_scheduling": ahead}
    made = {f"seed{k}": recording(mode, seed=k, gap=gap, **config) for k in range(4)}
    code, out = replayed(tmp_path, capsys, **made)
    assert (code, out) == (0, "4 of 4 equal\n")


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("blocks", [8, 12, 16])
def test_a_recording_that_ends_stalled_is_equal(tmp_path, capsys, blocks, ahead):
    made = recording(num_gpu_blocks=blocks, requests=6, async_scheduling=ahead)
    assert made["end"] == "stalled"
    assert replayed(tmp_path, capsys, made=made) == (0, "1 of 1 equal\n")


def test_empty_steps_go_on_while_somebody_is_still_to_come(tmp_path, capsys):
    made = recording(num_gpu_blocks=8, requests=6, gap=40)
    empty = [step["s"] == [] for step in made["steps"]]
    assert any(all(empty[k : k + 12]) for k in range(len(empty) - 12))
    assert replayed(tmp_path, capsys, made=made) == (0, "1 of 1 equal\n")


def one_more(value):
    """The same with one number changed, wherever the first one stands."""
    if isinstance(value, int):
        return value + 1
    return [one_more(value[0]), *value[1:]] if value else [0]


@pytest.fixture(scope="module")
def eventful_passes() -> dict:
    """The same of the asynchronous loop: stale tokens and naps among its keys."""
    found = recording(
        "time", seed=1, requests=40, gap=4000, **PRIORITY | CACHING, async_scheduling=True
    )
    assert {key for step in found["steps"] for key in step} == {*KEYS_OF_PASSES}
    return found


KEYS = ("i", "t0", "t1", "arr", "s", "new", "res", "hit", "pre", "nt", "fin", "fs", "fb", "q")
KEYS_OF_PASSES = (*KEYS, "t", "u", "te", "st", "sl")


@pytest.mark.parametrize("key", KEYS_OF_PASSES)
def test_one_number_changed_in_one_pass_is_noticed_and_named(
    tmp_path, capsys, eventful_passes, key
):
    changed = copy.deepcopy(eventful_passes)
    places = [k for k, step in enumerate(changed["steps"]) if step.get(key)]
    k = places[len(places) // 2]
    changed["steps"][k][key] = one_more(changed["steps"][k][key])
    code, out = replayed(tmp_path, capsys, changed=changed, equal=eventful_passes)
    assert code == 1
    assert out.startswith(f"changed.json: step {k} ({changed['steps'][k]['i']}), {key}: ")
    assert out.endswith("\n1 of 2 equal\n")


@pytest.mark.parametrize("key", KEYS)
def test_one_number_changed_in_one_step_is_noticed_and_named(tmp_path, capsys, eventful, key):
    changed = copy.deepcopy(eventful)
    places = [k for k, step in enumerate(changed["steps"]) if step.get(key)]
    k = places[len(places) // 2]
    step = changed["steps"][k]
    step[key] = one_more(step[key])
    code, out = replayed(tmp_path, capsys, changed=changed, equal=eventful)
    assert code == 1
    where = step["i"]
    assert out.startswith(f"changed.json: step {k} ({where}), {key}: ")
    assert out.endswith("\n1 of 2 equal\n")


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("i", "t0", "t1", "s", "q")])
def test_a_key_left_out_of_one_step_is_noticed_and_named(tmp_path, capsys, eventful, key):
    changed = copy.deepcopy(eventful)
    k = next(k for k, step in enumerate(changed["steps"]) if step.get(key))
    del changed["steps"][k][key]
    code, out = replayed(tmp_path, capsys, changed=changed)
    assert code == 1
    assert out.startswith(f"changed.json: step {k} ")
    assert f", {key}: " in out


@pytest.mark.parametrize("total", ["sched_tokens", "preemptions", "resumes", "cached_tokens"])
def test_another_total_is_noticed(tmp_path, capsys, eventful, total):
    changed = eventful | {"totals": eventful["totals"] | {total: eventful["totals"][total] + 1}}
    code, out = replayed(tmp_path, capsys, changed=changed)
    assert code == 1
    assert out.startswith("changed.json: totals: ")


def test_another_list_of_the_unfinished_is_noticed(tmp_path, capsys):
    made = recording(num_gpu_blocks=8, requests=6)
    made["unfinished"]["waiting"].reverse()
    code, out = replayed(tmp_path, capsys, changed=made)
    assert code == 1
    assert out.startswith("changed.json: unfinished: ")


def test_a_step_less_or_more_than_ours_is_noticed(tmp_path, capsys, eventful):
    less, more = copy.deepcopy(eventful), copy.deepcopy(eventful)
    less["steps"].pop()
    more["steps"].append(more["steps"][-1])
    code, out = replayed(tmp_path, capsys, less=less, more=more)
    assert code == 1
    assert "less.json: a step more than recorded" in out
    assert "more.json: step " in out
    assert out.endswith("0 of 2 equal\n")


def test_a_stalled_recording_cut_short_is_noticed(tmp_path, capsys):
    made = recording(num_gpu_blocks=8, requests=6)
    del made["steps"][-4:]
    code, _ = replayed(tmp_path, capsys, made=made)
    assert code == 1


def test_a_recording_that_ended_otherwise_is_noticed(tmp_path, capsys):
    made = recording(num_gpu_blocks=8, requests=6) | {"end": "drained"}
    drained = recording(requests=6) | {"end": "stalled"}
    code, out = replayed(tmp_path, capsys, made=made, drained=drained)
    assert (code, out.splitlines()[-1]) == (1, "0 of 2 equal")


def swapped(step: dict, key: str):
    step[key][0], step[key][1] = step[key][1], step[key][0]


RULES = {
    "the running are served in another order": lambda step: swapped(step, "s"),
    "another victim is chosen": lambda step: step["pre"][0].__setitem__(0, step["s"][0]),
    "a victim loses its outputs": lambda step: step["pre"][0].__setitem__(2, 0),
    "a hit is a block longer": lambda step: step["hit"][0].__setitem__(1, step["hit"][0][1] + 4),
    "a hit is not found": lambda step: step.pop("hit"),
    "the new go before the resumed": lambda step: step.__setitem__("new", step.pop("res")),
    "a block is taken a step early": lambda step: step.__setitem__("fs", step["fs"] - 1),
    "a finish frees its blocks a step late": lambda step: step.pop("fb"),
    "a chunk emits a token": lambda step: step.pop("nt"),
    "the last token is computed as well": lambda step: step.pop("fin"),
    "a seat is kept": lambda step: step.__setitem__("q", [step["q"][0] + 1, step["q"][1]]),
    "who waits is skipped": lambda step: step["new"].__setitem__(0, step["new"][0] + 1),
    "an arrival is seen a step late": lambda step: step.pop("arr"),
    "a step costs a microsecond more": lambda step: step.__setitem__("t1", step["t1"] + 1),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_were_otherwise_is_noticed(tmp_path, capsys, eventful, rule):
    noticed = 0
    for k in range(len(eventful["steps"])):
        changed = copy.deepcopy(eventful)
        try:
            RULES[rule](changed["steps"][k])
        except (KeyError, IndexError, TypeError):
            continue
        if changed["steps"][k] == eventful["steps"][k]:
            continue
        code, out = replayed(tmp_path, capsys, changed=changed)
        assert code == 1
        assert f"step {k} (" in out
        noticed += 1
        if noticed == 3:
            return
    assert noticed > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workload": [{"rid": 0}]}, "lacks or misstates a field"),
        ({"config": {}}, "lacks or misstates a field"),
        ({"steps": None}, "lacks or misstates a field"),
        ({"steps": []}, "a step more than recorded"),
    ],
    ids=str,
)
def test_a_recording_that_lacks_something_is_named(tmp_path, capsys, change, said):
    code, out = replayed(tmp_path, capsys, changed=recording(requests=3) | change)
    assert code == 1
    assert f"changed.json: {said}" in out


@pytest.mark.parametrize("size", [-1, 1])
def test_prefix_ids_of_the_wrong_length_are_named(tmp_path, capsys, size):
    made = recording(requests=4, **CACHING)
    ids = made["workload"][2]["block_ids"]
    made["workload"][2]["block_ids"] = ids[:size] if size < 0 else [*ids, 9999]
    code, out = replayed(tmp_path, capsys, made=made)
    assert code == 1
    assert "made.json: can't be read: request 2 has " in out
    assert "prefix ids" in out
