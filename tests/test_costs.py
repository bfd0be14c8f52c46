"""What a step is made of, and what it costs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import cases, startable
from test_engine import LINEAR, every_policy, laws

from sim.engine import commit, is_full, open_step
from sim.policies import POLICIES
from sim.run import opened
from sim.state import DECODE, HELD, State, enlarged


def expected(s: State) -> dict[str, int]:
    """The counters of the planned step, one request after the other."""
    r, n = s.requests, s.n
    prompts = [i for i in s.prefilling[: n.prefilling] if r.grant[i] > 0]
    kept = [i for i in s.seats if i >= 0 and r.phase[i] in (DECODE, HELD)]

    def kv(i):
        decoding = r.phase[i] == DECODE
        return r.prompt[i] + r.output[i] - (r.ends[i] - n.ticks) - 1 if decoding else r.cached[i]

    return {
        "prefill": sum(int(r.grant[i]) for i in prompts),
        "prompts": len(prompts),
        "context": sum(int(kv(i)) for i in kept) if n.decodes else 0,
        "reread": sum(int(r.cached[i]) for i in prompts),
        "attended": sum(
            sum(range(int(r.cached[i]) + 1, int(r.cached[i]) + int(r.grant[i]) + 1))
            for i in prompts
        ),
    }


@every_policy
@given(case=cases, blocks=st.sampled_from([16, 40, 4_000]))
@laws
def test_the_counters_of_a_step_are_those_of_its_requests(policy, case, blocks):
    limits = startable(policy, case.limits)
    limits = limits._replace(num_gpu_blocks=blocks, block_size=8, max_model_len=96)
    s = opened(case.workload, policy, limits)
    for _ in range(3_000):
        if s.n.finished == len(s.requests):
            break
        s = enlarged(s) if is_full(s) else s
        open_step(s)
        POLICIES[policy].plan(s, limits)
        assert {name: s.n[name] for name in expected(s)} == expected(s)
        if s.n.prefill + s.n.decodes + s.n.preempted > 0:
            commit(s, LINEAR(s.n, np.array(case.cost)), 1)
        else:
            s.n.now = s.requests[s.n.arrived].arrival
    assert s.n.finished == len(s.requests)
    assert s.n.kv == s.n.decoding_kv == 0
