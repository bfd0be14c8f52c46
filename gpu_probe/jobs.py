"""Device runs as processes of their own: a crash of CUDA takes nothing down but the run.

A run is a folder: scenario.json, job.json, log, out.json, and run.parquet, which is whole at every
moment.
Who runs on a device holds a lock on its file; the system drops it with the process, whatever ends
that. Knows no torch.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.record import Record, load
from sim.scenario import Scenario
from sim.state import Limits
from sim.workload import Workload

ROOT = Path(__file__).parents[1]
RUNS = Path(os.environ.get("SLOTSCOPE_RUNS", ROOT / ".runs"))
KEPT = 50  # runs
# What a run of the device says of itself, and has measured.
SAID = {"attention", "clock", "date", "device", "driver", "dtype", "finished", "limits", "memory"}
SAID |= {"model", "policy", "requests_done", "versions"}
MEASURED = {"asked", "memory", "step_memory"}
_children: dict[str, subprocess.Popen] = {}  # to be waited for


def opened(source: Path | bytes, name: str = "") -> Record:
    """A device run's file. ScenarioError for anything else, and for another version's."""
    record = load(source, name)
    odd = [f"no {n}" for n in sorted(SAID - {*record.about}) + sorted(MEASURED - {*record.beside})]
    if not odd:
        odd = [f"a limit {n!r}" for n in record.about["limits"] if n not in Limits._fields]
        odd += [f"a policy {n!r}" for n in [record.about["policy"]] if n not in POLICIES]
    if odd:
        raise ScenarioError(
            f"{str(name or source)[-80:]} is a run of another version of this program, with"
            f" {', '.join(odd)[:200]}: serve it again with this one"
        )
    return record


@lru_cache(KEPT)
def _kept(path: Path, name: str, changed: int) -> Record:
    """One that is over; it does not change."""
    return opened(path, name)


def cards() -> list[str]:
    """Names of the NVIDIA cards here; none without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(k)) for k in range(count)
        ]
        return [name.decode() if isinstance(name, bytes) else name for name in names]
    except Exception:  # not installed, or no driver: NVML's errors are made when it is loaded
        return []


class Job(NamedTuple):
    """One run, while it lasts and afterwards."""

    folder: Path

    @property
    def about(self) -> dict:
        try:
            return json.loads((self.folder / "job.json").read_text())
        except (OSError, ValueError):
            return {}

    @property
    def label(self) -> str:
        """As a list shows it, to the second: two of one label could not be told apart."""
        a = self.about
        return f"{a.get('label', '?')} · {a.get('model', '?')} on {a.get('device', '?')} · " + str(
            a.get("date", "")
        )[:19].replace("T", " ")

    @property
    def path(self) -> Path:
        return self.folder / "run.parquet"

    @property
    def runs(self) -> bool:
        """Whether its process is alive."""
        return (held := holder(self.about.get("device", ""))) is not None and held == self

    def record(self) -> Record | None:
        """What has been measured so far, if anything."""
        if not self.path.exists():
            return None
        if self.runs:
            return opened(self.path, self.label)
        return _kept(self.path, self.label, self.path.stat().st_mtime_ns)

    def last_words(self) -> str:
        """What the process said at the end, or what ended it."""
        child = _children.get(self.folder.name)
        if child and (child.returncode or 0) < 0:
            return f"signal {-child.returncode} ended its process"
        try:
            lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return re.sub(r"^python -m gpu_probe \w+: ", "", lines[-1])[-400:] if lines else ""

    def found(self) -> dict | None:
        """What the process printed, once it is over."""
        try:
            return json.loads((self.folder / "out.json").read_text())
        except (OSError, ValueError):
            return None

    @property
    def stopping(self) -> bool:
        """Whether somebody has asked it to end."""
        return (self.folder / "stopping").exists()

    def stop(self) -> None:
        """Ask the process to end; it leaves what it has measured. A second time: end it."""
        if self.runs:
            os.kill(self.about["pid"], signal.SIGKILL if self.stopping else signal.SIGINT)
            (self.folder / "stopping").touch()

    def forget(self) -> None:
        """Remove it from the disk."""
        if not self.runs:
            shutil.rmtree(self.folder, ignore_errors=True)


