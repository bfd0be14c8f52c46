"""Devices and models: what a step's cost is derived from, each figure with its source.

FLOP/s are dense: data sheets print twice as much for 2:4 sparsity. Bytes and FLOP are SI.
"""

import json
import re
from dataclasses import dataclass, fields, replace

from .parameter import ScenarioError


@dataclass(frozen=True, slots=True)
class Device:
    label: str
    memory_gb: float
    bandwidth_tb_s: float
    tflops: float  # of two-byte numbers, accumulated in four bytes
    tflops_fp8: float  # of one-byte numbers; as of two-byte ones where the device has none
    link_gb_s: float  # to another such device, one way
    source: str


DEVICES = {
    "h100-sxm": Device("H100 SXM", 80, 3.35, 989.4, 1978.9, 450, "NVIDIA H100 data sheet"),
    "h100-pcie": Device("H100 PCIe", 80, 2.0, 756, 1513, 300, "NVIDIA H100 data sheet"),
    "h200": Device("H200", 141, 4.8, 989.4, 1978.9, 450, "NVIDIA H200 data sheet"),
    "a100-40": Device("A100 40 GB", 40, 1.555, 312, 312, 300, "NVIDIA A100 data sheet"),
    "a100-80": Device("A100 80 GB SXM", 80, 2.039, 312, 312, 300, "NVIDIA A100 data sheet"),
    "l40s": Device("L40S", 48, 0.864, 362, 733, 32, "NVIDIA L40S data sheet; PCIe 4.0 x16"),
    "l4": Device("L4", 24, 0.3, 121, 242, 32, "NVIDIA L4 data sheet; PCIe 4.0 x16"),
    "rtx4090": Device(
        "RTX 4090", 24, 1.008, 165.2, 330.3, 32, "NVIDIA Ada GPU architecture white paper, app. A"
    ),
    "mi300x": Device("MI300X", 192, 5.3, 1307.4, 2614.9, 448, "AMD Instinct MI300X data sheet"),
    "b200": Device("B200 (HGX)", 180, 7.7, 2250, 4500, 900, "NVIDIA HGX B200 data sheet"),
}


