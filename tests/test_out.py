"""What other programs read: the trace-event format, held against its description, and parquet."""

import io
import json

import numpy as np
import pandas as pd
import pytest

from sim.__main__ import main
from sim.out import TABLES, parquet, trace_events, trace_json
from sim.run import compare
from sim.scenario import Scenario
from sim.state import PHASES, PREEMPTED

NUMBER = (int, float)
# Of each phase of event, the fields that it must have and may have, after the format's own
# description ("Trace Event Format", sections Duration, Complete, Instant, Counter, Metadata).
COMMON = {"ph": str, "name": str, "pid": int}
MUST = {
    "X": {"ts": NUMBER, "dur": NUMBER, "tid": int, "cat": str},
    "i": {"ts": NUMBER, "tid": int, "s": str},
    "C": {"ts": NUMBER, "args": dict},
    "M": {"args": dict},
}
MAY = {
    "X": {"args": dict, "cname": str},
    "i": {"cat": str},
    "C": {"tid": int},
    "M": {"tid": int},
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def check(event: dict) -> None:
    """Raise unless it is an event of the format."""
    must, may = COMMON | MUST[event["ph"]], MAY[event["ph"]]
    assert must.keys() <= event.keys() <= must.keys() | may.keys(), event
    for name, value in event.items():
        assert isinstance(value, (must | may)[name]), (name, event)
        assert not isinstance(value, bool), event
    assert event.get("ts", 0) >= 0, event
    if event["ph"] == "X":
        assert event["dur"] > 0, event
    if event["ph"] == "i":
        assert event["s"] in ("g", "p", "t"), event
    if event["ph"] == "C":
        assert event["args"], event
        assert all(isinstance(v, NUMBER) and v >= 0 for v in event["args"].values()), event
    if event["ph"] == "M":
        name, kind = METADATA[event["name"]]
        assert isinstance(event["args"][name], kind), event


@pytest.fixture(scope="module")
def runs():
    link = "/?duration=2&v=vllm_v1&v=static&num_gpu_blocks=500"
    scenario, problems = Scenario.from_url(link)
    assert not problems
    return compare(scenario), scenario


def test_every_event_is_one_of_the_format(runs):
    trace = json.loads(trace_json(*runs))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        check(event)
    with pytest.raises(AssertionError):
        check({"ph": "X", "name": "x", "pid": 1, "tid": 1, "cat": "x", "ts": 0.0, "dur": -1.0})


def test_slices_of_a_track_are_the_seats_and_never_overlap(runs):
    made = trace_events(*runs)["traceEvents"]
    for pid, run in enumerate(runs[0], start=1):
        slices = pd.DataFrame([e for e in made if e["ph"] == "X" and e["pid"] == pid])
        assert len(slices) == (run.segments["phase"] != PREEMPTED).sum()
        for tid in np.unique(slices["tid"]).tolist():
            track = pd.DataFrame(slices[slices["tid"] == tid])
            own = run.segments[run.segments["seat"] == tid - 1]
            lasted = float(track["dur"].to_numpy().sum()) / 1e3
            assert lasted == pytest.approx((own["t1"] - own["t0"]).sum())
            ends = (track["ts"] + track["dur"]).to_numpy()
            assert np.all(track["ts"].to_numpy()[1:] >= ends[:-1] - 1e-6)
        marks = [e for e in made if e["ph"] == "i" and e["pid"] == pid]
        assert len(marks) == run.requests["preemptions"].sum()
        assert set(slices["cat"]) <= set(PHASES)
    assert runs[0][0].requests["preemptions"].sum() > 0


def test_counters_are_the_line_the_seats_the_tokens_and_the_pool(runs):
    made = trace_events(*runs)["traceEvents"]
    run = runs[0][0]
    counters = [e for e in made if e["ph"] == "C" and e["pid"] == 1]
    queue = [e for e in counters if e["name"] == "requests"]
    assert max(e["args"]["seated"] for e in queue) <= run.seats
    assert queue[-1]["args"] == {"waiting": 0, "seated": 0}
    r = run.requests
    middle = queue[len(queue) // 2]
    t = middle["ts"] / 1e3
    present = ((r["arrival"] <= t) & (r["finish"] > t)).sum()
    assert sum(middle["args"].values()) == present
    tokens = [e["args"] for e in counters if e["name"] == "tokens of a step"]
    assert [e["prefill"] for e in tokens[:-1]] == run.steps["prefill"].tolist()
    pool = [e["args"]["held"] for e in counters if e["name"] == "KV blocks"]
    assert pool == (run.blocks - run.steps["free"]).tolist()


def test_parquet_gives_the_tables_back(runs):
    run = runs[0][0]
    for name, table in TABLES.items():
        back = pd.read_parquet(io.BytesIO(parquet(run, name, runs[1])))
        made = table(run)
        pd.testing.assert_frame_equal(back, made.reset_index() if made.index.name else made)
        assert "slotscope" in back.attrs
    grants = pd.read_parquet(io.BytesIO(parquet(run, "grants", runs[1])))
    assert len(grants) == len(run.grants)


def test_the_command_line_writes_both(tmp_path, capsys):
    trace, tables = tmp_path / "trace.json", tmp_path / "tables"
    options = ["--duration", "1", "--policies", "chunked"]
    assert main(["compare", *options, "--perfetto", str(trace), "--parquet", str(tables)]) == 0
    capsys.readouterr()
    for event in json.loads(trace.read_text())["traceEvents"]:
        check(event)
    assert {p.name for p in tables.iterdir()} == {
        f"chunked-{name}.parquet" for name in ("requests", "steps", "segments", "grants")
    }
