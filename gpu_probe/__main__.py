"""python -m gpu_probe serve | bench | calibrate | check"""

import argparse
import ctypes
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# The engine and torch take seconds to load, so each command loads them once its input is good.
from sim import cli
from sim.cli import Parser
from sim.parameter import ScenarioError

from . import BEGAN, MODELS


def known_device(name: str) -> str:
    """The argument --device. To miss a driver needs no torch, which is slow to load."""
    if name not in ("auto", "cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name[:40]!r} is none: use cpu, cuda or auto")
    if name == "cuda" and "torch" not in sys.modules:
        try:
            ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        except OSError:
            raise argparse.ArgumentTypeError(
                "cuda can't be had, since no NVIDIA driver is installed: use cpu"
            ) from None
    return name


def known_model(name: str) -> str:
    """The argument --model."""
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise argparse.ArgumentTypeError(f"model {name[:40]!r} is unknown: use {known}")
    return name


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m gpu_probe", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, about: str, device: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        made.add_argument("--json", action="store_true", help="for machines")
        if device:
            made.add_argument("--device", type=known_device, default="auto", help="cpu, cuda, auto")
        return made

    s = command("serve", "serve a scenario on the device and record it")
    s.add_argument("--scenario", metavar="FILE", help="a scenario as JSON; the opening one if none")
    s.add_argument("--url", help="the page's address, instead")
    s.add_argument("--trace", metavar="FILE", help="the trace that the scenario names")
    s.add_argument("--variant", metavar="N", type=int, help="which of its variants; the baseline")
    s.add_argument("--requests", metavar="N", type=int, default=60, help="the first N of them; 60")
    s.add_argument(
        "--model",
        type=known_model,
        default="small",
        help="small; or tiny, llama-3.1-8b, …",
    )
    s.add_argument("-o", "--out", metavar="FILE", type=Path, required=True, help="run.parquet")

    b = command("bench", "exercise 08.2: padding to the longest against continuous stepping")
    b.add_argument("--memory", action="store_true", help="memory by time too, a process each")

    c = command("calibrate", "a recorded run -> a cost model of its device", device=False)
    c.add_argument("run", metavar="RUN", type=Path)
    c.add_argument("--cost", default="calibrated", choices=("calibrated", "linear"))
    c.add_argument("-o", "--out", metavar="FILE", type=Path, required=True, help="cost.json")

    k = command("check", "what the device does and how well it is predicted, in 4 minutes at most")
    k.add_argument("--out", metavar="DIR", type=Path, required=True, help="check.json goes there")
    k.add_argument("--model", type=known_model, help="llama-3.1-8b on CUDA, small on a CPU")
    k.add_argument("--seconds", type=float, default=200, help="stages begin until then")
    return top


def bar(what: str) -> Callable[[float], None]:
    """A progress bar on stderr, where somebody looks."""

    def draw(done: float) -> None:
        if sys.stderr.isatty():
            filled = "█" * round(30 * done)
            end = "\n" if done >= 1 else ""
            print(
                f"\r{what} {filled:<30} {100 * done:3.0f} %", end=end, file=sys.stderr, flush=True
            )

    return draw


def say(args: argparse.Namespace, said: dict | list, text: Callable[[], str]) -> int:
    print(json.dumps(said, indent=1) if args.json else text())
    return 0


def place(path: Path) -> None:
    """ScenarioError if no file can be written there."""
    why = "it is a folder" if path.is_dir() else ""
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        why = f"of {path.parent} the system says: {error.strerror}"
    if why:
        raise ScenarioError(f"--out {path} can't be written, since {why}; give another")


def text_of(name: str) -> str:
    try:
        return Path(name).read_text()
    except OSError as error:
        raise ScenarioError(
            f"{name}: {error.strerror}: give a scenario's JSON, or --url and the page's address"
        ) from None


def scenario_of(args: argparse.Namespace):
    from sim.scenario import Scenario

    if args.url and "?" not in args.url and "://" not in args.url:
        raise ScenarioError(f"--url {args.url[:40]!r} is no address: copy that of the page")
    if args.url:
        scenario, problems = Scenario.from_url(args.url)
    else:
        text = text_of(args.scenario) if args.scenario else "{}"
        scenario, problems = Scenario.from_query(Scenario.query_of(text))
    if problems:
        raise ScenarioError(problems[0])
    return scenario


@contextmanager
def interruptible(command: str, left: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C is answered by what is left of the work."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\npython -m gpu_probe {command}: stopped, {left()}", file=sys.stderr)
        raise


