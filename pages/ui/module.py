"""The parts of the page that checks the course module."""

from collections import Counter

import pandas as pd
import streamlit as st

from sim import claims as c
from sim import defaults as defaults_by_version
from sim.bins import coalesced
from sim.parameter import ScenarioError
from sim.presets import ENGINES
from sim.run import compare
from sim.scenario import Scenario

from . import charts, share
from .text import dark, plain
from .timeline import shade_scale

PROVENANCE = (
    "Inputs are named in each row; devices and models are those of Step cost, ideal (MBU 1, no"
    " overhead) as in the module. Verdicts compare at the precision of the claim."
)


OWN = """import copy, random
import sched_sim  # your answer, beside this project
from sim.module08 import simulate

requests = sched_sim.make_traffic(random.Random(1234))
for r in requests:
    r.arrival *= 1000  # drawn in seconds, read as ms
ours, our_ms = simulate("chunked", copy.deepcopy(requests), chunk=8)
yours, your_ms = sched_sim.simulate("chunked", requests, chunk=8)
off = [abs(a.first_tok - b.first_tok) for a, b in zip(ours, yours)]
print(f"{max(off):g} ms apart at most; together {our_ms:g} and {your_ms:g} ms")
"""


@st.cache_data(show_spinner=False)
def _claims() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "#": claim.number,
                "claim": claim.claim,
                "verdict": claim.verdict,
                "computed": claim.computed,
                "link": claim.link or None,
                "from": ". ".join(filter(None, [claim.inputs, _sentence(claim.note)])),
            }
            for claim in c.every()
        ]
    )


def _sentence(note: str) -> str:
    return note if note[1:2].isupper() else note[:1].upper() + note[1:]  # vLLM stays vLLM


def verdict() -> None:
    counts = Counter(v.split(":")[0].split(" only")[0] for v in _claims()["verdict"])
    conditional = int(_claims()["verdict"].str.startswith("holds only").sum())
    st.subheader(
        f"Of Module 08's {len(_claims())} claims {counts['holds'] - conditional} hold,"
        f" {conditional} hold only under a condition, {counts[c.SLIP]} slip in a unit,"
        f" {counts[c.CONTRADICTS]} contradict, {counts[c.UNCHECKED]} can't be checked.",
        anchor=False,
    )


COLOURS = (("holds only", "orange"), ("holds", "green"), (c.SLIP, "orange"), ("n", "gray"))
# On a narrow screen a row is a card: its cells stand below one another.
CARDS = """<style>@media (max-width: 640px) {
  .st-key-KEY thead { display: none; }
  .st-key-KEY tr { display: block; padding: 0.6rem 0; border-bottom: 1px solid #8a8f9866; }
  .st-key-KEY :is(th, td) { display: block; border: 0 !important; padding: 0.1rem 0; }
}</style>"""


def _coloured(verdict: str) -> str:
    colour = next((colour for start, colour in COLOURS if verdict.startswith(start)), "red")
    return f":{'gray' if verdict == c.UNCHECKED else colour}[{plain(verdict)}]"


def _linked(table: pd.DataFrame, key: str) -> None:
    """As a table that wraps, the links in Markdown."""
    host = share.host()
    shown = table["link"].map(lambda at: f"[open]({host}{at})" if at else "")
    with st.container(key=key):
        st.html(CARDS.replace("KEY", key))
        verdicts = table["verdict"].map(_coloured)
        st.table(
            table.assign(link=shown, verdict=verdicts).set_index("#").rename_axis(None),
            border="horizontal",
        )


def claims() -> None:
    _linked(_claims(), "claims")


def defaults() -> None:
    st.subheader("No default without a version", anchor=False)
    st.markdown(
        "What vLLM starts with, by version, start and GPU: the module's 8192 and 256 are each one"
        " cell's truth."
    )
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        st.markdown(f"`{name}`")
        st.dataframe(
            defaults_by_version.table(name), hide_index=True, alt=f"{name} by version and GPU"
        )
    sources = "; ".join(f"{e.label}: {e.source}" for e in ENGINES.values() if e.program == "vllm")
    st.caption(f"Sources: {sources}.")


