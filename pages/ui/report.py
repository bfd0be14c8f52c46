"""The comparison as one HTML file that needs no network: its timeline is the page's own."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from sim.explain import verdicts, why_waited
from sim.metrics import FIGURES, METRICS, Metric
from sim.run import Run
from sim.scenario import Scenario
from sim.table import scenario_table, stamp

from . import tables
from .timeline import is_large, pack

HERE = Path(__file__).parent

STYLE = """
:root { --st-text-color: #1f2328; --st-background-color: #ffffff; --st-border-color: #d0d7de;
  --st-primary-color: #3a5bc7; --st-font: "Liberation Sans", Arial, Helvetica, sans-serif;
  --good: #0f7b4a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --st-text-color: #fafafa;
  --st-background-color: #0e1117; --st-border-color: #3d444d; --st-primary-color: #8ea6ff; } }
body { font: 16px/1.5 var(--st-font); color: var(--st-text-color);
  background: var(--st-background-color); max-width: 1280px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.3rem 0.8rem; border-bottom: 1px solid var(--st-border-color);
  white-space: nowrap; } figure { margin: 0; background: #fff; } figure svg { width: 100%;
  height: auto; } .charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); }
.chart { display: none; }
.small { font-size: 0.8rem; opacity: 0.8; overflow-wrap: anywhere; } .still { display: none; }
@media print { .still { display: block; } #timeline { display: none; } }
"""
# Nothing may be asked of any host, whatever a label or a title holds.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data: blob:;"
    " img-src data: blob:; font-src data:"
)
MOUNT = """
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const source = new TextDecoder().decode(bytes(document.getElementById("source").textContent));
const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
import(url).then(({ default: show }) => {
  const parentElement = document.getElementById("timeline");
  const data = bytes(document.getElementById("data").textContent);
  const draw = () => show({ data, parentElement, setTriggerValue() {} });
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}).catch(() => document.querySelector(".still").classList.remove("still"));
"""


def html(
    scenario: Scenario,
    runs: Sequence[Run],
    host: str,
    timeline: str,
    charts: Mapping[Metric, str],
    whole: Sequence[Run] = (),
) -> str:
    """The page. `timeline` and `charts` are SVGs; the timeline's stands in where it is printed.

    whole: what the timeline shows, where it is more than the figures are of.
    """
    sentences = verdicts(runs, scenario.baseline) or [f"{runs[0].label}"]
    link, line = f"{host}{scenario.link()}", stamp(scenario, host)
    figures = tables.compared(runs, scenario, list(FIGURES), False).data.T
    figures = figures.replace(r"\\\*", "*", regex=True)
    headline = figures.loc[[FIGURES[name].label for name in tables.HEADLINE]]
    parts = [
        f"<h1>{escape(sentences[0])}</h1>",
        *(f"<p>{escape(sentence)}</p>" for sentence in sentences[1:]),
        _table(headline),
        "<h2>Who held which seat, and when</h2>",
        *_timeline(scenario, whole or runs, host, timeline),
        *(f"<p>{escape(run.label)}: {escape(why_waited(run))}</p>" for run in runs),
        "<h2>How the latencies are spread</h2><div class='charts'>",
        *(
            f"<figure>{svg}<figcaption class='small'>{escape(metric.about)}</figcaption></figure>"
            for metric, svg in charts.items()
        ),
        "</div><h2>The scenario</h2>",
        _table(scenario_table(scenario)),
        f"<p>Open it: <a href='{escape(link, quote=True)}'>{escape(link)}</a></p>"
        if host
        else f"<p>Its link: {escape(link)}</p>",
        "<h2>All figures</h2>",
        _table(figures),
        "<p class='small'>* too few requests: no 95 % upper bound for this percentile exists."
        " Percentiles are numpy's linear method over all values.</p><ul class='small'>",
        *(f"<li><b>{escape(m.label)}</b>: {escape(m.about)}</li>" for m in METRICS.values()),
        *(
            f"<li><b>{escape(f.label)}</b>: {escape(f.about)}</li>"
            for f in FIGURES.values()
            if not f.metric
        ),
        f"</ul><p class='small'>{escape(line)}</p>",
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(sentences[0])}</title><style>{STYLE}"
        f"{(HERE / 'timeline.css').read_text()}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _timeline(scenario: Scenario, runs: Sequence[Run], host: str, picture: str) -> list[str]:
    if is_large(runs):  # its timeline asks the server for what it shows
        return [f"<figure>{picture}</figure>"]
    packed = pack(runs, scenario)
    alt = f"Slot timeline of {len(runs)} variants. " + " ".join(verdicts(runs, scenario.baseline))
    first = json.dumps({"picked": -1, "alt": alt, "host": host}).encode()
    block = len(first).to_bytes(4, "little") + first + packed
    source = (HERE / "timeline.js").read_bytes()
    return [
        "<div id='timeline'></div>",
        f"<figure class='still'>{picture}</figure>",
        f"<script type='text/plain' id='data'>{base64.b64encode(block).decode()}</script>",
        f"<script type='text/plain' id='source'>{base64.b64encode(source).decode()}</script>",
        f"<script type='module'>{MOUNT}</script>",
    ]


def _table(table) -> str:
    return f"<div class='wide'>{table.to_html(escape=True, border=0, index_names=False)}</div>"
