"""Explanations and the live page as a person meets them: asserted against data, not pixels."""

import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from test_browser import ask, canvas, idle, path, settled, span, until, view

from pages.ui import tables
from sim.__main__ import main as command
from sim.differ import parting
from sim.run import compare
from sim.scenario import Scenario
from sim.why import worst
from sim.window import within

PAIR = "/?duration=3&v=continuous&v=chunked:chunk=128&baseline=0"
LIVE = "/live?duration=4&rate=30&v=continuous&v=chunked:chunk=64&max_num_batched_tokens=16384"


def runs_of(address: str):
    return compare(Scenario.from_url(address)[0])


@pytest.fixture
def pair(visit) -> Page:
    return settled(visit(PAIR))


def test_a_brush_marks_a_window_that_figures_follow_and_the_address_keeps(pair):
    box = canvas(pair).bounding_box()
    assert box
    x = [box["x"] + ask(pair, "return ui.x(arg.t);", t=t) for t in (500.0, 1500.0)]
    y = box["y"] + 60
    pair.keyboard.down("Shift")
    pair.mouse.move(x[0], y)
    pair.mouse.down()
    pair.mouse.move(x[1], y, steps=4)
    pair.mouse.up()
    pair.keyboard.up("Shift")
    pair.wait_for_url("**window=*")
    t0, t1 = (int(part) for part in parse_qs(urlsplit(pair.url).query)["window"][0].split(":"))
    assert (t0, t1) == (pytest.approx(500, abs=10), pytest.approx(1500, abs=10))
    runs, main = runs_of(PAIR), pair.get_by_test_id("stMain")
    parts = [within(run, t0, t1) for run in runs]
    count = len(parts[0].requests)
    said = pair.get_by_test_id("stAlert")
    expect(said).to_contain_text(f"Of {count} requests that arrived")
    pair.reload()
    expect(said).to_contain_text(f"Of {count} requests that arrived")
    settled(pair)
    assert ask(pair, "return [ui.brush.t0, ui.brush.t1];") == [t0, t1]
    found = parting(runs[0], runs[1], (parts[0], parts[1]))
    assert found is not None
    t = min(step.t0 for step in found) / 1e3
    expect(main).to_contain_text(f"Of these {count} requests they part at {t:,.3f} s")
    pair.get_by_role("button", name="Next worst").click()
    pair.wait_for_url(f"**request={worst(runs[0], 'ttft', ids=parts[0].ids)[0]}**")
    idle(pair)
    expect(main).to_contain_text(re.compile(r": 40 runs, about [\d.,]+ m?s of simulating"))
    pair.get_by_role("button", name="Is the difference real?").click()
    expect(main).to_contain_text("Of each, who arrives in the window.")
    canvas(pair).focus()
    pair.keyboard.press("b")
    expect(said).to_have_count(0)
    assert "window=" not in pair.url


def test_jumps_go_to_the_worst_requests_one_after_the_other(pair):
    run = runs_of(PAIR)[0]
    expected = worst(run, "ttft").tolist()
    for i in [*expected, *expected][:2]:
        pair.get_by_role("button", name="Next worst").click()
        pair.wait_for_url(f"**request={i}")
        until(lambda: ask(pair, "return ui.data.picked;"), lambda picked, i=i: picked == i)
        r = run.requests[i]
        until(lambda: view(pair), lambda v, r=r: v[0] <= r["arrival"] and v[1] >= r["last"])
        idle(pair)
    delays = pair.get_by_role("button", name="by request").first
    expect(delays).to_be_visible()
    culprit = delays.inner_text().rpartition(" ")[2]
    delays.click()
    pair.wait_for_url(f"**request={culprit}")


def test_where_two_policies_part_is_shown_and_gone_to(pair):
    left, right = runs_of(PAIR)
    found = parting(left, right)
    assert found is not None
    t0 = min(step.t0 for step in found)
    main = pair.get_by_test_id("stMain")
    expect(main).to_contain_text(f"They part at {t0 / 1e3:,.3f} s")
    prompts = ", ".join(f"{i} ({n:,})" for i, n in found[1].prompts.items())
    expect(main).to_contain_text(prompts)
    wide = span(pair)
    pair.get_by_role("button", name="Go there").click()
    until(lambda: span(pair), lambda now: now < wide / 2)
    assert view(pair)[0] <= t0 <= view(pair)[1]


def so_far(page: Page) -> dict[str, list[str]]:
    """The figures of each variant on the live page, as text."""
    rows = page.get_by_test_id("stTable").last.get_by_role("row").all()[1:]
    cells = [row.inner_text().replace("\xa0", " ").split("\t") for row in rows]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in cells}


def ended(page: Page) -> dict[str, list[str]]:
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_test_id("stMain")).to_contain_text("all are served")
    idle(page)
    return so_far(page)


