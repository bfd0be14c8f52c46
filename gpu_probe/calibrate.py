"""A recorded run -> a cost model of its device, with what the fit leaves unexplained."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.calibrate import Fit, features_of, fit
from sim.costs import Features
from sim.parameter import ScenarioError
from sim.pricing import StepCost
from sim.record import Record
from sim.run import Run


def calibrate(run: Run, cost: str = "calibrated", only: Sequence[str] = ()) -> Fit:
    """sim.calibrate.fit of the run's steps. ScenarioError if they are too few."""
    steps = run.steps[run.steps["prefill"] + run.steps["decodes"] > 0]
    if len(steps) < 2 * len(Features._fields):
        raise ScenarioError(
            f"{len(steps)} measured steps are too few for {len(Features._fields)} coefficients:"
            f" give a run of {2 * len(Features._fields)} or more"
        )
    return fit(cost, features_of(steps), steps["ms"], only)


def cost_of(fit: Fit, record: Record) -> StepCost:
    """For a scenario: "measured on <device>, <date>"."""
    device, day = record.about.get("device", "a device"), record.about.get("date", "")[:10]
    named = " ".join(re.sub(r"[^\w .,:()+-]", " ", device).split())[:50]
    return replace(fit.step_cost(), name=f"measured on {named}, {day}")


def said_of(fit: Fit, record: Record) -> dict:
    """The fit for a file: `cost` goes into a scenario's link."""
    about, errors, cost = record.about, np.abs(fit.errors), cost_of(fit, record)
    return {
        "name": cost.name,
        "cost": str(cost),
        "steps": len(fit.measured),
        "busy_ms": float(fit.measured.sum()),
        "median_error": float(np.median(errors)),
        "p95_error": float(np.quantile(errors, 0.95)),
        "deciles": fit.deciles().to_dict("records"),
        "highest": fit.highest._asdict(),
        "about": about,
    }


def written(said: dict) -> str:
    return json.dumps(said, indent=1)
