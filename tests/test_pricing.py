"""Costs as a link has them, and models as a config.json has them."""

import json
import math

import pytest

from sim.hardware import DEVICES, LLMS, llm_of_config
from sim.parameter import ScenarioError
from sim.pricing import StepCost
from sim.roofline import ERRORS
from sim.run import compare
from sim.scenario import Scenario, Variant

CONFIG = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "model_type": "llama",
}


@pytest.mark.parametrize(
    "text",
    [
        "linear",
        "roofline/h100-sxm/llama-3.1-8b",
        "roofline/h200/llama-3.1-70b/tp=4/mfu=0.5",
        "roofline/l4/own/layers=2/hidden=64/heads=4/kv_heads=2/head_size=16/params=1000000",
        "calibrated/step_ms=6.5/prefill_ms=0.024/front_ms=16",
    ],
)
def test_a_cost_is_given_back_as_it_was_written(text):
    assert str(StepCost.parse(text)) == text
    scenario = Scenario(model=StepCost.parse(text))
    assert Scenario.from_url(scenario.link()) == (scenario, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cubic", "cost 'cubic'"),
        ("roofline/h100/llama-3.1-8b", "'h100'"),
        ("roofline/h100-sxm", "''"),
        ("roofline/h100-sxm/gpt", "'gpt'"),
        ("roofline/h100-sxm/llama-3.1-8b/mfu=2", "mfu 2"),
        ("roofline/h100-sxm/llama-3.1-8b/speed=2", "no 'speed'"),
        ("roofline/h100-sxm/own/layers=2", "lacks hidden"),
        ("calibrated/step_ms=-1", "step_ms -1"),
        ("linear/x=1", "no 'x'"),
    ],
)
def test_a_cost_that_cannot_be_had_is_named_with_the_way_out(text, said):
    _, problems = Scenario.from_query({"cost": [text]})
    assert len(problems) == 1
    assert said in problems[0]


def test_a_variant_has_a_device_of_its_own_and_its_steps_are_longer_there():
    scenario, problems = Scenario.from_query(
        {
            "v": ["chunked", "chunked:cost=roofline/h100-pcie/llama-3.1-8b"],
            "cost": ["roofline/h100-sxm/llama-3.1-8b"],
            "rate": ["4"],
            "duration": ["5"],
            "baseline": ["0"],
        }
    )
    assert problems == []
    assert Scenario.from_url(scenario.link()) == (scenario, [])
    fast, slow = compare(scenario)
    assert slow.total > fast.total
    assert Variant.parse(str(scenario.variants[1])) == scenario.variants[1]


def test_a_cost_of_nothing_is_refused():
    assert "take no time" in Scenario.from_query({"cost": ["calibrated/decodes_ms=1"]})[1][0]


def test_a_config_of_hugging_face_has_the_parameters_of_its_model():
    llm = llm_of_config(json.dumps(CONFIG))
    known = LLMS["llama-3.1-8b"]
    assert llm.params == pytest.approx(known.params, rel=1e-3)
    assert llm.kv_per_token == known.kv_per_token == 131_072
    assert StepCost.of_llm("h100-sxm", llm).model.params == llm.params


def without(name: str, **more) -> dict:
    return {k: v for k, v in CONFIG.items() if k != name} | more


QWEN3 = CONFIG | {"num_hidden_layers": 36, "intermediate_size": 12_288, "vocab_size": 151_936,
                  "head_dim": 128}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "head_dim": 256,
    "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 10_240,
    "vocab_size": 262_208, "sliding_window": 1024,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions", "kv", "weight_bytes"),
    [
        (CONFIG, 8.03, 131_072, 2),
        (QWEN3, 8.19, 147_456, 2),
        (CONFIG | {"vocab_size": 32_768, "head_dim": None}, 7.248, 131_072, 2),  # Mistral 7B v0.3
        ({"model_type": "gemma3", "vision_config": {}, "text_config": GEMMA3}, 3.88, 139_264, 2),
        (CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}}, 8.03, 131_072, 0.5),
        (CONFIG | {"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": 8}}}}},
         8.03, 131_072, 1),
        (CONFIG | {"quantization_config": {"quant_method": "fp8"}}, 8.03, 131_072, 1),
        (without("num_key_value_heads"), 8.84, 524_288, 2),  # every head its own KV
    ],
)  # fmt: skip
def test_the_config_of_a_dense_model_gives_its_sizes(config, billions, kv, weight_bytes):
    llm = llm_of_config(json.dumps(config))
    assert llm.params / 1e9 == pytest.approx(billions, rel=2e-3)
    assert llm.kv_per_token == kv
    assert llm.weight_bytes == weight_bytes


def test_what_a_config_says_beyond_the_sizes_is_said():
    config = {"model_type": "gemma3", "text_config": GEMMA3}
    assert "its language part" in llm_of_config(json.dumps(config)).source
    assert "window of 1024" in llm_of_config(json.dumps(config)).source


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("roofline/h100-sxm/llama-3.1-8b", ERRORS["h100-sxm"], "H100 SXM records"),
        ("calibrated/step_ms=6/error=2.5", 2.5, "fit"),
        ("roofline/l4/llama-3.1-8b", math.nan, "no measured"),
        ("linear", math.nan, "no measured"),
    ],
)
def test_the_known_error_of_a_step_time_names_its_source(text, error, said):
    found, source = StepCost.parse(text).known_error
    assert found == pytest.approx(error, nan_ok=True)
    assert said in source


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nothing", "no JSON object"),
        ("[]", "no JSON object"),
        (json.dumps(CONFIG | {"num_experts": 8}), "num_experts 8"),
        (json.dumps(CONFIG | {"hidden_size": "4096"}), "hidden_size 4096"),
        (json.dumps({k: v for k, v in CONFIG.items() if k != "vocab_size"}), "lacks vocab_size"),
        (json.dumps(CONFIG | {"kv_lora_rank": 512}), "kv_lora_rank 512: latent attention"),
        (json.dumps(CONFIG | {"mamba_d_state": 16}), "keep a state"),
        (json.dumps(CONFIG | {"quantization_config": {"quant_method": "aqlm"}}), "how many bits"),
        (json.dumps({"model_type": "llava", "text_config": {"model_type": "llama"}}), "lacks num"),
        (json.dumps({"model_type": "x", "text_config": None}), "lacks num_hidden_layers"),
    ],
)
def test_a_config_that_cannot_be_used_gets_a_sentence(content, said):
    with pytest.raises(ScenarioError, match=said):
        llm_of_config(content)


def test_every_device_and_model_has_its_source():
    for row in (*DEVICES.values(), *LLMS.values()):
        assert len(row.source) > 5


def test_the_two_h100_differ_by_half_at_batch_one():
    from sim.anatomy import Step, step_ms

    one = Step(decodes=1, context=1_000)
    sxm, pcie = (
        step_ms(StepCost.parse(f"roofline/{device}/llama-3.1-8b"), one)
        for device in ("h100-sxm", "h100-pcie")
    )
    assert pcie / sxm == pytest.approx(1.5, abs=0.08)
