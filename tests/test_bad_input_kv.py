"""What KV memory can't be had with is refused with a sentence, and no run hangs."""

import time

import numpy as np
import pytest

from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.run import compare, serve
from sim.scenario import LIMITS, Scenario
from sim.state import Limits
from sim.workload import Workload

COST = (1.0, 0.0, 0.0, 0.0)
KEEPERS = [name for name, p in POLICIES.items() if "num_gpu_blocks" in p.keeps]


def problem(**query: str) -> str:
    """The one sentence that is said of a scenario."""
    _, problems = Scenario.from_query({name: [value] for name, value in query.items()})
    assert len(problems) == 1, problems
    assert "\n" not in problems[0]
    return problems[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_gpu_blocks", "0"),
        ("num_gpu_blocks", "1"),
        ("num_gpu_blocks", "-4"),
        ("num_gpu_blocks", "1e12"),
        ("block_size", "0"),
        ("block_size", "-16"),
        ("block_size", "2.5"),
        ("watermark", "1.01"),
        ("watermark", "-0.1"),
        ("watermark", "nan"),
        ("max_model_len", "1"),
        ("enable_prefix_caching", "2"),
        ("preempt_on_arrival", "yes"),
        ("long_prefill_token_threshold", "-1"),
        ("urgent", "nan"),
        ("prefixes", "-1"),
        ("prefix_tokens", "0"),
    ],
)
def test_a_limit_out_of_range_is_refused_and_the_sentence_names_it_and_the_range(name, value):
    said = problem(**{name: value})
    assert said.startswith(name)
    assert " to " in said


@pytest.mark.parametrize("policy", KEEPERS)
def test_a_variant_with_such_a_limit_of_its_own_is_refused_too(policy):
    assert problem(v=f"{policy}:num_gpu_blocks=0").startswith("num_gpu_blocks 0 is out of range")
    assert problem(v=f"{policy}:watermark=2").startswith("watermark 2 is out of range")


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_has_a_range_and_its_own_default_lies_in_it(name):
    assert LIMITS[name].parse(str(LIMITS[name].default)) == getattr(Limits(), name)


@pytest.mark.parametrize(
    "row",
    [
        "0:10:10:nan",
        "0:10:10:inf",
        "nan:10:10",
        "-1:10:10",
        "0:0:10",
        "0:10:0",
        "0:1.5:10",
        "0:10",
        "0:10:10:1:1",
        "0:10:ten",
        "0;10;10",
        "",
        ":::",
        "0:10:2000000",
    ],
)
def test_a_listed_request_that_is_none_is_refused_and_shown(row):
    with pytest.raises(ScenarioError) as error:
        compare(Scenario.from_query({"arrivals": ["list"], "list": [f"0:5:5;{row}"]})[0])
    assert "which is no request: write arrival_ms:prompt:output" in str(error.value)
    assert repr(row.split(";")[0]) in str(error.value)


@pytest.mark.parametrize("policy", ["vllm_v1_priority", "priority"])
def test_a_priority_that_is_no_number_is_refused(policy):
    ones = np.ones(3, int)
    work = Workload(np.zeros(3), ones, ones, ones, priority=np.array([0.0, np.nan, 1.0]))
    with pytest.raises(ScenarioError, match="priority"):
        serve(work, policy, Limits(), COST)


def with_identities(*sizes: int) -> Workload:
    """Three requests of 32 tokens, two full blocks of 16 each, and ids for so many of each."""
    flat = np.arange(sum(sizes))
    ids = flat, np.append(0, np.cumsum(sizes))
    many = np.full(3, 16)
    return Workload(np.zeros(3), many, many, many, identities=ids)


def test_prefix_ids_for_each_full_block_are_served():
    run = serve(with_identities(2, 2, 2), "vllm_v1", Limits(enable_prefix_caching=1), COST)
    assert np.isfinite(run.requests["finish"]).all()


@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2, 2), (2, 1, 2), (2, 3, 2), (0, 0, 0), ()])
def test_prefix_ids_of_the_wrong_length_are_refused(sizes):
    with pytest.raises(ScenarioError, match="prefix ids"):
        serve(with_identities(*sizes), "vllm_v1", Limits(enable_prefix_caching=1), COST)


def test_prefix_ids_whose_places_do_not_match_are_refused():
    good = with_identities(2, 2, 2)
    assert good.identities is not None
    flat, offsets = good.identities
    for broken in [(flat[:-1], offsets), (flat, offsets[::-1].copy()), (flat, offsets + 1)]:
        work = Workload(good.arrival, good.prompt, good.output, good.limit, identities=broken)
        with pytest.raises(ScenarioError, match="prefix ids"):
            serve(work, "vllm_v1", Limits(enable_prefix_caching=1), COST)


