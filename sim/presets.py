"""Engines with their version's defaults, and GPUs: figures with sources.

There is no default without a version.

An engine's name in a link is `vllm-0.33.0-h100-api`: version, GPU, and how it is started.
"""

import math
import shlex
from typing import NamedTuple

from .parameter import ScenarioError, written


class Gpu(NamedTuple):
    label: str
    memory_gib: float
    source: str


GPUS = {
    "h100": Gpu("H100 80 GB", 80e9 / 2**30, "NVIDIA H100 data sheet"),
    "h200": Gpu("H200 141 GB", 141e9 / 2**30, "NVIDIA H200 data sheet"),
    "b200": Gpu("B200 180 GB", 180e9 / 2**30, "NVIDIA HGX B200 data sheet"),
    "a100-40": Gpu("A100 40 GB", 40e9 / 2**30, "NVIDIA A100 data sheet"),
    "a100-80": Gpu("A100 80 GB", 80e9 / 2**30, "NVIDIA A100 data sheet"),
    "l40s": Gpu("L40S 48 GB", 48e9 / 2**30, "NVIDIA L40S data sheet"),
    "l4": Gpu("L4 24 GB", 24e9 / 2**30, "NVIDIA L4 data sheet"),
    "rtx4090": Gpu("RTX 4090 24 GB", 24e9 / 2**30, "NVIDIA RTX 4090 specifications"),
    "mi300x": Gpu("MI300X 192 GB", 192e9 / 2**30, "AMD MI300X data sheet"),
}
V0_TOKENS = 2_048  # or max_model_len, where that is more
USAGES = {"api": "API server", "llm": "LLM class, offline"}


class Engine(NamedTuple):
    label: str
    policies: dict[str, str]  # scheduling policy -> name in POLICIES
    source: str


ENGINES = {
    "0.33.0": Engine(
        "vLLM 0.33.0",
        {"fcfs": "vllm_v1", "priority": "vllm_v1_priority"},
        "vllm/engine/arg_utils.py l.2940-3039 at 4ba787ec9",
    ),
    "0.17.1": Engine(
        "vLLM 0.17.1",
        {"fcfs": "vllm_v1_0_17_1", "priority": "vllm_v1_0_17_1_priority"},
        "vllm/engine/arg_utils.py: the tiers of 0.9.2 to 0.26.0",
    ),
    "0.8.5": Engine(
        "vLLM 0.8.5", {"fcfs": "vllm_v1_0_8_5"}, "vllm/engine/arg_utils.py l.1561-1625"
    ),
    "0.6.6": Engine(
        "vLLM 0.6.6 (V0)", {"fcfs": "vllm_v0"}, "vllm/config.py l.1427-1442, arg_utils.py l.211"
    ),
}


class Preset(NamedTuple):
    """An engine as it starts without a flag."""

    name: str
    label: str
    version: str
    policy: str
    defaults: dict[str, float]
    source: str

    def limits(self, max_model_len: float, chunking: bool) -> dict[str, float]:
        """The defaults for a model of that length; without chunking the budget is no less."""
        if chunking and self.version != "0.6.6":
            return self.defaults
        tokens = max(self.defaults["max_num_batched_tokens"], max_model_len)
        return self.defaults | {"max_num_batched_tokens": tokens}


def _batch(version: str, gpu: str, usage: str) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) by the version's tiers of GPU memory."""
    memory, a100 = GPUS[gpu].memory_gib, gpu.startswith("a100")
    if version == "0.33.0" and memory >= 160:
        return 16_384, 1_024
    large = memory >= 70 and (version == "0.8.5" or not a100)
    if large:
        return (16_384 if usage == "llm" else 8_192), 1_024
    return (8_192 if usage == "llm" else 2_048), 256


def scheduling(policy: str) -> str:
    """The scheduling policy of an engine that a name in POLICIES stands for."""
    return "priority" if policy.endswith("priority") else "fcfs"


def with_scheduling(name: str, policy: str) -> str:
    """The preset's name with another scheduling policy. ScenarioError if the version has none."""
    engine = ENGINES[name.split("-")[1]]
    if policy not in engine.policies:
        raise ScenarioError(
            f"--scheduling-policy {policy} is unknown to {engine.label}: use"
            f" {' or '.join(engine.policies)}"
        )
    bare = name.removesuffix("-priority")
    return bare if policy == "fcfs" else f"{bare}-{policy}"


