"""The sources mean the same compiled and as plain Python."""

import os
import subprocess
import sys
from pathlib import Path

from sim.policies import POLICIES

SCRIPT = """
import numba
from sim.policies import POLICIES
from sim.run import serve
from sim.state import Limits
from sim.traffic import Lengths, Traffic
from sim.workload import draw

print(numba.config.DISABLE_JIT)
for arrivals in "gamma", "closed":
    traffic = Traffic(
        arrivals=arrivals, rate=40, duration=1.5, requests=40, clients=7, seed=3,
        prompt=Lengths("uniform", (1, 300)), output=Lengths("uniform", (1, 25)),
    )
    for policy in POLICIES:
        run = serve(draw(traffic), policy, Limits(5, 8192, 48), (0.2, 0.02, 0.4, 0.03))
        for table in run.requests, run.steps, run.segments:
            for name in table.dtype.names:
                print(policy, name, table[name].tobytes().hex())
"""


def printed(script: str, disable_jit: str) -> tuple[str, str]:
    """Whether compilation was off, and what else the script prints: columns, bit by bit."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"NUMBA_DISABLE_JIT": disable_jit},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    disabled, _, columns = done.stdout.partition("\n")
    return disabled, columns


def test_compiled_and_plain_python_give_the_same_bits():
    (compiled_off, compiled), (plain_off, plain) = printed(SCRIPT, "0"), printed(SCRIPT, "1")
    assert (compiled_off, plain_off) == ("0", "1")
    assert compiled == plain
    assert all(f"\n{policy} finish " in compiled for policy in POLICIES)