def run_serve(args: argparse.Namespace) -> int:
    if args.requests < 1:
        raise ScenarioError(f"--requests {args.requests} is nobody: give 1 or more")
    place(args.out)
    content = Path(args.trace).read_bytes() if args.trace else None
    scenario, trace = scenario_of(args), None
    number = scenario.baseline if args.variant is None else args.variant
    if not 0 <= number < len(scenario.variants):
        top = len(scenario.variants) - 1
        raise ScenarioError(f"--variant {number} is none of the scenario's: give 0 to {top}")
    began, note = time.time(), bar("Serving")

    def left() -> str:
        written = args.out.exists() and args.out.stat().st_mtime >= began
        return (
            f"what was measured until then is in {args.out}"
            if written
            else "before anything was measured"
        )

    with interruptible("serve", left):
        note(0.0)
        from sim import traces

        from .serve import serve

        if content is not None:
            trace = traces.read(content, args.trace)[1]
        record = serve(
            scenario,
            scenario.variants[number],
            trace,
            model=args.model,
            device=args.device,
            requests=args.requests,
            path=args.out,
            note=note,
        )
    steps = record.run.steps
    said = {
        "file": str(args.out),
        "device": record.run.source,
        "requests": len(record.run.requests),
        "steps": len(steps),
        "busy_s": float(steps["ms"].sum() / 1e3),
        "decode_only_steps": int((steps["prefill"] == 0).sum()),
        "span_s": record.run.total / 1e3,
    }
    return say(args, said, lambda: "\n".join(f"{name:18} {value}" for name, value in said.items()))


def run_bench(args: argparse.Namespace) -> int:
    with interruptible("bench", lambda: "and of a bench nothing is kept before its end"):
        from . import bench
        from .device import choose

        device = choose(args.device)
        rows = bench.table(device, note=bar("Measuring"))
        said: dict = {"device": device, "regime": bench.regime(device), "rows": rows}
        if args.memory:
            said["memory"] = bench.memory(device)

    def text() -> str:
        lines = [
            f"{'batch':>5} {'way':18} {'tokens':>7} {'calls':>6} {'decode':>7} {'slots':>6}"
            f" {'seconds':>8} {'spread':>7} {'tok/s':>8} {'against pad':>12}"
        ]
        lines += [
            f"{r['batch']:>5} {r['way']:18} {r['tokens']:>7,} {r['calls']:>6,}"
            f" {r['decode calls']:>7,} {r['slots used']:>6.0%} {r['seconds']:>8.2f}"
            f" {r['spread']:>7.0%} {r['tok/s']:>8,.0f} {r['against pad_to_max']:>11.2f}x"
            for r in rows
        ]
        lines.append(f"The regime here is {said['regime']}.")
        for m in said.get("memory", []):
            lines.append(
                f"{m['way']}: KV needed {m['needed'] / 2**20:.1f} MiB, peak {m['peak'] / 2**20:.0f}"
                f" MiB above the start, {m['what']}"
                + (f", reserved {m['reserved'] / 2**20:.0f} MiB" if m["reserved"] else "")
            )
        return "\n".join(lines)

    return say(args, said, text)


def run_calibrate(args: argparse.Namespace) -> int:
    place(args.out)
    content = args.run.read_bytes()  # what is missing is told before the engine is loaded
    from sim.record import load

    from .calibrate import calibrate, said_of, written

    record = load(content, str(args.run))
    said = said_of(calibrate(record.run, args.cost), record)
    args.out.write_text(written(said))
    return say(
        args,
        said,
        lambda: (
            f"{said['name']}: {said['steps']:,} steps, {said['busy_ms'] / 1e3:.2f} s busy\n"
            f"median |error| of a step {said['median_error']:.1%}, p95 {said['p95_error']:.1%}\n"
            f"cost={said['cost']}"
        ),
    )


def run_check(args: argparse.Namespace) -> int:
    # To compile the scheduler and to load torch is part of what one waits for.
    began = BEGAN if __name__ == "__main__" else time.monotonic()
    if not args.seconds > 0:
        raise ScenarioError(f"--seconds {args.seconds:g} is no time: give 200, as usual")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"--out {args.out} is no folder ({error.strerror}): give one") from None
    place(args.out / "check.json")
    with interruptible("check", lambda: f"the stages until then are in {args.out}/check.json"):
        from .check import check, holds
        from .device import choose

        device = choose(args.device)
        model = args.model or ("llama-3.1-8b" if device == "cuda" else "small")
        said = check(device, model, args.out, args.seconds, bar("Checking"), began)
    print(json.dumps(said, indent=1))
    return int(not holds(said))


def main(argv: list[str] | None = None) -> int:
    return cli.main(parser(), globals(), argv)


if __name__ == "__main__":
    # A server that was started in the background ignores Ctrl-C, and so would its runs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
