"""Runs that are saved, opened elsewhere, reviewed, laid side by side, deleted and had back."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from playwright.sync_api import expect
from streamlit.testing.v1 import AppTest
from test_browser import headline, idle, settled, verdict
from test_pages import PLAIN, ROOT, Dashboard, served  # noqa: F401  a fixture

from pages.ui import keep, visitor
from pages.ui.text import plain
from sim import __version__, traces
from sim.live import written_script
from sim.store import Store

LIBRARY = "pages/library.py"


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    """A store of each test's own."""
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setattr(keep, "store", lambda: store)
    monkeypatch.setattr(visitor, "WRITE", "anyone")
    keep._trace.clear()
    yield store
    store.engine.dispose()


def saved(title: str, tags: str = "", **query) -> Dashboard:
    board = Dashboard(**query)
    board.at.text_input(key="save.title").input(title)
    board.at.text_input(key="save.tags").input(tags)
    return board.press("Save")


def run_of(board: Dashboard) -> str:
    return board.address["run"][0]


def library(board: Dashboard | None = None) -> Dashboard:
    board = board or Dashboard()
    board.at.switch_page(LIBRARY)
    return board.run()


def labels(at: AppTest) -> list[str]:
    return [button.label for button in at.main.button]


def texts(at: AppTest) -> str:
    boxes = [*at.main.markdown, *at.main.caption, *at.main.info, *at.main.warning]
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", "\n".join(str(box.value) for box in boxes))


def test_a_saved_run_is_named_by_the_address_and_opens_for_another_visitor():
    mine = saved("Chunked or not", "review, nightly", rate="20", duration="3")
    assert list(mine.address) == ["run"]
    other = Dashboard(run=run_of(mine))
    assert other.headline.equals(mine.headline)
    assert other.scenario == mine.scenario
    assert other.address == mine.address
    assert "Chunked or not** · saved 20" in texts(other.at)
    assert not other.notices


def test_a_run_that_is_changed_is_another_and_the_address_says_which():
    mine = saved("Mine", rate="20", duration="3")
    mine.type("rate", 21.0)
    assert mine.address == {"rate": ["21"], "duration": ["3"]}
    assert "Mine" not in texts(mine.at)


@pytest.mark.parametrize("name", ["0123456789abcdef", "", "'; DROP TABLE saved", "x" * 500])
def test_a_foreign_run_says_so_and_the_page_is_usable(name):
    board = Dashboard(run=name)
    assert board.is_usable
    assert "link" in board.notices[0]


def test_a_deleted_run_says_so(store):
    mine = saved("Mine", duration="3")
    store.delete(run_of(mine), "")
    board = Dashboard(run=run_of(mine))
    assert board.is_usable
    assert "was deleted on 20" in board.notices[0]


def test_a_store_that_does_not_answer_leaves_the_page_alive(store, monkeypatch):
    mine = saved("Mine", duration="3")
    monkeypatch.setattr(store, "engine", Store("sqlite://").engine)  # without tables
    board = Dashboard(run=run_of(mine))
    assert board.is_usable
    assert "does not answer" in board.notices[0]
    board.at.text_input(key="save.title").input("Again")
    assert "Not saved" in texts(board.press("Save").at)
    library(board)
    assert not board.crashes
    assert "does not answer" in board.at.main.error[0].value


def said(board: Dashboard) -> str:
    return " ".join(caption.value for caption in board.at.sidebar.caption)


def test_a_scenario_too_long_for_a_link_is_kept_and_named_by_the_address(monkeypatch):
    mine = Dashboard(arrivals="list", list="0:500:20")
    long = ";".join(f"{10 * k}:{500 + k}:20" for k in range(900))
    mine.at.text_area(key="list").set_value(long)
    mine.run()
    assert list(mine.address) == ["run"]
    other = Dashboard(run=run_of(mine))
    assert other.scenario.traffic.list == long
    assert other.headline.equals(mine.headline)
    assert not other.notices
    other.at.text_input(key="save.title").input("Long")
    other.press("Save")
    assert "Long** · saved 20" in texts(Dashboard(run=run_of(other)).at)
    monkeypatch.setattr(visitor, "WRITE", "nobody")
    mine.at.text_area(key="list").set_value(f"{long};20000:5:5")
    mine.run()
    assert "no link can show this scenario, it has" in mine.notices[0]
    assert mine.scenario.traffic.list.endswith("20000:5:5")
    assert not mine.address