@pytest.mark.parametrize("wrong", [1, 2, 4])
def test_shared_prefixes_of_another_length_than_the_requests_are_refused(wrong):
    many = np.full(3, 64)
    prefix = np.zeros(wrong, int), np.full(wrong, 32)
    work = Workload(np.zeros(3), many, many, many, prefix=prefix)
    with pytest.raises(ScenarioError, match="prefix"):
        serve(work, "vllm_v1", Limits(enable_prefix_caching=1), COST)


# Runs that can't go on. `listed`: requests 0, 1 and 2.


def stuck(policy: str, listed: str, **limits: float) -> str:
    """What is said, within a second, of a run that never ends."""
    query = {"v": [policy], "arrivals": ["list"], "list": [listed]}
    query |= {name: [str(value)] for name, value in limits.items()}
    scenario, problems = Scenario.from_query(query)
    assert problems == []
    began = time.monotonic()
    with pytest.raises(ScenarioError) as error:
        compare(scenario)
    assert time.monotonic() - began < 1
    assert "\n" not in str(error.value)
    return str(error.value)


THREE = "0:40:8;0:10:10;3:10:10"


def test_a_reservation_above_the_pool_ends_the_run_and_names_who_is_stuck_and_why():
    said = stuck("orca_max", THREE, num_gpu_blocks=100, max_model_len=8192)
    assert "orca_max" in said
    assert "0, 1, 2" in said
    assert "KV blocks" in said
    assert "raise num_gpu_blocks" in said


def test_whoever_was_served_before_is_not_among_the_stuck():
    many = np.array([10, 200, 10, 10, 10])
    work = Workload(np.arange(5) * 100.0, many, many, many)
    began = time.monotonic()
    with pytest.raises(ScenarioError) as error:
        serve(work, "vllm_v0", Limits(max_num_batched_tokens=100), COST)
    assert time.monotonic() - began < 1
    assert "request 1, 2, 3 and more in: token budget" in str(error.value)
    assert str(error.value).endswith("raise max_num_batched_tokens")


def test_a_stuck_head_with_somebody_to_come_far_later_ends_soon():
    far = "0:10:10;1000000000:10:10"
    assert "request 0, 1 in" in stuck("orca_max", far, num_gpu_blocks=100)


@pytest.mark.parametrize("blocks", [2, 3, 8, 16, 200, 400])
@pytest.mark.parametrize("policy", KEEPERS)
def test_whoever_the_door_lets_in_is_served_or_the_run_ends_with_a_sentence(policy, blocks):
    listed = ";".join(f"0:{prompt}:{output}" for prompt in (1, 30, 63) for output in (1, 5, 70))
    limits = {"num_gpu_blocks": blocks, "max_model_len": 64, "block_size": 8}
    if policy == "orca_max" and blocks < 64 // 8:
        assert "raise num_gpu_blocks" in stuck(policy, listed, **limits)
        return
    query = {"v": [policy], "arrivals": ["list"], "list": [listed]}
    query |= {name: [str(value)] for name, value in limits.items()}
    if POLICIES[policy].door and "0_4_0" not in policy and blocks == 2:  # a page is kept in hand
        with pytest.raises(ScenarioError, match="refuses every request.*: raise num_gpu_blocks"):
            compare(Scenario.from_query(query)[0])
        return
    began = time.monotonic()
    (run,) = compare(Scenario.from_query(query)[0])
    assert time.monotonic() - began < 1
    assert np.isfinite(run.served["finish"]).all()


def test_a_request_that_may_not_have_the_last_percent_is_refused_by_v0_at_the_door():
    scenario, _ = Scenario.from_query(
        {
            "v": ["vllm_v0"],
            "arrivals": ["list"],
            "list": ["0:3190:10;0:100:10"],
            "num_gpu_blocks": ["200"],
        }
    )
    (run,) = compare(scenario)
    assert run.requests["refused"].astype(bool).tolist() == [True, False]


@pytest.mark.parametrize("policy", ["orca", "sarathi", "vllm_v1"])
def test_a_limit_beyond_the_models_length_does_not_keep_out_who_fits_at_that_length(policy):
    many = np.array([40])
    work = Workload(np.zeros(1), many, np.array([20]), np.array([1000]))
    limits = Limits(block_size=8, num_gpu_blocks=10, max_model_len=64)
    assert serve(work, policy, limits, COST).requests["finish"].tolist() == [20.0]


@pytest.mark.parametrize("policy", KEEPERS)
def test_a_policy_that_refuses_everybody_says_why_and_what_to_raise(policy):
    query = {"v": [policy, f"{policy}:max_num_seqs=3"], "arrivals": ["list"]}
    query |= {"list": ["0:9000:10;1:9000:10"]}
    scenario, problems = Scenario.from_query(query)
    assert problems == []
    with pytest.raises(ScenarioError, match="refuses every request at the door.*: raise max_model"):
        compare(scenario)
