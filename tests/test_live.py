"""A watched run: the script alone decides what happens, never when somebody looked."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sim.__main__ import main
from sim.live import CHANGES, Session, interchangeable, parse, traffic_of, written_script
from sim.metrics import METRICS
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.run import Run, compare
from sim.scenario import Scenario
from sim.state import PREEMPTED, Limits
from sim.table import as_text

LINK = "/?duration=3&v=continuous&v=chunked:chunk=128&rate=30"


def of(link: str = LINK) -> Scenario:
    scenario, problems = Scenario.from_url(link)
    assert not problems
    return scenario


def assert_same(a: Run, b: Run) -> None:
    assert_array_equal(a.requests, b.requests)
    assert a.total == b.total
    left, right = (np.sort(r.segments, order=["seat", "t0", "t1"]) for r in (a, b))
    assert_array_equal(left, right)


SCRIPT = "400:prompt:9000:40;700:rate:55;1200:chunk:32;1800:policy:0:chunked;2500:prompt:64:5:3"


MANY = "/?duration=2&num_gpu_blocks=700&" + "&".join(f"v={p}" for p in list(POLICIES)[2:8])


@pytest.mark.parametrize("link", [LINK, MANY])
def test_left_alone_it_is_the_comparison_bit_for_bit(link):
    scenario = of(link)
    for ours, theirs in zip(Session(scenario).finish(), compare(scenario), strict=True):
        assert_same(ours, theirs)


@given(looks=st.lists(st.floats(0.0, 6_000.0), max_size=12))
@settings(max_examples=20, deadline=None)
def test_what_happens_does_not_depend_on_when_one_looks(looks):
    scenario = of()
    actions = parse(SCRIPT, scenario)
    session = Session(scenario, actions)
    for t in sorted(looks):
        session.advance(t)
        for lane in session.lanes:
            lane.run()
    for ours, theirs in zip(session.finish(), Session(scenario, actions).finish(), strict=True):
        assert_same(ours, theirs)


VALUES = {
    "max_num_seqs": st.sampled_from([1, 2, 5, 40, 90]),
    "max_num_batched_tokens": st.sampled_from([96, 8_192]),
    "watermark": st.sampled_from([0.0, 0.1]),
    "schedule_conservativeness": st.sampled_from([0.1, 1.0]),
    "chunked_prefill_size": st.sampled_from([-1, 64, 640]),
}
USUAL = st.sampled_from([64, 200, 2_000])


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_whatever_changes_while_it_goes_all_are_served_and_no_seat_is_taken_twice(policy, data):
    scenario = of(f"/?duration=1&rate=40&num_gpu_blocks=900&max_num_seqs=16&v={policy}")
    keeps = [name for name in CHANGES if name in POLICIES[policy].keeps]
    actions = data.draw(
        st.lists(st.tuples(st.integers(0, 2_500), st.sampled_from(keeps)), min_size=1, max_size=4)
    )
    script = ";".join(
        f"{t}:{name}:{data.draw(VALUES.get(name, USUAL))}" for t, name in sorted(actions)
    )
    try:
        session = Session(scenario, parse(script, scenario))
    except ScenarioError as error:
        if str(error).startswith(policy):  # limits that the engine itself would refuse
            reject()
        raise
    (run,) = session.finish()
    assert np.isfinite(run.served["finish"]).all()
    seats = [a for a in session.actions if a.kind == "max_num_seqs"]
    held = run.segments[run.segments["phase"] != PREEMPTED]
    held = np.sort(held, order=["seat", "t0", "t1"])
    together = held["seat"][1:] == held["seat"][:-1]
    assert np.all(held["t0"][1:][together] >= held["t1"][:-1][together] - 1e-9)
    most = max([16, *(int(a.values[0]) for a in seats)])
    assert held["seat"].max() < most


def test_seats_are_added_and_taken_away_while_it_goes():
    """A step lasts 1 ms. 6 come at once and emit 10 tokens each; 2 seats, then 4, then 1."""
    link = "/?arrivals=list&list=" + ";".join(["0:10:10"] * 6) + "&v=continuous&max_num_seqs=2"
    link += "&overhead_ms=1&prefill_ms_per_token=0&decode_base_ms=0&decode_ms_per_seq=0"
    scenario = of(link)
    (run,) = Session(scenario, parse("4:max_num_seqs:4;8:max_num_seqs:1", scenario)).finish()
    assert run.requests["start"].tolist() == [0.0, 0.0, 4.0, 4.0, 14.0, 24.0]
    assert run.requests["finish"].tolist() == [10.0, 10.0, 14.0, 14.0, 24.0, 34.0]
    assert run.seats == 4


def test_what_is_done_amid_a_script_takes_its_place_in_it():
    scenario = of()
    session = Session(scenario, parse("2000:chunk:32", scenario))
    session.advance(700)
    acted = session.act("prompt", "9000", "40", "-1")
    assert written_script(acted.actions) == "700:prompt:9000:40:-1;2000:chunk:32"
    again = Session.of(acted.to_query())
    for ours, theirs in zip(acted.finish(), again.finish(), strict=True):
        assert_same(ours, theirs)
    assert Scenario.from_url(acted.link())[0] == scenario
    assert "live=700:prompt:9000:40:-1;2000:chunk:32" in acted.link()
    with pytest.raises(ScenarioError, match="is no action"):
        Session.of({"live": ["5:nothing:1"]})


def test_a_dropped_prompt_shares_no_block_and_the_others_keep_theirs():
    scenario = of("/?duration=1&rate=30&stop_tokens=1&prefixes=2&prefix_tokens=64&v=vllm_v1")
    before = traffic_of(scenario, ())
    hashes = np.arange(3 * len(before)) % 7, np.arange(len(before) + 1) * 3, 16
    before = replace(before, hashes=hashes)
    from sim.live import _with

    after = _with(before, 500.0, 64, 5, 0)
    k = int(np.flatnonzero(after.prompt == 64)[0])
    assert after.stop_tokens
    assert after.prefix is not None
    assert after.hashes is not None
    assert after.prefix[0][k] == -1
    sizes = np.diff(after.hashes[1])
    assert sizes[k] == 0
    assert np.delete(sizes, k).tolist() == [3] * len(before)


def test_the_command_line_replays_what_the_page_did(tmp_path, capsys):
    scenario = of()
    session = Session(scenario, parse(SCRIPT, scenario))
    runs, saved = session.finish(), tmp_path / "slotscope-live.json"
    saved.write_text(json.dumps(session.to_query()))
    expected = as_text(runs, scenario)
    ways = (
        ["http://localhost:8501" + session.link()],
        [str(saved)],
        ["--url", LINK, "--script", SCRIPT],
    )
    for way in ways:
        assert main(["live", *way]) == 0
        said = capsys.readouterr().out
        assert said.endswith(expected + "\n")
        assert "0.400 s: a prompt of 9,000 tokens, output 40" in said
    assert main(["live", session.link(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["live"] == SCRIPT
    assert found["figures"]["chunked 128"]["ttft_p99"] == METRICS["ttft"].of(runs[1]).quantile(0.99)
    assert main(["live", "/live?live=5:jump:1"]) == 2
    assert "is no action" in capsys.readouterr().err
    assert main(["live", "no-such-file.json"]) == 2
    assert "'no-such-file.json' is no file here and no link" in capsys.readouterr().err


def test_acting_while_it_goes_writes_the_script_that_replays_it():
    scenario = of()
    session = Session(scenario)
    for t, *action in (
        (400.3, "prompt", "9000", "40"),
        (1200.0, "chunk", "32"),
        (1800.9, "policy", "0", "chunked"),
    ):
        session.advance(t)
        session = session.act(*action)
        assert session.t == t
    script = written_script(session.actions)
    assert script == "401:prompt:9000:40;1200:chunk:32;1801:policy:0:chunked"
    replayed = Session(scenario, parse(script, scenario)).finish()
    for ours, theirs in zip(session.finish(), replayed, strict=True):
        assert_same(ours, theirs)


def test_an_action_leaves_what_was_before_it_as_it_was():
    scenario = of()
    plain, acted = Session(scenario), Session(scenario, parse("1500:prompt:9000:40", scenario))
    for a, b in zip(plain.finish(), acted.finish(), strict=True):
        before_a, before_b = (r.steps[r.steps["t0"] + r.steps["ms"] < 1500] for r in (a, b))
        assert before_a["prefill"].sum() == before_b["prefill"].sum() > 0
        assert len(b.requests) == len(a.requests) + 1
        dropped = np.flatnonzero(b.requests["prompt"] == 9000)
        assert b.requests["arrival"][dropped].tolist() == [1500.0]


def test_a_long_prompt_moves_the_worst_gap_of_one_policy_and_not_of_the_other():
    scenario = of(
        "/?duration=3&v=continuous&v=chunked:chunk=64&rate=12&max_num_batched_tokens=16384"
    )
    script = parse("1000:prompt:16000:20", scenario)
    before, after = Session(scenario).finish(), Session(scenario, script).finish()
    worst = [[METRICS["itl"].of(run).quantile(1) for run in runs] for runs in (before, after)]
    assert worst[1][0] > worst[0][0] + 150
    assert worst[1][1] < worst[0][1] + 5


def test_a_rate_brings_the_rest_sooner_and_a_chunk_binds_from_then_on():
    scenario = of()
    plain = traffic_of(scenario, ())
    faster = traffic_of(scenario, parse("1000:rate:60", scenario))
    early = plain.arrival <= 1000
    assert_array_equal(faster.arrival[early], plain.arrival[early])
    assert faster.arrival[~early] == pytest.approx(1000 + (plain.arrival[~early] - 1000) / 2)
    chunked = Session(scenario, parse("1000:chunk:32", scenario)).finish()[1]
    first = np.searchsorted(chunked.steps["t0"], 1000)
    tokens = chunked.grants["tokens"]
    assert tokens[chunked.grants["step0"] >= first].max() == 32
    assert tokens[chunked.grants["step1"] <= first].max() == 128


def test_the_step_in_progress_is_told_while_it_goes():
    session = Session(of())
    for _ in range(40):
        session.step()
    base = session.lanes[1]
    for lane in session.lanes:
        now, s = lane.now(), lane.state
        assert sum(now["prompts"].values()) == s.steps.prefill[s.n.steps - 1]
        assert len(now["decodes"]) == s.steps.decodes[s.n.steps - 1] > 0
        run = lane.run()
        open_now = run.segments[run.segments["t1"] == run.total]
        assert len(open_now) >= lane.counts["seated"] > 0
        assert (
            np.isinf(run.requests["finish"]).sum() == lane.counts["seated"] + lane.counts["waiting"]
        )
    assert base.state.n.steps >= 39


def test_one_step_is_one_step():
    session = Session(of("/?arrivals=list&list=5:64:4;900:64:3&v=continuous&baseline=0"))
    ends = []
    for _ in range(7):
        session.step()
        ends.append(float(session.lanes[0].state.n.now))
    (run,) = Session(session.scenario).finish()
    written = [t for s in run.steps for t in s["t0"] + s["ms"] * np.arange(1, s["repeats"] + 1)]
    assert ends == pytest.approx(written)
    assert session.done


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("x:prompt:1:1", "no whole ms"),
        ("5:jump:1", "is no action"),
        ("5:prompt:0:1", "is not from 1"),
        ("5:prompt:9", "needs prompt, output"),
        ("5:rate:-3", "rate -3 is out of range"),
        ("5:chunk:0", "chunk 0 is out of range"),
        ("5:max_num_seqs:0", "max_num_seqs 0 is out of range"),
        ("5:prompt:9:9:x", "'x' is not from 0"),
        ("5:policy:7:chunked", "is not from 0 to 1"),
        ("5:policy:0:static", "continuous can become chunked"),
        (";".join(["5:prompt:1:1"] * 201), "at most 200"),
    ],
)
def test_an_action_that_cannot_be_is_refused_in_one_sentence(script, says):
    with pytest.raises(ScenarioError, match=says):
        parse(script, of())


def test_a_closed_loop_has_no_rate_and_no_guests():
    for script in "5:rate:9", "5:prompt:9:9":
        with pytest.raises(ScenarioError):
            parse(script, of("/?arrivals=closed&requests=20"))


def test_policies_that_take_over_keep_the_same_books():
    usual = Limits()
    assert interchangeable("continuous", usual) == ["chunked"]
    assert interchangeable("static", usual) == []
    assert interchangeable("vllm_v1", usual) == []  # the others have no queue of two
    synchronous = usual._replace(async_scheduling=0)
    assert "vllm_v1_0_17_1" in interchangeable("vllm_v1", synchronous)
    assert "vllm_v0" not in interchangeable("vllm_v1", synchronous)
    assert "sarathi" not in interchangeable("sglang", usual)
    link = "/?duration=2&v=vllm_v1&num_gpu_blocks=700&async_scheduling=0"
    scenario = of(link)
    (run,) = Session(scenario, parse("700:policy:0:vllm_v1_0_8_5", scenario)).finish()
    assert np.isfinite(run.requests["finish"]).all()