SCRIPT = "400:prompt:9000:40;1200:chunk:32"


def test_a_saved_live_session_is_named_by_the_address_and_replays():
    query = {"rate": "20", "duration": "2", "v": "chunked", "live": SCRIPT}
    mine = Dashboard(**query)
    mine.turn("pages/live.py")
    mine.at.query_params["live"] = SCRIPT
    mine.run()
    mine.at.text_input(key="live.title").input("A stall")
    mine.press("Save")
    assert list(mine.run().address) == ["run"]
    other = Dashboard(run=run_of(mine))
    assert not other.notices
    other.turn("pages/live.py")
    other.at.query_params["run"] = run_of(mine)
    session = other.run().at.session_state["live-session"]
    assert written_script(session.actions) == SCRIPT
    card = library(Dashboard())
    assert "A stall" in texts(card.at)
    other.press("Forget it")
    assert other.run().address == {"rate": ["20"], "duration": ["2"], "v": ["chunked"]}


def test_an_uploaded_trace_is_shown_to_whoever_opens_the_link():
    mine = Dashboard().drop("mine.csv", PLAIN)
    assert "Kept on this server" in said(mine)
    other = Dashboard(**{name: values[0] for name, values in mine.address.items()})
    assert other.is_usable
    assert other.headline.equals(mine.headline)
    by_name = Dashboard(run=traces.name_of(PLAIN.encode()))
    assert by_name.headline.equals(mine.headline)


def test_a_kept_result_is_shown_by_its_name_and_figures_alone_are_said_to_be_so(store):
    content = b'{"results_ttft_s_mean": 0.2, "results_number_output_tokens_mean": 9}'
    name = store.put(keep.TRACE, content, {"file": "s.json", "label": "LLMPerf summary"})
    board = Dashboard(run=name)
    assert board.is_usable
    assert "s.json has figures and no requests" in board.notices[0]
    board.turn("pages/bring.py")
    board.at.query_params["run"] = name
    assert r"s\.json: LLMPerf summary" in [s.value for s in board.run().at.main.subheader]


def test_a_saved_run_of_a_trace_needs_the_trace(store):
    mine = Dashboard().drop("mine.csv", PLAIN)
    mine.at.text_input(key="save.title").input("Traced")
    mine.press("Save")
    store.days = -1  # everything that nobody saved is too old
    store.put("trace", b"another", {})
    assert Dashboard(run=run_of(mine)).headline.equals(mine.headline)


def test_a_trace_that_may_not_be_kept_is_asked_for(store, monkeypatch):
    monkeypatch.setattr(visitor, "WRITE", "nobody")
    mine = Dashboard().drop("mine.csv", PLAIN)
    assert "asks whoever opens it for the file" in said(mine)
    other = Dashboard(**{name: values[0] for name, values in mine.address.items()})
    assert "drop the file" in other.at.main.info[0].value
    monkeypatch.setattr(visitor, "WRITE", "anyone")
    monkeypatch.setattr(store, "mb", 0)
    full = Dashboard().drop("mine.csv", PLAIN)
    assert "raise SLOTSCOPE_MAX_STORE_MB" in said(full)
    assert full.is_usable


def test_a_run_whose_figures_have_changed_says_so(store, monkeypatch):
    mine = saved("Mine", duration="3")
    monkeypatch.setattr(keep, "as_dict", lambda runs, scenario: {"figures": {"static": {}}})
    board = Dashboard(run=run_of(mine))
    assert f"figures differ from when this was saved, by slotscope {__version__}" in texts(board.at)


