"""The simulator's own loop with a clock in the cost model's place. Knows no torch.

Time is the sum of the steps: a gap in which nobody is there is skipped, not waited for.
"""

from collections.abc import Callable, Iterator

import numpy as np

from sim.engine import commit, idles, is_full, open_step
from sim.parameter import ScenarioError
from sim.policies import POLICIES, in_force
from sim.run import Run, door, opened, recorded, stuck
from sim.state import ADMITTED, Limits, State, enlarged
from sim.workload import Workload


class Server:
    """Requests under a policy, served step by step.

    forward(state) computes the planned step; clock() is in ms and read before the step is opened
    and after it is computed.
    """

    def __init__(self, workload: Workload, policy: str, limits: Limits):
        self.workload, self.policy = workload, policy
        self.refused = door(workload, policy, limits)
        self.inside = np.flatnonzero(self.refused == ADMITTED)
        # The device is waited for: each step is planned when the one before it is over.
        self.limits = in_force(policy, limits)._replace(async_scheduling=0)
        self.state = opened(workload.rows(self.inside), policy, self.limits)

    @property
    def identities(self) -> tuple[np.ndarray, np.ndarray]:
        """Of all full blocks, by which the prefix cache knows them: see Workload; without, none."""
        if self.limits.enable_prefix_caching:
            return self.workload.rows(self.inside).blocks(self.limits.block_size)
        return np.zeros(0, np.int32), np.zeros(len(self.inside) + 1, np.int64)

    @property
    def done(self) -> float:
        """Share of the requests that are finished."""
        return float(self.state.n.finished / max(1, len(self.inside)))

    def steps(
        self, forward: Callable[[State], object], clock: Callable[[], float]
    ) -> Iterator[float]:
        """Serve until all are finished; yields the ms of each step when it is over.

        ScenarioError if somebody waits whom nothing will ever let in.
        """
        n, plan = self.state.n, POLICIES[self.policy].plan
        while n.finished < len(self.inside):
            if is_full(self.state):
                self.state = enlarged(self.state)
            s, began = self.state, clock()
            open_step(s)
            plan(s, self.limits)
            tokens = n.prefill + n.decodes + n.pad_decodes
            if tokens + n.preempted + n.idle > 0:
                forward(s)
                ms = clock() - began
                if tokens > 0:
                    commit(s, ms, 1)
                else:
                    idles(s, ms, False)
                yield ms
            elif not idles(s, 0.0, False):
                raise ScenarioError(stuck(s, self.policy, self.inside))

    def run(self, source: str, label: str = "") -> Run:
        """What has happened so far; whoever is seated has a segment up to now."""
        s = self.state
        ids = s.seats[s.seats >= 0] if self.done < 1 else np.zeros(0, np.int64)
        seated, count = s.requests[ids], s.n.segments
        while count + len(ids) > len(s.segments):
            self.state = s = enlarged(s)
        rows = s.segments[count : count + len(ids)].view(np.ndarray)
        for name in ("seat", "phase"):
            rows[name] = seated[name]
        rows["t0"], rows["t1"], rows["request"] = seated["since"], s.n.now, ids
        rows["tokens"] = 0
        s.n.segments += len(ids)
        run = recorded(s, self.workload, self.policy, self.limits, self.refused, label, source)
        s.n.segments = count
        return run
