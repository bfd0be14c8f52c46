"""Engines with their version's defaults, and GPUs: figures with sources.

There is no default without a version.

An engine's name in a link is `vllm-0.33.0-h100-api`: version, GPU, and how it is started; with a
scheduling policy that is not the version's default, `sglang-0.5.18-h100-api-lpm`.
"""

import math
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from .parameter import ScenarioError, written
from .state import Limits


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
    policies: dict[str, str]  # scheduling policy, the default first -> name in POLICIES
    source: str
    program: str = "vllm"
    usages: tuple[str, ...] = ("api", "llm")


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
    "0.5.18": Engine(
        "SGLang 0.5.18",
        {"fcfs": "sglang", "lpm": "sglang_lpm"},
        "sglang/srt/server_args.py and managers/scheduler.py l.2176 of 0.5.18",
        "sglang",
        ("api",),
    ),
    "0.4.0": Engine(
        "SGLang 0.4.0",
        {"lpm": "sglang_0_4_0", "fcfs": "sglang_0_4_0_fcfs"},
        "sglang/srt/server_args.py of 0.4.0; read, not run",
        "sglang",
        ("api",),
    ),
}
# SGLang: chunked_prefill_size where the GPU has less memory than so many GB; above them the last.
CHUNKS = {
    "0.5.18": ((35, 2_048), (60, 4_096), (160, 8_192), (math.inf, 16_384)),
    "0.4.0": ((25, 2_048), (math.inf, 8_192)),
}


class Preset(NamedTuple):
    """An engine as it starts without a flag."""

    name: str
    label: str
    version: str
    policy: str
    defaults: dict[str, float]
    source: str

    def limits(self, given: Limits, own: dict[str, float]) -> dict[str, float]:
        """The defaults, where all variants are `given` these limits and this one has `own`.

        The KV pool is as many tokens, in blocks of the engine's size.
        """
        block = own.get("block_size", self.defaults["block_size"])
        usual = self.defaults | {"num_gpu_blocks": given.num_gpu_blocks * given.block_size // block}
        longest = own.get("max_model_len", given.max_model_len)
        if self.version in CHUNKS:
            pool = own.get("num_gpu_blocks", usual["num_gpu_blocks"]) * block
            seats = min(max(int(pool / longest * 512), 2_048), 4_096)
            return usual | {"max_num_seqs": max(1, int(min(seats, pool // 2)))}
        if self.version != "0.6.6" and own.get(
            "enable_chunked_prefill", given.enable_chunked_prefill
        ):
            return usual
        # Without chunking the budget is no less than a whole prompt.
        tokens = max(usual["max_num_batched_tokens"], longest)
        return usual | {"max_num_batched_tokens": tokens}


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
    named = (item for engine in ENGINES.values() for item in engine.policies.items())
    return next((scheduling for scheduling, name in named if name == policy), "fcfs")


def with_scheduling(name: str, policy: str) -> str:
    """The preset's name with another scheduling policy. ScenarioError if the version has none."""
    engine = ENGINES[name.split("-")[1]]
    if policy not in engine.policies:
        raise ScenarioError(
            f"--scheduling-policy {policy} is unknown to {engine.label}: use"
            f" {' or '.join(engine.policies)}"
        )
    bare, _ = _parted(name)
    return bare if policy == next(iter(engine.policies)) else f"{bare}-{policy}"


def _parted(name: str) -> tuple[str, str]:
    """The name without its scheduling policy, and that; empty where it is the default."""
    bare, _, last = name.rpartition("-")
    version = name.split("-")[1:2]
    others = [*ENGINES[version[0]].policies][1:] if version and version[0] in ENGINES else []
    return (bare, last) if last in others else (name, "")


def preset(name: str) -> Preset | None:
    """The preset of that name, such as `vllm-0.33.0-h100-api`; None if it is none."""
    bare, scheduled = _parted(name)
    parts = bare.split("-")
    version, gpu, usage = "".join(parts[1:2]), "-".join(parts[2:-1]), parts[-1]
    if version not in ENGINES or gpu not in GPUS:
        return None
    engine = ENGINES[version]
    if parts[0] != engine.program or usage not in engine.usages:
        return None
    policy = engine.policies[scheduled or next(iter(engine.policies))]
    defaults = _defaults(version, gpu, usage)
    ahead = ", asynchronous" if "async_scheduling" in defaults else ""
    label = f"{engine.label}{ahead}, {USAGES[usage]} on {GPUS[gpu].label}"
    return Preset(name, label, version, policy, defaults, engine.source)


def _defaults(version: str, gpu: str, usage: str) -> dict[str, float]:
    if version in CHUNKS:
        memory = GPUS[gpu].memory_gib
        return {
            "block_size": 1,
            "enable_prefix_caching": 1,
            "chunked_prefill_size": next(size for most, size in CHUNKS[version] if memory < most),
            "max_prefill_tokens": 16_384,
            "schedule_conservativeness": 1.0,
            "enable_mixed_chunk": 0,
        }
    tokens, seqs = (V0_TOKENS, 256) if version == "0.6.6" else _batch(version, gpu, usage)
    defaults: dict[str, float] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "block_size": 16,
        "enable_prefix_caching": int(version != "0.6.6"),
    }
    if version == "0.33.0":
        defaults["async_scheduling"] = 1  # vllm/config/vllm.py l.1685-1719
    return defaults


def names() -> list[str]:
    """Every preset's name, each with its version's default scheduling policy."""
    return [
        f"{engine.program}-{v}-{gpu}-{usage}"
        for v, engine in ENGINES.items()
        for gpu in GPUS
        for usage in engine.usages
    ]


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


SGLANG_FLAGS = {
    "--max-running-requests": "max_num_seqs",
    "--context-length": "max_model_len",
    "--page-size": "block_size",
    "--chunked-prefill-size": "chunked_prefill_size",
    "--max-prefill-tokens": "max_prefill_tokens",
    "--schedule-conservativeness": "schedule_conservativeness",
}


def launch_command(limits: dict[str, float], policy: str) -> str:
    """SGLang's command that sets these limits; ignore_eos is in its requests."""
    words = ["python -m sglang.launch_server --model-path MODEL"]
    for flag, name in SGLANG_FLAGS.items():
        if name in limits and (flag, limits[name]) != ("--page-size", 1):
            words.append(f"{flag} {written(limits[name])}")
    if "num_gpu_blocks" in limits:
        tokens = limits["num_gpu_blocks"] * limits.get("block_size", 1)
        words.append(f"--max-total-tokens {written(tokens)}")
    words += ["--disable-radix-cache"] * (not limits.get("enable_prefix_caching", 1))
    words += ["--enable-mixed-chunk"] * bool(limits.get("enable_mixed_chunk"))
    return " ".join([*words, f"--schedule-policy {policy}"])


def command(engine: Preset, changed: Mapping[str, float]) -> str:
    """The command that starts the engine with these changes to its defaults."""
    limits, policy = {**engine.defaults, **changed}, scheduling(engine.policy)
    if engine.version in CHUNKS:
        return launch_command(limits, policy)
    return serve_command(limits, policy)
