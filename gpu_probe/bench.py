"""Exercise 08.2 of the course module: padding to the longest against continuous stepping.

    from gpu_probe.bench import bench
    tokens, seconds, calls = bench("continuous", lengths(), 8)

TinyLM remembers nothing, so a call costs the rows that it computes, useful or not: what is measured
is how full the slots are. Memory by time comes from the decoder, whose KV is real, in a process of
its own for each way.
"""

import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from sim.parameter import ScenarioError
from sim.state import Limits
from sim.workload import Workload

from .device import Device, choose, clock
from .loop import Server
from .memory import Sampler
from .models import TinyLM
from .serve import Machine

PROMPT = 64  # tokens


def lengths(seed: int = 7, requests: int = 64) -> list[int]:
    """The module's output lengths: lognormal, 64 to 512 tokens."""
    rng = random.Random(seed)
    drawn = (rng.lognormvariate(math.log(180), 0.5) for _ in range(requests))
    return [int(min(512, max(64, length))) for length in drawn]


class Counted:
    """TinyLM, with what was asked of it."""

    def __init__(self, model: TinyLM, device: str):
        self.model, self.device = model, device
        self.prefills = self.decodes = self.useful = self.rows = 0

    @property
    def calls(self) -> int:
        return self.prefills + self.decodes

    def prefill(self, rows: int) -> None:
        self.prefills += 1
        self.model(torch.zeros(rows, PROMPT, dtype=torch.long, device=self.device))

    def decode(self, rows: int, useful: int, prompts: int = 0) -> None:
        """A token for each row, and whole prompts in the same call."""
        self.decodes += 1
        self.rows += rows
        self.useful += useful
        self.model(torch.zeros(rows + PROMPT * prompts, 1, dtype=torch.long, device=self.device))


WAYS: dict[str, Callable[[Counted, Sequence[int], int], None]] = {}


def way(run):
    WAYS[run.__name__] = run
    return run


@way
def pad_to_max(model, out_lens, batch_size):
    """Waves in order; every slot is computed until the longest of its wave is done."""
    for at in range(0, len(out_lens), batch_size):
        wave = out_lens[at : at + batch_size]
        model.prefill(len(wave))
        for step in range(max(wave)):
            model.decode(len(wave), sum(step < length for length in wave))


@way
def continuous(model, out_lens, batch_size):
    """A slot that is free takes the next request at once; its prompt is a call of its own."""
    queue, left = list(reversed(out_lens)), []
    while queue or left:
        new = [queue.pop() for _ in range(min(batch_size - len(left), len(queue)))]
        if new:
            model.prefill(len(new))
        left += new
        model.decode(len(left), len(left))
        left = [length - 1 for length in left if length > 1]


@way
def continuous_shared(model, out_lens, batch_size):
    """As continuous, but prompts share the call of the decodes, which then emits their first."""
    queue, left = list(reversed(out_lens)), []
    while queue or left:
        new = [queue.pop() for _ in range(min(batch_size - len(left), len(queue)))]
        model.decode(len(left), len(left) + len(new), len(new))
        left = [length - 1 for length in left + new if length > 1]


@way
def pad_to_max_sorted(model, out_lens, batch_size):
    """As pad_to_max, the longest first: the fair rival, were lengths known beforehand."""
    pad_to_max(model, sorted(out_lens, reverse=True), batch_size)


class Measured(NamedTuple):
    tokens: int  # emitted
    seconds: float
    calls: int  # of the model
    decode_calls: int  # of these, those that emit
    slots: float  # share of the computed decode rows that were useful


@cache
def _tiny(device: str) -> TinyLM:
    torch.manual_seed(0)
    model = TinyLM(device)
    for _ in range(3):  # warm
        model(torch.zeros(8, PROMPT, dtype=torch.long, device=device))
    return model


@torch.inference_mode()
def measure(policy: str, out_lens: Sequence[int], batch_size: int, device: str = "auto"):
    """-> Measured. ScenarioError for an unknown policy, or a batch or length below 1."""
    if policy not in WAYS:
        raise ScenarioError(f"policy {policy[:40]!r} is none of the bench: use {', '.join(WAYS)}")
    if batch_size < 1 or min(out_lens, default=0) < 1:
        raise ScenarioError(
            f"batch_size {batch_size} and lengths from {min(out_lens, default=0)} can't be served:"
            " give 1 or more of each"
        )
    device = choose(device)
    now, model = clock(device), Counted(_tiny(device), device)
    began = now()
    WAYS[policy](model, out_lens, batch_size)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = (now() - began) / 1e3
    rows = max(model.rows, model.useful)  # a shared prompt's first token has no row of its own
    return Measured(model.useful, seconds, model.calls, model.decodes, model.useful / rows)


def bench(policy: str, out_lens: list[int], batch_size: int) -> tuple[int, float, int]:
    """(tokens, seconds, model calls), as the module counts: a wave or a refill pays one prefill."""
    return measure(policy, out_lens, batch_size)[:3]