def ms(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * (1000 if unit == "s" else 1)


def opened(visit, address: str) -> Page:
    page = visit(address)
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    expect(canvas(page)).to_be_visible()
    idle(page)
    return page


def replayed(address: str, capsys) -> dict[str, list[str]]:
    """The same figures by the command line."""
    assert command(["live", address, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    names = ("itl_p99", "itl_max", "ttft_p50", "ttft_p99", "tpot_p99")
    return {
        label: [f"{said['requests']:,}"]
        + [tables.number(figures[name], "ms").replace(tables.NBSP, " ") for name in names]
        for label, figures in said["figures"].items()
    }


def test_a_dropped_prompt_moves_one_policy_and_a_replayed_link_says_the_same(visit, capsys):
    page = opened(visit, LIVE)
    before = ended(page)
    page.get_by_role("button", name="From the start").click()
    expect(page.get_by_test_id("stMain")).not_to_contain_text("all are served")
    page.get_by_role("button", name="Play").click()
    latest = "return Math.max(...ui.data.variants.map((v) => v.total));"
    until(lambda: ask(page, latest), lambda t: t > 500)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    for times in (1, 2):
        page.get_by_role("button", name="Drop it in now").click()
        page.wait_for_url(lambda url, n=times: unquote(url).count("prompt:16000:64") == n)
        idle(page)
    after = ended(page)

    def moved(column: int) -> list[float]:
        names = ("continuous", "chunked 64")
        return [ms(after[name][column]) - ms(before[name][column]) for name in names]

    (p99, stays), (longest, as_it_was) = moved(1), moved(2)  # after `served`
    assert p99 > 8 > abs(stays)
    assert longest > 150
    assert abs(as_it_was) < 10
    assert int(after["continuous"][0]) == int(before["continuous"][0]) + 2
    address = path(page)
    assert "live=" in address
    assert ended(opened(visit, address)) == after
    assert replayed(page.url, capsys) == after


def tab_to(page: Page, wanted: Locator, key: str = "Tab") -> None:
    """Press the key until it, or a part of it, has the focus."""
    has_it = """e => {
        const at = e.getRootNode().activeElement;
        return !!at && (e === at || e.contains(at));
    }"""
    for _ in range(160):
        if wanted.evaluate(has_it):
            return
        page.keyboard.press(key)
    pytest.fail(f"{key} does not reach {wanted}")


def test_the_keyboard_alone_reaches_everything(visit):
    page = settled(visit(PAIR))
    run, wide = runs_of(PAIR)[0], span(page)
    tab_to(page, canvas(page))
    page.keyboard.press("w")
    until(lambda: span(page), lambda now: now < wide)
    began = view(page)[0]
    page.keyboard.press("d")
    until(lambda: view(page)[0], lambda now: now > began)
    page.keyboard.press("b")
    page.wait_for_url("**window=*")
    idle(page)
    page.keyboard.press("b")
    page.wait_for_url(lambda url: "window=" not in url)
    idle(page)
    number = page.get_by_label("Go to request")
    tab_to(page, number)
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    page.wait_for_url("**request=7**")
    until(lambda: ask(page, "return ui.data.picked;"), lambda picked: picked == 7)
    idle(page)
    tab_to(page, page.get_by_role("button", name="Next worst"))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**request={worst(run, 'ttft')[0]}**")
    idle(page)
    tab_to(page, page.get_by_test_id("stExpander").filter(has_text="The runs as files"))
    page.keyboard.press("Enter")
    trace = page.get_by_role("button", name="slotscope-trace.json")
    expect(trace).to_be_visible()
    tab_to(page, trace)
    with page.expect_download() as caught:
        page.keyboard.press("Enter")
    assert caught.value.suggested_filename == "slotscope-trace.json"
    live = page.get_by_role("link", name="Live")
    tab_to(page, live)
    page.keyboard.press("Enter")
    drop = page.get_by_role("button", name="Drop it in now")
    expect(drop).to_be_visible()
    idle(page)
    latest = "return Math.max(...ui.data.variants.map((v) => v.total));"
    tab_to(page, page.get_by_role("button", name="Step", exact=True))
    page.keyboard.press("Enter")
    until(lambda: ask(page, latest), lambda t: 0 < t < 1_000)
    speed = page.get_by_label("Speed", exact=True)
    tab_to(page, speed)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(speed).not_to_have_value("1x")
    idle(page)
    tab_to(page, drop)
    page.keyboard.press("Enter")
    page.wait_for_url("**live=*")
    idle(page)
    for now, then in (("Play", "Pause"), ("Pause", "Play")):
        tab_to(page, page.get_by_role("button", name=now, exact=True), "Shift+Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name=then, exact=True)).to_be_visible()


def test_the_live_timeline_grows_while_it_plays_and_keeps_its_canvas(visit):
    page = opened(visit, LIVE)
    canvas(page).evaluate("c => { c.marked = true; }")
    page.get_by_role("button", name="Play").click()
    latest = "return Math.max(...ui.data.variants.map((v) => Math.max(0, ...v.t1)));"
    seen = [until(lambda: ask(page, latest), lambda t: t > 0)]
    for _ in range(3):
        seen.append(until(lambda: ask(page, latest), lambda t: t > seen[-1]))
    assert np.all(np.diff(seen) > 0)
    assert canvas(page).evaluate("c => c.marked === true")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
