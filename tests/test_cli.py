"""The command line: the page's scenario and numbers, and one line for what can't be had."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim import traces
from sim.__main__ import main
from sim.metrics import FIGURES, figures
from sim.run import compare
from sim.scenario import PARAMETERS, Scenario
from sim.table import as_dict

SHORT = ["--rate", "20", "--duration", "2"]
TRACE = "arrival_ms,prompt_len,output_len\n" + "".join(f"{40 * k},{100 + k},9\n" for k in range(30))


def printed(capsys, *argv: str) -> str:
    assert main(["compare", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def parsed(capsys, *argv: str) -> dict:
    return json.loads(printed(capsys, "--json", *argv))


def refused(capsys, *argv: str) -> str:
    """What is said of a bad command line: one line, exit code 2, nothing on stdout."""
    try:
        code = main(list(argv))
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def test_the_table_has_a_row_a_figure_and_a_column_a_variant(capsys):
    out = printed(capsys, *SHORT, "--policies", "static,chunked:chunk=64")
    lines = out.splitlines()
    assert lines[0].split() == ["static", "chunked", "64"]
    for figure in FIGURES.values():
        assert any(line.startswith(f"{figure.label}, {figure.unit}") for line in lines)
    assert "against chunked 64." in out


def test_figures_that_few_requests_do_not_support_carry_a_mark(capsys):
    out = printed(capsys, *SHORT)
    p99 = next(line for line in out.splitlines() if line.startswith("TTFT p99"))
    assert p99.count("*") == 3
    assert "* too few requests" in out


def test_json_equals_the_same_scenario_run_from_python(capsys):
    options = ["--seed", "5", "--max-num-seqs", "4", "--ttft-slo", "100", "--policies"]
    ours = parsed(capsys, *SHORT, *options, "static,continuous,chunked:chunk=64", "--baseline", "0")
    query = {"rate": ["20"], "duration": ["2"], "seed": ["5"], "max_num_seqs": ["4"]}
    query |= {"ttft_slo": ["100"], "v": ["static", "continuous", "chunked:chunk=64"]}
    scenario, problems = Scenario.from_query(query | {"baseline": ["0"]})
    assert problems == []
    runs = compare(scenario)
    assert ours == as_dict(runs, scenario)
    for run in runs:
        assert ours["figures"][run.label] == pytest.approx(figures(run, scenario.slo), rel=0, abs=0)


def test_json_has_null_for_what_does_not_exist(capsys):
    one_token = ["--arrivals", "poisson", "--output", "fixed:1"]
    out = printed(capsys, *SHORT, "--json", *one_token)
    assert "NaN" not in out
    assert json.loads(out)["figures"]["static"]["tpot_mean"] is None


def test_a_url_means_the_same_as_the_options(capsys):
    url = "http://localhost:8501/?v=static&v=chunked:chunk=8&rate=20&duration=2&prompt=lognormal:90:1:5:400"
    options = ["--policies", "static,chunked:chunk=8", "--prompt", "lognormal:90:1:5:400"]
    assert parsed(capsys, "--url", url) == parsed(capsys, *SHORT, *options)


def test_the_pages_own_address_may_name_the_request_that_was_picked(capsys):
    url = "http://localhost:8501/?rate=20&duration=2"
    assert parsed(capsys, "--url", f"{url}&request=3") == parsed(capsys, "--url", url)


def test_options_change_what_a_url_says(capsys):
    changed = parsed(capsys, "--url", "/?rate=20&duration=9&seed=3", "--duration", "2")
    assert changed == parsed(capsys, *SHORT, "--seed", "3")


def test_the_link_that_is_printed_leads_to_the_same_numbers(capsys):
    first = parsed(capsys, *SHORT, "--policies", "static,chunked", "--overhead-ms", "0.35")
    assert parsed(capsys, "--url", first["link"]) == first


def test_a_scenario_file_means_the_same_as_the_options(capsys, tmp_path):
    scenario, _ = Scenario.from_query({"rate": ["20"], "duration": ["2"], "v": ["continuous"]})
    (tmp_path / "s.json").write_text(scenario.to_json())
    from_file = parsed(capsys, "--scenario", str(tmp_path / "s.json"))
    assert from_file == parsed(capsys, *SHORT, "--policies", "continuous")


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_an_option_under_its_own_name(capsys, name):
    said = refused(capsys, "compare", f"--{name.replace('_', '-')}", "nan")
    assert f"{name} 'nan' is no number" in said


def test_a_trace_is_named_in_the_link_by_its_content(capsys, tmp_path):
    (tmp_path / "t.csv").write_text(TRACE)
    ours = parsed(capsys, "--trace", str(tmp_path / "t.csv"), "--first", "20", "--speed", "4")
    assert ours["requests"] == 20
    assert ours["scenario"]["trace"] == [traces.name_of(TRACE.encode())]
    drawn = parsed(capsys, "--trace", str(tmp_path / "t.csv"), "--arrivals", "poisson", *SHORT,
                   "--prompt", "trace", "--output", "trace")  # fmt: skip
    assert drawn["requests"] != 30


def test_csv_writes_every_table_under_a_line_that_says_where_it_comes_from(capsys, tmp_path):
    folder = tmp_path / "deep" / "down"
    ours = parsed(capsys, *SHORT, "--policies", "static,chunked:chunk=64", "--csv", str(folder))
    labels = ("static", "chunked-64")
    tables = [f"{label}-{table}" for label in labels for table in ("requests", "steps", "segments")]
    assert {p.stem for p in folder.iterdir()} == {"figures", *tables}
    for path in folder.iterdir():
        assert path.read_text().startswith("# slotscope ")
        assert ours["link"] in path.read_text().partition("\n")[0]
    written = pd.read_csv(folder / "figures.csv", comment="#").set_index("figure")
    for label, every in ours["figures"].items():
        expected = {name: math.nan if value is None else value for name, value in every.items()}
        assert written[label].to_dict() == pytest.approx(expected, nan_ok=True)
    requests = pd.read_csv(folder / "chunked-64-requests.csv", comment="#")
    assert len(requests) == ours["requests"]
    mean = ours["figures"]["chunked 64"]["ttft_mean"]
    assert np.mean(requests["ttft_ms"]) == pytest.approx(mean)
    segments = pd.read_csv(folder / "static-segments.csv", comment="#")
    assert set(segments["phase"]) == {"prefill", "decode", "padding"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--rate", "0"], "rate 0 is out of range"),
        (["--rate", "-1"], "rate -1 is out of range"),
        (["--rate", "1e9"], "rate 1,000,000,000 is out of range"),
        (["--rate", "nan"], "rate 'nan' is no number"),
        (["--rate", ""], "rate '' is no number"),
        (["--chunk", "0"], "chunk 0 is out of range"),
        (["--max-num-batched-tokens", "0"], "max_num_batched_tokens 0 is out of range"),
        (["--max-num-batched-tokens", "0.5"], "max_num_batched_tokens 0.5 is not whole"),
        (["--policies", "fcfs"], "'fcfs' is no policy: use static, continuous, chunked"),
        (["--policies", ""], "'' is no policy"),
        (["--policies", "static,static"], "'static' is given twice"),
        (["--baseline", "3"], "baseline 3"),
        (["--arrivals", "pigeon"], "'pigeon' is unknown"),
        (["--arrivals", "trace"], "file"),
        (["--output", "fixed:0"], "output 'fixed:0'"),
        (["--rate", "0.01", "--duration", "0.1"], "raise either"),
        (["--rate", "10000", "--duration", "86400"], "over the cap"),
        (["--url", "http://x/?colour=red"], "'colour'"),
        (["--url", "http://[/?rate=5"], "http://["),
        (["--url", "/?rate=" + "1" * 50_000], "50,004 characters"),
        (["--trace", "nowhere.csv"], "nowhere.csv: No such file"),
        (["--trace", "."], ".: Is a directory"),
        (["--scenario", "nowhere.json"], "nowhere.json: No such file"),
        (["--speed"], "--speed"),
        (["--colour", "red"], "--colour"),
        (["extra"], "extra"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_gets_one_line_and_exit_code_2(capsys, options, named):
    assert named in refused(capsys, "compare", *options)


def test_a_step_that_takes_no_time_is_refused_where_nothing_else_takes_any(capsys):
    free = ["--overhead-ms", "0", "--prefill-ms-per-token", "0"]
    refused(capsys, "compare", "--arrivals", "burst", "--output", "fixed:1", *free)


@pytest.mark.parametrize("content", [b"", b"\x89PNG\0\0\xff\xfe", b"a,b\n1,2\n", b"\xff" * 99])
def test_a_file_that_is_no_trace_is_named(capsys, tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert f"{path} is " in refused(capsys, "compare", "--trace", str(path))


@pytest.mark.parametrize("content", [b"", b"\x89PNG\0\0\xff\xfe", b"a,b", b"[1]", b'{"rate": []'])
def test_a_file_that_is_no_scenario_is_refused(capsys, tmp_path, content):
    path = tmp_path / "s.json"
    path.write_bytes(content)
    refused(capsys, "compare", "--scenario", str(path))


def test_a_bad_value_in_a_scenario_file_is_named(capsys, tmp_path):
    (tmp_path / "s.json").write_text('{"rate": -5}')
    said = refused(capsys, "compare", "--scenario", str(tmp_path / "s.json"))
    assert "rate -5 is out of range" in said


def test_a_folder_that_cannot_be_written_is_named(capsys, tmp_path):
    (tmp_path / "taken").write_text("")
    path = str(tmp_path / "taken")
    assert path in refused(capsys, "compare", *SHORT, "--csv", path)


@pytest.mark.parametrize("argv", [[], ["race"], ["golden"]])
def test_a_command_that_is_none_or_lacks_its_part_gets_one_line(capsys, argv):
    refused(capsys, *argv)


def test_the_command_by_itself_prints_the_same(capsys):
    ours = printed(capsys, *SHORT, "--policies", "static,continuous")

    def sim(*argv):
        command = [sys.executable, "-m", "sim", "compare", *argv]
        root = Path(__file__).parents[1]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    good = sim(*SHORT, "--policies", "static,continuous")
    assert (good.returncode, good.stdout, good.stderr) == (0, ours, "")
    bad = sim("--rate", "nan")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
