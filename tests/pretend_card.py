"""A card that is not there: code for CUDA runs on a CPU, with stand-ins at torch's and NVML's edge.

What it proves is the code around the device: names, shapes, order, what is waited for and what is
written. What it can't prove are kernels, times and memory.
"""

import contextlib
import functools
import os
import sys
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpu_probe import attention, check, graphs, serve

WAITS = ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero")
GIB = 2**30


class Tape(TorchDispatchMode):
    """A captured graph: the operations and the memory that they were given, nothing else. What
    Python decided meanwhile is fixed, and a number read from a tensor breaks the capture."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert str(func).split(".")[1] not in WAITS, "a capture can't wait for the device"
        out = func(*args, **(kwargs or {}))
        self.taken.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.taken:
            again = func(*args, **kwargs)
            pairs = zip(*(tree_leaves(o) for o in (out, again)), strict=True)
            for old, new in pairs:
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def pool(self):
        return 0, 1


class Stream:
    def wait_stream(self, other):
        pass


def tapes(monkeypatch) -> list[tuple[Tape, object]]:
    """Tapes instead of CUDA's graphs. Returns those that were captured, each with its pool."""
    made, zeros = [], torch.zeros

    @contextlib.contextmanager
    def graph(tape, pool=None, stream=None, capture_error_mode="global"):
        assert isinstance(stream, Stream)
        made.append((tape, pool))
        with tape:
            yield

    monkeypatch.setattr(graphs, "side", functools.cache(graphs.side.__wrapped__))
    monkeypatch.setattr(graphs, "on_cuda", lambda device: True)
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
    for name, stand_in in (
        ("CUDAGraph", Tape),
        ("graph", graph),
        ("Stream", Stream),
        ("current_stream", Stream),
        ("stream", lambda stream: contextlib.nullcontext()),
    ):
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return made


class OnTheCpu(TorchFunctionMode):
    """Whatever is asked of CUDA is done here. A device's own name stays."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.device:
            return func(*args, **(kwargs or {}))

        def here(x):
            return "cpu" if isinstance(x, str | torch.device) and str(x) == "cuda" else x

        return func(*map(here, args), **{k: here(v) for k, v in (kwargs or {}).items()})


class Generator(torch.Generator):
    def __new__(cls, device="cpu"):
        return super().__new__(cls)


class NVMLError(Exception):
    pass


def refuses(*args, **options):
    raise NVMLError("Not Supported")


def pynvml(**other) -> SimpleNamespace:
    """Of one card; `other` in place of some of it."""
    memory = SimpleNamespace(used=5 * GIB, total=140 * GIB)
    return SimpleNamespace(
        **{
            "NVMLError": NVMLError,
            "NVML_CLOCK_SM": 1,
            "NVML_CLOCK_MEM": 2,
            "NVML_TEMPERATURE_GPU": 0,
            "nvmlMemory_v2": 2,
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-1234": 7}[uuid],
            "nvmlDeviceGetMemoryInfo": lambda handle, version: memory,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB)
            ],
            "nvmlDeviceGetPowerUsage": lambda handle: 350_000,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 40,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97),
            "nvmlDeviceGetClockInfo": refuses,
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda k: k,
            "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        }
        | other
    )


@contextlib.contextmanager
def card(monkeypatch):
    """A pretended H200. Our kernels are torch's there; graphs are tapes."""
    captured = tapes(monkeypatch)
    own = SimpleNamespace(keep=attention.keep, attend=attention.attend, gate=attention.gate)
    for name, stand_in in (
        ("is_available", lambda: True),
        ("synchronize", lambda: None),
        ("mem_get_info", lambda: (130 * GIB, 140 * GIB)),
        ("memory_allocated", lambda: 4 * GIB),
        ("memory_reserved", lambda: 5 * GIB),
        ("max_memory_allocated", lambda: 4 * GIB + 2**20),
        ("reset_peak_memory_stats", lambda: None),
        ("get_device_name", lambda: "NVIDIA H200"),
        (
            "get_device_properties",
            lambda device: SimpleNamespace(
                uuid="1234", major=9, minor=0, multi_processor_count=132, L2_cache_size=60 * 2**20
            ),
        ),
    ):
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml())
    torch.set_num_threads(1)
    for module in (check, serve):
        monkeypatch.setattr(module, "triton", lambda: own)
    monkeypatch.setitem(check.CEILINGS, "cuda", check.CEILINGS["cpu"])
    with OnTheCpu():
        yield captured
