"""Runs side by side: figures as a table, and the files that a comparison leaves."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from . import __version__
from .explain import verdicts, why_waited
from .metrics import FIGURES, figures, unsupported
from .run import Run
from .scenario import Scenario
from .state import PHASES, REFUSALS, STOPS


def figure_table(runs: Sequence[Run], scenario: Scenario) -> pd.DataFrame:
    """One row a figure, by name; one column a variant, by label."""
    return pd.DataFrame({run.label: figures(run, scenario.slo) for run in runs})


def requests_table(run: Run) -> pd.DataFrame:
    """One row a request, by id; times in ms, lengths in tokens."""
    r = pd.DataFrame(run.requests, index=run.ids).rename_axis("request")
    r["refused"] = [REFUSALS[k] if k else "" for k in r["refused"]]
    return r.assign(
        queue_ms=r["start"] - r["arrival"],
        ttft_ms=r["first"] - r["arrival"],
        tpot_ms=((r["last"] - r["first"]) / (r["output"] - 1)).where(r["output"] > 1),
        e2e_ms=r["finish"] - r["arrival"],
    )


def steps_table(run: Run) -> pd.DataFrame:
    """One row for each run of like steps, in order; `stop` is what kept the line's head out."""
    steps = pd.DataFrame(run.steps)
    return steps.assign(stop=[STOPS[k] for k in steps["stop"]])


def segments_table(run: Run) -> pd.DataFrame:
    """One row a segment: who held which seat from t0 to t1 (ms) in which phase."""
    segments = pd.DataFrame(run.segments).sort_values(["seat", "t0"], ignore_index=True)
    return segments.assign(phase=[PHASES[k] for k in segments["phase"]])


def stamp(scenario: Scenario, host: str = "") -> str:
    """What every export says of itself."""
    return f"slotscope {__version__} · seed {scenario.traffic.seed} · {host}{scenario.link()}"


def csv(table: pd.DataFrame, scenario: Scenario, host: str = "", *, index: bool = False) -> str:
    """The table as CSV under one comment line that says where it comes from."""
    return f"# {stamp(scenario, host)}\n{table.to_csv(index=index)}"


def write_csv(folder: Path, runs: Sequence[Run], scenario: Scenario) -> None:
    """figures.csv, and for each variant its requests, steps and segments."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"figures": figure_table(runs, scenario).rename_axis("figure").reset_index()}
    for run in runs:
        name = run.label.replace(" ", "-")
        tables[f"{name}-requests"] = requests_table(run).reset_index()
        tables[f"{name}-steps"] = steps_table(run)
        tables[f"{name}-segments"] = segments_table(run)
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(csv(table, scenario))


def as_text(runs: Sequence[Run], scenario: Scenario) -> str:
    """The table as a terminal shows it, the verdicts below."""
    table = figure_table(runs, scenario)
    marks = {run.label: unsupported(run) for run in runs}
    width = max(len(f"{f.label}, {f.unit}") for f in FIGURES.values())
    widths = {label: max(12, len(label)) for label in table}
    lines = [" " * width + "".join(f"  {label:>{w}}" for label, w in widths.items())]
    for name, figure in FIGURES.items():
        cells = ""
        for label, w in widths.items():
            value = table.at[name, label]
            shown = "-" if math.isnan(value) else f"{value:,.2f}"
            cells += f"  {shown + ('*' if name in marks[label] else ''):>{w}}"
        lines.append(f"{f'{figure.label}, {figure.unit}':<{width}}{cells}")
    if any(marks.values()):
        lines.append("* too few requests: no 95 % upper bound for this percentile exists")
    lines += ["", *verdicts(runs, scenario.baseline)]
    lines += [f"{run.label}: {why_waited(run)}" for run in runs]
    return "\n".join(lines)


def as_dict(runs: Sequence[Run], scenario: Scenario) -> dict:
    """The same for machines; a figure that does not exist is None."""
    return {
        "version": __version__,
        "scenario": scenario.to_query(),
        "link": scenario.link(),
        "requests": len(runs[0].requests),
        "figures": {
            run.label: {
                name: None if math.isnan(value) else value
                for name, value in figures(run, scenario.slo).items()
            }
            for run in runs
        },
        "unsupported": {run.label: sorted(unsupported(run)) for run in runs},
        "verdicts": verdicts(runs, scenario.baseline),
        "why": {run.label: why_waited(run) for run in runs},
    }
