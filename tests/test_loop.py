"""The device's loop on the simulator's clock is the simulator; and what it leaves on disk."""

import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from pyarrow import parquet
from strategies import Case, cases, startable, workload
from test_engine import every_policy, laws

from gpu_probe.loop import Server
from sim.costs import COSTS
from sim.parameter import ScenarioError
from sim.record import TABLES, Record, load, save
from sim.run import Run, serve
from sim.state import Limits

LINEAR = COSTS["linear"].ms


class Simulated:
    """A device whose steps take what the cost model says."""

    def __init__(self, cost, model: str = "linear"):
        self.ms, self.coef, self.passed = COSTS[model].ms, np.array(cost, float), 0.0

    def forward(self, s) -> None:
        self.passed = self.ms(s.n, self.coef)

    def clock(self) -> float:
        """0 before a step is computed, its ms after."""
        now, self.passed = self.passed, 0.0
        return now


def limits_of(policy: str, case: Case) -> Limits:
    limits = startable(policy, case.limits)
    return limits._replace(max_model_len=80, async_scheduling=0)  # 10 blocks of `small`


def on_the_loop(policy: str, case: Case, most: int = 10**9) -> Server:
    """The case served on the loop, for so many steps at most."""
    device, server = Simulated(case.cost), Server(case.workload, policy, limits_of(policy, case))
    for k, _ in enumerate(server.steps(device.forward, device.clock), 1):
        if k == most:
            break
    return server


def assert_equal(one: np.ndarray, other: np.ndarray) -> None:
    """Also where numbers are missing."""
    assert one.dtype == other.dtype
    for name in one.dtype.names or ():
        assert_array_equal(one[name], other[name], err_msg=name)


def assert_alike(run: Run, other: Run) -> None:
    for f in fields(Run):
        if f.name in TABLES:
            assert_equal(getattr(run, f.name), getattr(other, f.name))
        elif f.name not in ("label", "source"):
            assert getattr(run, f.name) == getattr(other, f.name), f.name


def small(case: Case, blocks: int) -> Case:
    return case._replace(limits=case.limits._replace(num_gpu_blocks=blocks, block_size=8))


def begins_alike(case: Case, prefixes: int) -> Case:
    """Prompts that share so many prefixes of 40 tokens, and a cache that knows; 0: as it is."""
    if prefixes == 0:
        return case
    work, limits = case.workload, case.limits._replace(enable_prefix_caching=1)
    prefix = np.arange(len(work)) % prefixes, np.minimum(work.prompt, 40)
    return case._replace(workload=replace(work, prefix=prefix), limits=limits)


@every_policy
@given(case=cases, blocks=st.sampled_from([14, 40, 4_000]), alike=st.integers(0, 3))
@laws
def test_on_the_simulators_clock_the_loop_has_the_simulators_schedule(policy, case, blocks, alike):
    case = begins_alike(small(case, blocks), alike)
    limits = limits_of(policy, case)
    simulated = serve(case.workload, policy, limits, case.cost, stretch=False)
    assert_alike(on_the_loop(policy, case).run("a device"), simulated)


@given(case=cases, steps=st.integers(1, 30))
@laws
def test_a_run_ended_early_shows_who_is_seated_until_now_and_may_go_on(case, steps):
    server = on_the_loop("chunked", case, steps)
    run, s = server.run("a device"), server.state
    assert run.total == s.n.now
    held = run.segments[run.segments["t1"] == run.total]
    assert set(s.seats[s.seats >= 0]) <= set(held["request"])
    assert (run.segments["t1"] <= run.total).all()
    assert s.n.segments <= len(run.segments)
    device = Simulated(case.cost)
    for _ in server.steps(device.forward, device.clock):
        pass
    assert_alike(server.run("a device"), on_the_loop("chunked", case).run("a device"))


def test_whom_nothing_will_let_in_is_said():
    server = Server(workload([(0.0, 30, 3)]), "vllm_v1", Limits(2, 64, num_gpu_blocks=4))
    server.state.n.free = 0
    with pytest.raises(ScenarioError, match="never lets request 0 in"):
        next(server.steps(lambda s: None, lambda: 0.0))


@given(case=cases)
@laws
def test_a_saved_run_is_the_same_run(case, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run.parquet"
    run = serve(case.workload, "sarathi", startable("sarathi", case.limits), case.cost)
    memory = np.zeros(3, [("t", "f8"), ("rss", "f8")])
    memory["rss"] = 1, 2, np.nan
    save(path, Record(run, {"device": "paper"}, {"memory": memory}))
    for source in (path, path.read_bytes()):
        record = load(source)
        assert_alike(record.run, run)
        assert (record.run.label, record.run.source) == (run.label, run.source)
        assert record.about == {"device": "paper"}
        assert_equal(record.beside["memory"], memory)


@pytest.mark.parametrize("content", [b"", b"arrival_ms,prompt_len\n1,2\n", b"PAR1" * 9])
def test_a_file_that_is_no_run_is_named(content):
    with pytest.raises(ScenarioError, match="some.parquet is no run of this program"):
        load(content, "some.parquet")


def test_a_run_of_a_version_with_other_columns_is_named(tmp_path):
    path = tmp_path / "run.parquet"
    save(path, Record(serve(workload([(0.0, 9, 3)]), "static", Limits(2, 64), [1.0] * 4), {}, {}))
    table = parquet.read_table(path)
    parquet.write_table(table.drop_columns(["steps.ms"]), path)
    with pytest.raises(ScenarioError, match="run.parquet is a run of another version"):
        load(path)


def test_everything_of_gpu_probe_loads_where_no_page_can_be_shown():
    absent = ("streamlit", "altair", "sqlalchemy", "authlib", "httpx", "pptx", "vl_convert", "PIL")
    code = f"import sys; sys.modules |= dict.fromkeys({absent})"
    code += "; import gpu_probe.__main__, gpu_probe.check, gpu_probe.jobs"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_neither_the_loop_nor_what_the_page_takes_loads_torch():
    code = "import sys; from gpu_probe import calibrate, jobs, loop, predict"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
