"""What would help, and whether it does: the cause that weighs most names a limit, and a run of the
same requests with that limit changed says what it would have been."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .explain import duration
from .metrics import METRICS
from .parameter import ScenarioError, written
from .policies import POLICIES
from .run import Run, serve_variant
from .scenario import LIMITS, Scenario, Variant
from .why import (
    AGAIN,
    AHEAD_KV,
    AHEAD_TOKENS,
    DECODES,
    DECODING,
    JOINING,
    KV,
    OVERHEAD,
    OWN,
    PARTS,
    PROMPTS,
    RECOMPUTED,
    SEAT,
    TOKENS,
    TTFT,
    Total,
    latency,
)
from .window import counted
from .workload import Workload

Change = Callable[[Scenario, Variant], Variant | None]


class Advice(NamedTuple):
    keeps: str  # the limit that a policy must keep for it, "": whatever it keeps
    said: str
    change: Change = lambda scenario, variant: None  # what to try; None: nothing of the scheduler's
    evens: bool = False  # whether it is said to make gaps even, not the whole shorter


def _set(name: str, value: Callable[[float, Scenario, Variant], float]) -> Change:
    """The variant with another value of a limit, as far as there is one."""

    def change(scenario: Scenario, variant: Variant) -> Variant:
        usual = getattr(scenario.limits_of(variant), name)
        wanted = value(usual, scenario, variant)
        wanted = type(usual)(np.clip(wanted, LIMITS[name].low, LIMITS[name].high))
        return Variant(variant.name, tuple((dict(variant.changes) | {name: wanted}).items()))

    return change


def _twice(name: str) -> Change:
    return _set(name, lambda usual, *_: 2 * usual)


def _half(name: str) -> Change:
    return _set(name, lambda usual, *_: usual // 2)


def _threshold(usual: float, scenario: Scenario, variant: Variant) -> float:
    return (usual or scenario.limits_of(variant).max_num_batched_tokens) // 2  # 0: there is none


def _becomes(policy: str, before: str) -> Change:
    """Another policy of the module's, which differ in nothing else."""
    return lambda _, variant: Variant(policy, variant.changes) if variant.policy == before else None


MORE_SEATS = Advice(
    "max_num_seqs", "raise max_num_seqs before touching anything else", _twice("max_num_seqs")
)
MORE_KV = Advice(
    "num_gpu_blocks",
    "raise num_gpu_blocks, or have shorter limits declared",
    _twice("num_gpu_blocks"),
)
MORE_TOKENS = Advice(
    "max_num_batched_tokens", "raise max_num_batched_tokens", _twice("max_num_batched_tokens")
)
# By part; the first whose limit the policy keeps is given.
ADVICE = {
    SEAT: (MORE_SEATS,),
    JOINING: (
        Advice(
            "",
            "let requests join and leave a running batch, as continuous does",
            _becomes("continuous", "static"),
        ),
    ),
    KV: (MORE_KV,),
    TOKENS: (MORE_TOKENS,),
    AGAIN: (MORE_KV,),
    OVERHEAD: (
        Advice("chunk", "raise the chunk, so that fewer steps are taken", _twice("chunk")),
        Advice("", "take fewer steps, or cheaper ones"),
    ),
    OWN: (
        Advice(
            "enable_prefix_caching",
            "have prefixes cached, or a faster device",
            _set("enable_prefix_caching", lambda *_: 1),
        ),
        Advice("", "no other schedule helps, a faster device does"),
    ),
    DECODES: (
        Advice(
            "max_num_seqs", "lower max_num_seqs, so that fewer share a step", _half("max_num_seqs")
        ),
    ),
    PROMPTS: (
        Advice(
            "chunk",
            "a smaller chunk evens it out, only less prompt work shortens it",
            _half("chunk"),
            evens=True,
        ),
        Advice(
            "long_prefill_token_threshold",
            "a lower long_prefill_token_threshold evens it out, only less prompt work shortens it",
            _set("long_prefill_token_threshold", _threshold),
            evens=True,
        ),
        Advice(
            "",
            "prompts in chunks would even it out, only less prompt work shortens it",
            _becomes("chunked", "continuous"),
            evens=True,
        ),
    ),
}
# Of TTFT, no schedule takes away what prompts cost together: what one gains, another loses.
OF_TTFT = {
    PROMPTS: Advice(
        "", "prompts compete for the device; only less prompt work, or a faster one, helps"
    )
}
# Parts of one cause: waiting for a limit at the head of the line, or behind who does.
TOGETHER = {AHEAD_KV: KV, AHEAD_TOKENS: TOKENS, RECOMPUTED: AGAIN}


