"""python -m sim sweep: the page's answers in a terminal, for machines, and as files."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from test_cli import refused

from sim import sweep
from sim.__main__ import main
from sim.capacity import Search, find
from sim.scenario import Scenario
from sim.sweep import Axis, Sweep, run

SHORT = ["--duration", "3", "--seeds", "2", "--x", "rate:10:50:20"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "CACHE", tmp_path / "sweeps")
    monkeypatch.delenv("SLOTSCOPE_CLUSTER", raising=False)


def printed(capsys, *argv: str) -> str:
    assert main(["sweep", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # progress is for a terminal
    return out


def asked() -> Sweep:
    scenario = Scenario.from_query({"duration": ["3"]})[0]
    return Sweep(scenario=scenario, axes=(Axis.parse("rate:10:50:20"),), seeds=2)


def test_the_sentences_come_first_and_a_line_a_point_below(capsys):
    lines = printed(capsys, *SHORT).splitlines()
    assert " carries " in lines[0]
    assert lines[lines.index("") + 1].split()[:2] == ["variant", "rate"]
    assert len(lines) == lines.index("") + 2 + 9


def test_machines_get_the_same_and_every_seed(capsys):
    told = json.loads(printed(capsys, *SHORT, "--json"))
    assert (told["sweep"], told["link"]) == (asked().name, asked().link())
    found = find(Search(scenario=asked().scenario, seeds=2))
    assert [c["by_seed"] for c in told["capacity"]] == [list(c.by_seed) for c in found]
    table = run(asked())
    for point in told["points"]:
        own = table.loc[(table["variant"] == point["variant"]) & (table["rate"] == point["rate"])]
        assert point["tok_s"] == pytest.approx(sum(own["tok_s"].tolist()) / 2, rel=1e-12)
    assert {p["binds"] for p in told["points"]} <= {*sweep_words(), "nothing"}


def sweep_words() -> set[str]:
    return {"seats", "blocks", "budget", "batch", "compute"}


def test_files_hold_every_run_and_say_where_they_come_from(capsys, tmp_path):
    text, binary = tmp_path / "runs.csv", tmp_path / "runs.parquet"
    printed(capsys, *SHORT, "--csv", str(text), "--parquet", str(binary))
    said, _, rest = text.read_text().partition("\n")
    assert said.startswith("# slotscope ")
    assert asked().link() in said
    assert len(rest.splitlines()) == 1 + asked().runs
    table = run(asked())
    pd.testing.assert_frame_equal(pd.read_parquet(binary), table, check_exact=True)
    assert asked().link() in str(pq.read_schema(binary).metadata)


def test_a_pages_address_gives_the_same_sweep(capsys):
    url = f"http://localhost:8501{asked().link()}"
    told = json.loads(printed(capsys, "--url", url, "--share", "95", "--json"))
    assert told["sweep"] == asked().name
    assert told["link"] == f"{asked().link()}&share=95"
    again = json.loads(printed(capsys, "--url", told["link"], "--json"))
    assert (again["link"], again["share"]) == (told["link"], 95)


def test_a_table_says_its_units_and_writes_large_numbers_out(capsys):
    options = ("--duration", "60", "--seeds", "1", "--x", "rate:60", "--policies", "static")
    lines = printed(capsys, *options).splitlines()
    head, row = lines[lines.index("") + 1 :][:2]
    assert "TTFT p99, ms" in head
    assert "e+" not in row


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--x", "rate:1:10000:0.00001"], "over the cap of 50,000 runs: take a wider step"),
        (["--x", "rate:60:20:5"], "is empty, 60 is above 20: swap them"),
        (["--x", "rate:10,20", "--y", "rate:10,20"], "two different ones"),
        (["--seeds", "1.5"], "seeds 1.5 is not whole"),
        (["--share", "0"], "share 0 is out of range: give 1 to 100 %"),
    ],
)
def test_what_cannot_be_swept_is_one_line(capsys, argv, said):
    assert said in refused(capsys, "sweep", *argv)


def test_a_limit_that_nothing_meets_is_answered_by_how_close(capsys):
    out = printed(capsys, *SHORT, "--ttft-slo", "1")
    assert out.startswith("None carries even 33.3 req/s: at that, ")
    assert "at 33.3 req/s, the lowest that its runs can tell, 0 % keep both limits" in out


def test_traffic_without_a_rate_is_swept_and_has_no_capacity(capsys):
    out = printed(capsys, "--arrivals", "burst", "--requests", "50", "--x", "max_num_seqs:4,8")
    assert out.startswith("No capacity: arrivals burst come at no rate")
    assert json.loads(printed(capsys, "--arrivals", "list", "--json"))["capacity"] == []
