"""The page as a person meets it: a real server, a real Chromium."""

import io
import re
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pandas as pd
import pytest
from conftest import PATIENCE, ROOT, UPLOAD_MB
from PIL import Image
from playwright.sync_api import FilePayload, Locator, Page, expect

from pages.ui.charts import PHASE_COLOURS
from pages.ui.palette import BETTER, WORSE
from pages.ui.timeline import SHARE
from sim.bins import BINS
from sim.detail import events, index
from sim.run import compare
from sim.scenario import Scenario
from sim.state import PREFILL
from sim.traces import name_of

T = TypeVar("T")
SHORT = "/?duration=3"
PAGES = list((ROOT / "pages").glob("*.py"))
PLAIN = b"arrival_ms,prompt_len,output_len\n" + b"".join(
    b"%d,%d,%d\n" % (90 * k, 100 + 37 * k % 900, 5 + 11 * k % 60) for k in range(40)
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + b"\r\n".join(
    b"2023-11-16 18:17:%02d.%07d,%d,%d" % (k // 4, 2_500_000 * (k % 4), 200 + 53 * k, 3 + k % 40)
    for k in range(50)
)

# Bodies of functions of (ui, arg); ui is the timeline's state.
SPOT = """
    const { plotWidth, view } = ui, { layout, under } = await import(arg.module);
    const v = ui.data.variants[arg.variant];
    const { y, height } = layout(ui.data.variants).panels[arg.variant];
    let best = { wide: 0 };
    v.t0.forEach((t0, i) => {
      const from = Math.max(t0, view.t0), to = Math.min(v.t1[i], view.t1), request = v.request[i];
      const shown = (w) => w.start[request] < view.t1 && w.finish[request] > view.t0;
      if (v.phase[i] === 2 && to - from > best.wide && ui.data.variants.every(shown))
        best = { wide: to - from, i, t: (from + to) / 2 };
    });
    const seat = v.offset.findIndex((end) => end > best.i) - 1;
    const x = ui.x(best.t), middle = y + ((seat + 0.5) * height) / v.seats;
    return { x, y: middle, request: under(ui.data, view, plotWidth, x, middle).request };
"""
LIT = """
    const { layout } = await import(arg.module), { ratio } = ui;
    const [shown, base] = [ui.canvas, ui.base].map((c) => c.getContext("2d"));
    const changed = (x, y) => {
      const [a, b] = [shown, base].map((pen) => pen.getImageData(x * ratio, y * ratio, 1, 1).data);
      return a.reduce((sum, v, c) => sum + Math.abs(v - b[c]), 0) > 12;
    };
    return ui.data.variants.map((v, k) => {
      const { y, height } = layout(ui.data.variants).panels[k], left = ui.x(ui.view.t0);
      const inView = (i) => v.t1[i] > ui.view.t0 && v.t0[i] < ui.view.t1;
      const seen = v.byRequest.get(arg.request).filter(inView);
      const wide = (i) => Math.min(v.t1[i], ui.view.t1) - Math.max(v.t0[i], ui.view.t0);
      const i = seen.reduce((a, b) => (wide(b) > wide(a) ? b : a)), row = height / v.seats;
      const [x0, x1] = [Math.max(v.t0[i], ui.view.t0), Math.min(v.t1[i], ui.view.t1)].map(ui.x);
      const middle = y + (v.seat[i] + 0.5) * row;
      const others = [...Array(v.seats).keys()].filter((seat) => Math.abs(seat - v.seat[i]) > 3);
      const spots = others.flatMap((seat) =>
        [0.2, 0.4, 0.6, 0.8].map((t) => [left + t * ui.plotWidth, y + (seat + 0.5) * row]));
      return {
        outlined: [-2, -1, 0].some((dx) => changed(Math.max(0, x0 + dx), middle)),
        filled: !changed((x0 + x1) / 2, middle),
        dimmed: spots.some(([x, y]) => changed(x, y)),
      };
    });
"""
DETAIL = """
    const { part, variants: [v] } = ui.data, { share, waiting, columns, lines } = v.grids[0];
    const plane = (k) => share.slice(k * lines * columns, (k + 1) * lines * columns);
    return {
      ...part, size: ui.bytes.length, lines, columns, waiting: [...waiting],
      shares: v.planes.map((_, k) => plane(k).reduce((a, b) => a + b, 0)),
      requests: [...new Set(v.request)],
    };
"""
PICTURE = """
    const frame = () => new Promise(requestAnimationFrame);
    await frame();
    await frame();
    const { width, height } = ui.canvas;
    const { data } = ui.canvas.getContext("2d").getImageData(0, 0, width, height);
    let coloured = 0, digest = 0;
    for (let p = 0; p < data.length; p += 4) {
      const [r, g, b] = [data[p], data[p + 1], data[p + 2]];
      if (data[p + 3] && Math.max(r, g, b) - Math.min(r, g, b) > 40) coloured++;
      digest = (Math.imul(digest, 31) + r + (g << 8) + (b << 16)) | 0;
    }
    return { coloured, digest, width, height };
"""


def canvas(page: Page) -> Locator:
    return page.locator(".stage canvas")


def ask(page: Page, body: str, **arg):
    """What `body` returns of the timeline's state, `ui`."""
    return canvas(page).evaluate(
        f"async (canvas, arg) => {{ const ui = canvas.getRootNode().timeline; {body} }}", arg
    )


def until(read: Callable[[], T], holds: Callable[[T], object], seconds: float = 10) -> T:
    """Read again and again until it holds."""
    deadline = time.monotonic() + seconds
    while not holds(value := read()):
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
        time.sleep(0.03)
    return value


def settled(page: Page) -> Page:
    """Once the timeline and its charts are drawn and nothing runs."""
    expect(page.get_by_test_id("stVegaLiteChart").locator("svg.marks").nth(2)).to_be_visible()
    expect(canvas(page)).to_be_visible()
    idle(page)
    until(lambda: picture(page)["coloured"], lambda coloured: coloured > 1_000)
    return page


def idle(page: Page, patience: float = PATIENCE) -> None:
    app = page.get_by_test_id("stApp")
    expect(app).to_have_attribute("data-test-script-state", "notRunning", timeout=patience)


def picture(page: Page) -> dict:
    return ask(page, PICTURE)


def verdict(page: Page) -> str:
    return page.get_by_test_id("stMain").locator("h3").first.inner_text().replace("\xa0", " ")


def headline(page: Page) -> str:
    return page.get_by_test_id("stTable").first.inner_text()


def control(page: Page, name: str) -> Locator:
    return page.locator(f".st-key-{name} input")


def controls(page: Page) -> list[str]:
    inputs = page.get_by_test_id("stSidebar").locator("input:not([type=file])").all()
    return [each.input_value() for each in inputs]


def set_number(page: Page, name: str, value: str) -> None:
    control(page, name).fill(value)
    control(page, name).press("Enter")


def view(page: Page) -> tuple[float, float]:
    t0, t1 = ask(page, "return [ui.view.t0, ui.view.t1];")
    return t0, t1


def span(page: Page) -> float:
    t0, t1 = view(page)
    return t1 - t0


def point(page: Page, module: str, variant: int = 1) -> dict:
    """The middle of the variant's longest decode in the window, for a pointer."""
    canvas(page).scroll_into_view_if_needed()
    spot = ask(page, SPOT, module=module, variant=variant)
    box = canvas(page).bounding_box()
    assert box
    return spot | {"px": box["x"] + spot["x"], "py": box["y"] + spot["y"]}


def upload(page: Page, name: str, content: bytes) -> None:
    chooser = page.get_by_test_id("stFileUploader").locator("input[type=file]")
    chooser.set_input_files(FilePayload(name=name, mimeType="text/csv", buffer=content))


def downloaded(page: Page, button: Locator) -> bytes:
    with page.expect_download(timeout=8_000) as download:
        button.click()
    return download.value.path().read_bytes()


def exported(page: Page, where: Locator, *names: str) -> list[bytes]:
    """The files that a chart's or a table's Export gives."""
    buttons = [page.get_by_role("button", name=name, exact=True) for name in names]

    def opened() -> bool:
        if not buttons[0].is_visible():
            where.get_by_role("button", name="Export").click()
            page.wait_for_timeout(200)
        return buttons[0].is_visible()

    until(opened, bool)
    files = [downloaded(page, button) for button in buttons]
    page.keyboard.press("Escape")
    return files


def read_csv(content: bytes) -> pd.DataFrame:
    """The rows under the line that says where they come from."""
    assert re.match(
        rb"# slotscope \S+ . [0-9-]{10} . seed \d+ . http://127",
        content.replace("·".encode(), b"."),
    )
    return pd.read_csv(io.BytesIO(content), comment="#")


def size(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        return image.size


def lightness(element: Locator) -> float:
    """Of its ground, from 0 to 255."""
    colour = element.evaluate("e => getComputedStyle(e).backgroundColor")
    return float(np.mean([int(n) for n in re.findall(r"\d+", colour)[:3]]))


def hue(element: Locator) -> str:
    """Of its text, as #rrggbb."""
    colour = element.evaluate("e => getComputedStyle(e).color")
    return "#" + "".join(f"{int(n):02x}" for n in re.findall(r"\d+", colour)[:3])


def prefill_colour(page: Page) -> str:
    """The colour of prefill on the canvas."""
    return ask(page, "return ui.colours.css[arg.phase];", phase=PREFILL)


def path(page: Page) -> str:
    """The address without its host."""
    return "/" + page.url.partition("//")[2].partition("/")[2]


def histogram(page: Page, metric: str) -> Locator:
    return page.locator(f"[aria-label^='{metric} of each variant']")


def column_of(page: Page, inner: Locator) -> Locator:
    return page.get_by_test_id("stColumn").filter(has=inner).last


@pytest.fixture
def short(visit) -> Page:
    """Three seconds of the opening traffic."""
    return settled(visit(SHORT))


def test_the_opening_page_shows_a_verdict_a_painted_timeline_and_three_histograms(visit):
    page = settled(visit("/"))
    assert re.search(r"ITL p99 from \d+ to \d+ ms", verdict(page))
    assert "(baseline)" in headline(page)
    chunked = page.get_by_test_id("stTable").first.get_by_role("row").last
    gained, lost = (chunked.get_by_text(text).first for text in ("(−", "(+"))
    assert hue(gained) == BETTER[0]
    assert hue(lost) == WORSE[0]
    assert lightness(page.get_by_test_id("stApp")) > 200
    assert prefill_colour(page) == PHASE_COLOURS["prefill"][0]
    label = canvas(page).get_attribute("aria-label") or ""
    assert "3 variants" in label
    assert verdict(page) in label
    for metric in ("ITL", "TTFT", "TPOT"):
        lines = histogram(page, metric).locator("svg.marks .mark-line path")
        assert len({line.get_attribute("d") for line in lines.all()}) >= 3


def test_every_page_opens_without_a_fault(visit):
    page = visit(SHORT)
    expect(page.get_by_test_id("stHeading").first).to_be_visible()
    links = page.get_by_test_id("stSidebarNavLink")
    every = links.evaluate_all("all => all.map(a => a.href)")
    assert len(every) == len(PAGES)
    for go in [*(links.nth(k).click for k in range(len(every))), lambda: page.goto(every[-1])]:
        go()
        idle(page, 3 * PATIENCE)  # the first to open Fidelity has its records fitted
        expect(page.get_by_test_id("stHeading").first).to_be_visible()
        expect(page.get_by_test_id("stException")).to_have_count(0)


def test_a_control_repaints_the_timeline_and_the_address_and_back_undoes_both(short):
    before, said, address = picture(short), headline(short), short.url
    set_number(short, "rate", "20")
    short.wait_for_url("**rate=20**")
    until(lambda: picture(short)["digest"], lambda digest: digest != before["digest"])
    until(lambda: headline(short), lambda text: text != said)
    short.go_back()
    expect(control(short, "rate")).to_have_value("36")
    assert short.url == address
    until(lambda: headline(short), lambda text: text == said)
    until(lambda: picture(short)["digest"], lambda digest: digest == before["digest"])


def test_an_address_shows_the_same_numbers_and_controls_in_another_browser(short, visit):
    set_number(short, "rate", "23.5")
    short.wait_for_url("**rate=23.5**")
    set_number(short, "max_num_seqs", "17")
    short.wait_for_url("**max_num_seqs=17**")
    idle(short)
    other = settled(visit(path(short), fresh=True))
    assert other.url == short.url
    assert headline(other) == headline(short)
    assert verdict(other) == verdict(short)
    assert controls(other) == controls(short)


def test_a_preset_sets_the_controls_and_the_address(short):
    short.get_by_test_id("stSidebar").get_by_text("Presets").click()
    short.get_by_role("link", name="Bursts").click()
    short.wait_for_url("**burstiness=0.1**", timeout=5_000)
    expect(control(short, "rate")).to_have_value("24")
    expect(control(short, "burstiness")).to_have_value("0.1")
    expect(control(short, "duration")).to_have_value("30")
    settled(short)
    short.go_back()
    expect(control(short, "duration")).to_have_value("3")
    expect(control(short, "rate")).to_have_value("36")
    assert path(short) == SHORT


def test_an_address_as_people_write_it_stays_as_it_is_written(visit):
    written = "/?v=continuous&v=chunked:chunk=8&duration=3"
    page = settled(visit(written))
    assert path(page) == written
    assert page.evaluate("history.length") == 2


def test_pointing_at_a_request_names_it_and_lights_it_in_every_variant(short, timeline_js):
    spot = point(short, timeline_js)
    short.mouse.move(spot["px"], spot["py"])
    tip = short.locator(".tip")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text(f"Request {spot['request']} ")
    expect(tip).to_contain_text("ITL here")
    for label in ("static", "continuous", "chunked 128"):
        expect(tip).to_contain_text(f"{label}: TTFT")
    picture(short)
    lit = {"outlined": True, "filled": True, "dimmed": True}
    assert ask(short, LIT, module=timeline_js, request=spot["request"]) == [lit] * 3
    short.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    picture(short)
    unlit = {"outlined": False, "filled": True, "dimmed": False}
    assert ask(short, LIT, module=timeline_js, request=spot["request"]) == [unlit] * 3


def test_a_picked_request_stays_lit_through_a_change_of_scenario_and_a_reload(short, timeline_js):
    spot = point(short, timeline_js)
    request, lit = spot["request"], {"outlined": True, "filled": True, "dimmed": False}
    short.mouse.click(spot["px"], spot["py"])
    short.wait_for_url(f"**request={request}**")
    title = short.get_by_role("heading", name=f"Request {request} under every variant")
    expect(title).to_be_visible()
    short.mouse.move(5, 5)
    picture(short)
    assert ask(short, LIT, module=timeline_js, request=request) == [lit] * 3
    short.get_by_role("button", name="Share", exact=True).click()
    links = short.get_by_test_id("stPopoverBody").get_by_test_id("stCode")
    expect(links.first).to_contain_text(f"request={request}")
    short.keyboard.press("Escape")
    set_number(short, "rate", "35")
    short.wait_for_url("**rate=35**")
    idle(short)
    expect(title).to_be_visible()
    assert f"request={request}" in short.url
    until(lambda: ask(short, "return ui.data.picked;"), lambda r: r == request, seconds=3)
    short.reload()
    settled(short)
    expect(title).to_be_visible()
    assert ask(short, "return ui.data.picked;") == request


def test_the_keyboard_drives_the_timeline_and_shows_where_it_is(short):
    outline = "c => getComputedStyle(c).outlineStyle"
    short.locator(".chart").focus()
    short.keyboard.press("Tab")
    assert ask(short, "return canvas.getRootNode().activeElement === canvas;")
    assert canvas(short).evaluate(outline) == "solid"
    opening = view(short)
    for key, grows in (("w", False), ("s", True), ("W", False)):
        wide = span(short)
        short.keyboard.press(key)
        assert (span(short) > wide) == grows, key
    left = view(short)[0]
    short.keyboard.press("a")
    assert view(short)[0] < left
    short.keyboard.press("d")
    assert view(short)[0] == pytest.approx(left)
    short.keyboard.press("f")
    assert view(short) == (0, ask(short, "return ui.data.whole;"))
    short.keyboard.press("f")
    assert view(short) == pytest.approx(opening)
    short.keyboard.press(" ")
    expect(short.locator(".play")).to_contain_text("Pause")
    short.keyboard.press(" ")
    expect(short.locator(".play")).to_contain_text("Play")


def test_the_play_button_says_what_a_press_would_do(short):
    says = short.locator(".play")
    says.click()
    expect(says).to_contain_text("Pause")
    set_number(short, "rate", "35")
    short.wait_for_url("**rate=35**")
    idle(short)
    expect(says).to_contain_text("Pause" if ask(short, "return ui.playing;") else "Play")
    canvas(short).focus()
    short.keyboard.press("Escape")
    assert not ask(short, "return ui.playing;")
    expect(says).to_contain_text("Play", timeout=2_000)
    expect(short.locator(".clock")).to_have_text("", timeout=2_000)


def test_playing_and_scrubbing_say_nothing_to_the_server(visit):
    sent = []
    page = settled(visit("/", sent=sent))
    quiet = len(sent)
    assert quiet > 0
    page.locator(".speed").select_option("4")
    page.locator(".play").click()
    until(lambda: ask(page, "return ui.playhead;"), lambda ms: ms and ms > 1_500)
    page.locator(".play").click()
    stopped = ask(page, "return ui.playhead;")
    page.wait_for_timeout(200)
    assert ask(page, "return ui.playhead;") == stopped
    expect(page.locator(".clock")).to_have_text(f"{stopped / 1e3:.2f} s")
    page.locator(".scrub").fill("500")
    assert ask(page, "return ui.playhead / ui.data.whole;") == pytest.approx(0.5)
    assert view(page)[0] <= ask(page, "return ui.playhead;") <= view(page)[1]
    assert len(sent) == quiet


def test_the_wheel_zooms_about_the_pointer_and_a_drag_moves_without_picking(short, timeline_js):
    spot = point(short, timeline_js)
    short.mouse.move(spot["px"], spot["py"])
    here, wide, bare = ask(short, f"return ui.time({spot['x']});"), span(short), short.url
    short.mouse.wheel(0, -300)
    assert span(short) == wide
    short.wait_for_timeout(500)  # the page itself has scrolled
    canvas(short).scroll_into_view_if_needed()
    short.wait_for_timeout(500)
    box = canvas(short).bounding_box()
    assert box
    short.mouse.move(box["x"] + spot["x"], box["y"] + spot["y"])
    short.keyboard.down("Control")
    short.mouse.wheel(0, -300)
    short.keyboard.up("Control")
    until(lambda: span(short), lambda now: now < 0.8 * wide)
    assert ask(short, f"return ui.time({spot['x']});") == pytest.approx(here, abs=wide / 500)
    left, wide = view(short)[0], span(short)
    short.mouse.down()
    short.mouse.move(box["x"] + spot["x"] - 80, box["y"] + spot["y"], steps=4)
    short.mouse.up()
    moved = wide * 80 / ask(short, "return ui.plotWidth;")
    assert view(short)[0] == pytest.approx(left + moved, rel=1e-3)
    idle(short)
    assert short.url == bare


def test_the_dark_scheme_has_a_dark_ground_and_its_own_colours(visit):
    page = settled(visit(SHORT, dark=True))
    assert lightness(page.get_by_test_id("stApp")) < 60
    assert lightness(histogram(page, "ITL").locator("svg.marks")) < 60
    assert prefill_colour(page) == PHASE_COLOURS["prefill"][1]


def test_no_width_of_window_makes_the_page_scroll_sideways(short):
    main = short.get_by_test_id("stMain")
    for charts in (5, 6):
        if charts == 6:
            short.locator(".chart").click()
        expect(short.get_by_test_id("stVegaLiteChart")).to_have_count(charts)
        idle(short)
        for width in (2560, 480):
            short.set_viewport_size({"width": width, "height": 900})
            drawn = until(
                lambda: canvas(short).evaluate("c => c.getBoundingClientRect().toJSON()"),
                lambda box, width=width: 0 < box["right"] <= width,
            )
            assert drawn["width"] > 0.6 * min(width, 1_500)
            # Charts are drawn anew a little later than the page is laid out.
            until(lambda: main.evaluate("e => e.scrollWidth - e.clientWidth"), lambda x: x <= 0)


def test_a_histogram_becomes_a_running_sum_and_exports_rows_and_pictures(short):
    itl = histogram(short, "ITL")
    expect(itl).to_contain_text("% of tokens")
    plot = itl.locator("svg.marks").bounding_box()
    assert plot
    table, png, svg = exported(short, column_of(short, itl), "itl.csv", "itl.png", "itl.svg")
    rows = read_csv(table)
    for label in ("static", "continuous", "chunked 128"):
        own = rows[rows["variant"] == label]
        assert len(own) == len(rows) / 3 == BINS
        assert sum(own["share"]) == pytest.approx(100)
    wide, tall = size(png)
    assert wide > 600
    assert tall > 2 * plot["height"]
    assert svg.startswith(b"<svg")
    assert b"slotscope" in svg
    assert b"duration=3" in svg
    short.get_by_test_id("stMain").get_by_text("CDF", exact=True).click()
    expect(itl).to_contain_text("below")


def test_the_timeline_can_be_read_and_exported_as_a_table(short):
    short.get_by_text("The timeline as a table").click()
    box = short.get_by_test_id("stExpander").filter(has_text="The timeline as a table")
    expect(box.get_by_test_id("stDataFrame")).to_be_visible()
    count = re.search(r"([\d,]+) requests, simulated", short.get_by_test_id("stMain").inner_text())
    assert count
    (requests,) = exported(short, box.get_by_test_id("stColumn").nth(1), "requests-static.csv")
    assert len(read_csv(requests)) == int(count[1])
    assert read_csv(requests)["request"].is_unique
    (segments,) = exported(short, box.get_by_test_id("stColumn").nth(0), "segments-static.csv")
    rows = read_csv(segments)
    assert set(rows["request"]) == set(read_csv(requests)["request"])
    assert set(rows["phase"]) <= {"prefill", "stalled", "decode", "padding"}


def test_the_window_in_view_is_saved_as_seen_on_a_fine_screen(visit):
    narrow = {"width": 1000, "height": 700}
    page = settled(visit(SHORT, device_scale_factor=2, viewport=narrow))
    seen, box = picture(page), canvas(page).bounding_box()
    assert box
    assert seen["width"] == pytest.approx(2 * box["width"], abs=1)
    png = downloaded(page, page.locator(".png"))
    wide, tall = size(png)
    assert wide == seen["width"]
    assert tall > seen["height"]
    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB"))
    prefill = [int(PHASE_COLOURS["prefill"][0][k : k + 2], 16) for k in (1, 3, 5)]
    assert (np.abs(pixels.astype(int) - prefill).sum(axis=2) < 12).sum() > 200


def test_the_window_in_view_becomes_a_chart_that_exports(short):
    for _ in range(3):
        short.locator(".in").click()
    t0, t1 = view(short)
    short.locator(".chart").click()
    expect(short.get_by_test_id("stVegaLiteChart")).to_have_count(6)
    idle(short)
    where = short.get_by_test_id("stColumn").filter(
        has=short.get_by_role("button", name="Export"), has_not=short.locator(".stVegaLiteChart")
    )
    table, png = exported(short, where.first, "timeline.csv", "timeline.png")
    rows = read_csv(table)
    assert min(rows["t0"]) == pytest.approx(t0, abs=1e-6)
    assert max(rows["t1"]) <= t1 + 1e-6
    assert len(rows) <= 20_000
    assert set(rows["variant"]) == {"static", "continuous", "chunked 128"}
    assert size(png)[0] > 2_000
    short.get_by_role("button", name="Close").click()
    expect(short.get_by_test_id("stVegaLiteChart")).to_have_count(5)


def test_a_trace_is_shown_named_by_its_content_here_and_elsewhere(short, visit):
    for content, rows in ((PLAIN, 40), (AZURE, 50)):
        said = headline(short)
        upload(short, "mine.csv", content)
        short.wait_for_url(f"**trace={name_of(content)}**")
        until(lambda: headline(short), lambda text, said=said: text != said)
        expect(short.get_by_test_id("stMain")).to_contain_text(f"{rows} requests, simulated")
    idle(short)
    other = settled(visit(path(short)))
    assert headline(other) == headline(short)
    assert other.url == short.url
    foreign = visit("/?arrivals=trace&trace=0123456789abcdef")
    asking = foreign.get_by_test_id("stMain").get_by_test_id("stAlert")
    expect(asking).to_contain_text("drop the file 0123456789abcdef")
    upload(foreign, "theirs.csv", AZURE)
    settled(foreign)
    assert headline(foreign) == headline(short)
    expect(foreign.get_by_test_id("stSidebar")).to_contain_text(
        "This is not the file 0123456789abcdef"
    )


def test_a_bad_file_gets_one_sentence_and_the_page_goes_on(short):
    said = headline(short)
    problem = short.get_by_test_id("stSidebar").get_by_test_id("stAlert")
    bad = {
        "empty.csv": b"",
        "cut.json": b'{"backend": "vllm", "ttfts": [0.1,',
        "binary.csv": bytes(range(256)) * 40,
        "stranger.csv": b"when,what\n1,2\n",
    }
    for name, content in bad.items():
        upload(short, name, content)
        expect(problem).to_contain_text(name)
        assert problem.count() == 1
        assert len(problem.inner_text().strip().splitlines()) == 1
        expect(short.get_by_test_id("stException")).to_have_count(0)
    assert headline(short) == said
    set_number(short, "rate", "20")
    short.wait_for_url("**rate=20**")
    until(lambda: headline(short), lambda text: text != said)


def test_a_file_over_the_limit_is_refused_by_a_message_that_names_the_limit(short):
    upload(short, "large.csv", PLAIN + b"9999,1,1\n" * 120_000)
    refusal = short.get_by_test_id("stSidebar").get_by_text(re.compile("must be .*or smaller"))
    expect(refusal).to_contain_text(f"{UPLOAD_MB}")
    idle(short)
    assert "trace=" not in short.url
    set_number(short, "rate", "20")
    short.wait_for_url("**rate=20**")


def test_an_address_of_50_kb_gets_a_notice_and_the_opening_page(visit):
    page = settled(visit("/?note=" + "x" * 50_000))
    notice = page.get_by_test_id("stMain").get_by_test_id("stAlert")
    expect(notice).to_contain_text("50,004 characters")
    assert len(notice.inner_text()) < 500
    set_number(page, "rate", "20")
    page.wait_for_url("**rate=20**")


def test_what_an_address_says_is_quoted_and_never_rendered(visit):
    hostile = "![x](//example.org/x.png)"
    page = visit(f"/?arrivals=trace&trace={hostile}&rate={hostile}&speed=:red[*a*]&_b_=1")
    expect(page.get_by_test_id("stAlert")).to_have_count(2)
    idle(page)
    notice, question = page.get_by_test_id("stMain").get_by_test_id("stAlert").all()
    for said in (f"rate '{hostile}'", "speed ':red[*a*]'", "'_b_'"):
        expect(notice).to_contain_text(said, timeout=2_000)
    expect(question).to_contain_text(hostile, timeout=2_000)


def test_thirty_thousand_requests_are_painted_and_a_zoom_takes_under_a_second(visit):
    page = visit(
        "/?rate=1000&duration=30&v=continuous&v=chunked:chunk=128&max_num_seqs=256"
        "&overhead_ms=0.05&prefill_ms_per_token=0.001&decode_base_ms=0.05&decode_ms_per_seq=0.002"
    )
    settled(page)
    assert ask(page, "return ui.data.arrival.length;") > 29_000
    assert ask(page, "return ui.data.variants[0].t0.length + ui.data.variants[1].t0.length;") > 1e5
    redraw = """
        const began = performance.now();
        for (let k = 0; k < 3; k++) {
          ui.move({ zoom: k === 1 ? 2 : 0.5 });
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }
        return (performance.now() - began) / 3;
    """
    milliseconds = ask(page, redraw)
    assert milliseconds < 1_000
    assert picture(page)["coloured"] > 1_000


LARGE = "/?arrivals=poisson&duration=2800&v=vllm_v1&max_num_seqs=64"


def test_a_run_too_large_to_send_is_shown_by_its_shares_and_by_request_where_one_looks(visit):
    page, (run,) = visit(LARGE), compare(Scenario.from_url(LARGE)[0])
    settled(page)
    label, whole = page.locator(".window"), run.total

    def answered(t0: float, t1: float) -> dict:
        window = pytest.approx([t0, t1], abs=1e-3)
        return until(lambda: ask(page, DETAIL), lambda d: d["asked"][:2] == window)

    opened = answered(*ask(page, "return ui.data.window;"))
    assert opened["raw"]
    assert opened["size"] < 1_500_000
    expect(label).to_contain_text("every request")
    canvas(page).focus()
    page.keyboard.press("f")
    expect(label).to_contain_text("shares of phases")
    far = answered(0.0, whole)
    assert far["raw"] is None
    assert far["requests"] == []
    assert far["size"] < 1_500_000
    exact = index(run).shares(0.0, whole, far["columns"])
    sums = np.array(far["shares"]) / SHARE
    assert sums == pytest.approx(exact.sum(axis=(1, 2)), abs=0.5 * far["lines"] / SHARE)
    ends = np.linspace(0.0, whole, far["columns"] + 1)[1:]
    assert far["waiting"] == events(run).waiting(ends).tolist()
    assert picture(page)["coloured"] > 1_000
    t0 = whole / 3
    ask(page, "ui.show({ t0: arg.t0, t1: arg.t0 + 20000 });", t0=t0)
    close = answered(t0, t0 + 20_000)
    here = run.segments["request"][index(run).slice(*close["raw"])]
    assert set(close["requests"]) == set(here.tolist())
    idle(page)
    page.get_by_role("button", name="Next worst").click()
    page.wait_for_url("**request=**")
    picked = int(page.url.rpartition("request=")[2].partition("&")[0])
    until(lambda: view(page), lambda v: v[0] <= run.requests["arrival"][picked] <= v[1])
    idle(page)
    canvas(page).focus()
    page.keyboard.press("f")
    far = until(lambda: answered(0.0, whole), lambda d: d["requests"])
    assert far["requests"] == [picked]
    idle(page)
    page.get_by_text("The timeline as a table").click()
    rows = f"The first 5,000 of {len(run.segments):,} rows in the window in view"
    expect(page.get_by_test_id("stMain")).to_contain_text(rows)
