"""A case that is small enough to be worked by hand: how the split of latencies comes about."""

from functools import cache

import pandas as pd

from .differ import step_at
from .run import Run, compare
from .scenario import Scenario
from .why import DECODING, PARTS, TTFT, Why, why_variant

LINK = (
    "/?v=chunked:chunk=6&arrivals=list&list=0:12:3;0:8:2;0.5:5:1&max_num_seqs=2"
    "&max_num_batched_tokens=10&overhead_ms=1&prefill_ms_per_token=0.1&decode_base_ms=0"
    "&decode_ms_per_seq=0.5"
)
TOLD = """Three requests, two seats, at most 10 tokens a step and 6 of one prompt. A step costs
1 ms, 0.1 ms for each prompt token and 0.5 ms for each decode."""


@cache
def case() -> tuple[Scenario, Run, Why]:
    scenario, _ = Scenario.from_url(LINK)
    (run,) = compare(scenario)
    return scenario, run, why_variant(run, scenario, scenario.variants[0])


def steps() -> pd.DataFrame:
    """(from, to, holds, costs) of each step, in words."""
    scenario, run, _ = case()
    overhead, token, _, decode = scenario.cost
    rows = []
    for row in range(len(run.steps)):
        step = step_at(run, row)
        prompt = sum(step.prompts.values())
        terms = [f"{overhead:g}"]
        terms += [f"{prompt} × {token:g}"] if prompt else []
        terms += [f"{len(step.decodes)} × {decode:g}"] if step.decodes else []
        held = [f"prompt {i}: {tokens} tokens" for i, tokens in step.prompts.items()]
        held += [f"decode {i}" for i in step.decodes]
        held += [f"({step.head} waits for {step.stop})"] if step.head >= 0 else []
        rows.append(
            {
                "from, ms": f"{step.t0:g}",
                "to, ms": f"{step.t0 + step.ms:g}",
                "holds": ", ".join(held),
                "costs": f"{' + '.join(terms)} = {step.ms:g} ms",
            }
        )
    return pd.DataFrame(rows)


def split() -> pd.DataFrame:
    """Each request's TTFT and decode time, part by part, as sums that are written out, in ms."""
    _, run, why = case()
    rows = {}
    for i, r in enumerate(run.requests):
        for half, name, ms in (
            (TTFT, "TTFT", r["first"] - r["arrival"]),
            (DECODING, "decode time", r["last"] - r["first"]),
        ):
            parts = zip(PARTS, why.parts[i, half], strict=True)
            terms = [f"{x:g} {part.label}" for part, x in parts if x > 1e-12]
            if terms:
                rows[f"{name} of {i}"] = {"ms": f"{ms:g}", "is": " + ".join(terms)}
    return pd.DataFrame.from_dict(rows, orient="index")
