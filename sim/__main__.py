"""python -m sim compare | why | live | sweep | inspect | fidelity | golden | warm"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from . import answer, cli, fidelity
from .advice import advice, tried
from .answer import sentences
from .bring import as_text as inspected
from .bring import bring, named, report, workload
from .capacity import NoLoad, Search, find
from .cli import Parser
from .curves import points
from .golden import replay_all
from .jit import drop_stale
from .live import Session, parse
from .out import write_parquet, write_trace
from .parameter import ScenarioError
from .run import compare
from .scenario import PAGE, PARAMETERS, SLO, TEXTS, Scenario, Slo
from .sweep import CLUSTER, SEEDS, SHARE, Axis, Sweep, default_axis, run
from .table import as_dict, as_text, csv, parquet, write_csv
from .traces.plain import ROLES
from .why import DECODING, MEASURES, TTFT, total, why_variant, worst
from .why import as_text as split_text
from .workload import Workload, draw


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m sim", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    c = commands.add_parser("compare", help="the same requests under several policies")
    _scenario_options(c)
    c.add_argument("--json", action="store_true", help="for machines")
    c.add_argument("--csv", metavar="DIR", help="write requests, steps and segments there too")
    c.add_argument("--parquet", metavar="DIR", help="the same as parquet, and prompts step by step")
    c.add_argument("--perfetto", metavar="FILE", help="the runs as a trace for ui.perfetto.dev")

    w = commands.add_parser("why", help="a request's TTFT and decode time, split into causes")
    _scenario_options(w)
    which = w.add_mutually_exclusive_group(required=True)
    which.add_argument("--request", metavar="N", help="the request of that number")
    which.add_argument("--worst", choices=MEASURES, help="the worst one of the baseline's")

    v = commands.add_parser("live", help="replay what was done to a run while it went")
    v.add_argument("what", metavar="LINK|FILE", nargs="?", help="the live page's, or saved there")
    _scenario_options(v)
    v.add_argument("--script", help="what is done, e.g. 5000:prompt:16000:64;8000:chunk:64")
    v.add_argument("--json", action="store_true", help="for machines")

    s = commands.add_parser("sweep", help="how much each policy can take, and curves over anything")
    _scenario_options(s)
    spread = "NAME:LOW:HIGH:STEP, NAME:LOW:HIGH:x2 or NAME:VALUE,VALUE"
    s.add_argument("--x", metavar="RANGE", help=f"what to sweep: {spread}; the load by default")
    s.add_argument("--y", metavar="RANGE", help="a second parameter")
    for p in (SEEDS, SHARE):
        s.add_argument(f"--{p.name}", metavar="N", help=f"{p.label} ({p.span})".replace("%", "%%"))
    s.add_argument("--here", action="store_true", help=f"on this machine, whatever {CLUSTER} says")
    s.add_argument("--json", action="store_true", help="for machines")
    s.add_argument("--csv", metavar="FILE", help="write a row a run there too")
    s.add_argument("--parquet", metavar="FILE", help="the same as parquet")

    i = commands.add_parser("inspect", help="what a trace or a benchmark's result says, and means")
    i.add_argument("path", metavar="FILE", type=Path)
    i.add_argument(
        "--columns", metavar="NAME=COLUMN,…", help=f"of an unknown CSV: {', '.join(ROLES)}"
    )
    for name, p in SLO.items():
        i.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=f"{p.label} ({p.span})")
    i.add_argument("--json", action="store_true", help="for machines")

    f = commands.add_parser("fidelity", help="published measurements beside our predictions")
    f.add_argument("path", metavar="FILE", type=Path, nargs="?", default=fidelity.PUBLISHED)

    g = commands.add_parser("golden", help="replay recordings, and say where we differ")
    g.add_argument("path", metavar="FILE|DIR", type=Path)

    commands.add_parser("warm", help="compile, so that nobody waits for it later")
    return top


def _scenario_options(c: argparse.ArgumentParser) -> None:
    c.add_argument("--scenario", metavar="FILE", help="a scenario as JSON, as the page saves it")
    c.add_argument("--url", help="the page's address")
    c.add_argument("--policies", metavar="P,P", help="e.g. static,continuous,chunked:chunk=128")
    c.add_argument("--baseline", metavar="N", help="which of them the others are measured against")
    c.add_argument("--arrivals", help="module, poisson, gamma, constant, burst, closed or trace")
    c.add_argument("--cost", help="linear, roofline/h100-sxm/llama-3.1-8b or calibrated/step_ms=6")
    c.add_argument("--list", help="requests written out, for --arrivals list: ms:prompt:output;…")
    c.add_argument("--trace", metavar="FILE", help="a trace or a result, for --arrivals trace")
    for name in ("prompt", "output"):
        c.add_argument(f"--{name}", metavar="LENGTHS", help="e.g. lognormal:700:0.9:64:4096")
    for name, p in PARAMETERS.items():
        c.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=f"{p.label} ({p.span})")


def asked(args: argparse.Namespace) -> Scenario:
    """The scenario that the options ask for. ScenarioError for the first fault."""
    query: dict[str, list[str]] = {}
    if args.scenario:
        query |= Scenario.query_of(Path(args.scenario).read_text())
    if args.url:
        scenario, problems = Scenario.from_url(args.url)
        if problems:
            raise ScenarioError(problems[0])
        query |= scenario.to_query()
    for name in ("baseline", "cost", *TEXTS, *PARAMETERS):
        if getattr(args, name) is not None:
            query[name] = [getattr(args, name)]
    if args.policies is not None:
        query["v"] = args.policies.split(",")
    if args.trace:
        name = [named(Path(args.trace))]
        query |= {"trace": name, "arrivals": query.get("arrivals", ["trace"])}
    scenario, problems = Scenario.from_query(query)
    if problems:
        raise ScenarioError(problems[0])
    return scenario


def brought(args: argparse.Namespace) -> Workload | None:
    """The trace that the options name."""
    trace, said = workload(Path(args.trace), args.trace) if args.trace else (None, "")
    if said:
        print(said, file=sys.stderr)
    return trace


def run_compare(args: argparse.Namespace) -> int:
    scenario, trace = asked(args), brought(args)
    runs = compare(scenario, trace)
    if args.csv:
        write_csv(Path(args.csv), runs, scenario)
    if args.parquet:
        write_parquet(Path(args.parquet), runs, scenario)
    if args.perfetto:
        write_trace(Path(args.perfetto), runs, scenario, args.perfetto.endswith(".gz"))
    print(json.dumps(as_dict(runs, scenario), indent=1) if args.json else as_text(runs, scenario))
    return 0


def run_live(args: argparse.Namespace) -> int:
    if args.what and Path(args.what).is_file():
        args.scenario = args.what
    elif args.what:
        if "?" not in args.what and "://" not in args.what:
            raise ScenarioError(
                f"{args.what[:60]!r} is no file here and no link: give what the live page saved, or"
                " its address"
            )
        args.url = args.what
    given = Scenario.query_of(Path(args.scenario).read_text()) if args.scenario else {}
    given |= parse_qs(urlsplit(args.url).query) if args.url else {}
    script = args.script if args.script is not None else given.get("live", [""])[-1]
    scenario, trace = asked(args), brought(args)
    session = Session(scenario, parse(script, scenario), trace)
    runs = session.finish()
    if args.json:
        found = as_dict(runs, scenario) | {"live": script, "link": session.link()}
        print(json.dumps(found, indent=1))
        return 0
    for action in session.actions:
        print(action.words)
    print(as_text(runs, scenario))
    return 0


def run_inspect(args: argparse.Namespace) -> int:
    pairs = [pair.partition("=") for pair in (args.columns or "").split(",")]
    mapping = {role: column for role, _, column in pairs if column}
    if args.columns and not {"prompt_len", "output_len"} <= set(mapping) <= set(ROLES):
        raise ScenarioError(
            f"--columns {args.columns[:60]!r}: name prompt_len and output_len, and one of"
            " arrival_ms, arrival_s, arrival_date, each as role=column"
        )
    limits = {n: p.parse(getattr(args, n)) for n, p in SLO.items() if getattr(args, n) is not None}
    found = report(bring(args.path, args.path.name, mapping or None), Slo(**limits))
    print(json.dumps(found, indent=1) if args.json else inspected(found))
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    scenario, trace = asked(args), brought(args)
    given = parse_qs(urlsplit(args.url).query) if args.url else {}
    wanted = {
        name: getattr(args, name) or given.get(name, [""])[-1] for name in PAGE if name in args
    }
    axes = [Axis.parse(wanted[name]) for name in "xy" if wanted[name]]
    numbers = [p.parse(wanted[p.name]) if wanted[p.name] else p.default for p in (SEEDS, SHARE)]
    seeds, share = int(numbers[0]), numbers[1]
    axes = axes or [default_axis(scenario)]
    swept = Sweep(scenario=scenario, axes=tuple(axes), seeds=seeds, share=share)
    swept.check()
    search = Search(scenario=scenario, share=share, seeds=seeds)
    try:
        found, without = find(search, trace, here=args.here, go_on=told("capacity")), []
    except NoLoad as error:
        found, without = [], [f"No capacity: {error}."]
    table = run(swept, trace, here=args.here, go_on=told("sweep"))
    names = [axis.name for axis in swept.axes]
    frame = points(table, names, share)
    said = without + sentences(found, frame, names, share, scenario.slo)
    if args.csv:
        Path(args.csv).write_text(csv(table, swept))
    if args.parquet:
        Path(args.parquet).write_bytes(parquet(table, swept))
    if args.json:
        about = {"sweep": swept.name, "link": swept.link(), **swept.definition(), "share": share}
        print(json.dumps(about | answer.as_dict(frame, found, said), indent=1))
    else:
        print(answer.as_text(frame, names, said))
    return 0


def told(what: str) -> Callable[[int, int], None]:
    """Progress with the time left, on a terminal alone."""
    began = time.monotonic()

    def go_on(done: int, of: int) -> None:
        left = (time.monotonic() - began) / done * (of - done)
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(
                f"\r{what}: {done:,} of {of:,} runs, {left:,.0f} s left  ", end=end, file=sys.stderr
            )

    return go_on


def run_why(args: argparse.Namespace) -> int:
    scenario, trace = asked(args), brought(args)
    runs = compare(scenario, trace)
    if args.worst:
        found = worst(runs[scenario.baseline], args.worst)
        if not len(found):
            raise ScenarioError(f"worst {args.worst}: no request has one: choose another measure")
        i = int(found[0])
    else:
        i = request_number(args.request, len(runs[0].requests))
    pairs = zip(runs, scenario.variants, strict=True)
    splits = [why_variant(run, scenario, variant) for run, variant in pairs]
    print("\n\n".join(split_text(split, i) for split in splits))
    print()
    requests = draw(scenario.traffic, trace)
    for split, variant in zip(splits, scenario.variants, strict=True):
        for half in (TTFT, DECODING):
            t = total(split, half, 0.95)
            said = advice(t, variant.policy), tried(t, split.run, scenario, variant, requests) or ""
            print(f"{split.run.label}: {' '.join(said).rstrip()}")
    return 0


def request_number(text: str, requests: int) -> int:
    """ScenarioError unless it is the number of a request."""
    if not (text.isdecimal() and len(text) < 10 and int(text) < requests):
        raise ScenarioError(
            f"request {text[:40]!r} is none of this run: give 0 to {requests - 1:,}"
        )
    return int(text)


def run_golden(args: argparse.Namespace) -> int:
    differences = replay_all(args.path)
    for path, difference in differences.items():
        if difference:
            print(f"{path.name}: {difference}")
    equal = list(differences.values()).count(None)
    print(f"{equal} of {len(differences)} equal")
    return int(equal < len(differences))


def run_fidelity(args: argparse.Namespace) -> int:
    records, problems = fidelity.read(args.path.read_text())
    print(fidelity.as_text(fidelity.score(records), problems))
    return 0


def run_warm(args: argparse.Namespace) -> int:
    compare(Scenario())
    drop_stale()
    return 0


def main(argv: list[str] | None = None) -> int:
    return cli.main(parser(), globals(), argv)


if __name__ == "__main__":
    sys.exit(main())
