"""Tables of a comparison, as the page shows them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sim.metrics import FIGURES, unsupported
from sim.run import Run
from sim.scenario import Scenario
from sim.table import figure_table, requests_table, scenario_table

from .palette import BETTER, WORSE

HEADLINE = ("itl_p99", "itl_max", "ttft_p95", "tpot_p95", "tok_s", "goodput", "longest_wait")
NBSP = "\u00a0"


def number(value: float, unit: str) -> str:
    """Three digits that count, with the unit that a person would use."""
    if value is None or math.isnan(value):
        return "–"
    if unit == "ms" and abs(value) >= 9_950:
        value, unit = value / 1e3, "s"
    digits = 0 if abs(value) >= 99.5 or unit == "requests" else 1 if abs(value) >= 9.95 else 2
    return f"{value:,.{digits}f}{NBSP}{unit}"


def signed(value: float, unit: str) -> str:
    """A difference with its sign: '+13.2 ms', '−1.25 tok/s'."""
    return ("−" if value < 0 else "+") + number(abs(value), unit)


def difference(value: float, base: float) -> str:
    """'−77 %', '+13 %', '×126'; nothing where they are alike."""
    if (
        not (base and math.isfinite(base) and math.isfinite(value))
        or abs(value / base - 1) < 0.0005
    ):
        return ""
    ratio = value / base
    if ratio >= 3:
        return f"×{ratio:,.0f}" if ratio >= 9.95 else f"×{ratio:.1f}"
    percent = abs(100 * (ratio - 1))
    return f"{'+' if ratio > 1 else '−'}{percent:.{0 if percent >= 9.95 else 1}f}{NBSP}%"


def compared(runs: Sequence[Run], scenario: Scenario, names: Sequence[str], dark: bool):
    """Variants down, figures across, each with its signed difference to the baseline, coloured."""
    table = figure_table(runs, scenario)
    base = table.iloc[:, scenario.baseline]
    marks = {run.label: unsupported(run) for run in runs}
    texts, styles = {}, {}
    for name in names:
        figure = FIGURES[name]
        column, style = {}, {}
        for k, label in enumerate(table):
            value, against = table.at[name, label], base[name]
            shown = number(value, figure.unit) + (" \\*" if name in marks[label] else "")
            change = "" if k == scenario.baseline else difference(value, against)
            column[label] = f"{shown} ({change})" if change else shown
            good = (value > against) == (figure.better > 0)
            style[label] = f"color: {(BETTER if good else WORSE)[dark]}" if change else ""
        texts[figure.label], styles[figure.label] = column, style
    frame, style = pd.DataFrame(texts), pd.DataFrame(styles)
    frame.index = style.index = [
        f"{label} (baseline)" if k == scenario.baseline else label for k, label in enumerate(table)
    ]
    return frame.style.apply(lambda _: style, axis=None)


def said_once(scenario: Scenario) -> dict[str, str]:
    """The scenario's rows by label, each with its values under the variants, every value once."""
    table = scenario_table(scenario)
    rows = {"Variants": list(table)} | dict(
        zip(table.index, table.to_numpy().tolist(), strict=True)
    )
    return {
        label: " / ".join(dict.fromkeys(value for value in values if value)) or "–"
        for label, values in rows.items()
    }


def one_request(runs: Sequence[Run], i: int) -> pd.DataFrame:
    """Request i under every variant."""
    rows = {}
    for run in runs:
        r = requests_table(replace(run, requests=run.requests[[i]])).iloc[0]
        rows[run.label] = {
            "seat taken": number(r["start"], "ms"),
            "queued": number(r["queue_ms"], "ms"),
            "TTFT": number(r["ttft_ms"], "ms"),
            "TPOT": number(r["tpot_ms"], "ms"),
            "last token": number(r["last"], "ms"),
            "E2E": number(r["e2e_ms"], "ms"),
        }
    return pd.DataFrame(rows).T
