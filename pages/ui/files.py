"""Files of a comparison for slides, mail and notebooks, each made by a worker process.

`python -m pages.ui.files KIND FOLDER` reads FOLDER/view, tells its progress in FOLDER/progress and
leaves FOLDER/file. To add a kind, write a function of (view, path, step) and decorate it; the
parts, of one variant or of all for another program, are such kinds too.
"""

import pickle
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from gzip import compress
from itertools import product
from pathlib import Path
from typing import NamedTuple

from sim import out
from sim.explain import duration
from sim.metrics import METRICS
from sim.run import Run
from sim.scenario import Scenario
from sim.table import csv, parquet, requests_table, stamp, steps_table

from . import charts, deck, drawings, report
from .draw import TYPES, drawn

GROUNDS, FORMS = ("light", "dark"), ("histogram", "cdf")
TABLES = {"requests": lambda run: requests_table(run).reset_index(), "steps": steps_table}
Step = Callable[[float, str], None]  # step(share that is done, what comes now)


class View(NamedTuple):
    """What somebody looks at, and wants as a file."""

    scenario: Scenario
    runs: Sequence[Run]
    host: str  # of the page, before a link
    window: tuple[float, float]  # of the timeline, ms
    whole: Sequence[Run] = ()  # what the timeline shows, where figures are of a part of it


class File(NamedTuple):
    kind: str
    label: str
    name: str
    mime: str
    about: str
    make: Callable[[View, Path, Step], None]


FILES: dict[str, File] = {}
PARTS: dict[str, File] = {}


def file(label: str, name: str, mime: str):
    def register(make):
        kind = make.__name__
        FILES[kind] = File(kind, label, name, mime, make.__doc__, make)
        return make

    return register


@file(
    "PowerPoint deck",
    "slotscope.pptx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
)
def slides(view: View, path: Path, step: Step) -> None:
    """Verdict, timeline, CDFs and percentiles as charts to edit, scenario; links in the notes."""
    step(0.1, "Drawing the timeline")
    picture = drawn(timeline(view, dark=False), "png")
    step(0.4, "Writing slides")
    deck.write(path, view.scenario, view.runs, view.host, picture, step)


@file("HTML report", "slotscope.html", "text/html")
def page(view: View, path: Path, step: Step) -> None:
    """One file that opens offline, its timeline alive."""
    step(0.1, "Drawing the timeline")
    picture = drawn(timeline(view, dark=False), "svg").decode()
    drawings_ = {}
    for k, shown in enumerate(drawings.SHOWN):
        step(0.3 + 0.2 * k, f"Drawing {METRICS[shown.metric].label}")
        if chart := distribution(view, shown, dark=False, cumulative=True):
            drawings_[METRICS[shown.metric]] = drawn(chart, "svg").decode()
    step(0.9, "Writing the page")
    whole = view.whole or view.runs
    path.write_text(report.html(view.scenario, view.runs, view.host, picture, drawings_, whole))


@file("Charts, 16:9", "slotscope-charts.zip", "application/zip")
def pictures(view: View, path: Path, step: Step) -> None:
    """Every chart and the timeline as PNG, SVG and PDF, for light and for dark slides."""
    wanted: list[tuple] = [("timeline", None, False)]
    for shown, form in product(drawings.SHOWN, FORMS):
        wanted.append((f"{shown.metric}-{form}", shown, form == "cdf"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for k, (ground, (name, shown, cumulative)) in enumerate(product(GROUNDS, wanted)):
            step(k / len(GROUNDS) / len(wanted), f"Drawing {name}, {ground}")
            dark = ground == "dark"
            drawing = distribution(view, shown, dark, cumulative) if shown else timeline(view, dark)
            if drawing is not None:
                vector = drawn(drawing, "svg").decode()
                for kind in TYPES:
                    archive.writestr(f"{ground}/{name}.{kind}", drawn(vector, kind))


@file("Requests and steps", "slotscope-tables.zip", "application/zip")
def tables(view: View, path: Path, step: Step) -> None:
    """Every request and every step of each variant, as CSV and as Parquet."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for k, run in enumerate(map(tabled, view.whole or view.runs, view.runs)):
            for j, (name, table) in enumerate(TABLES.items()):
                step((k + j / 2) / len(view.runs), f"Writing the {name} of {run.label}")
                content, where = table(run), f"{_file_name(run.label)}-{name}"
                archive.writestr(f"{where}.csv", csv(content, view.scenario, view.host))
                archive.writestr(f"{where}.parquet", parquet(content, view.scenario, view.host))


def tabled(whole: Run, run: Run) -> Run:
    """The run with steps as a table has them: of everybody, also where only some count, since
    grants count their rows."""
    return replace(run, steps=whole.steps)


def _part(name: str, mime: str, write: Callable[[View, Path], None]) -> None:
    PARTS[name] = File(name, name, name, mime, "", lambda view, path, step: write(view, path))


def _table(name: str, ending: str, mime: str, written: Callable[..., bytes]) -> None:
    """One of a variant's tables."""

    def write(view: View, path: Path) -> None:
        path.write_bytes(written(view.runs[0], name, view.scenario, view.host))

    _part(f"{name}.{ending}", mime, write)


for _name in out.TABLES:
    _table(_name, "csv", "text/csv", out.as_csv)
    _table(_name, "csv.gz", "application/gzip", lambda *given: compress(out.as_csv(*given), 1))
    _table(_name, "parquet", "application/vnd.apache.parquet", out.parquet)


def _trace(ending: str, mime: str) -> None:
    """All variants as a trace for Perfetto."""

    def write(view: View, path: Path) -> None:
        out.write_trace(path, view.runs, view.scenario, compressed=ending.endswith("gz"))

    _part(f"trace.{ending}", mime, write)


_trace("json", "application/json")
_trace("json.gz", "application/gzip")


def timeline(view: View, dark: bool) -> str:
    t0, t1 = view.window
    title = f"Timeline from {duration(t0)} to {duration(t1)}"
    line = stamp(view.scenario, view.host)
    return drawings.timeline(view.whole or view.runs, view.scenario, view.window, dark, title, line)


def distribution(view: View, shown: drawings.Shown, dark: bool, cumulative: bool) -> str | None:
    _, chart = drawings.distribution(view.runs, view.scenario, shown, dark, cumulative, True)
    if chart is None:
        return None
    title = METRICS[shown.metric].label + (", CDF" if cumulative else "")
    return charts.slide(chart, title, stamp(view.scenario, view.host), dark)


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label).lstrip(".")


def main(kind: str, folder: Path) -> None:
    def step(share: float, doing: str) -> None:
        (folder / "telling").write_text(f"{share:.3f} {doing}")
        (folder / "telling").replace(folder / "progress")

    view = pickle.loads((folder / "view").read_bytes())
    (FILES | PARTS)[kind].make(view, folder / "making", step)
    (folder / "making").replace(folder / "file")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
