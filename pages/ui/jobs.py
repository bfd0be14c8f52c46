"""Files in the making: each by a process of its own, a few at a time for the whole server."""

import pickle
import subprocess
import time
import weakref
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from threading import Lock

from sim.run import Run

from .draw import apart
from .files import FILES, PARTS, View

WORKERS = 2
AT_ONCE = 20_000  # rows that are written in a fifth of a second, before a worker would have begun
running: list[subprocess.Popen] = []
turn = Lock()  # viewers ask at the same time


class Job:
    """One file. Nobody has to end it: its process and folder go when it is forgotten."""

    def __init__(self, kind: str, view: View):
        self.file, self.link = (FILES | PARTS)[kind], view.scenario.link()
        folder = TemporaryDirectory(prefix="slotscope-")
        self.folder, self.processes = Path(folder.name), []
        self._end = weakref.finalize(self, _end, self.processes, folder)
        with (self.folder / "view").open("wb") as out:
            pickle.dump(view, out, protocol=5)

    def progress(self) -> tuple[float, str]:
        """The share that is done, and what is being done. Call it now and then: it starts it."""
        if not self.processes and not self._start():
            return 0.0, "Waiting for other exports"
        told = self.folder / "progress"
        if not told.exists():
            return 0.0, "Starting"
        share, _, doing = told.read_text().partition(" ")
        return float(share), doing

    def _start(self) -> bool:
        """Start the worker, unless enough are at work."""
        with turn, (self.folder / "said").open("wb") as said:
            running[:] = [process for process in running if process.poll() is None]
            if len(running) >= WORKERS:
                return False
            process = apart(
                "pages.ui.files",
                self.file.kind,
                str(self.folder),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=said,
                process_group=0,  # a session of its own would share the cores evenly with ours
            )
            self.processes.append(process)
            running.append(process)
        return True

    @property
    def is_over(self) -> bool:
        return bool(self.processes) and self.processes[0].poll() is not None

    @property
    def content(self) -> bytes | None:
        """The file, once it is there."""
        done = self.folder / "file"
        return done.read_bytes() if self.is_over and done.exists() else None

    @property
    def failure(self) -> str:
        """The last line that a process without a file left behind."""
        if not self.is_over or (self.folder / "file").exists():
            return ""
        lines = (self.folder / "said").read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "it was stopped")
        return f"{self.file.label}: not made ({last[:200]}): try again"

    def stop(self) -> None:
        self._end()


def rows(run: Run) -> int:
    return sum(len(table) for table in (run.requests, run.steps, run.segments, run.grants))


def part(name: str, view: View) -> bytes:
    """One of PARTS, for a download that waits for it: if large, by a worker. RuntimeError if there
    is none."""
    if sum(map(rows, view.runs)) <= AT_ONCE:
        with TemporaryDirectory(prefix="slotscope-") as folder:
            PARTS[name].make(view, Path(folder, name), lambda done, doing: None)
            return Path(folder, name).read_bytes()
    job = Job(name, view)
    while not job.is_over:
        job.progress()
        time.sleep(0.1)
    content = job.content
    if content is None:
        raise RuntimeError(job.failure)
    return content


def _end(processes: list[subprocess.Popen], folder: TemporaryDirectory) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    folder.cleanup()
