"""python -m sim compare | why | golden | warm"""

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

from . import traces
from .golden import replay_all
from .jit import drop_stale
from .out import write_parquet, write_trace
from .parameter import ScenarioError
from .run import compare
from .scenario import PARAMETERS, TEXTS, Scenario
from .table import as_dict, as_text, write_csv
from .why import DECODING, MEASURES, TTFT, advice, total, why_variant, worst
from .why import as_text as split_text


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


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
    c.add_argument("--list", help="requests written out, for --arrivals list: ms:prompt:output;…")
    c.add_argument("--trace", metavar="FILE", help="a CSV of requests, for --arrivals trace")
    for name in ("prompt", "output"):
        c.add_argument(f"--{name}", metavar="LENGTHS", help="e.g. lognormal:700:0.9:64:4096")
    for name, p in PARAMETERS.items():
        c.add_argument(f"--{name.replace('_', '-')}", metavar="N", help=f"{p.label} ({p.span})")


def asked(args: argparse.Namespace) -> tuple[Scenario, bytes | None]:
    """The scenario that the options ask for, and its trace. ScenarioError for the first fault."""
    query: dict[str, list[str]] = {}
    if args.scenario:
        query |= Scenario.query_of(Path(args.scenario).read_text())
    if args.url:
        scenario, problems = Scenario.from_url(args.url)
        if problems:
            raise ScenarioError(problems[0])
        query |= scenario.to_query()
    content = Path(args.trace).read_bytes() if args.trace else None
    for name in ("baseline", *TEXTS, *PARAMETERS):
        if getattr(args, name) is not None:
            query[name] = [getattr(args, name)]
    if args.policies is not None:
        query["v"] = args.policies.split(",")
    if content is not None:
        query |= {"trace": [traces.name_of(content)], "arrivals": query.get("arrivals", ["trace"])}
    scenario, problems = Scenario.from_query(query)
    if problems:
        raise ScenarioError(problems[0])
    return scenario, content


def run_compare(args: argparse.Namespace) -> int:
    scenario, content = asked(args)
    trace = traces.read(content, args.trace)[1] if content is not None else None
    runs = compare(scenario, trace)
    if args.csv:
        write_csv(Path(args.csv), runs, scenario)
    if args.parquet:
        write_parquet(Path(args.parquet), runs, scenario)
    if args.perfetto:
        write_trace(Path(args.perfetto), runs, scenario)
    print(json.dumps(as_dict(runs, scenario), indent=1) if args.json else as_text(runs, scenario))
    return 0


def run_why(args: argparse.Namespace) -> int:
    scenario, content = asked(args)
    trace = traces.read(content, args.trace)[1] if content is not None else None
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
    for split, variant in zip(splits, scenario.variants, strict=True):
        for half in (TTFT, DECODING):
            print(f"{split.run.label}: {advice(total(split, half, 0.95), variant.policy)}")
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


def run_warm(args: argparse.Namespace) -> int:
    compare(Scenario())
    drop_stale()
    return 0


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        return globals()[f"run_{args.command}"](args)
    except (ScenarioError, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        print(f"python -m sim {args.command}: {text}", file=sys.stderr)
        return 2
    except UnicodeDecodeError:
        print(f"python -m sim {args.command}: {args.scenario} is not text", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