def test_a_review_shows_the_same_and_lets_nobody_change_it():
    mine = saved("Mine", rate="20", duration="3")
    for query in ({"run": run_of(mine)}, {"rate": "20", "duration": "3"}):
        at = AppTest.from_file(ROOT / "app.py", default_timeout=30)
        at.query_params.update(query | {"review": "1"})
        for _ in range(2):
            at.run()
            assert not at.exception
            assert at.main.table[0].value.equals(mine.headline)
        assert not at.sidebar.number_input
        assert not at.sidebar.selectbox
        assert not at.main.text_input
        assert "Save" not in labels(at)
        assert "rate" not in at.query_params or at.query_params["rate"] in ("20", ["20"])
        assert "review link" in texts(at)
        assert "req\\/s  \n**20**" in " ".join(m.value for m in at.sidebar.markdown)


def test_the_library_finds_by_words_and_tags():
    saved("One", "a", duration="3")
    saved("Two", "a, b", duration="2")
    board = library()
    at = board.at
    assert [m.value for m in at.main.markdown if m.value.startswith("**")] == ["**Two**", "**One**"]
    at.text_input(key="library.search").input("two")
    assert "**One**" not in texts(board.run().at)
    at.text_input(key="library.search").input("")
    at.selectbox(key="library.tag").select("b")
    assert "**One**" not in texts(board.run().at)
    at.text_input(key="library.search").input("nothing of it")
    assert "Nothing saved here matches" in texts(board.run().at)


def test_a_deletion_is_undone():
    saved("One", duration="3")
    board = library().press("Delete")
    assert "Deleted **One**" in texts(board.at)
    assert "Nothing is saved yet" in texts(board.at)
    board.press("Undo")
    assert "It is back" in texts(board.at)
    assert "Delete" in labels(board.at)


def test_any_two_are_laid_side_by_side():
    boards = [saved("One", duration="3"), saved("Two", duration="3", rate="20")]
    boards.append(saved("Three", duration="2"))
    board = library()

    def choose(k):
        board.at.checkbox(key=f"compare {run_of(boards[k])} ").check()
        board.run()

    choose(0)
    assert "Choose another" in texts(board.at)
    choose(1)
    figures, scenario = (table.value for table in board.at.main.table)
    labels = ["A: static", "A: continuous", "A: chunked 128"]
    assert [label for label in figures if label.startswith("A")] == labels
    shown = figures.loc["TTFT p95", "A: continuous"]
    assert boards[0].headline.loc["continuous (baseline)", "TTFT p95"].startswith(shown)
    assert scenario.to_dict("index") == {"Rate, req/s": {"A": "36", "B": "20"}}
    choose(2)
    assert not board.at.checkbox(key=f"compare {run_of(boards[0])} ").value
    assert not board.crashes


def test_the_scenario_comes_along_to_the_library_and_back():
    board = Dashboard(rate="20", duration="3")
    library(board)
    board.at.query_params.clear()  # as the browser does on the way to another page
    board.at.switch_page("pages/compare.py")
    board.run()
    assert board.scenario.traffic.rate == 20
    assert board.address == {"rate": ["20"], "duration": ["3"]}


# Who may write.


class Visitors:
    """Stands for st.user: nobody has logged in until `name` is set."""

    name = ""
    claims: dict = {}

    def __contains__(self, key):
        return key == "is_logged_in"

    @property
    def is_logged_in(self):
        return bool(self.name)

    def to_dict(self):
        return {"sub": "1", "iss": "https://id.example", "email": self.name} | self.claims


@pytest.fixture
def user(monkeypatch):
    user = Visitors()
    monkeypatch.setattr(visitor.st, "user", user)
    return user


def test_with_a_login_only_who_is_logged_in_saves_and_only_the_owner_deletes(user, store):
    assert "Save" not in labels(Dashboard(duration="3").at)
    assert "Log in" in labels(Dashboard(duration="3").at)
    user.name = "ada@example.org"
    mine = saved("Ada's", duration="3")
    board = library()
    assert {"Delete", "Log out ada@example.org"} <= set(labels(board.at))
    user.name = "bob@example.org"
    board.press("Delete")  # the button was on Ada's screen
    assert [run.title for run in store.shelf()] == ["Ada's"]
    assert "Delete" not in labels(library().at)
    user.name = ""
    assert "Delete" not in labels(library().at)
    assert Dashboard(run=run_of(mine)).is_usable
    assert "by ada@example.org" in texts(library().at)


