"""What differs between two runs of the same requests: where they part, who gains, who loses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from .explain import duration
from .parameter import ScenarioError, written
from .policies import POLICIES
from .run import Run, compare
from .scenario import COSTING, LIMITS, PARAMETERS, TEXTS, Scenario, Variant
from .state import DECODE, STOPS
from .why import MEASURES, per_request

SAME = ("arrival", "prompt", "output")


@dataclass(frozen=True, slots=True)
class Step:
    """One step as it was planned."""

    t0: float  # ms
    ms: float
    prompts: Mapping[int, int]  # tokens of each request's prompt
    decodes: tuple[int, ...]  # requests that had a token each
    head: int  # of the waiting line; -1: nobody waits
    stop: str  # what kept the head out

    @property
    def words(self) -> str:
        """'prompts 3 (512), 4 (96) beside 17 decodes, 8.4 ms'."""
        prompts = ", ".join(f"{i} ({tokens:,})" for i, tokens in self.prompts.items())
        parts = [f"prompts {prompts}" if prompts else "no prompt"]
        parts.append(f"{len(self.decodes)} decode{'s' if len(self.decodes) != 1 else ''}")
        line = f"; request {self.head} waits for {self.stop}" if self.head >= 0 else ""
        return f"{' beside '.join(parts)}, {duration(self.ms)}{line}"


def step_at(run: Run, row: int, t0: float | None = None) -> Step:
    """The row of the run's steps, with who was in it."""
    step, g = run.steps[row], run.grants
    within = g[(g["step0"] <= row) & (g["step1"] > row)]
    s = run.segments[run.segments["phase"] == DECODE]
    decoding = np.sort(s["request"][(s["t0"] <= step["t0"]) & (s["t1"] > step["t0"])])
    return Step(
        float(step["t0"] if t0 is None else t0),
        float(step["ms"]),
        {int(i): int(n) for i, n in zip(within["request"], within["tokens"], strict=True)},
        tuple(int(i) for i in decoding) if step["decodes"] > 0 else (),
        int(step["head"]),
        STOPS[step["stop"]],
    )


def _plans(run: Run) -> Iterator[tuple[int, float, float, int, int, tuple]]:
    """(row, t0, ms, repeats, decodes, what each prompt got) of each row of steps."""
    grants = run.grants[np.argsort(run.grants["step0"], kind="stable")]
    begins = np.searchsorted(grants["step0"], np.arange(len(run.steps) + 1))
    now: dict[int, tuple[int, int]] = {}  # request -> tokens, the row that ends it
    for row in range(len(run.steps)):
        now = {i: held for i, held in now.items() if held[1] > row}
        for grant in grants[begins[row] : begins[row + 1]]:
            now[int(grant["request"])] = int(grant["tokens"]), int(grant["step1"])
        step = run.steps[row]
        prompts = tuple(sorted((i, tokens) for i, (tokens, _) in now.items()))
        if run.ids is not None and not prompts and not step["decodes"]:
            continue
        yield (
            row,
            float(step["t0"]),
            float(step["ms"]),
            int(step["repeats"]),
            int(step["decodes"]) + int(step["pad_decodes"]),
            prompts,
        )


def parting(a: Run, b: Run, shown: tuple[Run, Run] | None = None) -> tuple[Step, Step] | None:
    """The first steps in which two runs of the same requests differ; None where they never do.

    Steps differ by when they begin, how long they last, or what they hold. One may be longer than
    the other: both are as they were planned. shown: a window of each run; then only what the steps
    hold of its requests counts, and only steps that hold any.
    """
    left, right = (_plans(run) for run in shown or (a, b))
    x, y = next(left, None), next(right, None)
    done_x = done_y = 0  # steps of the row that were compared already
    while x is not None and y is not None:
        tx, ty = x[1] + done_x * x[2], y[1] + done_y * y[2]
        if abs(tx - ty) > 1e-6 or (x[2], *x[4:]) != (y[2], *y[4:]):
            return step_at(a, x[0], tx), step_at(b, y[0], ty)
        both = min(x[3] - done_x, y[3] - done_y)
        done_x, done_y = done_x + both, done_y + both
        if done_x == x[3]:
            x, done_x = next(left, None), 0
        if done_y == y[3]:
            y, done_y = next(right, None), 0
    return None


