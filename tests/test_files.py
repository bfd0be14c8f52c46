"""Decks, reports, charts and tables: read back, rendered, opened offline."""

import gzip
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import new_context
from hypothesis import given, settings
from hypothesis import strategies as some
from PIL import Image
from pptx import Presentation
from pptx.util import Inches
from pyarrow import parquet as pq

from pages.ui import charts, deck, drawings, files, jobs, report, tables, timeline
from pages.ui.draw import drawn, picture
from pages.ui.timeline import opening_window
from sim import __version__, traces
from sim.explain import verdicts
from sim.metrics import METRICS, QUANTILES
from sim.run import compare
from sim.scenario import Scenario
from sim.state import PHASES
from sim.table import csv, figure_table, inert, requests_table, snippet, steps_table
from sim.window import Windowed, counted

HOST = "http://localhost:8501"
MARKUP = "=cmd|' /C calc'!A0 <script>alert(1)</script> & \"**b**\" ]]> ü"
PRESSED = "v=vllm_v1&v=orca&max_num_seqs=64&num_gpu_blocks=1200&baseline=0&duration=3"


def view_of(query: str) -> files.View:
    scenario, problems = Scenario.from_url("/?" + query)
    assert not problems
    runs = compare(scenario)
    return files.View(scenario, runs, HOST, opening_window(runs, scenario.baseline))


@pytest.fixture(scope="module")
def view() -> files.View:
    return view_of("duration=3")


def presentation(path: Path) -> Any:
    return Presentation(str(path))


