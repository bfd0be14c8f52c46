"""What the command lines of sim and gpu_probe share: how they refuse, and how they end."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from .parameter import ScenarioError


class Parser(argparse.ArgumentParser):
    """What it can't read is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(parser: argparse.ArgumentParser, runs: Mapping[str, Callable], argv) -> int:
    """Call the `run_COMMAND` that is asked for: 0 or what it returns, 2 with a sentence on stderr
    for bad input, 130 for Ctrl-C."""
    args = parser.parse_args(argv)
    try:
        return runs[f"run_{args.command}"](args)
    except UnicodeDecodeError:
        text = f"{args.scenario} is not text"
    except ScenarioError as error:
        text = str(error)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except KeyboardInterrupt:
        return 130
    print(f"{parser.prog} {args.command}: {text}", file=sys.stderr)
    return 2
