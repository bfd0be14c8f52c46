"""Coefficients of the linear cost model, by least squares on what was measured."""

import numpy as np

from ..run import Run

LEAST = 20  # samples


def linear_cost(prefill, decodes, ms, of: str) -> tuple[dict[str, float], list[str]]:
    """(coefficients, what to say): ms = overhead + per prompt token + per decoding sequence.

    prefill, decodes: (n,) of a step; ms: (n,) that it took. No coefficient is negative: a term that
    would be is left out.
    """
    columns = {
        "overhead_ms": np.ones(len(ms)),
        "prefill_ms_per_token": np.asarray(prefill, float),
        "decode_ms_per_seq": np.asarray(decodes, float),
    }
    names = [n for n, c in columns.items() if c.any()]
    while True:
        matrix = np.stack([columns[n] for n in names], axis=1)
        found = np.linalg.lstsq(matrix, ms, rcond=None)[0]
        if (found >= 0).all() or len(names) == 1:
            break
        names.pop(int(np.argmin(found)))
    cost = dict.fromkeys(("decode_base_ms", *columns), 0.0)
    cost |= {n: float(f"{max(0.0, f):.4g}") for n, f in zip(names, found, strict=True)}
    off = np.abs(matrix @ found - ms) / ms
    said = ", ".join(f"{n} {v:.4g}" for n, v in cost.items() if v)
    return cost, [
        f"cost of a step fitted to {len(ms):,} {of}: {said}; off by {100 * np.median(off):.0f} % in"
        f" the median, {100 * np.quantile(off, 0.9):.0f} % at p90"
    ]


def samples(s: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(prompt tokens, decodes, context, ms) of the steps of a log's samples: `running` decodes at
    `output` tokens/s have steps of running / output s, each with its share of the prompt tokens."""
    good = (s["running"] >= 1) & (s["output"] > 0)
    running, context = s["running"][good], s.get("context", np.zeros(len(good)))[good]
    ms = running / s["output"][good] * 1e3
    usual = ms < 3 * np.median(ms) if len(ms) else good[good]  # ramps: who runs did not decode
    return (s["prompt"][good] * ms / 1e3)[usual], running[usual], context[usual], ms[usual]


def of_samples(s: dict[str, np.ndarray]) -> tuple[dict[str, float], list[str]]:
    """The same from a log."""
    prefill, running, _, ms = samples(s)
    if len(ms) < LEAST or len(np.unique(running)) < 3:
        return {}, []
    return linear_cost(prefill, running, ms, "samples")


def of_requests(run: Run) -> tuple[dict[str, float], list[str]]:
    """The same from requests whose times are known: TPOT against who decoded beside them and the
    prompts that were computed meanwhile.

    Together the terms are right; under heavy load one stands in for another, the overhead for the
    sequences, so that each by itself may be off by a quarter.
    """
    r = run.served[np.isfinite(run.served["first"])]
    several = r["output"] > 1
    if several.sum() < LEAST:
        return {}, []
    first, last, gaps = (x[several] for x in (r["first"], r["last"], r["output"] - 1))
    took = np.maximum(last - first, 1e-9)
    ends = np.concatenate([first, last])
    order = np.argsort(ends, kind="stable")
    running = np.repeat([1, -1], len(first))[order].cumsum()
    at = ends[order]
    area = np.append(0.0, (running[:-1] * np.diff(at)).cumsum())  # request-ms up to each end

    def upto(t):
        k = np.clip(np.searchsorted(at, t, side="right") - 1, 0, len(at) - 1)
        return area[k] + running[k] * (t - at[k])

    beside = (upto(last) - upto(first)) / took
    came = np.argsort(r["first"])
    tokens = np.append(0.0, r["prompt"][came].cumsum())
    times = r["first"][came]
    prompts = tokens[np.searchsorted(times, last, side="right")]
    prompts = prompts - tokens[np.searchsorted(times, first, side="right")]
    return linear_cost(prompts / gaps, beside, took / gaps, "requests")