def test_an_address_that_the_provider_has_not_verified_names_nobody(user):
    user.name, user.claims = "ada@example.org", {"email_verified": False, "sub": "7"}
    assert visitor.name() == "https://id.example 7"


@pytest.mark.parametrize(
    ("headers", "address", "write", "may"),
    [
        ({"Host": "localhost:8501", "Origin": "http://localhost:8501"}, None, "localhost", True),
        ({"Host": "[::1]:8501", "Origin": "http://127.0.0.1:8501"}, None, "localhost", True),
        ({"Host": "localhost:8501"}, "10.0.0.7", "localhost", False),
        ({"Host": "localhost:8501", "X-Forwarded-For": "1.2.3.4"}, None, "localhost", False),
        ({"Host": "127.0.0.1", "Origin": "https://slots.example"}, None, "localhost", False),
        ({"Host": "slots.example"}, None, "localhost", False),
        ({"Host": "slots.example"}, "10.0.0.7", "anyone", True),
        ({"Host": "localhost:8501"}, None, "nobody", False),
    ],
)
def test_without_a_login_only_the_servers_own_machine_writes(
    monkeypatch, headers, address, write, may
):
    context = SimpleNamespace(headers=headers, ip_address=address)
    monkeypatch.setattr(visitor.st, "context", context)
    monkeypatch.setattr(visitor.st, "user", {})
    monkeypatch.setattr(visitor, "WRITE", write)
    assert visitor.may_write() is may
    monkeypatch.setattr(visitor.st, "query_params", {"review": "1"})
    assert visitor.may_write() is False


@given(some.text(max_size=80))
def test_plain_text_keeps_every_character(text):
    shown = plain(text)
    assert re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", shown) == " ".join(text.split())
    for k, mark in enumerate(shown):
        if mark in "*_`<&[]:$#>|~=":
            assert shown[:k].endswith("\\")


# In a browser.

TITLE = "<b>b</b> **x** :red[y] $z$ [l](http://x.example) `=1+1` Größe ЧАНК & co"


def test_a_title_is_text_wherever_it_is_shown(visit):
    page = settled(visit("/?duration=3&rate=21"))
    page.get_by_role("button", name="Share", exact=True).click()
    page.get_by_role("textbox", name="Title").fill(TITLE)
    page.get_by_role("textbox", name="Tags").fill("<i>tag</i>")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/?run=*")
    expect(
        page.get_by_test_id("stMain").get_by_test_id("stCaptionContainer").first
    ).to_contain_text(TITLE)
    expect(
        page.get_by_test_id("stMain").get_by_test_id("stCaptionContainer").first
    ).to_contain_text("<i>tag</i>")
    said, address = headline(page), page.url
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Library").click()
    card = page.get_by_test_id("stMain").get_by_test_id("stImage")
    expect(card.first).to_be_visible()
    expect(page.get_by_test_id("stMain")).to_contain_text(TITLE)
    expect(page.get_by_test_id("stMain").get_by_role("link", name="l", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Open").first.click()
    page.wait_for_url(address)
    settled(page)
    assert headline(page) == said


def test_a_review_link_opens_read_only_and_a_copy_can_be_changed(visit):
    page = settled(visit("/?duration=3&rate=22&review=1"))
    said = verdict(page)
    assert page.get_by_test_id("stSidebar").locator("input").count() == 0
    page.get_by_role("link", name="Open a copy to change").click()
    page.wait_for_url(lambda url: "review" not in url)
    settled(page)
    assert verdict(page) == said
    assert page.get_by_test_id("stSidebar").locator("input").count() > 5


def test_a_file_is_made_while_one_looks_on(visit):
    page = settled(visit("/?duration=3"))
    page.get_by_role("button", name="Export").first.click()
    page.get_by_role("button", name="Requests and steps").click()
    ready = page.get_by_role("button", name="Download slotscope-tables.zip")
    expect(ready).to_be_visible(timeout=60_000)
    idle(page)
    with page.expect_download() as download:
        ready.click()
    assert download.value.suggested_filename == "slotscope-tables.zip"
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
