"""The page Capacity: what the address asks, the answer, jobs that can be watched and ended."""

import re
import threading
import time

import pytest
from conftest import PATIENCE
from playwright.sync_api import expect
from test_pages import Dashboard, served  # noqa: F401

from pages.ui import capacity, searches
from sim import sweep
from sim.answer import sentence
from sim.capacity import Search, find
from sim.parameter import ScenarioError
from sim.scenario import Scenario
from sim.sweep import Axis, Sweep, default_axis

SHORT = {"duration": "3", "seeds": "2", "x": "rate:10:50:20"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "CACHE", tmp_path / "sweeps")
    monkeypatch.delenv("SLOTSCOPE_CLUSTER", raising=False)
    searches._jobs().clear()


class Capacity(Dashboard):
    """The page Capacity, as one visitor has it before them."""

    def __init__(self, **query):
        super().__init__(**(query or SHORT))
        keep = self.at.query_params
        self.at.switch_page("pages/capacity.py")
        self.at.query_params.update(keep)
        self.done()

    def done(self) -> "Capacity":
        """Run until no job does."""
        for _ in range(120):
            self.run()
            if not any(job.running for job in searches._jobs().values()):
                self.run()
                return self
        raise AssertionError("the jobs do not end")

    @property
    def charts(self) -> list[str]:
        return [c.proto.spec for c in self.at.get("vega_lite_chart")]

    @property
    def headings(self) -> list[str]:
        return [h.value.replace("\xa0", " ") for h in self.at.main.subheader]


def test_the_page_says_what_the_search_finds():
    page = Capacity()
    assert page.crashes == []
    scenario = Scenario.from_query({"duration": ["3"]})[0]
    found = find(Search(scenario=scenario, seeds=2))
    assert page.headings[0] == f"{sentence(found, 99, scenario.slo)}."
    assert page.headings[1].startswith(("From ", "All along "))
    table = page.headline
    assert list(table.index) == ["static", "continuous", "chunked 128"]
    assert [int(n) for n in table["Runs"]] == [c.runs for c in found]
    asked = Sweep(scenario=scenario, axes=(Axis.parse("rate:10:50:20"),), seeds=2)
    assert f"sweep {asked.name}, {asked.runs} runs" in page.at.main.caption[-1].value
    assert asked.link() in page.at.main.caption[-1].value
    assert len(page.charts) == 8


def test_a_second_visitor_waits_for_nothing(monkeypatch):
    first = Capacity()
    monkeypatch.setattr(searches, "Job", None)
    assert Capacity().headings == first.headings


def test_the_address_holds_what_is_swept_and_nothing_usual():
    page = Capacity(duration="3", seeds="2", x="chunk:64,128")
    assert page.address == {"duration": ["3"], "seeds": ["2"], "x": ["chunk:64,128"]}
    page.at.text_input(key="sweep.x.range").set_value("64, 256")
    page.done()
    assert page.address["x"] == ["chunk:64,256"]
    page.at.selectbox(key="sweep.x.name").select("rate")
    page.done()
    assert "x" not in page.address
    usual = default_axis(page.scenario)
    assert f"{usual.name}:{page.at.text_input(key='sweep.x.range').value}" == str(usual)
    page.at.number_input(key="sweep.seeds").set_value(5)
    page.at.number_input(key="sweep.share").set_value(95.0)
    page.done()
    assert page.address == {"duration": ["3"], "share": ["95"]}
    assert page.crashes == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"x": "rate:1:10000:0.00001"}, "has 999,900,000 values, over the cap"),
        ({"x": "rate:60:20:5"}, "is empty, 60 is above 20: swap them"),
        ({"x": "clients:1:9:1"}, "clients plays no part in arrivals module"),
        ({"x": "<b>"}, "sweeps no parameter"),
    ],
)
def test_what_cannot_be_swept_is_one_sentence(query, said):
    page = Capacity(**(SHORT | query))
    assert page.crashes == []
    (notice,) = page.notices
    assert said in notice
    assert page.charts == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"seeds": "0"}, "seeds 0 is out of range: give 1 to 200 seeds: this is as usual"),
        ({"share": "x"}, "share 'x' is no number: give 1 to 100 %: this is as usual"),
    ],
)
def test_what_the_address_cannot_have_is_as_usual_and_said_so(query, said):
    page = Capacity(**(SHORT | query))
    assert page.notices == [f"{said}."]
    assert " carries " in page.headings[0]
    page.at.number_input(key="sweep.seeds").set_value(3)
    page.done()
    assert page.notices == []


