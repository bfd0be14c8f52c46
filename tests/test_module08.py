"""The course module's interface to its scheduler exercise, and what it claims for seed 1234."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import naive
import pytest
from hypothesis import given, settings
from strategies import Case, cases

from pages.ui.module import OWN
from sim.metrics import figures, tpot_to_release, ttft
from sim.module08 import POLICIES, Req, simulate
from sim.run import Run, serve
from sim.scenario import Scenario, Slo
from sim.state import Limits
from sim.traffic import Traffic
from sim.workload import draw

MODULE_COST = (0.2, 0.02, 0.4, 0.03)


def asked(*rows) -> list[Req]:
    return [Req(i, *row) for i, row in enumerate(rows)]


def test_the_pages_lines_hold_an_answer_of_ones_own_against_ours(monkeypatch, capsys):
    rows = draw(Traffic(rate=16, duration=3))
    arrival = rows.arrival / 1e3  # in seconds, as the module draws

    def later(*args, **options):
        done, total = simulate(*args, **options)
        done[7].first_tok = (done[7].first_tok or 0) + 0.25
        return done, total

    own = ModuleType("sched_sim")
    each = list(zip(arrival, rows.prompt, rows.output, strict=True))
    vars(own).update(make_traffic=lambda rng: asked(*each), simulate=later)
    monkeypatch.setitem(sys.modules, "sched_sim", own)
    exec(OWN, {})
    assert capsys.readouterr().out.startswith("0.25 ms apart at most; together ")


def module_run(policy: str, as_printed: int = 0, chunk: int = 512) -> Run:
    workload = draw(Traffic(rate=16, as_printed=as_printed))
    return serve(workload, policy, Limits(chunk=chunk), Scenario().cost)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_objects_that_were_given_are_filled_and_returned(policy):
    requests = asked((0.0, 100, 5), (1.0, 200, 1), (1.0, 50, 9))
    given_ids = [id(r) for r in requests]
    filled, total = simulate(policy, requests)
    assert [id(r) for r in filled] == given_ids
    assert isinstance(total, float)
    for r in requests:
        assert isinstance(r.first_tok, float)
        assert isinstance(r.finish, float)
        assert r.arrival < r.first_tok <= r.finish <= total
        assert (r.prefill_done, r.generated) == (r.prompt_len, r.out_len)
    assert total in [r.finish for r in requests]


@pytest.mark.parametrize("policy", POLICIES)
@given(case=cases)
@settings(max_examples=30, deadline=None)
def test_the_times_are_the_naive_twins(policy, case: Case):
    requests = asked(*case.rows)
    seats, tokens, chunk = case.limits[:3]
    _, total = simulate(
        policy, requests, max_num_seqs=seats, max_num_batched_tokens=tokens, chunk=chunk
    )
    twin = naive.Server(case.rows, case.limits, MODULE_COST).run(policy)
    assert [(r.first_tok, r.finish) for r in requests] == [
        (r.first, r.finish) for r in twin.requests
    ]
    assert total == twin.now


def test_the_defaults_are_the_modules():
    rows = [(float(i), 3000, 40) for i in range(60)]
    usual, written = asked(*rows), asked(*rows)
    simulate("chunked", usual)
    simulate("chunked", written, max_num_seqs=32, max_num_batched_tokens=8192, chunk=512)
    assert usual == written


@pytest.mark.parametrize("policy", POLICIES)
def test_no_requests_take_no_time(policy):
    requests = []
    filled, total = simulate(policy, requests)
    assert filled is requests
    assert total == 0.0


def test_requests_out_of_order_are_refused_by_name():
    with pytest.raises(ValueError, match=r"request 1 arrives at 2\.0 ms.*sort the requests"):
        simulate("static", asked((5.0, 10, 1), (2.0, 10, 1)))


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'fcfs' is unknown.*static, continuous, chunked"):
        simulate("fcfs", asked((0.0, 10, 1)))


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "chunk"])
@pytest.mark.parametrize("value", [0, -3])
def test_a_limit_that_serves_nobody_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"^{name} {value} "):
        simulate("chunked", asked((0.0, 10, 1)), **{name: value})


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (-1, 5)])
def test_a_request_of_no_tokens_is_refused_by_name(lengths):
    with pytest.raises(ValueError, match="request 1 has"):
        simulate("continuous", asked((0.0, 10, 1), (0.0, *lengths)))


def test_an_arrival_that_is_no_time_is_refused_and_does_not_run_forever():
    script = """
