"""Every page as the server runs it, without a browser: what controls and the address do to it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.runtime.pages_manager import PagesManager
from streamlit.testing.v1 import AppTest

from pages.ui import compare as comparison
from pages.ui import shelf, timeline
from pages.ui.links import LINKS
from sim import files, traces
from sim import scenario as scenarios
from sim.explain import duration
from sim.metrics import FIGURES
from sim.roofline import ERRORS
from sim.run import compare
from sim.scenario import MAX_VARIANTS, PARAMETERS, Scenario
from sim.table import as_dict, figure_table
from sim.traffic import ARRIVALS

ROOT = Path(__file__).parents[1]
FILES = Path(__file__).parents[2] / "shared" / "cases" / "files"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "pages").glob("*.py"))
SHORT = {"duration": "3"}
PLAIN = "arrival_ms,prompt_len,output_len\n" + "".join(
    f"{100 * k},{50 + 10 * k},{3 + k % 7}\n" for k in range(30)
)


class Dashboard:
    """The app, as one visitor has it before them."""

    def __init__(self, **query: Any):
        self.at = AppTest.from_file(ROOT / "app.py", default_timeout=30)
        self.at.query_params.update(query or SHORT)
        self.at.run()

    def run(self) -> "Dashboard":
        # A browser sends the label that a control shows, so its format_func is not asked again.
        for shown in self.at.selectbox:
            if shown.key == "baseline" and isinstance(shown.value, int):
                self.baseline = shown.options[self.numbers.index(shown.value)]
        self.at.run(timeout=60)
        return self

    @property
    def numbers(self) -> list[int]:
        return list(self.at.session_state["variants"])

    @property
    def baseline(self) -> str:
        return self.at.selectbox(key="baseline").options[
            self.numbers.index(self.at.session_state["baseline"])
        ]

    @baseline.setter
    def baseline(self, label: str) -> None:
        self.at.selectbox(key="baseline").select(label)

    def type(self, key: str, value: Any) -> "Dashboard":
        self.at.number_input(key=key).set_value(value)
        return self.run()

    def select(self, key: str, value: Any) -> "Dashboard":
        self.at.selectbox(key=key).select(value)
        return self.run()

    def turn(self, page: str) -> "Dashboard":
        self.at.switch_page(page)
        return self.run()

    def press(self, label: str) -> "Dashboard":
        next(button for button in self.at.button if button.label == label).click()
        return self.run()

    def drop(self, name: str, content: str | bytes) -> "Dashboard":
        content = content.encode() if isinstance(content, str) else content
        self.at.file_uploader(key="upload").set_value((name, content, "text/csv"))
        return self.run()

    @property
    def crashes(self) -> list[str]:
        return [e.message for e in self.at.exception]

    @property
    def notices(self) -> list[str]:
        """What the main column says that it could not do: sentences, as Markdown shows them."""
        boxes = [*self.at.main.warning, *self.at.main.error]
        lines = [line.removeprefix("- ") for box in boxes for line in box.value.splitlines()]
        return [re.sub(r"\\([^A-Za-z0-9\s])", r"\1", line) for line in lines]

    @property
    def verdict(self) -> str:
        return self.at.main.subheader[0].value.replace("\u00a0", " ")

    @property
    def headline(self) -> pd.DataFrame:
        return self.at.main.table[0].value

    @property
    def scenario(self) -> Scenario:
        return self.at.session_state["scenario"]

    @property
    def address(self) -> dict[str, list[str]]:
        listed = self.at.query_params.items()
        return {k: v if isinstance(v, list) else [v] for k, v in listed}

    @property
    def is_usable(self) -> bool:
        """It shows figures, and no traceback."""
        return not self.crashes and len(self.at.main.table) > 0 and len(self.headline) > 0


@pytest.fixture(autouse=True)
def served(monkeypatch):
    """As on a server from its first run on: the folder `pages` means nothing by itself."""
    init = PagesManager.__init__

    def as_served(self, *args, **kwargs):
        init(self, *args, **kwargs)
        PagesManager.uses_pages_directory = False

    monkeypatch.setattr(PagesManager, "__init__", as_served)
    yield monkeypatch
    PagesManager.uses_pages_directory = None


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_and_runs_again_without_an_exception(page):
    board = Dashboard()
    board.at.switch_page(page)
    for _ in range(2):
        assert not board.run().crashes
    assert len(board.at.main) > 0


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_for_the_first_visitor_of_a_server(page, served):
    served.undo()
    at = AppTest.from_file(ROOT / "app.py", default_timeout=30)
    at.query_params.update(SHORT)
    at.switch_page(page)
    at.run(timeout=60)
    assert not at.exception
    assert len(at.main) > 0
    assert "elsewhere" in at.session_state or len(at.sidebar.number_input) > 0


def test_the_page_opens_on_the_verdict_of_the_opening_scenario():
    board = Dashboard(rate="36")
    assert board.is_usable
    assert not board.notices
    assert board.verdict == as_dict(compare(Scenario()), Scenario())["verdicts"][0]
    assert list(board.headline.index) == ["static", "continuous (baseline)", "chunked 128"]


def test_a_number_changes_the_headline_and_the_address():
    board = Dashboard()
    before = board.headline
    board.type("rate", 20.0)
    assert not board.headline.equals(before)
    assert board.address == {"rate": ["20"], "duration": ["3"]}
    board.type("rate", 36.0)
    assert board.headline.equals(before)
    assert board.address == {"duration": ["3"]}


def test_the_address_sets_the_controls():
    board = Dashboard(
        rate="12.5",
        duration="4",
        seed="7",
        prompt="lognormal:300:0.5:20:900",
        max_num_seqs="9",
        ttft_slo="250",
        v=["continuous", "chunked:chunk=64:overhead_ms=0.5"],
        baseline="0",
    )
    assert not board.notices
    controls = {
        "rate": 12.5,
        "duration": 4,
        "seed": 7,
        "prompt.median": 300,
        "prompt.sigma": 0.5,
        "prompt.low": 20,
        "prompt.high": 900,
        "max_num_seqs": 9,
        "ttft_slo": 250,
    }
    for key, value in controls.items():
        assert board.at.number_input(key=key).value == value, key
    first, second = board.numbers
    assert board.at.selectbox(key=f"{first}.policy").value == "continuous"
    assert board.at.selectbox(key=f"{second}.policy").value == "chunked"
    assert board.at.number_input(key=f"{second}.chunk").value == 64
    assert board.at.number_input(key=f"{second}.overhead_ms").value == 0.5
    assert board.at.number_input(key=f"{second}.max_num_seqs").value is None
    assert board.baseline == "continuous"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", "abc"),
        ("rate", ""),
        ("rate", "nan"),
        ("rate", "inf"),
        ("rate", "0"),
        ("rate", "-1"),
        ("rate", "1e9"),
        ("rate", "1e400"),
        ("chunk", "0"),
        ("chunk", "1.5"),
        ("max_num_batched_tokens", "0"),
        ("max_num_seqs", "-3"),
        ("overhead_ms", "-0.1"),
        ("ttft_slo", "0"),
        ("seed", "-1"),
        ("arrivals", "teatime"),
        ("prompt", "lognormal:700"),
        ("output", "fixed:0"),
        ("v", "quantum"),
        ("v", "chunked:chunk=0"),
        ("v", "chunked:colour=red"),
        ("baseline", "9"),
        ("colour", "red"),
        ("request", "99999"),
        ("request", "first"),
    ],
)
def test_a_part_of_the_address_that_cannot_be_had_is_named_once_and_the_page_renders(name, value):
    board = Dashboard(**{name: value, "duration": "2"})
    assert board.is_usable
    assert len(board.notices) == 1
    assert name in board.notices[0]
    shown = value.removeprefix("chunked:").partition("=")[0] if name == "v" else value
    if name != "colour" and re.fullmatch(r"[\w.:-]+", value) and "e" not in value:
        assert shown in board.notices[0].replace(",", "")


def test_lengths_that_do_not_go_with_the_arrivals_are_named():
    board = Dashboard(prompt="uniform:1:5", duration="2")
    assert board.is_usable
    assert len(board.notices) == 1
    assert "uniform:1:5" in board.notices[0]


def test_what_is_said_of_several_parts_is_said_of_each_and_once():
    board = Dashboard(rate="abc", seed="1.5", colour="red", duration="2")
    assert board.is_usable
    assert [n.split()[0].strip("'") for n in sorted(board.notices)] == ["colour", "rate", "seed"]
    assert board.scenario.traffic.duration == 2


def test_a_variant_given_twice_is_named_once():
    board = Dashboard(v=["static", "static"], duration="2")
    assert board.is_usable
    assert len(board.notices) == 1
    assert "'static' is given twice" in board.notices[0]


def test_a_notice_of_the_address_goes_with_the_next_change():
    board = Dashboard(rate="abc", duration="2")
    assert board.notices
    assert not board.type("rate", 30.0).notices


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("rate", 0.0, "rate 0 "),
        ("rate", -1.0, "rate -1 "),
        ("rate", 1e9, "rate 1,000,000,000 "),
        ("duration", 0.0, "duration 0 "),
        ("seed", -1, "seed -1 "),
        ("chunk", 0, "chunk 0 "),
        ("max_num_batched_tokens", 0, "max_num_batched_tokens 0 "),
        ("max_num_seqs", 0, "max_num_seqs 0 "),
        ("overhead_ms", -1.0, "overhead_ms -1 "),
        ("tpot_slo", 0.0, "tpot_slo 0 "),
        ("prompt.sigma", -1.0, "prompt 'lognormal:700:-1:64:4096' "),
        ("prompt.low", 5000.0, "prompt 'lognormal:700:0.9:5000:4096' "),
        ("output.high", 0.0, "output 'lognormal:110:0.6:16:0' "),
    ],
)
def test_a_bad_number_is_named_the_way_out_is_said_and_the_page_goes_on(key, value, named):
    board = Dashboard().type(key, value)
    assert board.is_usable
    assert len(board.notices) == 1
    assert named in board.notices[0]
    assert re.search(r"give |swap|tokens go from", board.notices[0])


def test_a_good_number_takes_the_notice_away():
    board = Dashboard().type("rate", -1.0)
    assert board.notices
    assert not board.type("rate", 20.0).notices
    assert board.is_usable
    assert board.address["rate"] == ["20"]


def test_steps_that_cost_nothing_are_refused():
    board = Dashboard(duration="2", overhead_ms="0", prefill_ms_per_token="0")
    assert board.is_usable
    assert any("take no time" in notice for notice in board.notices)


def test_variants_are_added_and_removed_down_to_one():
    board = Dashboard(v=["static", "continuous"], **SHORT)
    board.press("Another policy")
    assert list(board.headline.index) == ["static", "continuous (baseline)", "chunked 128"]
    board.press("Another policy")
    assert list(board.headline.index)[3] == "chunked 256"
    assert board.address["v"][3] == "chunked:chunk=256"
    while len(board.numbers) > 1:
        count = len(board.numbers)
        board.press("Remove")
        assert board.is_usable
        assert len(board.headline) == len(board.numbers) == count - 1
    assert not [button for button in board.at.button if button.label == "Remove"]


def test_there_is_a_most_of_variants():
    board = Dashboard()
    while len(board.numbers) < MAX_VARIANTS:
        board.press("Another policy")
    assert board.is_usable
    assert len(set(board.headline.index)) == MAX_VARIANTS
    assert not [button for button in board.at.button if button.label == "Another policy"]


def test_removing_the_baseline_measures_against_another():
    board = Dashboard()
    board.at.button(key=f"{board.numbers[1]}.remove").click()
    board.run()
    assert board.is_usable
    assert list(board.headline.index) == ["static (baseline)", "chunked 128"]


def test_the_baseline_is_chosen_and_stands_without_differences():
    board = Dashboard()
    board.baseline = "static"
    board.run()
    assert board.address["baseline"] == ["0"]
    assert list(board.headline.index)[0] == "static (baseline)"
    assert not board.headline.iloc[0].str.contains("(", regex=False).any()
    assert board.headline.iloc[1].str.contains(r"[−+×]").any()
    assert board.verdict.endswith("against static.")


def test_differences_are_to_the_baseline_and_signed():
    board = Dashboard()
    table = figure_table(compare(board.scenario), board.scenario)
    itl, output = table.loc["itl_p99"], table.loc["tok_s"]
    cells = board.headline.loc["chunked 128"]
    less = 100 * (1 - itl["chunked 128"] / itl["continuous"])
    assert f"(−{less:.0f}\u00a0%)" in cells["ITL p99"]
    other = 100 * (output["chunked 128"] / output["continuous"] - 1)
    assert f"({'+' if other > 0 else '−'}{abs(other):.1f}\u00a0%)" in cells["Output"]
    times = table.loc["ttft_p95", "static"] / table.loc["ttft_p95", "continuous"]
    assert f"(×{times:.0f})" in board.headline.loc["static", "TTFT p95"]


def test_a_variant_has_limits_and_costs_of_its_own():
    board = Dashboard()
    third = board.numbers[2]
    board.type(f"{third}.chunk", 32)
    assert board.address["v"] == ["static", "continuous", "chunked:chunk=32"]
    assert list(board.headline.index)[2] == "chunked 32"
    board.select(f"{third}.policy", "continuous")
    assert board.is_usable
    assert any("given twice" in notice for notice in board.notices)
    board.type(f"{third}.max_num_batched_tokens", 512)
    assert not board.notices
    assert board.address["v"][2] == "continuous:max_num_batched_tokens=512"


@pytest.mark.parametrize("arrivals", [a for a in ARRIVALS if a not in ("trace", "timed")])
def test_each_kind_of_arrivals_can_be_chosen_and_left_again(arrivals):
    board = Dashboard(rate="17", **SHORT)
    for kind in (arrivals, "module"):
        board.select("arrivals", kind)
        assert not board.crashes
        assert board.is_usable
        assert not board.notices
        assert board.scenario.traffic.arrivals == kind
    assert board.scenario.traffic.rate == 17
    assert board.scenario.traffic.duration == 3


def test_without_its_file_a_trace_is_asked_for_and_left_again():
    board = Dashboard()
    board.select("arrivals", "trace")
    assert not board.crashes
    assert "Drop a trace" in board.at.main.info[0].value
    board.select("arrivals", "poisson")
    assert board.is_usable
    asked = Dashboard(arrivals="trace", trace="0123456789abcdef")
    assert "0123456789abcdef" in asked.at.main.info[0].value


@pytest.mark.parametrize("kind", ["uniform", "fixed", "lognormal"])
def test_each_kind_of_lengths_can_be_chosen(kind):
    board = Dashboard(arrivals="poisson", **SHORT)
    board.select("prompt", kind)
    assert board.is_usable
    assert not board.notices
    assert board.scenario.traffic.prompt.kind == kind


@pytest.mark.parametrize("label", LINKS)
def test_each_preset_runs_without_a_notice(label):
    query, problems = Scenario.from_url("?" + LINKS[label])
    assert not problems
    board = Dashboard(**{"duration": "30"} | query.to_query())
    assert board.is_usable
    assert not board.notices
    assert board.scenario == query


def test_a_request_in_the_address_is_shown_under_every_variant():
    board = Dashboard(request="5", **SHORT)
    assert any(title.value == "Request 5 under every variant" for title in board.at.subheader)
    table = board.at.main.table[1].value
    assert list(table.index) == ["static", "continuous", "chunked 128"]
    for run in compare(board.scenario):
        waited = duration(run.requests["first"][5] - run.requests["arrival"][5])
        said = f"- {run.label}: its first token comes after {waited}, "
        assert any(said in text.value for text in board.at.markdown)


def test_limits_that_an_engine_does_not_take_are_said():
    said = "An engine starts with its version's"
    assert not any(said in text.value for text in Dashboard(**SHORT).at.sidebar.caption)
    board = Dashboard(v=["vllm-0.33.0-h100-api", "vllm_v1"], **SHORT)
    (found,) = (text.value for text in board.at.sidebar.caption if said in text.value)
    assert "max_num_batched_tokens, max_num_seqs" in found


def test_one_token_outputs_have_no_itl_and_the_page_says_so():
    board = Dashboard(arrivals="burst", requests="5", output="fixed:1")
    assert board.is_usable
    assert [info.value for info in board.at.main.info] == [
        f"{name} is not defined: no request has a second token." for name in ("ITL", "TPOT")
    ]


@pytest.mark.parametrize("query", [{"v": "static"}, {"arrivals": "burst", "requests": "1"}])
def test_one_variant_or_one_request_is_enough(query):
    board = Dashboard(**SHORT | query)
    assert board.is_usable
    assert not board.notices


@pytest.mark.parametrize(
    "query",
    [
        {"prompt": "lognormal:700.1234567:0.9:64:4096"},
        {"v": ["continuous", "chunked:overhead_ms=1.23456789"]},
        {"v": ["continuous", "continuous:max_num_batched_tokens=1234567"]},
        {"rate": "12.3456789"},
        {"seed": str(2**53 - 1)},
    ],
    ids=lambda query: next(iter(query)),
)
def test_the_address_keeps_every_digit(query):
    board = Dashboard(**SHORT | query)
    assert board.is_usable
    asked, problems = Scenario.from_query(board.address)
    assert not problems
    given, _ = Scenario.from_query(
        {k: v if isinstance(v, list) else [v] for k, v in (SHORT | query).items()}
    )
    assert asked == given == board.scenario


def test_variants_that_differ_in_the_seventh_digit_are_two_variants():
    budgets = [f"continuous:max_num_batched_tokens={n}" for n in (1_234_567, 1_234_568)]
    board = Dashboard(v=budgets, **SHORT)
    assert board.is_usable
    assert len(board.headline) == 2


def shown(cell: str) -> tuple[float, float]:
    """The number in a cell, and half a unit of its last digit; ms, whatever the unit."""
    found = re.match(r"(-?[\d,]+(?:\.(\d+))?)\s(\S+)", cell.replace("\u00a0", " "))
    assert found, cell
    scale = 1e3 if found[3] == "s" else 1
    digits = len(found[2] or "")
    return float(found[1].replace(",", "")) * scale, 0.5001 * 10**-digits * scale


def test_the_page_shows_the_numbers_of_the_command_line():
    board = Dashboard(
        rate="36", duration="20", v=["static", "continuous", "chunked:chunk=64"], max_num_seqs="12"
    )
    scenario, problems = Scenario.from_query(board.address)
    assert not problems
    expected = figure_table(compare(scenario), scenario)
    every = next(t.value for t in board.at.main.table if len(t.value) == len(FIGURES))
    assert any(cell.replace("\u00a0", " ").split()[1] == "s" for cell in every.loc["TTFT p95"])
    for name, figure in FIGURES.items():
        for k, label in enumerate(expected):
            value, half = shown(every.loc[figure.label].iloc[k])
            wanted = expected.at[name, label]
            wanted *= 1e3 if figure.unit == "s" else 1
            assert value == pytest.approx(wanted, abs=half), (name, label)
    assert board.verdict == as_dict(compare(scenario), scenario)["verdicts"][0]


def test_a_dropped_trace_is_run_and_named_in_the_address():
    board = Dashboard().drop("mine.csv", PLAIN)
    assert board.is_usable
    assert board.address["arrivals"] == ["trace"]
    assert board.address["trace"] == [traces.name_of(PLAIN.encode())]
    assert "30 requests" in board.at.main.caption[-1].value
    board.type("first", 12)
    assert "12 requests" in board.at.main.caption[-1].value
    board.type("speed", 4.0)
    assert board.is_usable
    assert board.address["speed"] == ["4"]


def test_a_window_without_a_request_gets_a_sentence():
    board = Dashboard().drop("mine.csv", PLAIN)
    board.type("since", 5000.0)
    assert not board.crashes
    assert len(board.notices) == 1
    assert "5000 s" in board.notices[0]
    board.type("since", 0.0)
    assert board.is_usable


def test_another_file_than_the_one_linked_is_said_to_be_another():
    board = Dashboard(arrivals="trace", trace="0123456789abcdef").drop("mine.csv", PLAIN)
    assert board.is_usable
    assert any(
        "not the file 0123456789abcdef" in caption.value for caption in board.at.sidebar.caption
    )


@pytest.mark.skipif(not FILES.is_dir(), reason="the real slices are not here")
@pytest.mark.parametrize("folder", ["azure_2023", "azure_2024"])
def test_slices_of_real_traces_run(folder):
    for path in sorted((FILES / folder).glob("*.csv"), key=lambda path: path.stat().st_size)[:2]:
        board = Dashboard().drop(path.name, path.read_bytes())
        assert board.is_usable, path.name
        assert not board.notices
        assert board.address["trace"] == [traces.name_of(path.read_bytes())]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        PLAIN.splitlines()[0].encode() + b"\n",
        bytes(range(256)) * 9,
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"when,what\n1,2\n",
    ],
    ids=["empty", "blank", "header", "binary", "png", "stranger"],
)
def test_a_file_that_cannot_be_read_gets_one_sentence_and_changes_nothing(content):
    board = Dashboard()
    before = board.headline
    board.drop("odd.csv", content)
    assert board.is_usable
    assert len(board.at.sidebar.error) == 1
    sentence = board.at.sidebar.error[0].value
    assert "odd.csv" in sentence
    assert len(sentence.splitlines()) == 1
    assert board.headline.equals(before)
    assert board.address == {"duration": ["3"]}


@pytest.mark.parametrize("last", ["1,2", "soon,2,3\n"], ids=["cut", "not a time"])
def test_a_bad_row_of_a_dropped_trace_is_counted_and_the_others_run(last):
    board = Dashboard().drop("mine.csv", PLAIN + last)
    assert board.is_usable
    assert any(
        "30 requests" in c.value and "1 bad rows" in c.value for c in board.at.sidebar.caption
    )


def test_a_file_over_the_limit_is_refused_with_the_limit_and_its_setting(monkeypatch):
    monkeypatch.setattr(files, "MAX_UPLOAD_MB", 1)
    board = Dashboard().drop("large.csv", PLAIN + "9,1,1\n" * 200_000)
    assert board.is_usable
    assert re.search(r"large\.csv .*1 MB.*SLOTSCOPE_MAX_UPLOAD_MB", board.at.sidebar.error[0].value)


def test_requests_over_the_cap_are_refused_before_any_is_drawn(monkeypatch):
    drawn = []
    draw = shelf.draw
    monkeypatch.setattr(shelf, "draw", lambda *args: drawn.append(args) or draw(*args))
    monkeypatch.setattr(scenarios, "MAX_REQUESTS", 1_100)
    board = Dashboard()
    drawn.clear()
    board.type("rate", 5_000.0)
    assert board.is_usable
    assert len(board.notices) == 1
    assert "15,000 requests are over the cap of 1,100" in board.notices[0]
    assert "SLOTSCOPE_MAX_REQUESTS" in board.notices[0]
    assert all(traffic.expected <= 1_100 for traffic, _ in drawn)


def test_memory_over_the_cap_is_refused(monkeypatch):
    monkeypatch.setattr(scenarios, "MAX_MEMORY_MB", 3)
    board = Dashboard()
    board.type("rate", 2_000.0)
    assert board.is_usable
    assert len(board.notices) == 1
    assert "SLOTSCOPE_MAX_MEMORY_MB" in board.notices[0]


def test_a_trace_over_the_cap_is_refused_and_a_shorter_part_of_it_runs(monkeypatch):
    board = Dashboard(arrivals="trace", trace=traces.name_of(PLAIN.encode()))
    monkeypatch.setattr(scenarios, "MAX_REQUESTS", 20)
    board.drop("mine.csv", PLAIN + "9999,1,1\n")
    assert not board.crashes
    assert len(board.notices) == 1
    assert "31 requests are over the cap of 20" in board.notices[0]
    board.type("first", 15)
    assert board.is_usable
    assert not board.notices


def test_every_number_of_the_scenario_has_a_control_somewhere():
    keys = set()
    queries = [{"arrivals": kind} for kind in ("module", "gamma", "closed", "trace")]
    for query in (*queries, {"v": ["vllm_v1", "priority", "chunked", "sglang"]}):
        board = Dashboard(**SHORT | query)
        keys |= {each.key for each in (*board.at.number_input, *board.at.checkbox)}
    assert set(PARAMETERS) <= keys


def test_every_table_and_chart_has_a_text_for_those_who_cannot_see_it():
    board = Dashboard()
    charts = board.at.get("vega_lite_chart")
    assert len(charts) == 5
    assert all(np.char.str_len([chart.proto.alt for chart in charts]) > 20)


def test_step_cost_shows_the_modules_chunk_as_a_preset():
    board = Dashboard()
    board.at.switch_page("pages/step_cost.py")
    board.run()
    example = board.at.selectbox(key="step.example")
    example.set_value("Module 08: a chunk of 120 beside 32 decodes").run()
    assert [m.value for m in board.at.metric][2:] == ["87 tokens", "119 tokens"]


def test_a_link_to_a_step_sets_the_sliders_and_a_bad_one_says_so():
    board = Dashboard()
    board.at.switch_page("pages/step_cost.py")
    board.at.query_params["cost"] = "roofline/l4/qwen3-8b"
    board.at.query_params["step"] = "7:2048:96:0"
    board.run()
    assert board.at.slider(key="step.decodes").value == 7
    assert board.at.slider(key="step.context").value == 2_048
    assert board.at.selectbox(key="cost.device").value == "l4"
    board.at.query_params["step"] = "7"
    board.run()
    assert "is none" in board.at.warning[0].value
    assert not board.crashes


def test_a_load_near_saturation_is_said_and_a_low_one_is_not():
    said = [m.value for m in Dashboard(rate="44", duration="3").at.markdown]
    assert any("Load (offered" in text and "small error" in text for text in said)
    said = [m.value for m in Dashboard(rate="5", duration="3", v="continuous").at.markdown]
    assert any("Load (offered" in text and "small error" not in text for text in said)


@pytest.mark.parametrize(
    ("cost", "error", "said"),
    [
        ("roofline/h100-sxm/llama-3.1-8b", ERRORS["h100-sxm"], "H100 SXM records"),
        ("calibrated/step_ms=6/error=2.5", 2.5, "median error of the fit"),
        ("roofline/l4/llama-3.1-8b", 5.0, "is a guess"),
    ],
)
def test_the_band_starts_from_the_known_error_of_the_step_time(cost, error, said):
    board = Dashboard(cost=cost, v="continuous", **SHORT)
    assert board.at.number_input(key=f"step-error-{error:g}").value == error
    assert any(said in caption.value for caption in board.at.caption)


def test_a_roofline_in_the_address_sets_its_controls():
    board = Dashboard(cost="roofline/h100-pcie/qwen3-8b/tp=2", **SHORT)
    assert board.at.selectbox(key="cost.device").value == "h100-pcie"
    assert board.at.selectbox(key="cost.llm").value == "qwen3-8b"
    assert "roofline/h100-pcie/qwen3-8b/tp=2" in board.at.query_params["cost"]


def test_steps_beyond_what_was_measured_are_said():
    cost = "calibrated/step_ms=5/prefill_ms=0.02/prefill_max=100"
    said = [w.value for w in Dashboard(cost=cost, v="continuous", **SHORT).at.warning]
    assert any("beyond what was measured: prefill" in text for text in said)


def test_the_table_of_a_large_runs_window_holds_all_of_its_segments(monkeypatch):
    query = {"v": "vllm_v1", "duration": "8", "num_gpu_blocks": "400"}
    segments = compare(Scenario.from_query({k: [v] for k, v in query.items()})[0])[0].segments
    ends = segments["t1"]
    late = int(np.flatnonzero(np.diff(ends) < 0)[0])  # one that is told of before it ends
    t0, t1 = (ends[late] + ends[late + 1]) / 2, ends[late] + 1_000
    monkeypatch.setattr(timeline, "WHOLE", 0)
    monkeypatch.setattr(comparison, "asked", lambda link: timeline.Window(t0, t1))
    table = next(d.value for d in Dashboard(**query).at.dataframe if "phase" in d.value)
    inside = segments[(ends > t0) & (segments["t0"] < t1)]
    assert sorted(table["t0"]) == sorted(inside["t0"])