def leading(t: Total) -> tuple[int, float]:
    """The part that weighs most, and its %."""
    sums = t.shares.copy()
    for part, whole in TOGETHER.items():
        sums[whole] += sums[part]
        sums[part] = 0
    k = int(sums.argmax())
    return k, float(sums[k])


def remedy(t: Total, policy: str) -> Advice | None:
    """What would help most under the policy, where anything would."""
    k, keeps = leading(t)[0], (*POLICIES[policy].keeps, "")
    if t.parts.sum() <= 0:
        return None
    if t.name == "TTFT" and k in OF_TTFT:
        return OF_TTFT[k]
    return next((found for found in ADVICE.get(k, ()) if found.keeps in keeps), None)


def advice(t: Total, policy: str) -> str:
    """'62 % of TTFT p95 is waiting for a seat: raise max_num_seqs before touching …'."""
    if t.parts.sum() <= 0:
        return f"There is no {t.name} to explain."
    k, share = leading(t)
    label = "preempted and computed again" if k == AGAIN else PARTS[k].label
    found = remedy(t, policy)
    said = f": {found.said}" if found else ""
    return f"{share:.0f} % of {t.name} p{100 * t.q:g} ({duration(t.at)}) is {label}{said}."


def tried(
    t: Total, run: Run, scenario: Scenario, variant: Variant, workload: Workload
) -> str | None:
    """The advice on `t`, a total of `run`, put to the test: the same requests with the limit
    changed, in one sentence; None where it is nothing that a scheduler could do.
    """
    found = remedy(t, variant.policy)
    other = found and found.change(scenario, variant)
    if not (found and other):
        return None
    what, half = f"{t.name} p{100 * t.q:g}", TTFT if t.name == "TTFT" else DECODING
    if scenario.limits_of(other) == scenario.limits_of(variant) and other.name == variant.name:
        return f"{found.keeps} has no room left to try it."
    try:
        changed = replace(scenario, variants=(other,), baseline=0)
        changed.check(len(workload))
        after = counted(serve_variant(changed, other, workload), scenario)
    except ScenarioError as error:
        return f"It can't be tried: {error}."
    values = latency(after, half)
    values = values[np.isfinite(values)]
    if not len(values):
        return f"With {_differs(scenario, variant, other)} nobody is served."
    moves = [_moves(what, t.at, float(np.quantile(values, t.q)))]
    if found.evens:
        gaps = (METRICS["itl"].of(each).quantile(0.99) for each in (run, after))
        moves.insert(0, _moves("ITL p99", *gaps))
    return f"With {_differs(scenario, variant, other)} {' and '.join(moves)}."


def _differs(scenario: Scenario, variant: Variant, other: Variant) -> str:
    """'max_num_seqs 64 instead of 32'."""
    if other.name != variant.name:
        return f"{other.name} instead of {variant.name}"
    before, after = (scenario.limits_of(v)._asdict() for v in (variant, other))
    name = next(name for name in before if before[name] != after[name])
    return f"{name} {written(after[name])} instead of {written(before[name])}"


def _moves(what: str, before: float, after: float) -> str:
    first, last = duration(before), duration(after)
    if first == last:
        return f"{what} stays at {first}"
    return f"{what} {'falls' if after < before else 'rises'} from {first} to {last}"
