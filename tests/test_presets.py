"""Engines' defaults against the reference's tables, the pool by hand, and `vllm serve …`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import presets
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.presets import ENGINES, GPUS, USAGES, parse_serve, pool_blocks, preset, serve_command
from sim.run import compare
from sim.scenario import LIMITS, Scenario, Variant

# Reference, section 4 and "Across versions": (max_num_batched_tokens of the LLM class, of the API
# server, max_num_seqs).
HUGE, LARGE, SMALL = (16_384, 16_384, 1_024), (16_384, 8_192, 1_024), (8_192, 2_048, 256)
TIERS = {
    "0.33.0": {
        HUGE: ("b200", "mi300x"),
        LARGE: ("h100", "h200"),
        SMALL: ("a100-40", "a100-80", "l40s", "l4", "rtx4090"),
    },
    "0.17.1": {
        LARGE: ("h100", "h200", "b200", "mi300x"),
        SMALL: ("a100-40", "a100-80", "l40s", "l4", "rtx4090"),
    },
    "0.8.5": {
        LARGE: ("h100", "h200", "b200", "mi300x", "a100-80"),
        SMALL: ("a100-40", "l40s", "l4", "rtx4090"),
    },
}
EXPECTED = [
    (f"vllm-{version}-{gpu}-{usage}", tokens, seqs)
    for version, tiers in TIERS.items()
    for (of_llm, of_api, seqs), gpus in tiers.items()
    for gpu in gpus
    for usage, tokens in (("llm", of_llm), ("api", of_api))
]
NAMES = presets.names()
RANKED = [
    f"{name}-priority" for name in NAMES if "priority" in ENGINES[name.split("-")[1]].policies
]


def found(name: str) -> presets.Preset:
    p = preset(name)
    assert p is not None
    return p


@pytest.mark.parametrize(("name", "tokens", "seqs"), EXPECTED)
def test_the_defaults_of_v1_are_those_of_the_version_the_gpu_and_the_usage(name, tokens, seqs):
    defaults = found(name).defaults
    assert defaults["max_num_batched_tokens"] == tokens
    assert defaults["max_num_seqs"] == seqs
    assert defaults["block_size"] == 16
    assert defaults["enable_prefix_caching"] == 1


@pytest.mark.parametrize("name", [name for name in NAMES if "-0.6.6-" in name])
def test_the_defaults_of_v0_do_not_depend_on_the_gpu(name):
    defaults = found(name).defaults
    assert defaults["max_num_batched_tokens"] == 2_048
    assert defaults["max_num_seqs"] == 256
    assert defaults["enable_prefix_caching"] == 0


@pytest.mark.parametrize(("longest", "budget"), [(1_024, 2_048), (8_192, 8_192), (32_768, 32_768)])
def test_v0_takes_the_whole_model_length_or_2048_in_a_step(longest, budget):
    query = {"v": ["vllm-0.6.6-h100-api"], "max_model_len": [str(longest)]}
    scenario, problems = Scenario.from_query(query)
    assert problems == []
    assert scenario.limits_of(scenario.variants[0]).max_num_batched_tokens == budget


def test_chunking_off_raises_the_default_budget_to_the_model_length():
    query = {"v": ["vllm-0.33.0-h100-api:enable_chunked_prefill=0"], "max_model_len": ["40960"]}
    scenario, problems = Scenario.from_query(query)
    assert problems == []
    assert scenario.limits_of(scenario.variants[0]).max_num_batched_tokens == 40_960


def test_every_version_gpu_and_usage_has_a_preset_with_a_source():
    usages = sum(len(engine.usages) for engine in ENGINES.values())
    assert len(NAMES) == len(set(NAMES)) == usages * len(GPUS)
    assert {usage for engine in ENGINES.values() for usage in engine.usages} == set(USAGES)
    assert {name for name, *_ in EXPECTED} <= set(NAMES)
    for name in NAMES:
        p = found(name)
        assert p.name == name
        assert p.source
        assert GPUS[name.split("-", 2)[2].rsplit("-", 1)[0]].source


@pytest.mark.parametrize("name", NAMES + RANKED)
def test_a_preset_runs_a_policy_of_its_version_with_limits_in_range(name):
    p = found(name)
    assert p.version in p.label
    assert p.version in name
    assert p.policy in POLICIES
    assert p.policy.endswith("_priority") == name.endswith("-priority")
    for limit, value in p.defaults.items():
        assert LIMITS[limit].parse(f"{value}") == value


@pytest.mark.parametrize(
    "name",
    [
        "vllm",
        "vllm-",
        "vllm-0.33.0",
        "vllm-0.33.0-h100",
        "vllm-0.33-h100-api",
        "vllm-0.33.0-h900-api",
        "vllm-0.33.0-h100-web",
        "vllm-0.33.0-h100-api-fcfs",
        "vllm-0.8.5-h100-api-priority",
        "vllm-0.6.6-h100-api-priority",
        "sglang-0.33.0-h100-api",
        "vllm-0.5.18-h100-api",
        "sglang-0.5.18-h100-llm",
        "sglang-0.5.18-h100-api-fcfs",
        "sglang-0.4.0-h100-api-lpm",
        "vllm-0.33.0-h100-api-priority-priority",
        "vllm-0.33.0-a100-api",
        "",
        "vllm_v1",
    ],
)
def test_another_name_is_no_preset(name):
    assert preset(name) is None


@pytest.mark.parametrize("name", NAMES + RANKED)
def test_a_preset_is_given_back_by_its_link(name):
    scenario = Scenario(variants=(Variant(name), Variant(name, (("max_num_seqs", 7),))), baseline=0)
    assert Scenario.from_url(f"http://localhost:8501{scenario.link()}") == (scenario, [])
    first, second = (scenario.limits_of(v) for v in scenario.variants)
    assert first.max_num_seqs == found(name).limits(scenario.limits, {})["max_num_seqs"]
    assert second == first._replace(max_num_seqs=7)


def test_what_a_preset_says_nothing_of_comes_from_the_scenario():
    query = {"v": ["vllm-0.33.0-h100-api"], "num_gpu_blocks": ["777"], "max_num_seqs": ["5"]}
    scenario, _ = Scenario.from_query(query)
    limits = scenario.limits_of(scenario.variants[0])
    assert limits.num_gpu_blocks == 777
    assert limits.max_num_seqs == 1_024


def test_presets_run_side_by_side():
    names = ["vllm-0.33.0-h100-api", "vllm-0.33.0-h100-api-priority", "vllm-0.6.6-h100-api"]
    scenario, problems = Scenario.from_query({"v": names, "duration": ["2"], "urgent": ["0.2"]})
    assert problems == []
    runs = compare(scenario)
    assert [run.seats for run in runs] == [1_024, 1_024, 256]
    assert all(len(run.served) == len(run.requests) for run in runs)


@pytest.mark.parametrize("name", [name for name in NAMES + RANKED if "-a100-80-llm" in name])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_preset_with_another_scheduling_policy_is_that_policys(name, policy):
    engine = ENGINES[name.split("-")[1]]
    if policy not in engine.policies:
        with pytest.raises(ScenarioError, match=f"--scheduling-policy {policy} is unknown"):
            presets.with_scheduling(name, policy)
        return
    other = found(presets.with_scheduling(name, policy))
    assert other.policy == engine.policies[policy]
    assert other.defaults == found(name).defaults
    assert presets.scheduling(other.policy) == policy


# (80 GiB x 0.9 - 16 GiB) / 128 KiB = 56 GiB / 128 KiB = 458,752 tokens = 28,672 blocks of 16.


def test_the_pool_is_what_the_weights_leave():
    assert pool_blocks(80, 16, 0.9, 128, 16) == 28_672
    assert pool_blocks(80, 16, 0.9, 128, 32) == 14_336
    assert pool_blocks(80, 16, 1.0, 128, 16) == 64 * 2**20 // (128 * 16)
    assert pool_blocks(80, 16, 0.9, 128, 16) == pool_blocks(40, 8, 0.9, 64, 16)


@pytest.mark.parametrize(
    ("memory", "weights", "utilization", "kib"),
    [(80, 80, 0.9, 128), (80, 72, 0.9, 128), (24, 141, 0.9, 128), (80, 16, 0, 128), (80, 16, 1, 0)],
)
def test_a_gpu_that_leaves_no_room_for_kv_is_refused_with_the_figures(
    memory, weights, utilization, kib
):
    with pytest.raises(ScenarioError) as error:
        pool_blocks(memory, weights, utilization, kib, 16)
    assert f"{memory} GiB" in str(error.value)
    assert f"{weights} GiB" in str(error.value)
    assert "\n" not in str(error.value)


COMMAND = """vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 128 \\
  --max-num-batched-tokens=4096 --max-model-len 32k --no-enable-chunked-prefill \\
  --enable-prefix-caching --scheduling-policy priority --tensor-parallel-size 2 --port=8000
