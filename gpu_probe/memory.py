"""Memory by time, sampled beside the loop: NVML and torch's allocator on CUDA, else process RSS.

It reads the card and changes nothing on it.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

SAMPLE = np.dtype(
    [
        ("t", "f8"),  # ms, on the run's clock
        ("rss", "f8"),  # bytes of this process in RAM
        ("allocated", "f8"),  # bytes of torch's tensors on the device
        ("reserved", "f8"),  # bytes that torch's allocator took from the device
        ("used", "f8"),  # bytes of the device, all programs, NVML's v2 figure
        ("process", "f8"),  # of these, this process's, where NVML can tell
        ("watts", "f8"),
        ("busy", "f8"),  # % of NVML's last window in which a kernel ran: no measure of load
        ("mhz", "f8"),  # of the SMs
        ("kv", "f8"),  # bytes of the KV blocks in use
    ]
)
STEP_MEMORY = np.dtype([("held", "f8"), ("peak", "f8")])  # KV blocks; bytes allocated at most


class Nvml:
    """One card as NVML sees it. A reading that it refuses is nan."""

    def __init__(self, uuid: str):
        """uuid: as torch has it; NVML numbers all cards, torch only the visible ones."""
        import pynvml

        self.nvml: Any = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")

    def memory(self) -> Any:
        return self.nvml.nvmlDeviceGetMemoryInfo(self.handle, version=self.nvml.nvmlMemory_v2)

    def attempt(self, reading: Callable[[], float | None]) -> float:
        try:
            value = reading()
        except (self.nvml.NVMLError, AttributeError):  # the card's or the package's no
            return np.nan
        return np.nan if value is None else float(value)

    def read(self) -> dict[str, float]:
        n, attempt = self.nvml, self.attempt

        def own() -> float | None:
            # In a container the host's process ids are not ours, and nobody is found.
            found = n.nvmlDeviceGetComputeRunningProcesses(self.handle)
            return next((p.usedGpuMemory for p in found if p.pid == os.getpid()), None)

        return {
            "used": attempt(lambda: self.memory().used),
            "process": attempt(own),
            "watts": attempt(lambda: n.nvmlDeviceGetPowerUsage(self.handle) / 1e3),
            "busy": attempt(lambda: n.nvmlDeviceGetUtilizationRates(self.handle).gpu),
            "mhz": attempt(lambda: n.nvmlDeviceGetClockInfo(self.handle, n.NVML_CLOCK_SM)),
        }

    def driver(self) -> str:
        said = self.nvml.nvmlSystemGetDriverVersion()
        return said.decode() if isinstance(said, bytes) else said

    def state(self) -> dict[str, float]:
        """What a measurement on the card depends on, beside the card: read, never set."""
        n, card = self.nvml, self.handle
        readings: dict[str, Callable[[], float]] = {
            "total GB": lambda: self.memory().total / 1e9,
            "used GB": lambda: self.memory().used / 1e9,
            "SM MHz": lambda: n.nvmlDeviceGetClockInfo(card, n.NVML_CLOCK_SM),
            "SM MHz at most": lambda: n.nvmlDeviceGetMaxClockInfo(card, n.NVML_CLOCK_SM),
            "memory MHz": lambda: n.nvmlDeviceGetClockInfo(card, n.NVML_CLOCK_MEM),
            "W": lambda: n.nvmlDeviceGetPowerUsage(card) / 1e3,
            "W at most": lambda: n.nvmlDeviceGetEnforcedPowerLimit(card) / 1e3,
            "degrees C": lambda: n.nvmlDeviceGetTemperature(card, n.NVML_TEMPERATURE_GPU),
            # NVML's bits: 1 idle, 4 the power limit, 8, 32 and 64 a slowdown such as heat's.
            "clocks event reasons": lambda: n.nvmlDeviceGetCurrentClocksEventReasons(card),
        }
        return {name: self.attempt(reading) for name, reading in readings.items()}


def nvml() -> tuple[Nvml | None, str]:
    """The card in use, or None and why NVML does not answer."""
    if not torch.cuda.is_available():
        return None, "no CUDA device"
    try:
        return Nvml(str(torch.cuda.get_device_properties(0).uuid)), ""
    except ImportError:
        return None, "no NVML: the package nvidia-ml-py is not installed"
    except Exception as error:  # NVML's errors are made when it is loaded
        return None, f"no NVML: {error}"


def resident() -> float:
    """Bytes of this process in RAM; nan where nothing tells."""
    try:
        import psutil
    except ImportError:
        return np.nan
    return float(psutil.Process().memory_info().rss)


class Sampler:
    """`with Sampler(now) as sampler: ...`, then sampler.rows(). A thread reads every few ms.

    now() is the run's clock in ms, kv() bytes of the KV blocks in use.
    """

    def __init__(
        self,
        now: Callable[[], float],
        kv: Callable[[], float] = lambda: 0.0,
        *,
        cuda: bool = False,
        every: float = 0.02,
    ):
        self.now, self.kv, self.cuda, self.every = now, kv, cuda, every
        self.samples: list[tuple[float, ...]] = []
        self.card, self.why = nvml() if cuda else (None, "no CUDA device")
        self.over = threading.Event()

    @property
    def column(self) -> str:
        """Of SAMPLE, the memory in use."""
        return "used" if self.card else "reserved" if self.cuda else "rss"

    @property
    def what(self) -> str:
        """What is measured, in words."""
        return {
            "used": "device memory (NVML)",
            "reserved": "device memory that torch took, of this process alone (no NVML)",
            "rss": "process memory (RSS), not device memory",
        }[self.column]

    def sample(self) -> None:
        row = dict.fromkeys(SAMPLE.names or (), np.nan) | {"t": self.now(), "kv": self.kv()}
        if self.cuda:
            row["allocated"] = float(torch.cuda.memory_allocated())
            row["reserved"] = float(torch.cuda.memory_reserved())
        if self.card:
            row |= self.card.read()
        else:
            row["rss"] = resident()
        self.samples.append(tuple(row.values()))

    def rows(self) -> np.ndarray:
        """(samples,) SAMPLE, so far."""
        return np.array(list(self.samples), SAMPLE)

    def __enter__(self) -> "Sampler":
        self.sample()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        while not self.over.wait(self.every):
            self.sample()

    def __exit__(self, *problem) -> None:
        self.over.set()
        self.thread.join()
        self.sample()
