"""Measured beside simulated: the requests of a recorded run, served again by the simulator."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sim.metrics import tpot, ttft
from sim.record import Record
from sim.run import Run, serve
from sim.state import Limits
from sim.workload import Workload

FIGURES = ("TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "busy")
ASKED = np.dtype([("arrival", "f8"), ("priority", "f8")])
SHARED = np.dtype([("request", "f8"), ("id", "f8"), ("tokens", "f8")])
SHARING = ("prefix", "identities", "hashes")  # of a Workload


def figures(run: Run) -> np.ndarray:
    """(5,) FIGURES, ms. Busy is the sum of the steps: makespan is mostly the last arrival."""
    first, between = ttft(run), tpot(run)
    busy = float((run.steps["ms"] * run.steps["repeats"]).sum())
    return np.array([*(s.quantile(q) for s in (first, between) for q in (0.5, 0.95)), busy])


def asked(workload: Workload) -> np.ndarray:
    """(n,) ASKED: what a run's own record does not keep of its workload."""
    rows = np.zeros(len(workload), ASKED)
    rows["arrival"] = workload.arrival
    rows["priority"] = np.nan if workload.priority is None else workload.priority
    return rows


def shared(workload: Workload) -> dict[str, np.ndarray]:
    """Tables SHARED of what requests have in common, one for each of SHARING that there is."""
    n, columns = np.arange(len(workload)), {}
    if workload.prefix:
        columns["prefix"] = n, *workload.prefix
    for name in SHARING[1:]:
        if given := getattr(workload, name):
            ids = np.unique(given[0], return_inverse=True)[1]
            tokens = np.full(len(ids), given[2] if name == "hashes" else 0)
            columns[name] = np.repeat(n, np.diff(given[1])), ids, tokens
    return {name: np.rec.fromarrays(some, SHARED) for name, some in columns.items()}


def workload_of(record: Record) -> Workload:
    """The requests that were served."""
    r, rows, common = record.run.requests, record.beside["asked"], {}
    prompt, output, limit = (r[name].astype(np.int64) for name in ("prompt", "output", "limit"))
    clients = int(record.about.get("clients", 0))
    priority = None if np.isnan(rows["priority"]).any() else rows["priority"]
    for name in SHARING & record.beside.keys():
        request, ids, tokens = (record.beside[name][n].astype(np.int64) for n in SHARED.names or ())
        begins = np.searchsorted(request, np.arange(len(rows) + 1))
        common[name] = (ids, tokens) if name == "prefix" else (ids, begins)
        if name == "hashes":
            common[name] += (int(tokens.max(initial=1)),)
    return Workload(rows["arrival"], prompt, output, limit, clients, priority, **common)


def predicted(record: Record, cost: str, coefficients: Sequence[float], label: str) -> Run:
    """The same requests under the same policy and limits, with a cost model for a clock."""
    limits = Limits(**record.about["limits"])
    return serve(
        workload_of(record),
        record.about["policy"],
        limits,
        coefficients,
        cost=cost,
        label=label,
        stretch=False,
    )


def errors(repeats: Sequence[Run], simulated: dict[str, Run]) -> pd.DataFrame:
    """FIGURES across: measured (median of the repeats, ms), their noise, each model's error (%).

    The noise is half the range of the repeats; one run says nothing of it (nan).
    """
    values = np.array([figures(run) for run in repeats])
    middle = np.median(values, axis=0)
    noise = (values.max(0) - values.min(0)) / 2 / middle if len(values) > 1 else np.nan * middle
    rows = {"measured, ms": middle, "noise of the measurement, ±%": 100 * noise}
    for name, run in simulated.items():
        rows[f"{name}, error in %"] = 100 * (figures(run) / middle - 1)
    return pd.DataFrame(rows, index=list(FIGURES)).T
