"""A scenario on a device, recorded while it runs: a file that is whole at every moment."""

import gc
import os
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sim.parameter import ScenarioError
from sim.record import Record, save
from sim.scenario import Scenario, Variant
from sim.state import Limits
from sim.workload import Workload, draw

from . import attention
from .device import Device, choose, clock, label, triton, versions
from .loop import Server
from .memory import STEP_MEMORY, Sampler
from .models import SHAPES, Decoder
from .predict import asked, shared

WRITE_EVERY = (
    0.1  # seconds between two writings of what has been measured so far; a page looks half as often
)
WARM = 8  # requests, served beforehand and thrown away: kernels load and compile


@dataclass(slots=True)
class Machine:
    """A model on a device, and how it is run there."""

    model: Decoder
    device: str
    options: dict[str, Any]  # of Device
    about: dict

    @classmethod
    def of(cls, model: str, device: str, longest: int) -> "Machine":
        """model: in SHAPES; longest: tokens of a request. ScenarioError if there is no room."""
        if model not in SHAPES:
            raise ScenarioError(f"model {model[:40]!r} is unknown: use {', '.join(SHAPES)}")
        device = choose(device)
        clock(device)
        cuda, shape = device == "cuda", SHAPES[model]
        dtype = torch.bfloat16 if cuda else torch.float32
        weights = (shape.block_weights + 2 * shape.head_weights) * dtype.itemsize
        if weights > (room := free_bytes(device)):
            raise ScenarioError(
                f"model {model} has {weights / 1e9:.1f} GB of weights and {room / 1e9:.1f} GB are"
                " free: take a smaller model, such as small"
            )
        kernels = (triton() if cuda else None) or attention
        own = kernels is not attention
        decoder = Decoder(shape, device=device, dtype=dtype, longest=longest, kernels=kernels)
        about = {
            "device": label(device),
            "model": model,
            "dtype": str(dtype).removeprefix("torch."),
            "attention": "paged (Triton), decodes by CUDA graphs" if own else "padded",
            "clock": "wall, synchronised" if cuda else "time of the one thread",
            "versions": versions(),
        }
        return cls(decoder, device, {"graphs": True} if own else {}, about)

    def serve(
        self,
        workload: Workload,
        policy: str,
        limits: Limits,
        *,
        label: str = "",
        about: dict | None = None,
        path: Path | None = None,
        note: Callable[[float], object] = lambda done: None,
    ) -> Record:
        """Serve it all. note(share of requests finished) is called now and then between steps.

        What was measured so far stands at `path` a few times a second, and is left there by
        whatever ends the run.
        """
        server = Server(workload, policy, limits)
        common = shared(workload) if server.limits.enable_prefix_caching else {}
        if len(server.inside) == 0:
            raise ScenarioError(f"{policy} refuses every request at the door: raise its limits")
        machine = Device(self.model, server, **self.options)
        cuda, now = self.device == "cuda", clock(self.device)
        state, per_block = server.state, machine.kv_bytes / (machine.blocks + 1)
        sampler = Sampler(lambda: float(state.n.now), lambda: machine.held * per_block, cuda=cuda)
        driver = sampler.card.driver() if sampler.card else sampler.why
        steps: list[tuple[float, float]] = []
        said = self.about | {
            "memory": sampler.what,
            "driver": driver,
            "policy": policy,
            "limits": server.limits._asdict(),
            "clients": workload.clients,
            "pool_bytes": machine.kv_bytes,
            "token_bytes": per_block / server.limits.block_size,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

        def record(finished: bool) -> Record:
            beside = common | {
                "asked": asked(workload),
                "memory": sampler.rows(),
                "step_memory": np.array(steps, STEP_MEMORY),
            }
            done = {"finished": finished, "requests_done": int(state.n.finished)}
            run = server.run(self.about["device"], label)
            return Record(run, said | (about or {}) | done, beside)

        def write(finished: bool) -> float:
            """Returns when to write again: a long record is written less often."""
            began = time.monotonic()
            if path:
                save(path, record(finished))
            return began + max(WRITE_EVERY, 10 * (time.monotonic() - began))

        with quiet(), sampler:
            due = write(False)
            if cuda:  # the first step's peak is its own, not what taking the pool took
                torch.cuda.reset_peak_memory_stats()
            try:
                for _ in server.steps(machine.forward, now):
                    peak = float(torch.cuda.max_memory_allocated()) if cuda else np.nan
                    steps.append((machine.held, peak))
                    if cuda:
                        torch.cuda.reset_peak_memory_stats()
                    if time.monotonic() >= due:
                        note(server.done)
                        due = write(False)
            except BaseException:
                write(False)
                raise
        result = record(True)
        if path:
            save(path, result)
        note(1.0)
        return result

    def warm(self, workload: Workload, policy: str, limits: Limits) -> None:
        """Serve a few requests and forget it; on CUDA also each bucket of rows, by its capture."""
        first = np.arange(min(WARM, len(workload)))
        output = np.minimum(workload.output[first], 8)
        few = replace(workload.rows(first), output=output, identities=None)
        self.serve(few, policy, limits)


def free_bytes(device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    try:
        import psutil
    except ImportError:  # what is there at all
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return float(psutil.virtual_memory().available)


@contextmanager
def quiet():
    """No collection of garbage in the middle of a step."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def workload_of(scenario: Scenario, trace: Workload | None, most: int) -> Workload:
    """The scenario's requests, the first `most` of them."""
    workload = draw(scenario.traffic, trace)
    return workload.rows(np.arange(min(most, len(workload))))


def serve(
    scenario: Scenario,
    variant: Variant,
    trace: Workload | None,
    *,
    model: str,
    device: str,
    requests: int,
    path: Path | None = None,
    note: Callable[[float], object] = lambda done: None,
) -> Record:
    """The first `requests` of the scenario under one of its variants, warmed up and recorded."""
    workload = workload_of(scenario, trace, requests)
    limits = scenario.limits_of(variant)
    longest = int((workload.prompt + workload.output).max()) + 1
    machine = Machine.of(model, device, longest)
    machine.warm(workload, variant.policy, limits)
    about = {
        "query": scenario.to_query(),
        "variant": str(variant),
        "requests": len(workload),
    }
    return machine.serve(
        workload, variant.policy, limits, label=variant.label, about=about, path=path, note=note
    )
