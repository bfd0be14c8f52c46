"""Devices and models: what a step's cost is derived from, each figure with its source.

FLOP/s are dense: data sheets print twice as much for 2:4 sparsity. Bytes and FLOP are SI.
"""

import json
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


def llm_of_config(text: str) -> Llm:
    """The model of a Hugging Face `config.json` that is dense and has the usual gated MLP.

    ScenarioError if it lacks a field or is of another kind.
    """
    try:
        config = json.loads(text)
        config = config.get("text_config", config)
    except (ValueError, AttributeError, RecursionError):
        raise ScenarioError("config.json is no JSON object: give a model's config.json") from None
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(name):
            raise ScenarioError(
                f"config.json has {name} {config[name]}: which experts a batch reads is not"
                " modelled: give a dense model"
            )
    wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    values = []
    for name in (*wanted, "vocab_size"):
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**7:
            raise ScenarioError(
                f"config.json has {name} {value!r}: give a whole number from 1 to 10,000,000"
            )
        values.append(value)
    layers, hidden, heads, inner, vocabulary = values
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    for name, value in (("num_key_value_heads", kv_heads), ("head_dim", head_size)):
        if not isinstance(value, int) or not 1 <= value <= 10**5:
            raise ScenarioError(f"config.json has {name} {value!r}: give a whole number from 1")
    attention = 2 * hidden * head_size * (heads + kv_heads)
    tables = 1 if config.get("tie_word_embeddings") else 2
    params = layers * (attention + 3 * hidden * inner) + tables * vocabulary * hidden
    kind = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    size = 4.0 if kind == "float32" else 2.0
    quantized = config.get("quantization_config") or {}
    if isinstance(quantized, dict) and quantized:
        method, bits = str(quantized.get("quant_method", "")), quantized.get("bits")
        size = float(bits) / 8 if isinstance(bits, int) and 1 <= bits <= 16 else 1.0
        kind = f"{kind}, {method}"
    label = str(config.get("_name_or_path") or config.get("model_type") or "config.json")[:60]
    source = f"config.json, {kind}"
    return Llm(label, layers, hidden, heads, kv_heads, head_size, float(params), source, size)


def quantized(llm: Llm, dtype: str) -> Llm:
    """The same with one-byte weights where `dtype` names an eight-bit format."""
    return replace(llm, weight_bytes=1.0) if "8" in dtype.replace("fp16", "") else llm
