"""What was measured beside what is simulated: the overlay on the compare page."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from sim.bins import counted, spread
from sim.explain import against_measured, duration
from sim.metrics import FIGURES, METRICS
from sim.results import Measured, known_figures
from sim.run import Run
from sim.scenario import Scenario
from sim.table import requests_table

from . import charts, share, tables
from .export import export_chart
from .palette import variant_colours
from .text import dark, legend, plain

SHOWN = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "itl_p99", "e2e_p50", "e2e_p95", "tok_s")
SPREAD = (("ttft", "requests"), ("tpot", "requests"), ("e2e", "requests"), ("itl", "gaps"))
POINTS = 1_500  # of a run, in the chart by arrival


def beside(runs: Sequence[Run], scenario: Scenario) -> None:
    """Prediction over measurement, where the traffic is a measured run's."""
    measured = st.session_state.get("measured", {}).get(scenario.traffic.trace)
    if measured is None or scenario.traffic.arrivals != "trace":
        return
    with st.container(border=True, key="measured"):
        if share.window():
            st.caption("Of all arrivals: a trace may be cut or sped up, and what was measured not.")
        for sentence in against_measured(measured.run, runs):
            st.markdown(f"**{plain(sentence)}**")
        st.table(_table(measured, runs, scenario), border="horizontal")
        _overlay(measured, runs, scenario)
        notes = [*measured.notes, *_part(measured, runs)]
        with st.expander(f"What is known of {measured.label}", icon=":material/info:"):
            st.markdown("\n".join(f"- {plain(note)}" for note in notes))


def _part(measured: Measured, runs: Sequence[Run]) -> list[str]:
    count = len(measured.workload())
    if len(runs[0].requests) == count:
        return []
    return [f"only {len(runs[0].requests):,} of its {count:,} requests are simulated"]


def _table(measured: Measured, runs: Sequence[Run], scenario: Scenario) -> pd.DataFrame:
    """Figures across; what was measured, then each variant with how far off it is."""
    assert measured.run is not None
    truth = known_figures(measured.run, scenario.slo)
    names = [name for name in SHOWN if name in truth]
    rows = {"measured": {n: tables.number(truth[n], FIGURES[n].unit) for n in names}}
    for run in runs:
        rows[run.label] = {}
        for name in names:
            value = FIGURES[name].of(run, scenario.slo)
            off = tables.difference(value, truth[name])
            shown = tables.number(value, FIGURES[name].unit)
            rows[run.label][name] = f"{shown} ({off})" if off else shown
    return pd.DataFrame(rows).T.rename(columns={n: FIGURES[n].label for n in names})


def _overlay(measured: Measured, runs: Sequence[Run], scenario: Scenario) -> None:
    """The running sums of each metric, and TTFT by arrival."""
    truth = measured.run
    assert truth is not None
    ink = ("#1f2328", "#fafafa")[dark()]
    colours = {"measured": ink}
    colours |= {run.label: variant_colours(k)[dark()] for k, run in enumerate(runs)}
    legend(colours, "dashed: p95")
    every = {"measured": truth} | {run.label: run for run in runs}
    for column, (name, of) in zip([*st.columns(2), *st.columns(2)], SPREAD, strict=True):
        with column:
            _cdf(name, of, every, scenario, colours)
    if "drawn" not in " ".join(measured.notes):
        points = _points(every)
        chart = charts.by_arrival(points, colours)
        st.altair_chart(chart, key="by-arrival", alt="TTFT by arrival, measured and simulated")
        export_chart("ttft-by-arrival", scenario, lambda: points, chart, "TTFT by arrival, ms")


def _cdf(name, of, every, scenario, colours) -> None:
    metric = METRICS[name]
    samples = {label: metric.of(run) for label, run in every.items()}
    samples = {label: sample for label, sample in samples.items() if len(sample.values)}
    if "measured" not in samples:
        st.caption(f"{metric.label}: not in the file, or not defined.")
        return
    log = spread(samples)
    bins = counted(samples, log)
    p95 = [sample.quantile(0.95) for sample in samples.values()]
    marks = pd.DataFrame(
        {
            "variant": list(samples),
            "p95": p95,
            "label": [duration(x) for x in p95],
            "place": [8 + 13 * k for k in range(len(p95))],
        }
    )
    chart = charts.distribution(
        bins,
        marks,
        title=metric.label,
        of=of,
        log=log,
        limit=None,
        colours={label: colours[label] for label in samples},
        dark=dark(),
        cumulative=True,
    )
    st.vega_lite_chart(chart, key=f"over-{name}", alt=f"{metric.label}, measured and simulated")
    title = f"{metric.label}, measured and simulated, ms"
    export_chart(f"measured-{name}", scenario, lambda: bins, chart, title)


def _points(every: dict[str, Run]) -> pd.DataFrame:
    """(variant, arrival s, ttft ms), thinned evenly to POINTS a run."""
    rows = []
    for label, run in every.items():
        table = requests_table(run)
        table = table[table["ttft_ms"].notna()]
        table = table.iloc[:: max(1, len(table) // POINTS)]
        rows.append(
            pd.DataFrame(
                {"variant": label, "arrival": table["arrival"] / 1e3, "ttft": table["ttft_ms"]}
            )
        )
    return pd.concat(rows, ignore_index=True)