def made(kind: str, view: files.View, folder: Path) -> Path:
    """The file, and that its making told how far it was."""
    told = []
    path = folder / files.FILES[kind].name
    files.FILES[kind].make(view, path, lambda share, doing: told.append((share, doing)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 and doing for share, doing in told)
    return path


@pytest.fixture(scope="module")
def deck_file(view, tmp_path_factory) -> Path:
    return made("slides", view, tmp_path_factory.mktemp("deck"))


@pytest.fixture(scope="module")
def report_file(view, tmp_path_factory) -> Path:
    return made("page", view, tmp_path_factory.mktemp("report"))


def says_where_from(text: str) -> bool:
    today = pd.Timestamp.now("UTC").strftime("%Y-%m-%d")
    parts = (f"slotscope {__version__}", today, "seed 1234", f"{HOST}/?duration=3")
    return all(part in text for part in parts)


def test_a_deck_opens_with_the_verdict_and_names_its_link_on_every_slide(view, deck_file):
    slides = presentation(deck_file).slides
    assert slides[0].shapes.title.text == verdicts(view.runs, view.scenario.baseline)[0]
    for slide in slides:
        assert slide.shapes.title.text
        assert says_where_from(slide.notes_slide.notes_text_frame.text)
        assert any(says_where_from(shape.text) for shape in slide.shapes if shape.has_text_frame)


def grids(slides) -> list[list[list[str]]]:
    shown = [shape.table for slide in slides for shape in slide.shapes if shape.has_table]
    return [[[cell.text for cell in row.cells] for row in table.rows] for table in shown]


def test_a_deck_has_the_headline_and_the_scenario_as_tables(view, deck_file):
    headline, *scenario = grids(presentation(deck_file).slides)
    compared = tables.compared(view.runs, view.scenario, tables.HEADLINE, False).data
    assert headline[0][1:] == list(compared.index)
    assert [row[0] for row in headline[1:]] == list(compared.columns)
    assert headline[1][2] == compared.iloc[1, 0].replace("\\", "")
    rows = {row[0]: row[1:] for part in scenario for row in part}
    assert rows["Arrivals for, s"] == ["3", "", ""]  # one cell for all three
    assert rows["chunk: tokens of a prompt in a step"] == ["", "", "128"]
    assert rows["Seed"] == ["1234", "", ""]


def test_a_decks_charts_are_native_and_hold_exact_quantiles(view, deck_file):
    shown = [
        shape.chart
        for slide in presentation(deck_file).slides
        for shape in slide.shapes
        if shape.has_chart
    ]
    assert len(shown) == 2 * len(drawings.SHOWN)
    for (metric, *_), cdf, bars in zip(drawings.SHOWN, shown[::2], shown[1::2], strict=True):
        for run, line, bar in zip(
            view.runs, cdf.plots[0].series, bars.plots[0].series, strict=True
        ):
            sample = METRICS[metric].of(run)
            assert line.name == bar.name == run.label
            assert list(bar.values) == pytest.approx(
                [sample.quantile(q) for q in QUANTILES.values()]
            )
            across = [float(x.text) for x in line._element.xpath("c:xVal//c:v")]
            assert across == pytest.approx([sample.quantile(q) for q in deck.CDF])
            assert list(line.values) == pytest.approx(100 * deck.CDF)
        assert bars.plots[0].categories[3] == "p99"
    logs = [chart._chartSpace.xpath("//c:logBase") for chart in shown]
    assert any(logs)
    assert not all(logs)


def test_a_decks_picture_is_sharp_and_as_wide_as_slides_are(deck_file):
    slides = presentation(deck_file)
    assert slides.slide_width / slides.slide_height == pytest.approx(16 / 9, rel=1e-3)
    images = [s for slide in slides.slides for s in slide.shapes if hasattr(s, "image")]
    assert [image.image.size for image in images] == [(2_560, 1_440)]
    assert images[0].height == Inches(5.7)
    assert "Timeline" in images[0]._element.xpath(".//p:cNvPr")[0].get("descr")


def test_libreoffice_renders_the_deck(deck_file, tmp_path):
    office = shutil.which("soffice")
    if office is None:
        pytest.skip("no LibreOffice here (apt-get install libreoffice-impress)")
    profile = f"-env:UserInstallation={(tmp_path / 'profile').as_uri()}"
    for kind in ("pdf", "png"):
        command = [office, profile, "--headless", "--convert-to", kind, "--outdir", str(tmp_path)]
        subprocess.run([*command, str(deck_file)], check=True, capture_output=True, timeout=120)
    pages = (tmp_path / "slotscope.pdf").read_bytes().count(b"/Type/Page/")
    assert pages == len(presentation(deck_file).slides) == 7
    with Image.open(tmp_path / "slotscope.png") as first:
        assert first.width / first.height == pytest.approx(16 / 9, rel=0.01)
        dark = np.asarray(first.convert("L")) < 100
    tall = len(dark)
    assert dark[: tall // 5].sum() > 500  # the verdict
    assert not dark[:, :5].any()
    assert not dark[:, -5:].any()


def test_a_report_opens_with_the_network_off_and_its_timeline_lives(report_file, browser):
    context = new_context(browser, offline=True)
    page, faults = context.new_page(), []
    page.on("console", lambda m: faults.append(m.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    page.goto(report_file.as_uri())
    canvas = page.locator(".stage canvas")
    canvas.wait_for()
    page.wait_for_function(
        """() => {
            const canvas = document.querySelector(".stage canvas");
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            let coloured = 0;
            for (let p = 0; p < data.length; p += 4)
              if (data[p + 3] && Math.max(data[p], data[p + 1], data[p + 2])
                  - Math.min(data[p], data[p + 1], data[p + 2]) > 40) coloured++;
            return coloured > 1000;
        }"""
    )
    before = page.locator(".window").inner_text()
    page.locator(".in").click()
    page.wait_for_function("t => document.querySelector('.window').textContent !== t", arg=before)
    assert page.locator("figure svg").count() == 4
    assert not page.locator("figure.still").is_visible()
    with page.expect_download() as download:
        page.locator(".png").click()
    with Image.open(download.value.path()) as image:
        assert image.width > 1_000
    for width in (420, 1_280):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
    context.close()
    assert not faults
    assert all(url.startswith(("file:", "blob:")) for url in asked)


def test_a_report_says_everything_in_words_too(view, report_file):
    text = report_file.read_text()
    assert says_where_from(text)
    for sentence in verdicts(view.runs, view.scenario.baseline):
        assert f">{sentence}<" in text
    assert not re.search(r"""(src|href)=["']?(?!http://localhost|data:)[a-z]+:""", text)


def test_a_report_of_a_long_run_shows_its_picture_instead(view, monkeypatch):
    monkeypatch.setattr(timeline, "WHOLE", 100)
    text = report.html(view.scenario, view.runs, HOST, "<svg>still</svg>", {})
    assert "<figure><svg>still</svg></figure>" in text
    assert "id='data'" not in text


def test_charts_are_16_to_9_in_every_kind_for_either_ground(view, tmp_path, monkeypatch):
    monkeypatch.setattr(drawings, "SHOWN", drawings.SHOWN[:1])
    monkeypatch.setattr(files, "FORMS", ("cdf",))
    with zipfile.ZipFile(made("pictures", view, tmp_path)) as content:
        held = {name: content.read(name) for name in content.namelist()}
    names = ["timeline", *(f"{s.metric}-{f}" for s in drawings.SHOWN for f in files.FORMS)]
    kinds = ("png", "svg", "pdf")
    assert set(held) == {f"{g}/{n}.{k}" for g in files.GROUNDS for n in names for k in kinds}
    for name, data in held.items():
        if name.endswith(".png"):
            with Image.open(io.BytesIO(data)) as image:
                assert image.size == (2_560, 1_440), name
                corner: Any = image.convert("RGB").getpixel((3, 3))
            assert "#{:02x}{:02x}{:02x}".format(*corner) == charts.GROUND[name.startswith("dark")]
        elif name.endswith(".svg"):
            assert says_where_from(data.decode().replace("&amp;", "&")), name
        else:
            assert data.startswith(b"%PDF")


def test_tables_are_every_row_as_csv_and_as_parquet(view, tmp_path):
    with zipfile.ZipFile(made("tables", view, tmp_path)) as content:
        held = {name: content.read(name) for name in content.namelist()}
    assert len(held) == 2 * 2 * len(view.runs)
    for run in view.runs:
        expected = {"requests": requests_table(run).reset_index(), "steps": steps_table(run)}
        for name, table in expected.items():
            where = f"{run.label.replace(' ', '-')}-{name}"
            text = held[f"{where}.csv"].decode()
            assert says_where_from(text.partition("\n")[0])
            read = pd.read_csv(
                io.StringIO(text), comment="#", keep_default_na=False, na_values=[""]
            )
            numbers = table.select_dtypes("number")
            pd.testing.assert_frame_equal(read.filter(list(numbers)), numbers, check_dtype=False)
            columns = pq.read_table(io.BytesIO(held[f"{where}.parquet"]))
            assert says_where_from(columns.schema.metadata[b"slotscope"].decode())
            pd.testing.assert_frame_equal(columns.to_pandas(), table, check_dtype=False)


def executed(text: str, folder: Path, monkeypatch) -> pd.DataFrame:
    """What the last line of a notebook's cell shows."""
    monkeypatch.chdir(folder)
    *lines, last = text.splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    return eval(last, names)


@pytest.mark.parametrize("query", ["duration=3", "v=vllm_v1:block_size=32&rate=50&duration=2"])
def test_a_snippet_runs_the_scenario_again(query, tmp_path, monkeypatch):
    view = view_of(query)
    text = snippet(view.scenario, HOST)
    assert HOST in text
    shown = executed(text, tmp_path, monkeypatch)
    pd.testing.assert_frame_equal(shown, figure_table(view.runs, view.scenario))


def test_a_snippet_of_a_trace_asks_for_its_file(tmp_path, monkeypatch):
    content = b"arrival_ms,prompt_len,output_len\n0,50,5\n10,60,6\n"
    name = traces.name_of(content)
    scenario, _ = Scenario.from_url(f"/?arrivals=trace&trace={name}")
    text = snippet(scenario)
    (tmp_path / f"{name}.csv").write_bytes(content)
    shown = executed(text, tmp_path, monkeypatch)
    runs = compare(scenario, traces.read(content)[1])
    pd.testing.assert_frame_equal(shown, figure_table(runs, scenario))
    (tmp_path / f"{name}.csv").write_bytes(content + b"20,1,1\n")
    with pytest.raises(KeyError, match=name):
        executed(text, tmp_path, monkeypatch)


def test_a_label_is_text_in_every_file(view, tmp_path):
    runs = [replace(view.runs[0], label=MARKUP), *view.runs[1:]]
    text = report.html(view.scenario, runs, HOST, "<svg/>", {})
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    dot = io.BytesIO()
    Image.new("RGB", (16, 9)).save(dot, "png")
    deck.write(tmp_path / "deck.pptx", view.scenario, runs, HOST, dot.getvalue())
    slides = presentation(tmp_path / "deck.pptx").slides
    assert MARKUP in grids(slides)[0][0]
    shown = [shape.chart for slide in slides for shape in slide.shapes if shape.has_chart]
    assert all(chart.plots[0].series[0].name == MARKUP for chart in shown)
    drawing = drawings.timeline(runs, view.scenario, view.window, False, MARKUP, MARKUP)
    assert "<script" not in drawing
    drawn(drawing, "svg")
    with zipfile.ZipFile(made("tables", view._replace(runs=runs), tmp_path)) as content:
        assert all(re.fullmatch(r"[\w.-]+", name) for name in content.namelist())


@settings(max_examples=60, deadline=None)
@given(some.lists(some.text(some.characters(codec="utf-8"), max_size=12), min_size=1, max_size=4))
def test_no_cell_of_a_csv_is_a_formula(texts):
    table = pd.DataFrame({"text": texts, "=name": texts, "number": -1.5})
    guarded = inert(table)
    for text in [*guarded["text"], *guarded.columns]:
        assert text[:1] not in set("=+-@\t\r")
    assert set(guarded["number"]) == {-1.5}
    plain = [text for text in texts if text[:1] not in set("=+-@\t\r")]
    assert set(plain) <= set(guarded["text"])


def test_the_first_line_of_a_csv_is_one_cell():
    scenario, _ = Scenario.from_url("/?arrivals=trace&trace=a,=1%2B1;@x%09y")
    line = csv(pd.DataFrame({"a": [1]}), scenario, HOST).partition("\n")[0]
    assert line.startswith("# slotscope")
    assert not set(line) & set(",;\t")


def test_every_phase_has_its_own_colour_in_the_picture_and_in_the_chart():
    view = view_of(PRESSED)
    drawing = files.timeline(view, dark=False)
    present = {PHASES[k] for run in view.runs for k in np.unique(run.segments["phase"])}
    assert {"recompute", "preempted"} <= present
    for phase in present - {"decode"}:
        assert f">{phase}</text>" in drawing
    image = np.asarray(Image.open(io.BytesIO(drawn(drawing, "png"))).convert("RGB")).astype(int)
    for phase in ("prefill", "recompute"):
        hue = charts.PHASE_COLOURS[phase][0]
        want = [int(hue[k : k + 2], 16) for k in (1, 3, 5)]
        panels = image[2 * drawings.TOP :]
        assert (np.abs(panels - want).sum(axis=2) < 12).sum() > 200, phase
    colours = charts.gantt(
        pd.DataFrame(
            [("a", 0, 0.0, 1.0, phase, 1.0) for phase in present],
            columns=["variant", "seat", "t0", "t1", "phase", "itl"],
        ),
        (1, 50),
        False,
        {"a": 1},
    ).to_dict()
    domains = re.findall(r"'domain': (\['prefill'[^]]*\])", str(colours))
    assert all("recompute" in domain for domain in domains)
    assert domains


def test_the_picture_shows_who_sat_where(view):
    """Cells of the picture against the segments that they stand for."""
    run, window = view.runs[1], (0.0, view.runs[1].total)
    lines = 320
    image = drawings.seats(run, view.scenario, view.runs, window, 1_000, lines, False)
    taken = int(run.segments["seat"].max()) + 1
    clear = colour = 0
    rng = np.random.default_rng(1)
    for x, seat in zip(rng.integers(5, 995, 400), rng.integers(0, taken, 400), strict=True):
        own = run.segments[run.segments["seat"] == seat]
        t0, t1 = window[1] * (x - 2) / 1_000, window[1] * (x + 3) / 1_000
        covered = np.clip(np.minimum(own["t1"], t1) - np.maximum(own["t0"], t0), 0, None).sum()
        alpha = image[int((seat + 0.4) * lines / taken), x, 3]
        if covered == 0:
            assert alpha == 0
            clear += 1
        elif covered > 0.999 * (t1 - t0):
            assert alpha == 255
            colour += 1
    assert clear > 20
    assert colour > 20


def test_a_picture_drawn_by_another_process_is_the_same():
    space = 'xmlns="http://www.w3.org/2000/svg"'
    svg = f'<svg {space} width="32" height="18"><rect width="9" height="9"/></svg>'
    assert picture(svg, "png") == drawn(svg, "png")
    with pytest.raises(RuntimeError, match="png could not be drawn"):
        picture("<svg", "png")


# Jobs.


def until_over(job: jobs.Job) -> list[float]:
    shares = []
    deadline = time.monotonic() + 60
    while not job.is_over and time.monotonic() < deadline:
        shares.append(job.progress()[0])
        time.sleep(0.02)
    return shares


def test_a_job_makes_its_file_elsewhere_and_leaves_nothing_behind(view):
    job = jobs.Job("tables", view)
    shares = until_over(job)
    assert shares == sorted(shares)
    assert job.failure == ""
    assert job.content
    assert zipfile.ZipFile(io.BytesIO(job.content)).testzip() is None
    folder = job.folder
    del job
    assert not folder.exists()


def test_a_job_that_fails_or_is_killed_says_so(view):
    job = jobs.Job("tables", view._replace(runs=["no run"]))
    until_over(job)
    assert job.content is None
    assert "not made (AttributeError" in job.failure
    job = jobs.Job("pictures", view)
    job.progress()
    os.kill(job.processes[0].pid, signal.SIGKILL)
    until_over(job)
    assert "it was stopped" in job.failure


def test_a_part_is_the_same_from_a_worker_as_at_once(view, monkeypatch):
    start, apart = [], jobs.apart
    monkeypatch.setattr(jobs, "apart", lambda *a, **o: start.append(a) or apart(*a, **o))
    trace = jobs.part("trace.json", view)
    assert not start
    monkeypatch.setattr(jobs, "AT_ONCE", 0)
    assert gzip.decompress(jobs.part("trace.json.gz", view)) == trace
    assert len(start) == 1
    lame = replace(view.runs[0], requests=view.runs[0].requests[["arrival"]])
    with pytest.raises(RuntimeError, match="requests.csv: not made"):
        jobs.part("requests.csv", view._replace(runs=[lame]))


def test_jobs_wait_for_one_another_and_can_be_stopped(view):
    several = [jobs.Job("pictures", view) for _ in range(jobs.WORKERS + 1)]
    told = [job.progress() for job in several]
    assert [doing for _, doing in told] == ["Starting"] * jobs.WORKERS + [
        "Waiting for other exports"
    ]
    first = several[0].processes[0]
    several[0].stop()
    assert first.poll() is not None
    assert not several[0].folder.exists()
    assert several[-1].progress()[1] == "Starting"
    for job in several[1:]:
        job.stop()


def test_files_of_a_window_are_of_its_requests_and_their_link_says_so(view, tmp_path):
    part = Windowed.of(view.scenario, 500, 1_500)
    shown = [counted(run, part) for run in view.runs]
    sent = pickle.loads(pickle.dumps(files.View(part, shown, HOST, view.window, view.runs)))
    files.tables(sent, tmp_path / "tables.zip", lambda share, doing: None)
    with zipfile.ZipFile(tmp_path / "tables.zip") as made:
        for whole, run in zip(view.runs, shown, strict=True):
            name = files._file_name(run.label)
            lines = made.read(f"{name}-requests.csv").decode().splitlines()
            assert lines[0].endswith(f"{part.link()}".replace(",", "%2C"))
            assert len(lines) - 2 == len(run.requests) < len(whole.requests)
            steps = made.read(f"{name}-steps.csv").decode().splitlines()
            assert len(steps) - 2 == len(whole.steps)
