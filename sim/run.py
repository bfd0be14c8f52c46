"""What happened. A Run is columns; where they came from, simulator or device, is only a label."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.recfunctions import repack_fields

from .costs import COSTS
from .engine import DONE, FULL, STUCK, simulate
from .parameter import ScenarioError
from .policies import POLICIES
from .scenario import Scenario, Variant
from .state import Limits, enlarged, new_state
from .workload import Workload, draw

COLUMNS = ["arrival", "prompt", "output", "limit", "start", "first", "last", "finish"]
SLICE = 20_000_000  # steps between two looks at whether to go on: a fraction of a second


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Times in ms. Tables are structured arrays: sim.state has REQUEST, STEP and SEGMENT."""

    label: str
    source: str  # "simulated", or the device's name
    seats: int
    total: float  # ms, from 0 to the last release
    requests: np.ndarray  # (n,) COLUMNS, by id
    steps: np.ndarray  # (events,) STEP, by time
    segments: np.ndarray  # (k,) SEGMENT, by the time they ended


def serve(
    workload: Workload,
    policy: str,
    limits: Limits,
    coefficients: Sequence[float],
    *,
    cost: str = "linear",
    label: str = "",
    stretch: bool = True,
    go_on: Callable[[float], object] = lambda done: None,
) -> Run:
    """Simulate `workload` to its end.

    go_on(share of requests finished) is called a few times a second; what it raises ends the run.
    stretch=False takes every step by itself: the same times, and a longer record.
    """
    s = new_state(
        workload.arrival,
        workload.prompt,
        workload.output,
        workload.limit,
        limits.max_num_seqs,
        workload.clients,
    )
    plan, ms, coef = POLICIES[policy].plan, COSTS[cost].ms, np.array(coefficients, float)
    while (state := simulate(plan, ms, coef, s, limits, stretch, SLICE)) != DONE:
        if state == FULL:
            s = enlarged(s)
        elif state == STUCK:
            raise ScenarioError(f"{policy} lets no waiting request in: raise its limits")
        go_on(s.n.finished / len(workload))
    return Run(
        label or POLICIES[policy].label,
        "simulated",
        limits.max_num_seqs,
        float(s.n.now),
        repack_fields(s.requests.view(np.ndarray)[COLUMNS]),
        s.steps[: s.n.steps].view(np.ndarray),
        s.segments[: s.n.segments].view(np.ndarray),
    )


def compare(
    scenario: Scenario,
    trace: Workload | None = None,
    go_on: Callable[[float], object] = lambda done: None,
) -> list[Run]:
    """The same requests under each variant of the scenario."""
    scenario.check()
    workload = draw(scenario.traffic, trace)
    scenario.check(len(workload))
    return [serve_variant(scenario, variant, workload, go_on) for variant in scenario.variants]


def serve_variant(
    scenario: Scenario, variant: Variant, workload: Workload, go_on=lambda done: None
) -> Run:
    return serve(
        workload,
        variant.policy,
        scenario.limits_of(variant),
        scenario.cost_of(variant),
        label=variant.label,
        go_on=go_on,
    )
