"""What other programs read: the trace-event format, held against its description, and parquet."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator, ValidationError

from sim.__main__ import main
from sim.out import TABLES, parquet, trace_events, trace_json
from sim.run import compare
from sim.scenario import Scenario
from sim.state import PHASES, PREEMPTED

# The format as a JSON schema, one for each phase, after "Trace Event Format" by the authors of
# Chrome's trace viewer (the document that sim/out.py names): sections JSON Object Format, Complete,
# Instant, Counter and Metadata Events. Colours are its list of reserved names. Stricter than that
# document in one thing: a field that is none of a phase's is refused.
TEXT, WHOLE, TIME = {"type": "string", "minLength": 1}, {"type": "integer"}, {"minimum": 0}
TIME |= {"type": "number"}  # microseconds
VALUES = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}
RESERVED = ["thread_state_iowait", "thread_state_running", "yellow", "grey", "black", "terrible"]


def event_of(phase: str, must: dict, may: dict) -> dict:
    fields = {"ph": {"const": phase}, "name": TEXT, "pid": WHOLE} | must
    return {
        "type": "object",
        "properties": fields | may,
        "required": list(fields),
        "additionalProperties": False,
    }


def named(*pairs: tuple[str, str, dict]) -> dict:
    """What a metadata event of each name must say."""
    return {
        "oneOf": [
            {
                "properties": {
                    "name": {"const": name},
                    "args": {
                        "properties": {key: kind},
                        "required": [key],
                        "additionalProperties": False,
                    },
                }
            }
            for name, key, kind in pairs
        ]
    }


METADATA = named(
    ("process_name", "name", TEXT),
    ("process_sort_index", "sort_index", WHOLE),
    ("thread_name", "name", TEXT),
    ("thread_sort_index", "sort_index", WHOLE),
)
EVENTS = {
    "X": event_of(
        "X",
        {"ts": TIME, "dur": TIME, "tid": WHOLE, "cat": TEXT},
        {"args": {"type": "object"}, "cname": {"enum": RESERVED}},
    ),
    "i": event_of("i", {"ts": TIME, "tid": WHOLE, "s": {"enum": ["g", "p", "t"]}}, {"cat": TEXT}),
    "C": event_of("C", {"ts": TIME, "args": VALUES}, {"tid": WHOLE}),
    "M": event_of("M", {"args": {"type": "object"}}, {"tid": WHOLE}) | METADATA,
}
FILE = {
    "type": "object",
    "properties": {
        "traceEvents": {"type": "array", "minItems": 1},
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}
VALIDATORS = {phase: Draft202012Validator(schema) for phase, schema in EVENTS.items()}


def check(event: dict) -> None:
    """Raise unless it is an event of the format."""
    if event.get("ph") not in VALIDATORS:
        raise ValidationError(f"{event.get('ph')!r} is no phase")
    VALIDATORS[event["ph"]].validate(event)


def track(event: dict) -> tuple:
    return event["pid"], event.get("tid")


@pytest.fixture(scope="module")
def runs():
    link = "/?duration=2&v=vllm_v1&v=static&num_gpu_blocks=500"
    scenario, problems = Scenario.from_url(link)
    assert not problems
    return compare(scenario), scenario


def test_every_event_is_one_of_the_format(runs):
    trace = json.loads(
        "".join(trace_json(*runs)), parse_constant=lambda name: pytest.fail(f"{name} in it")
    )
    Draft202012Validator(FILE).validate(trace)
    assert {event["ph"] for event in trace["traceEvents"]} == set(EVENTS)
    for event in trace["traceEvents"]:
        check(event)


SLICE = {"ph": "X", "name": "x", "pid": 1, "tid": 1, "cat": "x", "ts": 0.0, "dur": 1.0}
MARK = {"ph": "i", "name": "x", "pid": 1, "tid": 1, "ts": 0.0, "s": "t"}
COUNT = {"ph": "C", "name": "x", "pid": 1, "ts": 0.0, "args": {"a": 1}}
NAME = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}


@pytest.mark.parametrize(
    "event",
    [
        SLICE | {"dur": -1.0},
        SLICE | {"ts": "0"},
        SLICE | {"tid": "seat 1"},
        SLICE | {"tid": 1.5},
        SLICE | {"cname": "mauve"},
        SLICE | {"colour": "red"},
        {name: value for name, value in SLICE.items() if name != "dur"},
        MARK | {"s": "x"},
        COUNT | {"args": {}},
        COUNT | {"args": {"a": "1"}},
        NAME | {"name": "process_title"},
        NAME | {"args": {"sort_index": 1}},
        SLICE | {"ph": "Y"},
    ],
)
def test_what_is_no_event_of_the_format_is_noticed(event):
    for good in SLICE, MARK, COUNT, NAME:
        check(good)
    with pytest.raises(ValidationError):
        check(event)


def test_every_process_and_track_is_named_once_and_counters_go_on_in_time(runs):
    made = list(trace_events(runs[0]))
    names = [track(e) for e in made if e["name"] == "thread_name"]
    assert len(set(names)) == len(names)
    assert {track(e) for e in made if e["ph"] in "Xi"} == set(names)
    processes = [e["args"]["name"] for e in made if e["name"] == "process_name"]
    assert processes == [run.label for run in runs[0]]
    assert {e["pid"] for e in made} == {1, 2}
    counters = pd.DataFrame([e for e in made if e["ph"] == "C"])
    for counter, rows in counters.groupby(["pid", "name"]):
        assert rows["ts"].is_monotonic_increasing, counter
        assert len({tuple(args) for args in rows["args"]}) == 1, counter
    for pid, run in enumerate(runs[0], start=1):
        ends = [e["ts"] + e.get("dur", 0) for e in made if e["pid"] == pid and "ts" in e]
        assert max(ends) == pytest.approx(1e3 * run.total)


def test_slices_of_a_track_are_the_seats_and_never_overlap(runs):
    made = list(trace_events(runs[0]))
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
    made = list(trace_events(runs[0]))
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
