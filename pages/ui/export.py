"""What leaves the page as a file, each saying what it is of; pictures are drawn elsewhere."""

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from sim.run import Run
from sim.scenario import Scenario
from sim.sweep import Sweep
from sim.table import csv, parquet, snippet, stamp

from . import jobs, share
from .charts import slide
from .draw import TYPES, picture
from .files import FILES, PARTS, View, tabled
from .jobs import Job
from .text import dark
from .timeline import is_large, opening_window

PARQUET = "application/vnd.apache.parquet"


def export(
    name: str,
    scenario: Scenario | Sweep,
    table: Callable[[], pd.DataFrame],
    drawing: Callable[[], str] | None = None,
) -> None:
    """A popover with the files of one table or chart; each is made when it is asked for."""
    host = share.host()
    with st.popover("Export", icon=":material/download:", type="tertiary"):
        if drawing is not None:
            for kind, mime in TYPES.items():
                _button(f"{name}.{kind}", lambda k=kind: picture(drawing(), k), mime)
        _button(f"{name}.csv", lambda: csv(table(), scenario, host).encode(), "text/csv")
        _button(f"{name}.parquet", lambda: parquet(table(), scenario, host), PARQUET)


def export_chart(
    name: str, scenario: Scenario | Sweep, table: Callable[[], pd.DataFrame], chart, title: str
) -> None:
    """The same of a chart that the page shows, and of its table."""
    said, ground = stamp(scenario, share.host()), dark()
    export(name, scenario, table, lambda: slide(chart, title, said, ground))


def export_table(
    name: str, scenario: Scenario, table: str, k: int, runs: Sequence[Run], whole: Sequence[Run]
) -> None:
    """A popover with one of variant k's tables; the CSV compressed where it is large."""
    with st.popover("Export", icon=":material/download:", type="tertiary"):
        for ending in ("csv.gz" if is_large([runs[k]]) else "csv", "parquet"):
            table_button(f"{name}.{ending}", scenario, f"{table}.{ending}", k, runs, whole)


def table_button(
    file: str, scenario: Scenario, part: str, k: int, runs: Sequence[Run], whole: Sequence[Run]
) -> None:
    """A download of `part` of variant k: of PARTS a table. runs: of those who count."""
    host = share.host()

    def make() -> bytes:
        run = tabled(whole[k], runs[k])
        return jobs.part(part, View(scenario, [run], host, (0.0, 0.0)))

    _button(file, make, PARTS[part].mime)


def trace_button(runs: Sequence[Run], scenario: Scenario) -> None:
    """A download of the trace of all variants, compressed where it is large."""
    part, host = "trace.json.gz" if is_large(runs) else "trace.json", share.host()

    def make() -> bytes:
        return jobs.part(part, View(scenario, list(runs), host, (0.0, 0.0)))

    _button(f"slotscope-{part}", make, PARTS[part].mime)


def _button(file: str, make: Callable[[], bytes], mime: str) -> None:
    st.download_button(
        file, make, file, mime, key=f"download {file}", on_click="ignore", type="tertiary"
    )


def files(runs: Sequence[Run], scenario: Scenario, whole: Sequence[Run]) -> None:
    """A popover with the files of the comparison, made by a worker while one looks on.

    runs: of those who count; whole: what the timeline shows.
    """
    with st.popover("Export", icon=":material/slideshow:"):
        st.session_state.polls = _is_making()
        pause = 0.5 if st.session_state.polls else None
        st.fragment(_files, run_every=pause)(runs, scenario, whole)
        st.markdown("**For a notebook**")
        st.code(snippet(scenario, share.host()), language="python")


def _files(runs: Sequence[Run], scenario: Scenario, whole: Sequence[Run]) -> None:
    state = st.session_state
    job: Job | None = state.get("job")
    for kind, file in FILES.items():
        st.button(
            file.label,
            key=f"make {kind}",
            help=file.about,
            width="stretch",
            disabled=_is_making(),
            on_click=_start,
            args=(kind, runs, scenario, whole),
        )
    if _is_making() != state.polls:  # only the whole page can begin to ask again and again, or end
        st.rerun()
    if job is None:
        return
    if not job.is_over:
        st.progress(*job.progress())
        st.button("Stop", on_click=_stop, type="tertiary")
    elif job.failure:
        st.error(job.failure)
    elif (content := job.content) is not None:
        if job.link != scenario.link():
            st.caption("Of the scenario before it was changed:")
        st.download_button(
            f"Download {job.file.name} ({len(content) / 1e6:.1f} MB)",
            content,
            job.file.name,
            job.file.mime,
            on_click="ignore",
            type="primary",
            width="stretch",
        )


def _is_making() -> bool:
    job = st.session_state.get("job")
    return job is not None and not job.is_over


def _start(kind: str, runs: Sequence[Run], scenario: Scenario, whole: Sequence[Run]) -> None:
    state = st.session_state
    if _is_making():  # a second click, before the page heard of the first
        return
    window = state.get("window") or opening_window(whole, scenario.baseline)
    state.job = Job(kind, View(scenario, list(runs), share.host(), window, list(whole)))
    state.job.progress()


def _stop() -> None:
    st.session_state.pop("job").stop()
