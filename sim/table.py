"""Runs side by side: figures as a table, and the files that a comparison leaves."""

import io
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet as pq

from . import __version__
from .explain import verdicts, why_waited
from .metrics import FIGURES, figures, unsupported
from .parameter import written
from .policies import POLICIES
from .run import Run
from .scenario import COSTING, HOST, LIMITS, PARAMETERS, SLO, TEXTS, Scenario
from .state import PHASES, REFUSALS, STOPS
from .traffic import Traffic


def figure_table(runs: Sequence[Run], scenario: Scenario) -> pd.DataFrame:
    """One row a figure, by name; one column a variant, by label."""
    return pd.DataFrame({run.label: figures(run, scenario.slo) for run in runs})


def requests_table(run: Run) -> pd.DataFrame:
    """One row a request, by id; times in ms, lengths in tokens."""
    r = pd.DataFrame(run.requests, index=run.ids).rename_axis("request")
    r["refused"] = np.array(["", *REFUSALS[1:]], object)[r["refused"]]
    return r.assign(
        queue_ms=r["start"] - run.queued,
        ttft_ms=r["first"] - r["arrival"],
        tpot_ms=((r["last"] - r["first"]) / (r["output"] - 1)).where(r["output"] > 1),
        e2e_ms=r["finish"] - r["arrival"],
    )


def steps_table(run: Run) -> pd.DataFrame:
    """One row for each run of like steps, in order; `stop` is what kept the line's head out."""
    steps = pd.DataFrame(run.steps)
    return steps.assign(stop=np.array(STOPS, object)[steps["stop"]])


def segments_table(run: Run) -> pd.DataFrame:
    """One row a segment: who held which seat from t0 to t1 (ms) in which phase."""
    segments = pd.DataFrame(run.segments).sort_values(["seat", "t0"], ignore_index=True)
    return segments.assign(phase=np.array(PHASES, object)[segments["phase"]])


def scenario_table(scenario: Scenario) -> pd.DataFrame:
    """One row a parameter that plays a part, by its label; one column a variant, by label: texts.

    What all variants share stands in each column; a limit that a policy does not keep is empty.
    """
    traffic, variants = scenario.traffic, scenario.variants
    rows = {"Arrivals": [traffic.arrivals] * len(variants)}
    for name in (*TEXTS, *PARAMETERS):
        if name in traffic.uses:
            label = PARAMETERS[name].label if name in PARAMETERS else name.capitalize()
            value = getattr(traffic, name)
            rows[label] = [str(value) if name in TEXTS else written(value)] * len(variants)
    rows["Policy"] = [variant.policy for variant in variants]
    keeps = [POLICIES[variant.policy].keeps for variant in variants]
    for name, parameter in LIMITS.items():
        if any(name in kept for kept in keeps):
            limits = [written(getattr(scenario.limits_of(v), name)) for v in variants]
            rows[parameter.label] = [
                value if name in kept else "" for value, kept in zip(limits, keeps, strict=True)
            ]
    models = [scenario.model_of(variant) for variant in variants]
    rows["Cost of a step"] = [model.label for model in models]
    linear = [model.kind == "linear" for model in models]
    for k, parameter in enumerate(COSTING.values()):
        if any(linear):
            costs = [written(scenario.cost_of(v).coefficients[k]) for v in variants]
            rows[parameter.label] = [
                cost if own else "" for cost, own in zip(costs, linear, strict=True)
            ]
    for parameter in HOST.values():
        rows[parameter.label] = [written(scenario.host_of(v)) for v in variants]
    for name, parameter in SLO.items():
        rows[parameter.label] = [written(scenario.value(name))] * len(variants)
    return pd.DataFrame.from_dict(rows, orient="index", columns=[v.label for v in variants])


class Asked(Protocol):
    """What can be exported of: a scenario, or a sweep of one."""

    @property
    def traffic(self) -> Traffic: ...

    def link(self) -> str: ...


def stamp(scenario: Asked, host: str = "") -> str:
    """What every export says of itself: version, day (UTC), seed, and the scenario as a link."""
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    seed = f"seed {scenario.traffic.seed}"
    return f"slotscope {__version__} · {today} · {seed} · {host}{scenario.link()}"


def inert(table: pd.DataFrame) -> pd.DataFrame:
    """The table with texts that a spreadsheet would compute (=, +, -, @ first) behind a quote."""

    def guarded(value):
        return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value

    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    table = table.rename(columns=guarded)
    return table.assign(**{n: table[n].map(guarded) for n in map(guarded, texts)})


def csv(table: pd.DataFrame, scenario: Asked, host: str = "", *, index: bool = False) -> str:
    """The table as CSV under one comment line that says where it comes from."""
    line = stamp(scenario, host).replace(",", "%2C")  # one cell, whatever the link holds
    return f"# {line}\n{inert(table).to_csv(index=index)}"


def parquet(table: pd.DataFrame, scenario: Asked, host: str = "") -> bytes:
    """The table as Parquet, what a CSV says in its first line in the schema's metadata."""
    content = pa.Table.from_pandas(table, preserve_index=False)
    said = {b"slotscope": stamp(scenario, host).encode()}
    content = content.replace_schema_metadata({**(content.schema.metadata or {}), **said})
    out = io.BytesIO()
    pq.write_table(content, out)
    return out.getvalue()


def snippet(scenario: Scenario, host: str = "") -> str:
    """Python that runs the scenario again and shows its figures, for a notebook."""
    traced = "trace" in scenario.traffic.uses
    given = ", trace" if traced else ""
    lines = [
        f"# {stamp(scenario, host)}",
        *(["from pathlib import Path", ""] if traced else []),
        *(["from sim.bring import bring"] if traced else []),
        "from sim.run import compare",
        "from sim.scenario import Scenario",
        "from sim.table import figure_table",
        "",
        f"scenario, problems = Scenario.from_url({scenario.link()!r})",
        "assert not problems, problems",
        *(
            [
                f"content = Path({scenario.traffic.trace + '.csv'!r}).read_bytes()  # the trace",
                f"trace = bring(content).workloads()[{scenario.traffic.trace!r}][0]",
            ]
            if traced
            else []
        ),
        f"runs = compare(scenario{given})",
        "figure_table(runs, scenario)",
    ]
    return "\n".join(lines) + "\n"


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
