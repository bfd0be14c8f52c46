"""Runs in words: sentences that a person could read aloud, made from figures."""

import math
from collections.abc import Sequence

from .metrics import METRICS, longest_wait, quantile, wait, waits
from .run import Run, once
from .state import STOPS

HEADLINE = (("itl", 0.99), ("ttft", 0.95))  # what chunking gains, and what it costs


def duration(ms: float) -> str:
    """71.1 -> '71 ms', 21300 -> '21.3 s'; two to three digits that count."""
    if abs(ms) >= 9_950:
        return f"{ms / 1e3:.3g} s" if abs(ms) < 1e6 else f"{ms / 1e3:,.0f} s"
    return f"{ms:,.0f} ms" if abs(ms) >= 9.95 else f"{ms:.2g} ms"


def change(name: str, before: float, after: float) -> tuple[str, str]:
    """('cuts', 'ITL p99 from 71 to 17 ms'), ('raises', 'TTFT p95 by 13 %'), ('leaves', …)."""
    if abs(after - before) <= 0.005 * before:
        return "leaves", f"{name} as it is"
    verb = "cuts" if after < before else "raises"
    if before > 0 and 0.67 < after / before < 1.5:
        return verb, f"{name} by {100 * abs(after / before - 1):.2g} %"
    first, last = duration(before), duration(after)
    same = first.rpartition(" ")[2] == last.rpartition(" ")[2]
    return verb, f"{name} from {first.rpartition(' ')[0] if same else first} to {last}"


def verdict(run: Run, baseline: Run) -> str:
    """What the run gains and costs against the baseline, in one sentence."""
    parts, said = [], ""
    for name, q in HEADLINE:
        before, after = (quantile(r, name, q) for r in (baseline, run))
        if math.isnan(before):  # one-token outputs have no ITL
            continue
        verb, what = change(f"{METRICS[name].label} p{100 * q:.0f}", before, after)
        parts.append(what if verb == said else f"{verb} {what}")
        said = verb
    return f"{run.label} {' and '.join(parts)} against {baseline.label}."


@once
def why_waited(run: Run) -> str:
    """Who waited longest for a seat, and for what the requests waited."""
    waited = wait(run)
    by_cause = waits(run)
    total = sum(by_cause.values())
    if total <= 0 or waited.max() <= 0:
        return "Nobody waited for a seat."
    cause = max(by_cause, key=lambda stop: by_cause[stop])
    return (
        f"Request {longest_wait(run)} waited longest, {duration(waited.max())}; the mean was"
        f" {duration(waited.mean())}, {100 * by_cause[cause] / total:.0f} % of it for"
        f" {STOPS[cause]}."
    )


@once
def lost_and_refused(run: Run) -> str:
    """What KV memory did to the run; nothing where it did nothing."""
    parts = []
    if times := int(run.served["preemptions"].sum()):
        tokens = int(run.served["recomputed"].sum())
        parts.append(f"{times:,} preemptions cost {tokens:,} tokens computed again.")
    if refused := len(run.requests) - len(run.served):
        parts.append(f"{refused:,} refused at the door.")
    return " ".join(parts)


def verdicts(runs: Sequence[Run], baseline: int) -> list[str]:
    """One sentence for each run but the baseline, the one nearest to it in TTFT first."""
    base = runs[baseline]
    others = [run for k, run in enumerate(runs) if k != baseline]

    def distance(run: Run) -> float:
        return abs(METRICS["ttft"].of(run).mean - METRICS["ttft"].of(base).mean)

    return [verdict(run, base) for run in sorted(others, key=distance)]


def against_measured(measured: Run, runs: Sequence[Run]) -> list[str]:
    """How far each simulated run is from what was measured, in one sentence."""
    sentences = []
    for run in runs:
        parts = []
        for name, q in (("ttft", 0.5), ("tpot", 0.5), ("e2e", 0.5)):
            truth, ours = (METRICS[name].of(r).quantile(q) for r in (measured, run))
            if math.isnan(truth) or truth <= 0:
                continue
            off = 100 * (ours / truth - 1)
            far = f"{abs(off):.2g} % {'above' if off > 0 else 'below'}" if abs(off) >= 0.5 else "as"
            parts.append(f"{METRICS[name].label} p50 {far} measured")
        if parts:
            sentences.append(f"{run.label}: {', '.join(parts)}.")
    return sentences
