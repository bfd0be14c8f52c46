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


def workload_of(record: Record) -> Workload:
    """The requests that were served."""
    r, rows = record.run.requests, record.beside["asked"]
    prompt, output, limit = (r[name].astype(np.int64) for name in ("prompt", "output", "limit"))
    clients = int(record.about.get("clients", 0))
    priority = None if np.isnan(rows["priority"]).any() else rows["priority"]
    return Workload(rows["arrival"], prompt, output, limit, clients, priority)


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