@dataclass(frozen=True, slots=True)
class Llm:
    label: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    params: float
    source: str
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def weights(self) -> float:
        """Bytes."""
        return self.params * self.weight_bytes

    @property
    def kv_per_token(self) -> float:
        """Bytes: keys and values of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.kv_bytes

    @property
    def flop_per_token(self) -> float:
        """Of the matrix products with the weights: a multiplication and an addition each."""
        return 2 * self.params

    @property
    def flop_per_pair(self) -> float:
        """Of attention, for a token and one that it attends to: scores and weighted sum."""
        return 4 * self.layers * self.heads * self.head_size


LLMS = {
    "llama-3.1-8b": Llm(
        "Llama-3.1-8B", 32, 4096, 32, 8, 128, 8.030e9, "meta-llama/Llama-3.1-8B config.json"
    ),
    "llama-3.1-70b": Llm(
        "Llama-3.1-70B", 80, 8192, 64, 8, 128, 70.554e9, "meta-llama/Llama-3.1-70B config.json"
    ),
    "qwen3-8b": Llm("Qwen3-8B", 36, 4096, 32, 8, 128, 8.191e9, "Qwen/Qwen3-8B config.json"),
    "qwen2.5-7b": Llm("Qwen2.5-7B", 28, 3584, 28, 4, 128, 7.616e9, "Qwen/Qwen2.5-7B config.json"),
    "llama-2-7b": Llm(
        "Llama-2-7B", 32, 4096, 32, 32, 128, 6.738e9, "meta-llama/Llama-2-7b-hf config.json"
    ),
    "llama-2-70b": Llm(
        "Llama-2-70B", 80, 8192, 64, 8, 128, 68.977e9, "meta-llama/Llama-2-70b-hf config.json"
    ),
    "codellama-34b": Llm(
        "CodeLlama-34B", 48, 8192, 64, 8, 128, 33.744e9, "codellama/CodeLlama-34b-hf config.json"
    ),
    "mistral-7b": Llm(
        "Mistral-7B v0.3", 32, 4096, 32, 8, 128, 7.248e9, "mistralai/Mistral-7B-v0.3 config.json"
    ),
    "module-8b": Llm(
        "The module's 8B", 32, 4096, 32, 8, 128, 8e9, "course module: 16 GB of weights, 128 KiB"
    ),
    "module-7b": Llm(
        "The module's 7B", 32, 4096, 32, 32, 128, 7e9, "course module: 14 GB, no grouped KV heads"
    ),
}
NUMBERS = tuple(f.name for f in fields(Llm) if f.name not in ("label", "source"))


INSIDE = ("text_config", "llm_config", "language_config")  # of a model that sees or hears, too
# What makes a model another kind, and why it can't be priced by what Llm holds.
OTHER_KINDS = (
    (("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
     "which experts a batch reads is not modelled: give a dense model"),
    (("kv_lora_rank",),
     "latent attention reads another KV: give a model with usual or grouped KV heads"),
    (("mamba_d_state", "state_size", "ssm_cfg", "attn_layer_period", "linear_num_value_heads"),
     "layers that keep a state instead of KV are not modelled: give one of attention alone"),
)  # fmt: skip
UNGATED = {"starcoder2", "gpt_neox", "falcon", "phi", "gpt_bigcode", "nemotron"}


def llm_of_config(text: str) -> Llm:
    """The model of a Hugging Face `config.json` that is dense, of the usual attention.

    Of a model that sees or hears too, its language part. ScenarioError if it lacks a field or is of
    another kind.
    """
    try:
        whole = json.loads(text)
        config = next((whole[n] for n in INSIDE if isinstance(whole.get(n), dict)), whole)
    except (ValueError, AttributeError, RecursionError):
        raise ScenarioError("config.json is no JSON object: give a model's config.json") from None
    for names, why in OTHER_KINDS:
        for name in names:
            if config.get(name) and config[name] != 1:
                raise ScenarioError(f"config.json has {name} {str(config[name])[:40]}: {why}")
    wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    values = []
    for name in (*wanted, "vocab_size"):
        if name not in config:
            raise ScenarioError(
                f"config.json lacks {name}: give the one of a dense decoder that writes it out"
            )
        value = config[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**7:
            raise ScenarioError(
                f"config.json has {name} {str(value)[:40]}: give a whole number from 1 to"
                " 10,000,000"
            )
        values.append(value)
    layers, hidden, heads, inner, vocabulary = values
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    for name, value in (("num_key_value_heads", kv_heads), ("head_dim", head_size)):
        if not isinstance(value, int) or not 1 <= value <= 10**5:
            raise ScenarioError(f"config.json has {name} {value!r}: give a whole number from 1")
    kind = str(config.get("model_type") or "")
    attention = 2 * hidden * head_size * (heads + kv_heads)
    tied = config.get("tie_word_embeddings", kind.startswith("gemma"))
    matrices = 2 if kind in UNGATED else 3
    params = (
        layers * (attention + matrices * hidden * inner) + (1 if tied else 2) * vocabulary * hidden
    )
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    size = 4.0 if dtype == "float32" else 2.0
    said = [dtype]
    if quant := whole.get("quantization_config") or config.get("quantization_config"):
        size, method = _quantized(quant)
        said.append(method)
    if config is not whole:
        said.append("its language part")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        said.append(f"taken to attend beyond its window of {config['sliding_window']} too")
    label = str(whole.get("_name_or_path") or whole.get("model_type") or "config.json")[:60]
    source = f"config.json, {', '.join(said)}"
    return Llm(label, layers, hidden, heads, kv_heads, head_size, float(params), source, size)


def _quantized(quant: object) -> tuple[float, str]:
    """(bytes of a weight, the method's name)."""
    text = json.dumps(quant).lower()
    method = str(quant.get("quant_method", "")) if isinstance(quant, dict) else ""
    bits = re.search(r'"(?:num_)?bits": (\d+)', text)
    if bits and 1 <= int(bits[1]) <= 16:
        return int(bits[1]) / 8, method
    if re.search(r'4bit": true|fp4', text):
        return 0.5, method
    if re.search(r'8bit": true|fp8|int8|w8a', text):
        return 1.0, method
    raise ScenarioError(
        f"config.json has quantization_config {text[:40]} that does not say how many bits a weight"
        " has: add bits to it"
    )


def quantized(llm: Llm, dtype: str) -> Llm:
    """The same with one-byte weights where `dtype` names an eight-bit format."""
    return replace(llm, weight_bytes=1.0) if "8" in dtype.replace("fp16", "") else llm