from sim.module08 import Req, simulate
for arrival in float("nan"), float("inf"):
    try:
        simulate("continuous", [Req(0, 0.0, 10, 1), Req(1, arrival, 10, 1)])
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.count("request 1 ") == 2


def test_nothing_is_filled_where_something_is_refused():
    requests = asked((0.0, 10, 1), (0.0, 10, 0))
    with pytest.raises(ValueError, match="request 1"):
        simulate("static", requests)
    assert requests == asked((0.0, 10, 1), (0.0, 10, 0))


def test_seed_1234_at_16_a_second_draws_429_requests():
    workload = draw(Traffic(rate=16))
    assert len(workload) == 429
    assert round(workload.prompt.mean()) == 1051
    assert round(workload.output.mean()) == 129
    assert workload.arrival[-1] > 29_000


def test_as_printed_they_all_arrive_within_30_ms():
    printed, meant = draw(Traffic(rate=16, as_printed=1)), draw(Traffic(rate=16))
    assert printed.arrival[-1] < 30
    assert printed.arrival * 1e3 == pytest.approx(meant.arrival)


# TTFT p50, TTFT p95, TPOT p50, TPOT p95 (all ms), output tok/s, s to the last release.
IN_MILLISECONDS = {
    "static": (5_114, 9_459, 4.4, 13.8, 1_405, 39.4),
    "continuous": (21.5, 87.9, 0.87, 2.32, 1_834, 30.2),
    "chunked 512": (23.4, 98.2, 0.87, 2.18, None, None),
    "chunked 8": (90.0, 445, 0.96, 1.50, None, None),
    "chunked 32": (36.9, 184, 0.93, 1.90, None, None),
    "chunked 128": (24.9, 116, 0.87, 2.14, None, None),
    "chunked 2048": (21.5, 96.1, 0.87, 2.22, None, None),
}
AS_PRINTED = {
    "static": (21_491, 39_544, 5.3, 14.4, 1_347, 41.1),
    "continuous": (5_703, 10_881, 6.7, 8.9, 4_675, 11.8),
    "chunked 512": (5_709, 10_895, 6.7, 8.6, 4_669, 11.9),
}


def rounded(value: float, like: float) -> float:
    """`value` to as many decimals as the table gives."""
    return round(value, len(f"{like}".partition(".")[2]) if isinstance(like, float) else 0)


@pytest.mark.parametrize(
    ("name", "table", "as_printed"),
    [(name, IN_MILLISECONDS, 0) for name in IN_MILLISECONDS]
    + [(name, AS_PRINTED, 1) for name in AS_PRINTED],
)
def test_the_figures_are_the_checked_ones(name, table, as_printed):
    policy, _, chunk = name.partition(" ")
    run = module_run(policy, as_printed, int(chunk or 512))
    every = figures(run, Slo())
    ours = (
        ttft(run).quantile(0.50),
        ttft(run).quantile(0.95),
        tpot_to_release(run).quantile(0.50),
        tpot_to_release(run).quantile(0.95),
        every["tok_s"],
        every["total_s"],
    )
    for value, printed in zip(ours, table[name], strict=True):
        if printed is not None:
            assert rounded(value, printed) == printed


def test_static_is_worse_than_continuous_238_and_108_times():
    static, continuous = ttft(module_run("static")), ttft(module_run("continuous"))
    assert round(static.quantile(0.5) / continuous.quantile(0.5)) == 238
    assert round(static.quantile(0.95) / continuous.quantile(0.95)) == 108


def test_continuous_tpot_p95_is_more_than_two_and_a_half_times_its_p50():
    tpot = tpot_to_release(module_run("continuous"))
    assert round(tpot.quantile(0.95) / tpot.quantile(0.5), 2) == 2.68


def test_smaller_chunks_raise_ttft_and_lower_tpot():
    runs = [module_run("chunked", chunk=chunk) for chunk in (8, 32, 128, 512)]
    late = [ttft(run).quantile(0.95) for run in runs]
    slow = [tpot_to_release(run).quantile(0.95) for run in runs]
    assert late == sorted(late, reverse=True)
    assert slow == sorted(slow)


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_over_rate_is_the_wall_time(policy):
    run = module_run(policy)
    tokens = run.requests["output"].sum()
    assert tokens / figures(run, Slo())["tok_s"] == pytest.approx(run.total / 1e3)
