"""One step taken apart: what it reads, what it computes, and which of the two it waits for."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .costs import COSTS, planned
from .hardware import DEVICES, Device, Llm
from .parameter import ScenarioError
from .pricing import StepCost
from .run import Run, serve
from .state import Limits
from .workload import Workload


class Line(NamedTuple):
    """A straight line through measured steps: ms at so many tokens, between two numbers of them."""

    ms: float
    ms_per_token: float
    least: int
    most: int
    prompts: float  # share of the tokens that are prompts', in the runs that it is of
    context: int  # of a decode there
    source: str

    def step(self, tokens: int) -> "Step":
        """One of those runs' steps."""
        prefill = round(self.prompts * tokens)
        return Step(decodes=tokens - prefill, context=self.context, prefill=prefill)

    def at(self, tokens: float) -> float:
        """nan beyond what was measured."""
        within = self.least <= tokens <= self.most
        return self.ms + self.ms_per_token * tokens if within else math.nan


# By device and model. Prompts of 204 tokens, answers of 64.
LINES = {
    ("h100-sxm", "llama-3.1-8b"): Line(
        6.5,
        0.024,
        70,
        814,
        204 / 268,
        236,
        "vLLM 0.11 on an H100 SXM, inference-perf's KubeCon 2025 runs",
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """decodes sequences of `context` tokens each, and a chunk of `prefill` prompt tokens after
    `before` earlier ones."""

    decodes: int = 32
    context: int = 1024
    prefill: int = 0
    before: int = 0

    def __str__(self) -> str:
        return f"{self.decodes}:{self.context}:{self.prefill}:{self.before}"

    @classmethod
    def parse(cls, text: str) -> "Step":
        """Of a link, as `str` writes it. ScenarioError unless it is one."""
        words = text.split(":")
        if len(words) != 4 or not all(w.isdecimal() and len(w) < 7 for w in words):
            raise ScenarioError(
                f"step {text[:40]!r} is none: give decodes, context, prompt tokens and those before"
                " as 32:1024:128:0"
            )
        return cls(
            **dict(zip(("decodes", "context", "prefill", "before"), map(int, words), strict=True))
        )

    @property
    def tokens(self) -> int:
        return self.decodes + self.prefill

    @property
    def attended(self) -> int:
        return self.prefill * self.before + self.prefill * (self.prefill + 1) // 2

    @property
    def counters(self) -> np.record:
        return planned(
            prefill=self.prefill,
            prompts=int(self.prefill > 0),
            decodes=self.decodes,
            context=self.decodes * self.context,
            reread=self.before if self.prefill else 0,
            attended=self.attended,
        )


def step_ms(cost: StepCost, step: Step) -> float:
    pricing = cost.pricing(())
    return float(COSTS[cost.kind].ms(step.counters, np.array(pricing.coefficients)))


def parts(cost: StepCost, step: Step) -> dict[str, float]:
    """ms of each part of a roofline step; they add up to `step_ms`. What hides is negative."""
    named = dict(
        zip(
            (c.name for c in COSTS["roofline"].coefficients),
            cost.pricing(()).coefficients,
            strict=True,
        )
    )
    tokens = step.prefill + step.decodes
    kv = step.decodes * step.context + (step.before if step.prefill else 0)
    pairs = step.attended + step.decodes * step.context
    mixed = step.prefill > 0
    rows = {
        "weights": named["weights_ms"],
        "KV": named["kv_ms_per_token"] * kv,
        "GEMM": named["gemm_ms_per_token"] * tokens,
        "attention": named["attention_ms_per_pair"] * pairs,
        "network": named["network_ms_per_token"] * tokens,
        "overhead": named["overhead_ms"]
        + named["host_ms_per_seq"] * (step.decodes + mixed)
        + named["mixed_ms"] * mixed,
    }
    memory, compute = rows["weights"] + rows["KV"], rows["GEMM"] + rows["attention"]
    rows["hidden by overlap"] = -named["overlap"] * min(memory, compute)
    return rows


def ridge(device: Device, llm: Llm) -> float:
    """FLOP per byte at which the device computes as long as it reads."""
    tflops = device.tflops_fp8 if llm.weight_bytes <= 1 else device.tflops
    return tflops / device.bandwidth_tb_s


def intensity(cost: StepCost, step: Step) -> tuple[float, float]:
    """(FLOP per byte, TFLOP/s that the step reaches) of its model on its device."""
    llm, tokens = cost.model, step.prefill + step.decodes
    kv = step.decodes * step.context + (step.before if step.prefill else 0)
    flop = llm.flop_per_token * tokens + llm.flop_per_pair * (
        step.attended + step.decodes * step.context
    )
    bytes_read = llm.weights + llm.kv_per_token * kv
    return flop / bytes_read, flop / step_ms(cost, step) / 1e9


def free_chunk(cost: StepCost, decodes: int) -> int:
    """Prompt tokens that fit beside so many decodes before computing takes longer than reading the
    weights: where a step begins to stretch if the two overlap."""
    named = dict(
        zip(
            (c.name for c in COSTS["roofline"].coefficients),
            cost.pricing(()).coefficients,
            strict=True,
        )
    )
    return max(0, math.floor(named["weights_ms"] / named["gemm_ms_per_token"]) - decodes)


def lone_ttft(cost: StepCost, prompt: int, chunk: int) -> tuple[float, float]:
    """(By formula, simulated) ms of a prompt that runs alone, in chunks."""
    sizes = [min(chunk, prompt - k) for k in range(0, prompt, chunk)]
    formula = cost.pricing(()).front_ms + sum(
        step_ms(cost, Step(decodes=0, prefill=n, before=k * chunk)) for k, n in enumerate(sizes)
    )
    run = _served(cost, 1, prompt, 1, chunk)
    return formula, float(run.requests["first"][0] - run.requests["arrival"][0])


def ttft_as_written(cost: StepCost, prompt: int, chunk: int) -> float:
    """The module's formula for it: as many steps of a whole chunk as the prompt has chunks."""
    return -(-prompt // chunk) * step_ms(cost, Step(decodes=0, prefill=chunk))


def full_tpot(cost: StepCost, decodes: int, context: int, output: int = 64) -> tuple[float, float]:
    """(By formula, simulated) ms between the tokens of so many sequences around that context."""
    prompt = max(1, context - output // 2)
    first = prompt + 1 + 0.5 * (output - 2) - 1
    pricing = cost.pricing(())
    mean = planned(decodes=decodes)
    mean.context = round(decodes * first)
    formula = float(COSTS[cost.kind].ms(mean, np.array(pricing.coefficients)))
    r = _served(cost, decodes, prompt, output, prompt * decodes).requests
    return formula, float(((r["last"] - r["first"]) / (output - 1)).mean())


def _served(cost: StepCost, requests: int, prompt: int, output: int, chunk: int) -> Run:
    """So many alike requests at once."""
    same = np.ones(requests, np.int64)
    work = Workload(np.zeros(requests), prompt * same, output * same, output * same)
    limits = Limits(max_num_seqs=requests, max_num_batched_tokens=10**9, chunk=chunk)
    pricing = cost.pricing(())
    return serve(
        work,
        "chunked",
        limits,
        pricing.coefficients,
        cost=pricing.cost,
        front_ms=pricing.front_ms,
    )


# The module's two examples: an ideal device, where only reading or only computing counts.
H100 = DEVICES["h100-sxm"]
IDEAL = "mbu=1/overlap=1/overhead_ms=0/mixed_ms=0/hop_ms=0/front_ms=0"
MODULE = {
    name: StepCost.parse(f"roofline/h100-sxm/{llm}/mfu={tflops / H100.tflops!r}/{IDEAL}")
    for name, llm, tflops in (("decode", "module-8b", 350), ("prefill", "module-7b", 400))
}
