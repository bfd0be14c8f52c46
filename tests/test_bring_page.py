"""The page for files of one's own, and what was measured beside what is simulated."""

import re

import pytest
from test_pages import PLAIN, Dashboard, served  # noqa: F401  the fixture serves each test
from test_results import SAMPLES, as_engine_requests

from pages.ui import brought
from sim import bring
from sim.run import serve
from sim.state import Limits
from sim.traces import name_of
from sim.traffic import Traffic
from sim.workload import draw


@pytest.fixture(scope="module")
def recorded() -> str:
    """A file of an engine's requests, of a run that was simulated."""
    work = draw(Traffic(arrivals="poisson", rate=20, duration=4))
    limits = Limits(max_num_seqs=16, num_gpu_blocks=9_000)
    return as_engine_requests(serve(work, "vllm_v1", limits, (6.0, 0.02, 0.0, 0.2)))


class Page(Dashboard):
    """The page, with a file on it."""

    def __init__(self, content: str | bytes, filename: str = "file.x"):
        super().__init__()
        self.turn("pages/bring.py")
        content = content.encode() if isinstance(content, str) else content
        self.at.file_uploader(key="bring").set_value((filename, content, "text/plain"))
        self.run()

    @property
    def text(self) -> str:
        at = self.at.main
        parts = [*at.markdown, *at.caption, *at.subheader, *at.error]
        return re.sub(r"\\([^A-Za-z0-9\s])", r"\1", "\n".join(part.value for part in parts))

    @property
    def tables(self) -> str:
        return "\n".join(table.value.to_string() for table in self.at.main.table)


def test_before_a_file_is_there_the_page_says_what_can_be_brought():
    board = Dashboard()
    board.turn("pages/bring.py")
    assert not board.crashes
    shown = "\n".join(table.value.to_string() for table in board.at.main.table)
    assert "Mooncake" in shown
    assert "vLLM bench serve" in shown


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_says_the_same_as_inspect(name):
    page = Page(SAMPLES[name])
    assert not page.crashes
    found = bring.bring(SAMPLES[name].encode(), "file.x")
    r = bring.report(found, page.scenario.slo)
    assert f"file.x: {r['format']}" in page.text
    assert r["recognised_by"] in page.text
    rows = "1 row" if r["rows"] == 1 else f"{r['rows']:,} rows"
    assert f"{rows}, **{r['bad_rows']:,} bad**" in page.text
    run = r["runs"][0]
    assert bring.states_line(run) in page.text
    for note in run["notes"]:
        assert note in page.text
    for own in run["own"]:
        assert own["name"].split(",")[0] in page.tables.replace("\\", "")


def test_bad_rows_are_listed_with_their_lines():
    page = Page(PLAIN + "9,0,1\n")
    assert "31 rows, **1 bad**" in page.text
    (listed,) = (frame.value for frame in page.at.main.dataframe)
    assert listed["line"].tolist() == [32]
    assert "prompt_len" in listed["what is wrong"][0]


def test_what_was_measured_stands_beside_what_is_simulated(recorded):
    page = Page(recorded)
    found = bring.bring(recorded.encode(), "file.x")
    ((name, (_, measured)),) = found.workloads().items()
    assert measured is not None
    scenario, said = bring.simulated(name, measured)
    assert all(sentence in page.text for sentence in said)
    # A link of the page can't be clicked here: what it asks for is opened in the same session.
    page.at.query_params.clear()
    page.at.query_params.update(scenario.to_query())
    page.turn("pages/compare.py")
    assert not page.crashes
    assert page.scenario == scenario
    assert "TTFT p50" in page.text
    assert "measured" in page.tables
    truth = measured.all_figures(scenario.slo)["ttft_p50"]
    table = next(t.value for t in page.at.main.table if "measured" in t.value.index)
    assert float(table.loc["measured", "TTFT p50"].split("\u00a0")[0]) == pytest.approx(
        truth, rel=0.01
    )
    charts = [chart.proto.alt for chart in page.at.get("vega_lite_chart")]
    assert any("measured and simulated" in alt for alt in charts)


def test_a_result_dropped_in_the_sidebar_is_run_beside_its_measurement(recorded):
    board = Dashboard().drop("run.jsonl", recorded)
    assert board.is_usable
    assert board.address["trace"] == [name_of(recorded.encode())]
    assert any("measured" in t.value.index for t in board.at.main.table)
    assert any("vLLM engine requests" in c.value for c in board.at.sidebar.caption)


def test_a_summary_dropped_in_the_sidebar_points_to_the_page():
    board = Dashboard().drop("s.json", SAMPLES["inference_perf"])
    assert board.is_usable
    assert any("no requests" in c.value for c in board.at.sidebar.caption)
    assert board.address == {"duration": ["3"]}


def test_lengths_alone_ask_for_a_rate():
    lengths = "num_prefill_tokens,num_decode_tokens\n" + "90,9\n" * 20
    board = Dashboard().drop("lengths.csv", lengths)
    assert board.is_usable
    assert board.address["arrivals"] == ["poisson"]
    assert board.address["prompt"] == board.address["output"] == ["trace"]
    assert board.at.number_input(key="rate")


def test_rates_by_window_are_arrivals_with_drawn_lengths():
    board = Dashboard().drop("client.csv", "0,0.05,2.0,Gamma,0.5,1.3\n600,0,0,,0,0\n")
    assert board.is_usable
    assert board.address["arrivals"] == ["timed"]


def test_an_unknown_csv_is_read_by_columns_named_by_hand():
    page = Page('when,user,in,out\n0,"a, b",10,2\n1,b,20,3\n', "some.csv")
    assert not page.crashes
    assert "no format known" in page.text
    for role, column in (("arrival_s", "when"), ("prompt_len", "in"), ("output_len", "out")):
        page.at.selectbox(key=f"column.{role}").select(column)
    page.run()
    page.press("Read with these columns")
    assert not page.crashes
    assert "2 requests over 1.0 s" in page.text


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 9, b'{"a": 1}', b"[1, 2", b"\n\n"])
def test_a_file_that_is_nothing_gets_one_sentence(content):
    page = Page(content)
    assert not page.crashes
    (error,) = page.at.main.error
    assert "file" in error.value
    assert "\n" not in error.value


def test_a_filename_is_text_and_no_markup():
    page = Page(PLAIN, "*a* [b](http://c) <i>.csv")
    (head,) = page.at.main.subheader
    assert head.value.startswith(r"\*a\* \[b\]")


def test_a_file_of_the_servers_folder_is_read_and_found_by_links(tmp_path, monkeypatch):
    (tmp_path / "day.csv").write_text(PLAIN)
    (tmp_path / ".hidden").write_text(PLAIN)
    monkeypatch.setattr(brought, "FOLDER", str(tmp_path))
    board = Dashboard()
    board.turn("pages/bring.py")
    assert board.at.selectbox(key="folder").options == ["day.csv"]
    board.press("Read it")
    assert not board.crashes
    assert any("Plain CSV" in s.value for s in board.at.main.subheader)
    other = Dashboard(arrivals="trace", trace=name_of(PLAIN.encode()))
    assert other.is_usable
    assert not other.notices


def test_turning_a_page_keeps_the_scenario():
    board = Dashboard(rate="44", duration="3", v=["continuous", "chunked:chunk=64"])
    asked = board.scenario
    for page in ("pages/bring.py", "pages/compare.py"):
        board.at.query_params.clear()  # as the browser's navigation does
        board.turn(page)
        assert not board.crashes
        assert board.scenario == asked
        assert board.address == asked.to_query()
