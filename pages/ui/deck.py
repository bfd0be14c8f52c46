"""The comparison as a PowerPoint deck, whose charts PowerPoint itself draws and lets one edit."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
from pptx import Presentation
from pptx.chart.data import CategoryChartData, XyChartData
from pptx.dml.color import RGBColor
from pptx.enum.chart import XL_CHART_TYPE, XL_LEGEND_POSITION
from pptx.enum.text import MSO_ANCHOR
from pptx.oxml import parse_xml
from pptx.oxml.ns import nsdecls, qn
from pptx.util import Emu, Inches, Pt

from sim.bins import spread
from sim.explain import verdicts, why_waited
from sim.metrics import METRICS, QUANTILES, Metric
from sim.run import Run
from sim.scenario import Scenario
from sim.table import scenario_table, stamp

from . import tables
from .drawings import SHOWN
from .palette import variant_colours

WIDE, TALL = Inches(13.333), Inches(7.5)
EDGE, BODY = Inches(0.5), Inches(1.45)  # of the margins; where the content begins
ROOM = (Emu(WIDE - 2 * EDGE), Inches(5.45))
ROWS = 18  # of the scenario on a slide
FONT = "Arial"  # named: on every machine that opens a deck
# Where a CDF is read off: every percent, and the tail, which is what people look for.
CDF = np.unique(np.concatenate([np.linspace(0, 1, 101), [0.995, 0.999, 0.9999]]))


def write(
    path: Path,
    scenario: Scenario,
    runs: Sequence[Run],
    host: str,
    timeline: bytes,
    step: Callable[[float, str], None] = lambda share, doing: None,
) -> None:
    """Write the deck. `timeline` is a 16:9 PNG."""
    deck = Presentation()
    deck.slide_width, deck.slide_height = WIDE, TALL
    layout = next(each for each in deck.slide_layouts if each.name == "Title Only")
    title = layout.placeholders[0]
    title.left, title.top, title.width, title.height = EDGE, Inches(0.3), ROOM[0], Inches(1.05)
    line = stamp(scenario, host)
    deck.core_properties.title = "Slotscope: " + " / ".join(run.label for run in runs)
    deck.core_properties.comments = line

    def slide(text: str, notes: str):
        new = deck.slides.add_slide(layout)
        assert new.shapes.title is not None  # the layout has one
        frame = new.shapes.title.text_frame
        frame.vertical_anchor, frame.word_wrap = MSO_ANCHOR.MIDDLE, True
        _say(frame, text, 26 if len(text) < 110 else 20, bold=True)
        foot = new.shapes.add_textbox(EDGE, Inches(7.02), ROOM[0], Inches(0.35)).text_frame
        foot.word_wrap = True
        _say(foot, line if len(line) < 190 else line[:189] + "…", 10)
        said = new.notes_slide.notes_text_frame
        assert said is not None  # python-pptx's own notes have one
        said.text = f"{notes}\n{line}"
        return new

    sentences = verdicts(runs, scenario.baseline) or [
        f"{runs[0].label}, {len(runs[0].requests):,} requests"
    ]
    waits = "\n".join(f"{run.label}: {why_waited(run)}" for run in runs)
    first = slide(sentences[0], "\n".join([*sentences, waits]))
    figures = tables.compared(runs, scenario, tables.HEADLINE, False).data
    figures = figures.replace(r"\\\*", "*", regex=True)
    few = len(runs) <= 3
    _table(first, figures.T, Inches(0.5), 15 if few else 11, 0.2)
    said = first.shapes.add_textbox(EDGE, Inches(5.75), ROOM[0], Inches(1.2)).text_frame
    said.word_wrap = True
    starred = figures.map(lambda text: "*" in text).any(axis=None)
    note = ["* too few requests: no 95 % upper bound for this percentile exists"] if starred else []
    _say(said, "\n".join([*sentences[1:], *([waits] if few else []), *note]), 12 if few else 11)

    second = slide("Who held which seat, and when", waits)
    shown = second.shapes.add_picture(BytesIO(timeline), EDGE, Inches(1.3), height=Inches(5.7))
    shown.left = Emu((WIDE - shown.width) // 2)
    _describe(shown, "Timeline of the seats under each variant. " + " ".join(sentences))

    for k, (name, of, _) in enumerate(SHOWN):
        metric = METRICS[name]
        step(0.5 + 0.12 * k, f"Writing the slide of {metric.label}")
        if not any(len(metric.of(run).values) for run in runs):
            continue
        third = slide(
            f"{metric.label}: distribution and percentiles", f"{metric.label}: {metric.about}"
        )
        half = (ROOM[0] - Inches(0.3)) // 2
        _cdf(third, metric, of, runs, (EDGE, BODY, half, ROOM[1]))
        _percentiles(third, metric, runs, (EDGE + half + Inches(0.3), BODY, half, ROOM[1]))

    step(0.9, "Writing the scenario")
    rows = scenario_table(scenario)
    for k in range(0, len(rows), ROWS):
        part = slide(
            "The scenario" + (", continued" if k else ""), f"Open it: {host}{scenario.link()}"
        )
        _table(part, rows.iloc[k : k + ROWS], Inches(0.26), 10.5, 0.36)
    deck.save(str(path))


def _cdf(slide, metric: Metric, of: str, runs: Sequence[Run], place) -> None:
    """Exact quantiles as a line for each variant; a logarithmic axis where the page has one."""
    data = XyChartData()
    samples = {run.label: metric.of(run) for run in runs}
    for label, sample in samples.items():
        series = data.add_series(label)
        if len(sample.values):
            for q in CDF:
                series.add_data_point(sample.quantile(q), 100 * q)
    kind = XL_CHART_TYPE.XY_SCATTER_LINES_NO_MARKERS
    chart = _chart(slide, kind, data, place, f"{metric.label}, % of {of} at or below")
    _name_axes(chart, f"{metric.label}, ms", f"% of {of}")
    chart.value_axis.minimum_scale, chart.value_axis.maximum_scale = 0, 100
    chart.category_axis.has_major_gridlines = False
    if spread(samples):
        scaling = chart.category_axis._element.find(qn("c:scaling"))
        scaling.insert(0, parse_xml(f'<c:logBase {nsdecls("c")} val="10"/>'))
        low = min(sample.quantile(0.01) for sample in samples.values() if len(sample.values))
        chart.category_axis.minimum_scale = 10 ** np.floor(np.log10(low))
    for k, series in enumerate(chart.plots[0].series):
        series.smooth = False
        series.format.line.width = Pt(2.25)
        series.format.line.color.rgb = _rgb(k)


def _percentiles(slide, metric: Metric, runs: Sequence[Run], place) -> None:
    data = CategoryChartData(number_format="#,##0.0")
    data.categories = list(QUANTILES)
    for run in runs:
        sample = metric.of(run)
        data.add_series(run.label, [_or_none(sample.quantile(q)) for q in QUANTILES.values()])
    chart = _chart(slide, XL_CHART_TYPE.COLUMN_CLUSTERED, data, place, f"{metric.label}, ms")
    _name_axes(chart, "percentile", f"{metric.label}, ms")
    for k, series in enumerate(chart.plots[0].series):
        series.format.fill.solid()
        series.format.fill.fore_color.rgb = _rgb(k)
    chart.plots[0].gap_width, chart.plots[0].overlap = 60, -5
    if len(runs) <= 3:
        chart.plots[0].has_data_labels = True
        labels = chart.plots[0].data_labels
        labels.number_format, labels.number_format_is_linked = "[<10]0.0;#,##0", False
        labels.font.size = Pt(9)
    if spread({run.label: metric.of(run) for run in runs}):
        scaling = chart.value_axis._element.find(qn("c:scaling"))
        scaling.insert(0, parse_xml(f'<c:logBase {nsdecls("c")} val="10"/>'))


def _chart(slide, kind, data, place, title: str):
    shape = slide.shapes.add_chart(kind, *place, data)
    _describe(shape, title)
    chart = shape.chart
    chart.font.size, chart.font.name = Pt(12), FONT
    chart.has_title = True
    _say(chart.chart_title.text_frame, title, 14, bold=True)
    chart.has_legend = True
    chart.legend.position, chart.legend.include_in_layout = XL_LEGEND_POSITION.BOTTOM, False
    return chart


def _name_axes(chart, across: str, up: str) -> None:
    for axis, name in ((chart.category_axis, across), (chart.value_axis, up)):
        axis.has_title = True
        _say(axis.axis_title.text_frame, name, 12)


def _table(slide, table: pd.DataFrame, height, size: float, first: float) -> None:
    """The table with its index as first column, which takes that share of the width.

    A value that all columns have in common stands there once.
    """
    rows, columns = len(table) + 1, len(table.columns) + 1
    grid = slide.shapes.add_table(rows, columns, EDGE, BODY, ROOM[0], height * rows).table
    shares = [first, *[(1 - first) / (columns - 1)] * (columns - 1)]
    for column, share in zip(grid.columns, shares, strict=True):
        column.width = Emu(int(share * ROOM[0]))
    body = zip(map(str, table.index), table.to_numpy().tolist(), strict=True)
    lines = [["", *map(str, table)], *([label, *map(str, values)] for label, values in body)]
    for y, line in enumerate(lines):
        grid.rows[y].height = height
        alike = y > 0 and len(set(line[1:])) == 1 < columns - 1
        if alike:
            grid.cell(y, 1).merge(grid.cell(y, columns - 1))
        for x, text in enumerate(line[:2] if alike else line):
            cell = grid.cell(y, x)
            cell.margin_top = cell.margin_bottom = 0
            cell.vertical_anchor = MSO_ANCHOR.MIDDLE
            _say(cell.text_frame, text, size, bold=not (x and y))


def _say(frame, text: str, size: float, bold: bool = False) -> None:
    frame.text = text
    for paragraph in frame.paragraphs:
        paragraph.font.size, paragraph.font.bold, paragraph.font.name = Pt(size), bold, FONT


def _describe(shape, text: str) -> None:
    """For whoever can't see it."""
    shape._element.xpath(".//p:cNvPr")[0].set("descr", text)


def _rgb(k: int) -> RGBColor:
    return RGBColor.from_string(variant_colours(k)[0].removeprefix("#").upper())


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