def jobs() -> list[Job]:
    """All that are kept, the newest first."""
    return [Job(path) for path in sorted(RUNS.glob("[0-9]*-*"), reverse=True) if path.is_dir()]


def _lock(device: str) -> int | None:
    """The device's lock as a file descriptor; None while a run holds it."""
    RUNS.mkdir(parents=True, exist_ok=True)
    file = os.open(RUNS / f"{device}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def holder(device: str) -> Job | None:
    """The run that is on the device now."""
    for child in list(_children.values()):
        child.poll()
    if device not in ("cpu", "cuda") or not (RUNS / f"{device}.lock").exists():
        return None
    file = _lock(device)
    if file is not None:
        os.close(file)
        return None
    name = (RUNS / f"{device}.lock").read_text().strip()
    return Job(RUNS / name) if name else None


def _taken(device: str) -> int:
    """The device's lock, ours now. ScenarioError while a run holds it."""
    file = _lock(device)
    for _ in range(5):  # somebody who only looks holds it for a moment
        if file is None:
            time.sleep(0.01)
            file = _lock(device)
    if file is None:
        other = holder(device)
        raise ScenarioError(
            f"{device} is taken by {other.label if other else 'a run that begins just now'}: wait"
            " until it is over, or stop it"
        )
    return file


def start(
    scenario: Scenario,
    variant: int,
    *,
    model: str,
    device: str,
    requests: int,
    trace: Workload | None = None,
) -> Job:
    """Begin a run of one of the scenario's variants. ScenarioError while the device is taken."""
    lock = _taken(device)
    label = scenario.variants[variant].label
    name = f"{time.time_ns() // 1_000_000}-{re.sub(r'[^a-z0-9]+', '-', label.lower())[:40]}"
    job = Job(RUNS / name)
    job.folder.mkdir()
    (job.folder / "scenario.json").write_text(scenario.to_json())
    command = ["serve", "--scenario", str(job.folder / "scenario.json"), "--variant", str(variant)]
    command += ["--model", model, "--requests", str(requests), "-o", str(job.path)]
    if trace is not None:
        (job.folder / "trace.csv").write_text(_as_csv(trace))
        command += ["--trace", str(job.folder / "trace.csv")]
    _begin(job, lock, command, label=label, model=model, device=device, requests=requests)
    for old in jobs()[KEPT:]:
        old.forget()
    return job


def exercise(device: str) -> Job:
    """Where exercise 08.2 on that device is, or was: `found` tells what it measured."""
    return Job(RUNS / f"exercise-{device}")


def start_exercise(device: str) -> Job:
    """Begin it anew, memory by time included. ScenarioError while the device is taken."""
    lock, job = _taken(device), exercise(device)
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir()
    _begin(job, lock, ["bench", "--memory"], label="exercise 08.2", model="TinyLM", device=device)
    return job


def _begin(job: Job, lock: int, command: list[str], **said) -> None:
    """Run `python -m gpu_probe` in a process that holds the device's lock as long as it lives."""
    command = [sys.executable, "-m", "gpu_probe", *command, "--json", "--device", said["device"]]
    try:
        os.ftruncate(lock, 0)
        os.write(lock, job.folder.name.encode())
        with (job.folder / "log").open("w") as log, (job.folder / "out.json").open("w") as out:
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
    finally:
        os.close(lock)  # the child's own copy holds the lock on
    _children[job.folder.name] = child
    said |= {"pid": child.pid, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    (job.folder / "job.json").write_text(json.dumps(said))


def _as_csv(trace: Workload) -> str:
    rows = np.column_stack([trace.arrival, trace.prompt, trace.output]).tolist()
    lines = (f"{arrival!r},{prompt:.0f},{output:.0f}" for arrival, prompt, output in rows)
    return "\n".join(["arrival_ms,prompt_len,output_len", *lines, ""])