def test_two_parameters_make_a_map_with_the_feasible_region_outlined():
    page = Capacity(**(SHORT | {"y": "max_num_seqs:4,32"}))
    assert page.crashes == []
    assert page.headings[1].endswith("% of the points keep the SLO")
    drawn, _ = page.charts
    assert '"stroke": "#ffffff"' in drawn
    assert '"y2"' in drawn


def test_traffic_without_a_rate_has_curves_and_no_capacity():
    page = Capacity(arrivals="burst", requests="50", seeds="2", x="max_num_seqs:4,8,16")
    assert page.crashes == []
    assert "come at no rate" in page.at.main.info[0].value
    assert len(page.charts) == 8


def test_much_work_waits_to_be_asked_for(monkeypatch):
    monkeypatch.setattr(capacity, "AT_ONCE", 1_000)
    page = Capacity()
    (button,) = page.at.main.button
    assert (button.label, page.charts) == ("Run 18 runs", [])
    button.click()
    page.done()
    assert len(page.charts) == 8


def test_a_cluster_that_is_not_there_is_said_with_the_offer_to_run_here(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(sweep, "ANSWERS_WITHIN", 0.2)
    monkeypatch.setenv("SLOTSCOPE_CLUSTER", "tcp://127.0.0.1:9")
    page = Capacity()
    assert "no cluster answers at SLOTSCOPE_CLUSTER" in page.notices[0]
    next(b for b in page.at.main.button if b.label == "Run here").click()
    page.done()
    assert page.notices == []
    assert " carries " in page.headings[0]


def test_the_scenario_comes_along_from_page_to_page():
    page = Capacity(**(SHORT | {"rate": "20"}))
    page.at.query_params.clear()  # as the navigation's own links do
    page.at.switch_page("pages/compare.py")
    page.run()
    assert page.scenario.traffic.rate == 20
    assert page.address["rate"] == ["20"]


def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def endless(go_on) -> None:
    for k in range(1, 1_000_000):
        go_on(k, 1_000_000)
        time.sleep(0.001)


def test_a_job_is_ended_at_once_and_begun_again_on_request():
    job = searches.job(("a",), endless)
    until(lambda: job.done > 3)
    assert re.fullmatch(r"[\d,]+ of 1,000,000 runs, about [\d,]+ s left", job.progress)
    assert searches.job(("a",), endless) is job
    job.cancel()
    assert not job.running
    job.wait(5)
    assert not job.thread.is_alive()
    assert searches.job(("a",), endless) is job
    searches.forget(("a",))
    again = searches.job(("a",), lambda go_on: 42)
    again.wait(5)
    assert again.result == searches.found(("a",)) == 42


def test_a_job_that_nobody_watches_ends_and_the_next_who_asks_begins_it_again(monkeypatch):
    monkeypatch.setattr(searches, "UNSEEN", 0.05)
    job = searches.job(("b",), endless)
    until(lambda: not job.thread.is_alive())
    assert job.abandoned
    assert searches.job(("b",), endless) is not job


def test_what_a_job_raises_is_said():
    def refuse(go_on):
        raise ScenarioError("rate 0: raise it")

    job = searches.job(("c",), refuse)
    job.wait(5)
    assert (job.error, job.result, job.running) == ("rate 0: raise it", None, False)


def test_jobs_leave_no_thread_behind():
    threads = threading.active_count()
    for k in range(60):
        searches.job(("d", k), lambda go_on: None).wait(5)
    until(lambda: threading.active_count() <= threads)
    assert len(searches._jobs()) <= searches.KEPT + 1


def test_a_point_that_is_clicked_opens_on_compare(visit):
    """One cell, so that it is the whole map."""
    page = visit("/capacity?duration=3&seeds=2&x=max_num_seqs:8&y=rate:20&v=continuous")
    expect(page.get_by_text("continuous carries")).to_be_visible(
        timeout=3 * PATIENCE
    )  # processes start
    chart = page.locator(".st-key-sweep-chart-heatmap").locator("canvas, svg.marks")
    chart.first.wait_for()
    page.wait_for_timeout(500)
    box = chart.first.bounding_box()
    assert box is not None
    chart.first.click(position={"x": box["width"] / 2, "y": box["height"] * 0.6})
    expect(page.get_by_text("continuous at max_num_seqs 8 and rate 20")).to_be_visible()
    page.get_by_role("link", name="Open max_num_seqs 8 and rate 20 on Compare").click()
    page.locator(".stage canvas").wait_for()
    assert "rate=20" in page.url
    assert "max_num_seqs=8" in page.url
    assert "x=" not in page.url
