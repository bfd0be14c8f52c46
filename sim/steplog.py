"""Step logs of engines -> what each step was made of, and the ms that it took.

Of each step: vLLM (`--enable-logging-iteration-details`), TensorRT-LLM (`print_iter_log`), a run
of `python -m gpu_probe serve`. Of the steps of some seconds together: vLLM's throughput lines,
SGLang's decode batches, step logs as CSV, where `running` requests that emit `output` tokens a
second have steps of running / output s.
"""

import re
from collections.abc import Iterable

import numpy as np

from . import record, results
from .parameter import ScenarioError
from .results.fit import LEAST, samples
from .state import STEP

VLLM = re.compile(
    r"Iteration\(\d+\): (?P<prompts>\d{1,9}) context requests, (?P<prefill>\d{1,9}) context tokens,"
    r" (?P<decodes>\d{1,9}) generation requests, \d+ generation tokens,"
    r" iteration elapsed time: (?P<ms>\d+(?:\.\d+)?) ms"
)
TENSORRT = re.compile(
    r"global_rank = (?P<rank>\d+),.*?prev_device_step_time = (?P<ms>\d+(?:\.\d+)?|N/A)(?:ms)?,.*?"
    r"'num_ctx_requests': (?P<prompts>\d{1,9}), 'num_ctx_tokens': (?P<prefill>\d{1,9}),"
    r" 'num_generation_tokens': (?P<decodes>\d{1,9})"
)
SHORTEST = 0.2  # ms; no forward pass takes less


def read(content: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """(steps (STEP), ms) of a log; None where it is none of those above.

    ScenarioError where it is one and does not hold enough, with what is missing.
    """
    if content[:4] == b"PAR1":
        return _of_run(content)
    text = content.decode("utf-8", "replace")
    if found := [m.groupdict() for m in VLLM.finditer(text)]:
        return _each(found, "vLLM's iteration log")
    if found := [m.groupdict() for m in TENSORRT.finditer(text)]:
        first = found[0]["rank"]
        found = [row for row in found if row["rank"] == first]
        later = [row["ms"] for row in found[1:]]  # a line has the time of the step before it
        return _each(
            [row | {"ms": ms} for row, ms in zip(found, later, strict=False) if ms != "N/A"],
            "TensorRT-LLM's iteration log",
        )
    return _of_samples(content)


def _of_run(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    steps = record.load(content, "the parquet file").run.steps
    steps = steps[steps["prefill"] + steps["decodes"] > 0]
    if not len(steps):
        raise ScenarioError("the run has no step that computes: give one that served requests")
    return steps, steps["ms"].copy()


def _each(rows: Iterable[dict[str, str]], log: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [r for r in rows if int(r["prefill"]) + int(r["decodes"]) > 0]
    if not rows:
        raise ScenarioError(f"{log} has no step with a token and a time: give a log under load")
    ms = np.array([float(r["ms"]) for r in rows])
    if np.median(ms) < SHORTEST:
        raise ScenarioError(
            f"{log} has a median of {np.median(ms):.3g} ms a step, the time to hand one over and"
            " not to compute it: log a run with --no-async-scheduling"
        )
    steps = np.zeros(len(rows), STEP)
    for name in ("prompts", "prefill", "decodes"):
        steps[name] = [int(r[name]) for r in rows]
    return steps, ms


def _of_samples(content: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        read = results.read(content, "the step log")
    except ScenarioError:
        return None
    series = [m.series for m in read[1] if m.series] if read else []
    if not series:
        return None
    parts = [samples(s) for s in series]
    prefill, decodes, context, ms = (np.concatenate(column) for column in zip(*parts, strict=True))
    loads = len(np.unique(decodes))
    if len(ms) < LEAST or loads < 3:
        raise ScenarioError(
            f"the log has {len(ms)} samples with tokens, at {loads} numbers of running requests: a"
            f" step's time follows from {LEAST} samples at 3 or more"
        )
    steps = np.zeros(len(ms), STEP)
    steps["prefill"], steps["decodes"], steps["context"] = prefill.round(), decodes, context
    return steps, ms
