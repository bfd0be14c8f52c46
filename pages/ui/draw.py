"""A drawing as a file: an SVG, or a chart in Vega-Lite's JSON, to PNG, SVG or PDF."""

import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Literal

Kind = Literal["png", "svg", "pdf"]
ROOT = Path(__file__).parents[2]
TYPES: dict[Kind, str] = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
LAST = 19  # niceness: whoever looks at a page goes first


def apart(module: str, *args: str, **streams) -> subprocess.Popen:
    """`python -m module args` as a process that gives way to all others, from its first import."""
    process = subprocess.Popen([sys.executable, "-m", module, *args], cwd=ROOT, **streams)
    os.setpriority(os.PRIO_PROCESS, process.pid, LAST)
    return process


def drawn(drawing: str, kind: Kind) -> bytes:
    """The drawing as a file of that kind; a PNG at twice the size.

    All threads of the process stand still meanwhile: on a server, use `picture`.
    """
    import vl_convert

    if not drawing.startswith("<svg"):
        version = re.search(r"vega-lite/v(\d+\.\d+)", drawing)
        drawing = vl_convert.vegalite_to_svg(drawing, vl_version=version and version[1])
    if kind == "svg":
        return drawing.encode()
    return vl_convert.svg_to_pdf(drawing) if kind == "pdf" else vl_convert.svg_to_png(drawing, 2)


def picture(drawing: str, kind: Kind) -> bytes:
    """The same, by a process of its own, so that nobody else's page waits for it."""
    process = apart(__name__, kind, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    content, said = process.communicate(drawing.encode())
    if process.returncode:
        raise RuntimeError(f"the {kind} could not be drawn: {said.decode()[-500:]}")
    return content


if __name__ == "__main__":
    sys.stdout.buffer.write(drawn(sys.stdin.read(), sys.argv[1]))  # type: ignore[arg-type]
