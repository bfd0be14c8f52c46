"""What a planned step computes, on which device, and by which clock."""

import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from sim.parameter import ScenarioError
from sim.run import pool
from sim.state import State

from .batch import BlockTable, Plan, known_to, make_batch, planned, say, token_ids
from .graphs import DecodeGraphs
from .loop import Server
from .models import Decoder

CPUINFO = Path("/proc/cpuinfo")


def choose(name: str) -> str:
    """`cuda` or `cpu`; `auto` takes the first that is there. ScenarioError if it can't be had."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda
        why = "no driver or no card answers" if built else "this torch is built without CUDA"
        raise ScenarioError(
            f"device cuda can't be had, since {why}: use --device cpu, or mend that"
        )
    if name not in ("cpu", "cuda"):
        raise ScenarioError(f"device {name[:40]!r} is none: use cpu, cuda or auto")
    return name


def label(device: str) -> str:
    """The device's own name."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or 'CPU')}, one thread"


def versions() -> dict[str, str]:
    """Of what computes here."""
    names = ("torch", "triton", "numba", "numpy", "pandas", "pyarrow", "nvidia-ml-py")
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or "none"}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def clock(device: str) -> Callable[[], float]:
    """ms: wall time where a step ends synchronised, else the time of this thread alone.

    The latter leaves out what other programs take from a shared machine. It is honest only with one
    torch thread, which is set here.
    """
    if device == "cuda":
        return lambda: time.perf_counter() * 1e3
    torch.set_num_threads(1)
    return lambda: time.thread_time() * 1e3


def triton() -> ModuleType | None:
    """Our own kernel, where Triton is there to compile it."""
    try:
        from . import paged
    except ImportError:
        return None
    return paged


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """What a device dies of, as one sentence with the way out (ScenarioError)."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = re.search(r"allocate ([\d.]+ \w+)", str(error))
        said = f" (it wanted {size[1]} more)" if size else ""
        raise ScenarioError(
            f"out of device memory while {doing}{said}: lower num_gpu_blocks, max_num_seqs or"
            " max_num_batched_tokens, or take a smaller model"
        ) from None
    except RuntimeError as error:
        said = str(error).partition("\n")[0][:200]
        if "alloc" in said.lower() and "memory" in said.lower():
            raise ScenarioError(
                f"out of memory while {doing} ({said}): lower num_gpu_blocks, or take a smaller"
                " model"
            ) from None
        if "C compiler" in said:
            raise ScenarioError(
                "Triton finds no C compiler for what starts its kernels: install gcc, or name one"
                " in CC"
            ) from None
        if "CUDA" not in said:
            raise
        raise ScenarioError(
            f"the device was lost while {doing} ({said}): what was measured until then is kept;"
            " look at nvidia-smi, then start anew"
        ) from None


def blocks_of(server: Server) -> int:
    """Blocks that the device must have: the policy's pool, or as many as could ever be in use."""
    limits = server.limits
    counted = pool(server.policy, limits)
    if counted:
        return counted
    r = server.state.requests
    each = np.sort(-(-(r["prompt"] + r["output"]) // limits.block_size))[::-1]
    return int(each[: limits.max_num_seqs].sum())


class Device:
    """A model, its KV and every request's token ids, which never leave the device."""

    def __init__(
        self,
        model: Decoder,
        server: Server,
        *,
        blocks: int | None = None,
        graphs: bool = False,
        keep_logits: bool = False,
    ):
        """blocks: of KV, beyond `blocks_of`. graphs: steps that only decode are computed over
        static buffers, on CUDA by a replay."""
        s, limits = server.state, server.limits
        self.model = model
        longest = int((s.requests["prompt"] + s.requests["output"]).max())
        if longest > len(model.cos):
            raise ScenarioError(
                f"a request of {longest:,} tokens is longer than the model's {len(model.cos):,}:"
                " shorten prompts or outputs"
            )
        blocks, requests = max(blocks_of(server), blocks or 0), len(s.requests)
        # One request and one block more, for rows that pad a graph.
        block_size, named = limits.block_size, server.identities
        ids = token_ids(s.requests["prompt"], longest, model.shape.vocab, block_size, named)
        with explained(f"taking {blocks:,} blocks of KV"):
            self.ids = torch.from_numpy(ids).to(model.device)
            self.cache = model.kv_cache(blocks + 1, block_size)
        self.table = BlockTable(requests, blocks, block_size, longest, named)
        self.blocks = blocks
        self.graphs = None
        if graphs:
            with explained("capturing graphs"), torch.inference_mode():
                self.graphs = DecodeGraphs(
                    model, self.ids, self.cache, self.table, limits.max_num_seqs
                )
        self.logits: dict[tuple[int, int], Tensor] | None = {} if keep_logits else None

    @property
    def kv_bytes(self) -> int:
        """Of all blocks."""
        return self.cache.numel() * self.cache.element_size()

    @property
    def held(self) -> int:
        """Blocks in use."""
        return int(np.count_nonzero(self.table.users))

    @torch.inference_mode()
    def worst_error(self, server: Server) -> float:
        """With keep_logits, once all are served: the largest relative error of any request's logits
        against a plain forward of all its tokens."""
        assert self.logits is not None
        error = 0.0
        r = server.state.requests
        for i, (prompt, output) in enumerate(zip(r["prompt"], r["output"], strict=True)):
            want = self.model.plain(self.ids[i, : prompt + output])[prompt - 1 : -1]
            got = torch.stack([self.logits[i, k] for k in range(output)])
            error = max(error, float((got - want).norm() / want.norm()))
        return error

    @torch.inference_mode()
    def forward(self, s: State) -> None:
        """Compute the planned step; done when it returns."""
        plan = planned(s, self.table.block_size)
        self.table.follow(plan, lambda: known_to(s, self.table.named))
        if len(plan.rows) == 0:
            return
        with explained("computing a step"):
            if self.graphs and plan.decodes == len(plan.rows) and not plan.padding:
                logits = self.graphs.step(plan)
            else:
                logits = self.eager(plan)
            if self.logits is not None:
                done = (plan.start + plan.tokens - s.requests["prompt"][plan.rows])[plan.emits]
                for i, emitted, row in zip(plan.rows[plan.emits], done, logits, strict=False):
                    self.logits[int(i), int(emitted)] = row.clone()
            if self.model.device.type == "cuda":
                torch.cuda.synchronize()

    def eager(self, plan: Plan) -> Tensor:
        """Logits of the rows that emit. Padding goes through the products and no attention."""
        model = self.model
        batch = make_batch(plan, self.table, model.device, model.shape.group)
        ids, position = self.ids[batch.owner, batch.position], batch.position
        if plan.padding:
            blank = ids.new_zeros(plan.padding)
            ids, position = torch.cat((ids, blank)), torch.cat((position, blank))
        x = model.hidden(ids, position, model.over_pages(self.cache, batch))
        logits = model.logits(x[batch.last])
        if len(batch.last):
            owner, position = batch.owner[batch.last], batch.position[batch.last]
            say(self.ids, owner, position + 1, logits)
        return logits
