"""Capacities and sweeps in words: sentences that a person could read aloud, made from figures."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from .capacity import Capacity, difference
from .curves import binds_above, label
from .explain import duration
from .metrics import FIGURES
from .scenario import PARAMETERS, Slo

TOLD = ("ttft_p99", "tpot_p99", "itl_p99", "tok_s", "goodput", "attainment")
WORDS = {
    "seats": "the seats bind",
    "blocks": "KV blocks bind",
    "budget": "the token budget binds",
    "batch": "the running batch binds",
    "compute": "compute binds",
}


def load(value: float, c: Capacity) -> str:
    """'41.2 req/s', '1.5 times the trace's speed'."""
    return f"{value:g} {c.unit}" + ("" if c.load == "rate" else " the trace's speed")


def sentence(capacities: Sequence[Capacity], share: float, slo: Slo) -> str:
    """Who carries how much, in one sentence."""
    carrying = sorted((c for c in capacities if c.value > 0), key=lambda c: -c.value)
    if not carrying:
        c = max(capacities, key=lambda c: (c.best["attainment"], c.best["within_ttft"]))
        return (
            f"None carries even {load(c.lowest, c)}: at that, {c.label} comes closest to"
            f" {share:g} % within TTFT {slo.ttft_slo:g} ms and TPOT {slo.tpot_slo:g} ms, with"
            f" {c.best['attainment']:.3g} %"
        )
    parts = [f"{c.label} {_carried(c)}" for c in carrying]
    parts[0] = f"{carrying[0].label} carries {_carried(carrying[0])}"
    parts += [f"{c.label} not even {load(c.lowest, c)}" for c in capacities if c.value == 0]
    return ", ".join(parts)


def _carried(c: Capacity) -> str:
    return f"{'at least ' if c.bound == 'range' else ''}{load(c.value, c)}"


def whether_real(capacities: Sequence[Capacity]) -> str:
    """Whether the first two differ by more than the seeds explain; nothing where there is one."""
    carrying = sorted((c for c in capacities if c.value > 0), key=lambda c: -c.value)
    if len(carrying) < 2:
        return ""
    first, second = carrying[:2]
    mean, reach = difference(first, second)
    by = f"{first.label} carries {mean:.2g} {first.unit} more than {second.label}"
    if math.isinf(reach):
        return f"{by}, on one run: how much of that is chance is not known."
    if mean == 0 and reach == 0:
        return f"{first.label} and {second.label} carry the same on every seed."
    if abs(mean) > reach:
        return f"The difference is real: {by} (± {reach:.2g}, 95 %, the same seeds)."
    return f"The difference may be chance: {by}, and seeds alone make ± {reach:.2g} (95 %)."


def about(c: Capacity, share: float, slo: Slo) -> str:
    """What a capacity rests on: its bound, and whether its runs were long enough."""
    if c.value == 0:
        best, ttft, tpot = c.best, slo.ttft_slo, slo.tpot_slo
        return (
            f"at {load(c.lowest, c)}, the lowest that its runs can tell, {best['attainment']:.3g} %"
            f" keep both limits: {best['within_ttft']:.3g} % TTFT {ttft:g} ms (p99"
            f" {duration(best['ttft_p99'])}), {best['within_tpot']:.3g} % TPOT {tpot:g} ms (p99"
            f" {duration(best['tpot_p99'])})"
        )
    why = {
        "slo": f"above it fewer than {share:g} % keep the SLO",
        "growth": "above it the queue grows while requests arrive",
        "range": "nothing higher was tried",
    }[c.bound]
    growth = c.growth
    if growth is None or math.isnan(growth.mean):
        return why
    if growth.grows:
        return f"{why}; even there the queue grows by {growth.mean:.2g} req/s"
    if growth.short and growth.runs == 1:
        return f"{why}; one run alone can't exclude a growth of {growth.most:.2g} req/s"
    if growth.short:
        return (
            f"{why}; runs of {growth.seconds:.3g} s are too short to exclude a growth of"
            f" {growth.most:.2g} req/s: make them longer, or take more seeds"
        )
    return f"{why}; the queue does not grow there (at most {max(growth.most, 0):.2g} req/s)"


def binding_sentence(frame: pd.DataFrame, axis: str) -> str:
    """'from 32 req/s on the seats bind under continuous and chunked 128', and so on."""
    found: dict[tuple[float, str], list[str]] = {}
    for variant in frame["variant"].unique():
        if bound := binds_above(frame, axis, variant):
            found.setdefault(bound, []).append(label(variant))
    if not found:
        return "no limit binds to the end"
    unit = f" {PARAMETERS[axis].unit}" if PARAMETERS[axis].unit else f" {axis}"
    first, parts = min(frame[axis].tolist()), []
    for (value, cause), labels in sorted(found.items(), reverse=True):
        where = "all along" if value == first else f"from {value:g}{unit} on"
        names = " and ".join([*(", ".join(labels[:-1]),) * (len(labels) > 1), labels[-1]])
        parts.append(f"{where} {WORDS[cause]} under {names}")
    return "; ".join(parts)


def _figure(value: float) -> str:
    """Four digits that count, and all of a large one."""
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def as_text(frame: pd.DataFrame, names: Sequence[str], said: Sequence[str]) -> str:
    """The sweep as a terminal shows it: the sentences, then a line a point."""
    lines = [*said, ""]
    shown = frame.loc[:, ["label", *names, *TOLD, "binds"]]
    shown = shown.assign(kept=np.where(frame["feasible"], "yes", "no"))
    titles = {n: f"{FIGURES[n].label}, {FIGURES[n].unit}" for n in TOLD}
    shown = shown.rename(columns={"label": "variant"} | titles)
    table = shown.to_string(index=False, float_format=_figure, na_rep="-")
    lines += table.splitlines()
    problems = [p for p in frame["problem"].unique() if p]
    return "\n".join(lines + [f"- {problem}" for problem in problems])


def as_dict(frame: pd.DataFrame, capacities: Sequence[Capacity], said: Sequence[str]) -> dict:
    """The same for machines; a figure that does not exist is None."""
    return {
        "said": list(said),
        "capacity": [
            {
                "variant": str(c.variant),
                "load": c.load,
                "value": c.value,
                "reach": c.reach if math.isfinite(c.reach) else None,
                "by_seed": list(c.by_seed),
                "bound": c.bound,
                "growth": c.growth._asdict() if c.growth else None,
                "runs": c.runs,
                "best": c.best,
            }
            for c in capacities
        ],
        "points": json.loads(frame.to_json(orient="records", double_precision=15) or "[]"),
    }


def sentences(
    capacities: Sequence[Capacity],
    frame: pd.DataFrame,
    names: Sequence[str],
    share: float,
    slo: Slo,
) -> list[str]:
    """All that is to be said: who carries how much, whether that differs, what each rests on."""
    said = []
    if capacities:
        said.append(f"{sentence(capacities, share, slo)}.")
        said += [real for real in [whether_real(capacities)] if real]
        said += [
            f"{c.label}: {amount(c)} in {c.runs} runs; {about(c, share, slo)}." for c in capacities
        ]
    if len(names) == 1:
        words = binding_sentence(frame, names[0])
        said.append(f"{words[0].upper()}{words[1:]}.")
    return said


def amount(c: Capacity) -> str:
    """'34 ± 1.3 req/s'."""
    if c.value == 0:
        return "none"
    reach = f" ± {c.reach:.2g}" if math.isfinite(c.reach) else ""
    return f"{c.value:g}{reach} {c.unit}"