def preset(name: str) -> Preset | None:
    """The preset of that name, such as `vllm-0.33.0-h100-api`; None if it is none."""
    bare = name.removesuffix("-priority")
    parts = bare.split("-")
    version, gpu, usage = parts[1:2], "-".join(parts[2:-1]), parts[-1]
    if parts[0] != "vllm" or not version or version[0] not in ENGINES or gpu not in GPUS:
        return None
    if usage not in USAGES or (bare != name and "priority" not in ENGINES[version[0]].policies):
        return None
    engine, v1 = ENGINES[version[0]], version[0] != "0.6.6"
    if v1:
        tokens, seqs = _batch(version[0], gpu, usage)
    else:
        tokens, seqs = V0_TOKENS, 256
    defaults: dict[str, float] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "block_size": 16,
        "enable_prefix_caching": int(v1),
    }
    if version[0] == "0.33.0":
        defaults["async_scheduling"] = 1  # vllm/config/vllm.py l.1685-1719
    ahead = ", asynchronous" if "async_scheduling" in defaults else ""
    label = f"{engine.label}{ahead}, {USAGES[usage]} on {GPUS[gpu].label}"
    policy = engine.policies["fcfs" if bare == name else "priority"]
    return Preset(name, label, version[0], policy, defaults, engine.source)


def names() -> list[str]:
    """Every preset's name."""
    return [f"vllm-{v}-{gpu}-{usage}" for v in ENGINES for gpu in GPUS for usage in USAGES]


def pool_blocks(
    memory_gib: float,
    weights_gib: float,
    utilization: float,
    kv_kib_per_token: float,
    block_size: int,
) -> int:
    """Blocks of KV that fit beside the weights; what else the engine needs is not counted.

    ScenarioError if not even two do.
    """
    free = memory_gib * utilization - weights_gib
    block_kib = kv_kib_per_token * block_size
    blocks = int(free * 2**20 / block_kib) if block_kib > 0 else 0
    if blocks < 2:
        raise ScenarioError(
            f"{memory_gib:g} GiB at utilisation {utilization:g} leave {free:.1f} GiB beside"
            f" {weights_gib:g} GiB of weights, no room for KV: take a larger GPU or smaller weights"
        )
    return blocks


FLAGS = {
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-model-len": "max_model_len",
    "--block-size": "block_size",
    "--num-gpu-blocks-override": "num_gpu_blocks",
    "--long-prefill-token-threshold": "long_prefill_token_threshold",
    "--watermark": "watermark",
}
SWITCHES = {
    "enable-chunked-prefill": "enable_chunked_prefill",
    "enable-prefix-caching": "enable_prefix_caching",
    "scheduler-reserve-full-isl": "scheduler_reserve_full_isl",
    "long-prefill-token-threshold-adaptive": "long_prefill_token_threshold_adaptive",
    "async-scheduling": "async_scheduling",
}
UNITS = {"k": 1_000, "K": 1_024, "m": 1_000_000, "M": 2**20}


def parse_serve(command: str) -> tuple[dict[str, float], str, list[str]]:
    """(limits that a `vllm serve …` sets, its scheduling policy, flags that are not known here).

    ScenarioError if it is no such command.
    """
    try:
        words = shlex.split(command.replace("\\\n", " "))
    except ValueError as error:
        raise ScenarioError(f"the command can't be read: {error}") from None
    if words[:2] != ["vllm", "serve"]:
        raise ScenarioError(f"{command[:40]!r} does not begin with vllm serve")
    limits, policy, unknown = {}, "fcfs", []
    words = [part for word in words[2:] for part in _split(word)]
    k = 0
    while k < len(words):
        flag, value = words[k], words[k + 1] if k + 1 < len(words) else ""
        k += 1
        bare = flag.removeprefix("--").removeprefix("no-")
        if bare in SWITCHES and flag.startswith("--"):
            said = value.lower() in ("true", "false")
            k += said
            limits[SWITCHES[bare]] = int((value.lower() != "false") != flag.startswith("--no-"))
        elif flag in FLAGS:
            limits[FLAGS[flag]] = _count(flag, value)
            k += 1
        elif flag == "--scheduling-policy":
            policy = value
            k += 1
        elif flag.startswith("-"):
            unknown.append(flag)
            k += not value.startswith("-") and k < len(words)
    return limits, policy, unknown


def _split(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if word.startswith("--") and equals else [word]


def _count(flag: str, text: str) -> float:
    unit = UNITS.get(text[-1:], 1)
    try:
        value = float(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (flag != "--watermark" and value % 1):
        raise ScenarioError(f"{flag} {text!r} is no such number: give one")
    return value if flag == "--watermark" else int(value)


def serve_command(limits: dict[str, float], policy: str = "fcfs") -> str:
    """The `vllm serve …` that sets these limits."""
    words = ["vllm serve MODEL"]
    words += [f"{flag} {written(limits[name])}" for flag, name in FLAGS.items() if name in limits]
    for switch, name in SWITCHES.items():
        if name in limits:
            words.append(f"--{'' if limits[name] else 'no-'}{switch}")
    if policy != "fcfs":
        words.append(f"--scheduling-policy {policy}")
    return " ".join(words)
