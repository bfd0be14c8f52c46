"""What the server keeps of runs: as much as there is room for, whoever still has a tab open."""

import pytest
from conftest import ROOT
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.testing.v1 import AppTest

from pages.ui import shelf
from pages.ui.shelf import Runs
from sim.run import Run
from sim.scenario import Scenario
from sim.window import Windowed

TABLES = ("requests", "steps", "segments", "gaps", "grants")


@pytest.fixture(autouse=True)
def no_room(monkeypatch):
    """For any run that nobody draws; and none is there yet."""
    monkeypatch.setattr(shelf, "ROOM", 0)
    shelf.shelf.clear()


def asked(seed: int) -> Scenario:
    return Scenario.from_url(f"/?duration=2&seed={seed}")[0]


def content(run: Run) -> list[str]:
    return [str(getattr(run, name).tolist()) for name in TABLES]


def test_a_run_that_others_took_the_room_of_comes_back_the_same():
    runs, others = Runs(asked(1), None), Runs(asked(2), None)
    before = content(runs[0])
    assert runs[0] is runs[0]
    assert content(others[0]) != before
    assert len(shelf.in_use) == len(others)
    assert content(runs[0]) == before


def test_whoever_draws_runs_has_the_same_ones_throughout():
    runs, others = Runs(asked(1), None), Runs(asked(2), None)
    part = Runs(Windowed.of(runs.scenario, 0.0, 1_000.0), None)
    held = [*runs, *part]
    list(others)
    assert all(a is b for a, b in zip(held, [*runs, *part], strict=True))
    assert 0 < len(part[0].requests) < len(runs[0].requests)


def test_small_runs_take_room_too(monkeypatch):
    monkeypatch.setattr(shelf, "ROOM", 4 * shelf.LEAST)
    for seed in (1, 2, 3):
        list(Runs(asked(seed), None))
    assert [key[0].seed for key in shelf.shelf][-3:] == [3, 3, 3]
    assert len(shelf.shelf) == 4


def test_a_session_that_nobody_looks_at_holds_no_run(monkeypatch):
    """Its fragments, buttons and downloads are still there; what they need is simulated again."""
    downloads, add = {}, MediaFileManager.add_deferred

    def added(self, make, *args, file_name, **options):
        downloads.setdefault(file_name, make)
        return add(self, make, *args, file_name=file_name, **options)

    monkeypatch.setattr(MediaFileManager, "add_deferred", added)

    def session(**query) -> AppTest:
        at = AppTest.from_file(ROOT / "app.py", default_timeout=30)
        at.query_params.update({"duration": "2"} | query)
        at.session_state["window"] = (0.0, 500.0)  # a stretch of the timeline as a chart
        at.run()
        assert not at.exception
        return at

    tabs = [session(seed="1", request="3", window="0:1500")]
    mine, file = set(shelf.in_use), downloads["requests-static.csv"]
    before = file()
    assert mine
    tabs.append(session(seed="2"))
    assert not mine & set(shelf.in_use)
    assert file() == before