"""


def test_a_command_is_read_flag_by_flag_and_unknown_ones_are_listed():
    limits, policy, unknown = parse_serve(COMMAND)
    assert limits == {
        "max_num_seqs": 128,
        "max_num_batched_tokens": 4_096,
        "max_model_len": 32_000,
        "enable_chunked_prefill": 0,
        "enable_prefix_caching": 1,
    }
    assert policy == "priority"
    assert unknown == ["--tensor-parallel-size", "--port"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("32k", 32_000), ("32K", 32_768), ("1m", 1_000_000), ("1M", 2**20), ("1.5k", 1_500), ("7", 7)],
)
def test_a_unit_is_a_thousand_small_and_1024_large(text, tokens):
    assert parse_serve(f"vllm serve m --max-model-len {text}")[0] == {"max_model_len": tokens}


def test_quotes_are_the_shells_and_the_model_may_come_anywhere():
    command = "vllm serve --max-num-seqs '64' \"my model\" --block-size=32"
    assert parse_serve(command) == ({"max_num_seqs": 64, "block_size": 32}, "fcfs", [])


def test_an_unknown_flag_takes_its_value_along_and_a_bare_one_takes_none():
    command = "vllm serve m --dtype bfloat16 --enforce-eager --max-num-seqs 9 --swap-space"
    limits, _, unknown = parse_serve(command)
    assert limits == {"max_num_seqs": 9}
    assert unknown == ["--dtype", "--enforce-eager", "--swap-space"]


def test_a_flag_with_one_dash_is_unknown_too():
    assert parse_serve("vllm serve m -tp 2 --max-num-seqs 9")[2] == ["-tp"]


@pytest.mark.parametrize(("text", "on"), [("true", 1), ("True", 1), ("false", 0), ("False", 0)])
def test_a_switch_that_is_given_a_value_has_it(text, on):
    limits, *_ = parse_serve(f"vllm serve m --enable-chunked-prefill={text}")
    assert limits == {"enable_chunked_prefill": on}


@pytest.mark.parametrize(
    "command",
    [
        "",
        "serve m",
        "vllm",
        "vllm bench serve",
        "python -m vllm.entrypoints.openai.api_server --max-num-seqs 4",
        "vllm serve m --served-model-name 'open",
        "vllm serve m --max-num-seqs",
        "vllm serve m --max-num-seqs --block-size 4",
        "vllm serve m --max-num-seqs many",
        "vllm serve m --max-num-seqs 4x",
        "vllm serve m --max-num-seqs nan",
        "vllm serve m --max-model-len inf",
        "vllm serve m --max-num-seqs 2.5",
        "vllm serve m --watermark nan",
        "vllm serve m --watermark 5%",
    ],
)
def test_a_command_that_can_not_be_had_is_refused_with_one_sentence(command):
    with pytest.raises(ScenarioError) as error:
        parse_serve(command)
    assert "\n" not in str(error.value)


def whole(name: str) -> st.SearchStrategy[int]:
    return st.integers(int(LIMITS[name].low), int(LIMITS[name].high))


LIMIT_SETS = st.fixed_dictionaries(
    {},
    optional={name: whole(name) for name in presets.FLAGS.values() if name != "watermark"}
    | {"watermark": st.floats(0, 1).map(lambda x: round(x, 4))}
    | {name: st.integers(0, 1) for name in presets.SWITCHES.values()},
)


@given(limits=LIMIT_SETS, policy=st.sampled_from(["fcfs", "priority"]))
def test_the_command_of_limits_is_read_back_as_these(limits, policy):
    assert parse_serve(serve_command(limits, policy)) == (limits, policy, [])


def test_a_command_names_what_is_set_and_nothing_else():
    command = serve_command({"max_num_seqs": 8, "enable_chunked_prefill": 0}, "priority")
    assert command.split() == [
        "vllm",
        "serve",
        "MODEL",
        "--max-num-seqs",
        "8",
        "--no-enable-chunked-prefill",
        "--scheduling-policy",
        "priority",
    ]


# SGLang's, by section 10 of its reference and the table of section 13.

CHUNKS = {
    "0.5.18": {
        2_048: ("l4", "rtx4090"),
        4_096: ("a100-40", "l40s"),
        8_192: ("a100-80", "h100", "h200"),
        16_384: ("b200", "mi300x"),
    },
    "0.4.0": {
        2_048: ("l4", "rtx4090"),
        8_192: ("a100-40", "l40s", "a100-80", "h100", "h200", "b200", "mi300x"),
    },
}
CHUNK = [
    (v, chunk, gpu) for v, rows in CHUNKS.items() for chunk, gpus in rows.items() for gpu in gpus
]


@pytest.mark.parametrize(("version", "chunk", "gpu"), CHUNK)
def test_sglangs_chunk_is_that_of_its_version_and_the_gpus_memory(version, chunk, gpu):
    p = found(f"sglang-{version}-{gpu}-api")
    assert p.defaults["chunked_prefill_size"] == chunk
    assert p.defaults["block_size"] == 1
    assert p.defaults["max_prefill_tokens"] == 16_384
    assert p.defaults["enable_prefix_caching"] == 1
    assert p.defaults["enable_mixed_chunk"] == 0


def test_sglangs_default_policy_is_its_versions_and_the_other_has_a_name():
    policies = {
        "sglang-0.5.18-h100-api": "sglang",
        "sglang-0.5.18-h100-api-lpm": "sglang_lpm",
        "sglang-0.4.0-h100-api": "sglang_0_4_0",
        "sglang-0.4.0-h100-api-fcfs": "sglang_0_4_0_fcfs",
    }
    assert {name: found(name).policy for name in policies} == policies
    for name, policy in policies.items():
        assert presets.with_scheduling(name, presets.scheduling(policy)) == name


@pytest.mark.parametrize(
    ("blocks", "length", "seats"),
    [
        (4_000, 8_192, 4_000),  # 64,000 tokens: 64,000 / 8,192 x 512
        (2_000, 8_192, 2_048),  # at least 2,048
        (40_000, 8_192, 4_096),  # at most 4,096
        (100, 8_192, 800),  # and half of the 1,600 tokens of the pool
    ],
)
def test_sglangs_seats_follow_the_pool_and_the_model_length(blocks, length, seats):
    query = {"v": ["sglang-0.5.18-h100-api"], "max_model_len": [str(length)]}
    scenario, problems = Scenario.from_query(query | {"num_gpu_blocks": [str(blocks)]})
    assert problems == []
    assert scenario.limits_of(scenario.variants[0]).max_num_seqs == seats


@pytest.mark.parametrize(
    ("change", "block", "blocks"),
    [("", 1, 64_000), (":block_size=32", 32, 2_000), (":num_gpu_blocks=777", 1, 777)],
)
def test_a_presets_pool_is_as_many_tokens_as_everybodys_unless_it_says_otherwise(
    change, block, blocks
):
    scenario, _ = Scenario.from_query({"v": [f"sglang-0.5.18-h100-api{change}", "vllm_v1"]})
    limits = scenario.limits_of(scenario.variants[0])
    assert (limits.block_size, limits.num_gpu_blocks) == (block, blocks)


def test_0_4_0_counts_its_memory_in_tokens():
    scenario, _ = Scenario.from_query({"v": ["sglang_0_4_0:block_size=32:num_gpu_blocks=100"]})
    limits = scenario.limits_of(scenario.variants[0])
    assert (limits.block_size, limits.num_gpu_blocks) == (1, 3_200)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("chunked_prefill_size=100", "chunked_prefill_size 100 is no multiple of block_size 16"),
        ("enable_mixed_chunk=1:chunked_prefill_size=32", "may take all of chunked_prefill_size 32"),
    ],
)
def test_a_chunk_that_sglang_can_not_have_is_refused(change, said):
    _, problems = Scenario.from_query({"v": [f"sglang:{change}"]})
    assert said in problems[0]


def test_sglangs_command_names_defaults_and_changes():
    p = found("sglang-0.5.18-h100-api-lpm")
    changed = {"enable_mixed_chunk": 1, "enable_prefix_caching": 0, "num_gpu_blocks": 9_000}
    assert presets.command(p, changed) == (
        "python -m sglang.launch_server --model-path MODEL --chunked-prefill-size 8192"
        " --max-prefill-tokens 16384 --schedule-conservativeness 1 --max-total-tokens 9000"
        " --disable-radix-cache --enable-mixed-chunk --schedule-policy lpm"
    )
    assert presets.command(found("vllm-0.33.0-h100-api"), {}).startswith("vllm serve MODEL")
