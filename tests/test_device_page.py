"""The page Device: nothing yet, a run kept, a run that ended early, and a device that is taken."""

import json
import os
import signal
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from test_browser import point, settled
from test_gpu_probe import QUERY, until
from test_pages import Dashboard, served  # noqa: F401

from gpu_probe import jobs
from gpu_probe.loop import Server
from gpu_probe.memory import SAMPLE, STEP_MEMORY
from gpu_probe.predict import asked
from sim.parameter import ScenarioError
from sim.record import Record, load, save
from sim.scenario import Scenario
from sim.workload import draw


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(jobs, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(jobs, "cards", lambda: [])
    return tmp_path / "runs"


def page() -> Dashboard:
    board = Dashboard(**QUERY)
    board.at.switch_page("pages/device.py")
    board.run()
    assert not board.crashes
    return board


def kept(shelf: Path, name: str, date: str, *, steps: int = 10**9, slower: float = 1.0) -> None:
    """A run as the device leaves it, of steps with some noise."""
    scenario = Scenario.from_query(QUERY)[0]
    work = draw(scenario.traffic).rows(np.arange(30))
    server = Server(work, "chunked", scenario.limits_of(scenario.variants[0]))
    rng, passed = np.random.default_rng(len(date)), [0.0]

    def forward(s):
        ms = 2 + 0.05 * s.n.prefill + 0.3 * s.n.decodes + 0.002 * s.n.context
        passed[0] = slower * ms * rng.uniform(0.95, 1.05)

    for k, _ in enumerate(server.steps(forward, lambda: passed[0]), 1):
        passed[0] = 0.0
        if k == steps:
            break
    run = server.run("a CPU", "chunked 32")
    memory = np.full(50, np.nan, SAMPLE)
    memory["t"] = np.linspace(0, run.total, 50)
    memory["rss"], memory["kv"] = 5e8, 1e6
    about = {
        "device": "a CPU",
        "model": "tiny",
        "dtype": "float32",
        "attention": "padded",
        "clock": "time of the one thread",
        "versions": {"torch": "2"},
        "memory": "process memory (RSS), not device memory",
        "driver": "no CUDA device",
        "policy": "chunked",
        "limits": server.limits._asdict(),
        "clients": 0,
        "date": date,
        "query": scenario.to_query(),
        "variant": str(scenario.variants[0]),
        "requests": 30,
        "finished": server.done == 1,
        "requests_done": int(server.state.n.finished),
    }
    beside = {
        "asked": asked(work),
        "memory": memory,
        "step_memory": np.zeros(len(run.steps), STEP_MEMORY),
    }
    folder = shelf / name
    folder.mkdir(parents=True)
    save(folder / "run.parquet", Record(run, about, beside))
    said = {"label": "chunked 32", "model": "tiny", "device": "cpu", "requests": 30, "date": date}
    (folder / "job.json").write_text(json.dumps(said | {"pid": 1}))


def texts(at) -> str:
    return "\n".join(m.value for m in at.main.markdown)


def test_without_a_gpu_the_page_says_so_and_offers_the_cpu():
    at = page().at
    assert "No GPU here" in texts(at)
    assert at.selectbox(key="device.device").options == ["cpu"]
    assert "drop the file" in at.main.info[0].value


def test_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(jobs, "cards", lambda: ["NVIDIA H200"])
    from pages.ui import device

    device.cards.clear()
    at = page().at
    device.cards.clear()
    assert "**NVIDIA H200**" in texts(at)
    assert at.selectbox(key="device.device").options == ["cuda", "cpu"]


def test_a_kept_run_stands_beside_its_simulation(shelf):
    kept(shelf, "1-chunked-32", "1999-12-31T00:00")
    at = page().at
    assert "off the clock" in texts(at)
    assert "no prediction" in texts(at)
    table = at.main.table[0].value
    assert list(table.index) == [
        "measured, ms",
        "noise of the measurement, ±%",
        "simulated, error in %",
    ]
    assert set(table.loc["noise of the measurement, ±%"]) == {"–"}
    assert abs(float(table.loc["simulated, error in %", "busy"].split()[0])) < 2


def test_repeats_give_the_noise_and_another_run_a_prediction(shelf):
    kept(shelf, "1-chunked-32", "1999-12-30T00:00")
    kept(shelf, "2-chunked-32", "1999-12-31T00:00:00", slower=1.02)
    at = page().at
    noise = at.main.table[0].value.loc["noise of the measurement, ±%", "busy"]
    assert 0.1 < float(noise) < 5


def test_a_run_that_was_killed_is_shown_as_far_as_it_went(shelf):
    kept(shelf, "1-chunked-32", "1999-12-31T00:00", steps=40)
    (shelf / "1-chunked-32" / "log").write_text("python -m gpu_probe serve: the device was lost\n")
    at = page().at
    said = at.main.warning[0].value
    assert "the device was lost" in said
    assert "40 steps" in said
    assert not at.main.table


def test_a_run_of_another_version_is_said_so_and_may_be_forgotten(shelf):
    kept(shelf, "1-chunked-32", "1999-12-31T00:00")
    kept(shelf, "2-chunked-32", "1999-12-31T00:00:00")
    path = shelf / "2-chunked-32" / "run.parquet"
    record = load(path)
    save(path, record._replace(about={n: v for n, v in record.about.items() if n != "clock"}))
    board = page()
    assert "with no clock" in board.at.main.error[0].value
    board.press("Remove this run from the disk")
    assert "off the clock" in texts(board.at)
    assert not board.crashes


def test_exercise_08_2_shows_calls_and_memory_both_ways(shelf):
    at = page().at
    assert [b.key for b in at.main.button if b.key == "exercise"]
    way = {"t": [0.0, 9.0], "bytes": [0.0, 5e6], "kv": [0.0, 1e6], "needed": 1e6, "pool": 1e6}
    way |= {"reserved": None, "what": "process memory"}
    row = {"batch": 8, "tokens": 11_176, "slots used": 1.0, "seconds": 2.0, "spread": 0.01}
    row |= {"tok/s": 5_588.0, "against pad_to_max": 1.4, "decode calls": 1_651, "calls": 1_707}
    found = {
        "regime": "rows",
        "rows": [row | {"way": w} for w in ("pad_to_max", "continuous", "pad_to_max_sorted")],
        "memory": [
            way | {"way": "pad_to_max", "peak": 2e8},
            way | {"way": "continuous", "peak": 5e7},
        ],
    }
    job = jobs.exercise("cpu")
    job.folder.mkdir(parents=True)
    (job.folder / "out.json").write_text(json.dumps(found))
    at = page().at
    calls, memory = at.main.table
    assert calls.value.loc[("8", "continuous"), "calls"] == "1,707"
    assert memory.value.loc["peak above the start", "pad_to_max"] == "190.7 MiB"
    assert "1.4 times the tok/s" in texts(at)
    assert "4.0 times" in "".join(c.value for c in at.main.caption)
    (job.folder / "out.json").write_text("")
    (job.folder / "log").write_text("python -m gpu_probe bench: out of memory\n")
    assert "It ended early: out of memory" in page().at.main.warning[0].value


def test_a_file_that_is_no_run_gets_a_sentence():
    board = page()
    at = board.at
    at.file_uploader(key="device.upload").set_value(("x.parquet", b"PAR1", "application/parquet"))
    board.run()
    assert not board.crashes
    assert "is no run of this program" in at.main.error[0].value


def test_a_taken_device_is_named_with_who_holds_it(monkeypatch):
    def taken(*args, **options):
        raise ScenarioError("cpu is taken by chunked 32 · tiny on cpu: wait until it is over")

    monkeypatch.setattr(jobs, "start", taken)
    board = page().press("Start")
    assert "cpu is taken by chunked 32" in board.at.main.error[0].value
    assert not board.crashes


# In a real browser, and real processes

ADDRESS = "/device?" + urlencode(QUERY | {"duration": ["200"]}, doseq=True)


def begun(page: Page) -> None:
    """Start a run of many requests, and wait until it shows its steps."""
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible(timeout=60_000)
    expect(page.get_by_label("Milliseconds of each step", exact=True)).to_be_visible(timeout=60_000)


def test_a_run_is_watched_stopped_killed_and_kept_and_another_looked_into(
    visit, server, timeline_js
):
    kept(server.log.parent / "runs", "1-vllm-v1", "1999-12-31T00:00")
    page = visit(f"{ADDRESS}&tpot_slo=soon")
    expect(page.get_by_text("tpot_slo 'soon' is no number")).to_be_visible()
    page.get_by_role("combobox", name="Model", exact=True).click()
    page.get_by_role("option", name="tiny").click()
    page.get_by_role("spinbutton", name="Requests", exact=True).fill("4000")
    page.get_by_role("spinbutton", name="Requests", exact=True).press("Enter")
    begun(page)
    progress, seen = page.get_by_test_id("stProgress"), set()
    until(lambda: seen.add(progress.inner_text()) or len(seen) > 3)  # it goes on
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("cpu is taken by vllm_v1")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("The run ended early: it was stopped")).to_be_visible()
    expect(page.get_by_text("What it had measured is kept")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="run.parquet").click()
    assert len(load(Path(download.value.path())).run.steps) > 20

    begun(page)
    job = json.loads(max((server.log.parent / "runs").glob("[0-9]*-*/job.json")).read_text())
    os.kill(job["pid"], signal.SIGKILL)
    expect(page.get_by_text("signal 9 ended its process")).to_be_visible()
    expect(page.get_by_text("What it had measured is kept")).to_be_visible()
    expect(page.get_by_label("Milliseconds of each step", exact=True)).to_be_visible()

    page.get_by_role("combobox", name="Run", exact=True).click()
    page.get_by_role("option", name="1999-12-31").click()
    expect(page.get_by_text("off the clock")).to_be_visible()
    spot = point(settled(page), timeline_js)
    page.mouse.click(spot["px"], spot["py"])
    expect(page.get_by_text(f"Request {spot['request']} arrived at")).to_be_visible()
    table = page.get_by_test_id("stTable").filter(has_text="seat taken")
    assert "measured on a CPU" in table.inner_text()
    assert "simulated, " in table.inner_text()
    page.get_by_role("button", name="Chart").click()
    expect(page.get_by_text("as a chart")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_text("as a chart")).to_have_count(0)
