"""How close to its capacity a server is driven, and what that does to the certainty of a figure."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .costs import COSTS
from .pricing import Pricing
from .run import Run, serve, serve_variant
from .scenario import Scenario, Variant
from .traffic import Traffic
from .workload import Workload, draw

NEAR = 0.8  # of capacity: from here on a small error in the step time is a large one in TTFT


def offered(workload: Workload) -> float:
    """Requests a second that arrive; inf where all come at once, nan in a closed loop."""
    if workload.clients and not workload.arrival.any():
        return np.nan
    span = workload.arrival[-1] - workload.arrival[0]
    return (len(workload) - 1) / span * 1e3 if span > 0 else np.inf


def at_once(workload: Workload, requests: int) -> Workload:
    """So many of the same requests, over again where they are fewer, all waiting from the start."""
    ids = np.arange(requests) % len(workload)
    prefix = workload.prefix and (workload.prefix[0][ids], workload.prefix[1][ids])
    return Workload(
        np.zeros(len(ids)),
        workload.prompt[ids],
        workload.output[ids],
        workload.limit[ids],
        priority=None if workload.priority is None else workload.priority[ids],
        prefix=prefix,
    )


def throughput(run: Run) -> float:
    """Requests a second between the first and the last quarter of the finishes."""
    times = np.sort(run.served["finish"])
    low, high = len(times) // 4, 3 * len(times) // 4
    if high == low or times[high] == times[low]:
        return len(times) / run.total * 1e3
    return float((high - low) / (times[high] - times[low]) * 1e3)


def capacity(scenario: Scenario, variant: Variant, workload: Workload) -> float:
    """Requests a second that the variant serves while somebody always waits."""
    requests = 16 * scenario.limits_of(variant).max_num_seqs
    return throughput(serve_variant(scenario, variant, at_once(workload, requests)))


@dataclass(frozen=True, slots=True)
class Band:
    """A figure as it is, and its spread."""

    value: float
    seeds: tuple[float, float]  # least and most over the seeds
    step_time: tuple[float, float]  # with every step shorter, and longer, by the error


def scaled(pricing: Pricing, factor: float) -> Pricing:
    """Every step takes `factor` times as long."""
    coefficients = tuple(
        value * factor if c.name != "overlap" else value
        for c, value in zip(COSTS[pricing.cost].coefficients, pricing.coefficients, strict=True)
    )
    return pricing._replace(coefficients=coefficients)


def band(
    scenario: Scenario,
    variant: Variant,
    figure: Callable[[Run], float],
    *,
    error: float,
    seeds: int = 20,
    trace: Workload | None = None,
) -> Band:
    """Of `figure` over so many seeds, and with the step time off by a share `error` either way.

    A trace has no seed, and no spread over seeds.
    """

    def run(traffic: Traffic, pricing: Pricing) -> float:
        return figure(
            serve(
                draw(traffic, trace),
                variant.policy,
                scenario.limits_of(variant),
                pricing.coefficients,
                cost=pricing.cost,
                front_ms=pricing.front_ms,
                host_ms=scenario.host_of(variant),
            )
        )

    traffic, pricing = scenario.traffic, scenario.cost_of(variant)
    drawn = "seed" in traffic.uses
    others = [replace(traffic, seed=traffic.seed + k) for k in range(seeds if drawn else 1)]
    values = [run(other, pricing) for other in others]
    sides = [run(traffic, scaled(pricing, 1 + sign * error)) for sign in (-1, 1)]
    return Band(values[0], (min(values), max(values)), (sides[0], sides[1]))