def static_batch() -> None:
    """R0 asks for 2000 tokens, seven for 50."""
    st.subheader("One long answer holds seven seats", anchor=False)
    claim = next(x for x in c.arithmetic() if x.number == "8")
    scenario, _ = Scenario.from_url(claim.link)
    runs = compare(scenario)
    rows = coalesced(runs, 0.0, max(run.total for run in runs))
    seats = {run.label: 8 for run in runs}
    with st.container(key="gantt"):
        st.html("<style>.st-key-gantt { overflow-x: auto; }</style>")
        chart = charts.gantt(rows, shade_scale(runs, scenario), dark(), seats, width=720)
        st.altair_chart(chart, alt="A static batch of eight, and the same continuously")
    st.caption(
        f"{claim.computed} of the batch's token slots are useful. Continuously, the seven leave"
        " after 50 tokens."
    )


@st.cache_data(show_spinner="Running exercise 08.1")
def _exercise_1() -> tuple[pd.DataFrame, str]:
    rows = []
    for title, as_printed in (("arrivals in ms", False), ("as printed, s read as ms", True)):
        for name in c.EXERCISE:
            row = c.row_of(c.exercise(name, as_printed=as_printed))
            rows.append([title, name, *(float(f"{x:.4g}") for x in row)])
    for name, row in c.PRINTED.items():
        rows.append(["the module's table", name, *row])
    run = c.exercise("static")
    requests, prompt, output = c.PRINTED_TRAFFIC
    said = (
        f"Seed 1234 at 16 req/s for 30 s draws {len(run.requests)} requests, mean prompt"
        f" {run.requests['prompt'].mean():,.0f}, output {run.requests['output'].mean():,.0f}; the"
        f" table says {requests}, {prompt:,} and {output}."
    )
    return pd.DataFrame(rows, columns=["source", "policy", *c.COLUMNS]), said


def exercise_1() -> None:
    st.subheader("Exercise 08.1: the printed table is not what its code prints", anchor=False)
    table, said = _exercise_1()
    st.markdown(
        said + " The printed code draws arrivals in seconds and reads them as milliseconds: all"
        " requests come within 30 ms. With the unit mended it is a Poisson stream."
    )
    st.dataframe(
        table,
        hide_index=True,
        height=35 * (len(table) + 1) + 3,
        alt="Exercise 08.1 three ways",
        column_config={
            n: st.column_config.NumberColumn(f"{n}, ms" if n[0] == "T" else n, format="localized")
            for n in c.COLUMNS
        },
    )
    with st.expander("Your own answer beside it", icon=":material/code:"):
        st.markdown(
            "`sim.module08` has the module's own interface, so that your `simulate` can be held"
            " against ours request by request."
        )
        st.code(OWN, language="python")


def exercise_2() -> None:
    st.subheader("Exercise 08.2: model calls", anchor=False)
    lengths, rows = c.lengths_of_08_2(), []
    for batch in (8, 32):
        calls = c.model_calls(lengths, batch)
        (padded, padded_decodes), (ours, our_decodes) = calls["pad to max"], calls["continuous"]
        rows.append(
            (batch, padded, ours, padded / ours, padded_decodes, our_decodes,
             padded_decodes / our_decodes)
        )  # fmt: skip
    table = pd.DataFrame(
        rows,
        columns=["batch", "calls, padded", "calls, continuous", "times fewer",
                 "decode calls, padded", "decode calls, continuous", "times fewer "],
    )  # fmt: skip
    held = all(1.5 <= ratio <= 2 for ratio in table["times fewer"])
    st.markdown(
        f"{len(lengths)} requests, {sum(lengths):,} tokens. The module expects 1.5 to 2 times"
        f" fewer: **{c.HOLDS if held else c.CONTRADICTS}**; continuous batching pays a prompt call"
        " for each refill."
    )
    st.dataframe(
        table.round(2),
        hide_index=True,
        alt="Model calls of exercise 08.2",
        column_config={
            n: st.column_config.NumberColumn(format="localized") for n in table if "calls" in n
        },
    )
    st.page_link(
        "pages/device.py",
        label="Run it in torch, with tok/s and memory by time",
        icon=":material/developer_board:",
    )


@st.cache_data(show_spinner="Running the checklist over 30 seeds")
def _checklist() -> pd.DataFrame:
    words = {True: "holds", False: "does not hold", None: "not to be seen here"}
    return pd.DataFrame(
        [
            {
                "#": str(x.number),
                "claim": x.claim,
                "verdict": words[x.holds],
                "measured": x.measured,
                "link": x.link or None,
            }
            for x in c.checklist()
        ]
    )


def checklist() -> None:
    st.subheader("The checklist, run", anchor=False)
    try:
        _linked(_checklist(), "checklist")
    except ScenarioError as error:
        st.error(str(error))