def same_requests(a: Run, b: Run) -> bool:
    """Whether both runs serve the same requests, so that they can be compared one by one."""
    return len(a.requests) == len(b.requests) and all(
        np.array_equal(a.requests[name], b.requests[name]) for name in SAME[1:]
    )


def gains(a: Run, b: Run, measure: str, most: int = 5) -> pd.DataFrame:
    """The requests that gain and lose most by b against a: (prompt, output, a's, b's, change) ms,
    by request, the largest winner first and the largest loser last."""
    before, after = per_request(a, measure), per_request(b, measure)
    names = [run.label for run in (a, b)]
    names[1] += " " * (names[0] == names[1])  # two of the same name, of two scenarios
    table = pd.DataFrame(
        {
            "prompt": a.requests["prompt"],
            "output": a.requests["output"],
            names[0]: before,
            names[1]: after,
            "change": after - before,
        },
        index=a.ids,
    ).rename_axis("request")
    table = pd.DataFrame(table[np.isfinite(table["change"])])
    table = table.sort_values(by="change", kind="stable")
    winners = table[table["change"] < 0].head(most)
    losers = table[table["change"] > 0].tail(most)
    return pd.DataFrame(pd.concat([winners, losers]))


def balance(a: Run, b: Run, measure: str) -> str:
    """'412 requests have a shorter TTFT under chunked 128, 301 a longer one, 3 the same.'"""
    change = per_request(b, measure) - per_request(a, measure)
    change = change[np.isfinite(change)]
    less, more = int((change < 0).sum()), int((change > 0).sum())
    return (
        f"{less:,} requests have a shorter {MEASURES[measure]} under {b.label} than under"
        f" {a.label}, {more:,} a longer one, {len(change) - less - more:,} the same."
    )


def in_words(a: Scenario, va: Variant, b: Scenario, vb: Variant) -> str:
    """'chunk 512 -> 128, everything else equal': from variant va of a to variant vb of b."""
    changes = []
    if va.policy != vb.policy:
        changes.append(f"policy {va.policy} -> {vb.policy}")
    before, after = _values(a, va), _values(b, vb)
    for name in (*TEXTS, *PARAMETERS):
        if before.get(name) != after.get(name):
            changes.append(f"{name} {before.get(name, 'unused')} -> {after.get(name, 'unused')}")
    if not changes:
        return "Nothing differs."
    return f"{', '.join(changes)}, everything else equal."


def _values(scenario: Scenario, variant: Variant) -> dict[str, str]:
    """Everything that plays a part, as a link writes it."""
    limits, cost = scenario.limits_of(variant), scenario.cost_of(variant).coefficients
    values = {n: written(getattr(limits, n)) for n in LIMITS if n in POLICIES[variant.policy].keeps}
    model = scenario.model_of(variant)
    if model.kind == "linear":
        values |= {n: written(v) for n, v in zip(COSTING, cost, strict=True)}
    else:
        values["cost"] = str(model)
    traffic = scenario.traffic
    values |= {n: str(getattr(traffic, n)) for n in TEXTS if n in ("arrivals", *traffic.uses)}
    played = (n for n in PARAMETERS if n in traffic.uses and n not in values)
    return values | {n: written(scenario.value(n)) for n in played}


def one_of(scenario: Scenario) -> tuple[Scenario, Variant, Run]:
    """The baseline variant of another scenario, run. ScenarioError if it can't be."""
    if "trace" in scenario.traffic.uses:
        raise ScenarioError("the other link shows a trace, which is not part of it: give another")
    variant = scenario.variants[scenario.baseline]
    alone = replace(scenario, variants=(variant,), baseline=0)
    return alone, variant, compare(alone)[0]
