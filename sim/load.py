"""How close to its capacity a server is driven, and what that does to the certainty of a figure."""

import numpy as np

from .run import Run, serve_variant
from .scenario import Scenario, Variant
from .workload import Workload

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
