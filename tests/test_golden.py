"""Recordings of other programs, replayed through the command line."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import naive
import pytest

from sim.__main__ import main
from sim.state import Limits

SHARED = Path(__file__).parents[2] / "shared" / "golden" / "module08"
LIMITS = Limits(max_num_seqs=3, max_num_batched_tokens=2048, chunk=256)
COST = {"overhead": 0.2, "prefill": 0.02, "base": 0.4, "per_seq": 0.03}


def drawn(seed: int, rate: float, duration: float) -> list[tuple[float, int, int]]:
    """The course module's stream: (arrival in ms, prompt, output) of each request."""
    rng, now, rows = random.Random(seed), 0.0, []
    while (now := now + rng.expovariate(rate)) < duration:
        prompt = int(min(4096, max(64, rng.lognormvariate(math.log(700), 0.9))))
        output = int(min(384, max(16, rng.lognormvariate(math.log(110), 0.6))))
        rows.append((now * 1e3, prompt, output))
    return rows


def recording(policy: str) -> dict:
    """A run of the naive twin, in the form of the module's recordings."""
    rows = drawn(11, 20.0, 1.0)
    twin = naive.Server(rows, LIMITS, tuple(COST.values())).run(policy)
    arrival, prompt, output = (list(column) for column in zip(*rows, strict=True))
    return {
        "policy": policy,
        "seed": 11,
        "rate_rps": 20.0,
        "duration_s": 1.0,
        "arrival_unit": "ms",
        **LIMITS._asdict(),
        "cost": COST,
        "arrival_ms": arrival,
        "prompt_len": prompt,
        "out_len": output,
        "first_tok_ms": [r.first for r in twin.requests],
        "finish_ms": [r.finish for r in twin.requests],
        "wall_ms": twin.now,
    }


def replayed(folder: Path, capsys, **recordings) -> tuple[int, str]:
    """Exit code and output for a folder that holds these recordings."""
    for name, content in recordings.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    code = main(["golden", str(folder)])
    return code, capsys.readouterr().out


@pytest.mark.skipif(not SHARED.is_dir(), reason="the module's recordings are not here")
def test_the_modules_recordings_are_all_equal(capsys):
    assert main(["golden", str(SHARED)]) == 0
    assert capsys.readouterr().out == "17 of 17 equal\n"


def test_the_command_runs_by_itself_and_exits_with_the_verdict(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps(recording("static")))
    done = subprocess.run(
        [sys.executable, "-m", "sim", "golden", str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 of 1 equal\n", "")


def test_a_recording_of_the_naive_twin_is_equal_bit_for_bit(tmp_path, capsys):
    recordings = {policy: recording(policy) for policy in naive.POLICIES}
    assert replayed(tmp_path, capsys, **recordings) == (0, "3 of 3 equal\n")


@pytest.mark.parametrize("name", ["arrival_ms", "first_tok_ms", "finish_ms"])
def test_one_unit_in_the_last_place_is_a_difference_and_is_named(tmp_path, capsys, name):
    changed = recording("chunked")
    changed[name][4] = math.nextafter(changed[name][4], math.inf)
    code, out = replayed(tmp_path, capsys, changed=changed, equal=recording("chunked"))
    assert code == 1
    assert f"changed.json: {name} of request 4: " in out
    assert out.endswith("\n1 of 2 equal\n")


def test_a_total_that_differs_is_a_difference(tmp_path, capsys):
    changed = recording("static")
    changed["wall_ms"] = math.nextafter(changed["wall_ms"], 0)
    code, out = replayed(tmp_path, capsys, changed=changed)
    assert code == 1
    assert "wall_ms" in out


def test_a_recording_that_lacks_a_request_is_a_difference(tmp_path, capsys):
    changed = recording("continuous")
    changed["finish_ms"].pop()
    code, out = replayed(tmp_path, capsys, changed=changed)
    assert code == 1
    assert "changed.json: finish_ms: " in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"policy": "static"}', "no recording of a known format"),
        ("[1, 2]", "can't be read"),
        ("not json", "can't be read"),
        ("\x00\x01", "can't be read"),
    ],
)
def test_a_file_of_no_known_format_is_named(tmp_path, capsys, content, said):
    (tmp_path / "other.json").write_text(content)
    code, out = replayed(tmp_path, capsys, own=recording("static"))
    assert code == 1
    assert f"other.json: {said}" in out
    assert out.endswith("1 of 2 equal\n")


def test_a_recording_of_an_unknown_policy_is_named(tmp_path, capsys):
    other = recording("static") | {"policy": "shortest_first"}
    code, out = replayed(tmp_path, capsys, other=other)
    assert code == 1
    assert "other.json: " in out
    assert "shortest_first" in out


@pytest.mark.parametrize("missing", ["", "nowhere.json"])
def test_a_place_without_recordings_exits_2_with_one_line(tmp_path, capsys, missing):
    assert main(["golden", str(tmp_path / missing)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