def regime(device: str) -> str:
    """What tok/s follows on that device."""
    if device == "cuda":
        return (
            "launches: a call of so small a model takes as long for 8 rows as for 32, so tok/s"
            " follows the number of calls"
        )
    return "rows: each row's arithmetic is paid for, so tok/s follows the rows computed"


def table(device: str, repeats: int = 3, note=lambda done: None) -> list[dict]:
    """A row for each batch size and way: medians of repeats, interleaved."""
    device, out_lens, rows = choose(device), lengths(), []
    found: dict[tuple[int, str], list[Measured]] = {}
    todo = [(batch, name) for _ in range(repeats) for batch in (8, 32) for name in WAYS]
    for k, (batch, name) in enumerate(todo):
        found.setdefault((batch, name), []).append(measure(name, out_lens, batch, device))
        note((k + 1) / len(todo))
    for (batch, name), runs in found.items():
        seconds = statistics.median(run.seconds for run in runs)
        base = statistics.median(run.seconds for run in found[batch, "pad_to_max"])
        rows.append(
            {
                "batch": batch,
                "way": name,
                "tokens": runs[0].tokens,
                "calls": runs[0].calls,
                "decode calls": runs[0].decode_calls,
                "slots used": runs[0].slots,
                "seconds": seconds,
                "spread": max(abs(run.seconds / seconds - 1) for run in runs),
                "tok/s": runs[0].tokens / seconds,
                "against pad_to_max": base / seconds,
            }
        )
    return rows


class Sizes(NamedTuple):
    """Of a memory run: one long prompt among short ones."""

    shape: str
    requests: int
    batch: int
    long: int
    chunk: int


SIZES = {"cpu": Sizes("small", 24, 8, 1000, 128), "cuda": Sizes("small", 256, 32, 4096, 512)}


def some_prompts(sizes: Sizes) -> Workload:
    rng = np.random.default_rng(3)
    prompt, output = rng.integers(20, 200, sizes.requests), rng.integers(10, 60, sizes.requests)
    prompt[sizes.requests * 3 // 8] = sizes.long
    return Workload(np.zeros(sizes.requests), prompt, output, output)


def memory_of(name: str, device: str) -> dict:
    """Memory by time of `pad_to_max` or `continuous`, in this process alone.

    Bytes are above those of the start, where the model is there and no KV; t in ms.
    """
    sizes, cuda = SIZES[device], device == "cuda"
    work, block_size = some_prompts(sizes), 16
    limits = Limits(sizes.batch, sizes.chunk, sizes.chunk, block_size)
    server = Server(work, {"pad_to_max": "static", "continuous": "chunked"}[name], limits)
    now, machine = clock(device), Machine.of(sizes.shape, device, sizes.long + 64)
    model, peak = machine.model, 0.0
    options: dict[str, Any] = machine.options | {"graphs": False}
    per_token = model.shape.kv_bytes(model.itemsize)
    padded = padded_kv(work, sizes.batch) if name == "pad_to_max" else 0
    sampler = Sampler(lambda: float(server.state.n.now), cuda=cuda)
    with sampler:  # the first sample is from before the pool is taken
        engine = Device(model, server, blocks=-(-padded // block_size) or None, **options)
        sampler.kv = lambda: engine.held * block_size * per_token
        for _ in server.steps(engine.forward, now):
            if cuda:
                peak = max(peak, float(torch.cuda.max_memory_allocated()))
    rows = sampler.rows()
    taken, reserved = rows["allocated" if cuda else "rss"], rows["reserved"]
    return {
        "way": name,
        "what": "torch's allocator" if cuda else sampler.what,
        "t": rows["t"].tolist(),
        "bytes": (taken - taken[0]).tolist(),
        "kv": rows["kv"].tolist(),
        "needed": float(padded * per_token or rows["kv"].max()),
        "pool": engine.kv_bytes,
        "peak": float((peak or taken.max()) - taken[0]),
        "reserved": float(reserved.max() - reserved[0]) if cuda else None,
    }


def padded_kv(work: Workload, batch: int) -> int:
    """Tokens of KV that the largest wave takes: slots times the longest prompt and answer."""
    waves = range(0, len(work), batch)
    return max(
        batch * int(work.prompt[at : at + batch].max() + work.output[at : at + batch].max())
        for at in waves
    )


def memory(device: str = "auto", seconds: float | None = None) -> list[dict]:
    """`memory_of` both ways, one process each: the second would inherit the first one's peak.

    seconds: that both may take together.
    """
    device, found = choose(device), []
    deadline = time.monotonic() + (seconds or np.inf)
    for name in ("pad_to_max", "continuous"):
        command = [sys.executable, "-m", "gpu_probe.bench", name, device]
        left = deadline - time.monotonic() if seconds else None
        done = subprocess.run(command, capture_output=True, text=True, timeout=left)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no word"]
            raise ScenarioError(f"the memory run of {name} ended early: {last[0][:300]}")
        found.append(json.loads(done.stdout))
    return found


if __name__ == "__main__":
    print(json.dumps(memory_of(sys.argv[1], sys.argv[2])))
