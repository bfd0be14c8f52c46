"""What the device does, beside what it could do at best, and how well the simulator predicts it.

Stages in order of price; one that fails is recorded and the next still runs, none begins when the
time is over, and one that hangs is ended with the process. Each leaves its part in check.json at
once.
"""

import json
import os
import platform
import threading
import time
import traceback
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from sim.record import Record
from sim.state import Limits
from sim.workload import Workload

from . import attention
from .bench import memory
from .calibrate import calibrate
from .device import Device, clock, label, triton, versions
from .graphs import DecodeGraph
from .loop import Server
from .memory import Sampler, nvml
from .models import SHAPES, Decoder, Shape
from .predict import FIGURES, asked, figures, predicted
from .serve import Machine, quiet

BOUNDS = {
    "cpu": dict(zip(FIGURES, (0.10, 0.20, 0.10, 0.20, 0.03), strict=True)),
    "cuda": dict.fromkeys(FIGURES, 0.05),
}
# Numbers that are read, in rows of so many; sides of a product.
CEILINGS = {"cpu": (2**22, 1024, 512), "cuda": (2**30, 4096, 8192)}
ROUNDS = 7  # at most
HANG = 30  # seconds after its time that a check is ended, whatever it does
BASE = "calibrated on"
POLICY = "chunked"
FITTED = ("calibrated", "linear")  # the one that is judged, and the module's beside it


class Check:
    """The stages of one device."""

    def __init__(self, device: str, model: str, seconds: float):
        self.device, self.cuda, self.shape = device, device == "cuda", SHAPES[model]
        self.model_name, self.deadline = model, time.monotonic() + seconds
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.now = clock(device)
        self.machine: Machine | None = None
        self.read_rate = self.product_rate = np.nan  # bytes and FLOP a second
        self.verdicts: list[dict] = []

    def judge(self, what: str, value: float, bound: float) -> None:
        """Put on record whether the value is at most the bound."""
        holds = bool(value <= bound)
        self.verdicts.append({"what": what, "value": value, "bound": bound, "holds": holds})

    def times(self, call: Callable[[], object], repeats: int = 15, warm: int = 3) -> np.ndarray:
        """(repeats,) ms of calls, each by itself."""
        times = []
        for _ in range(warm + repeats):
            began = self.now()
            call()
            if self.cuda:
                torch.cuda.synchronize()
            times.append(self.now() - began)
        return np.array(times[warm:])

    def ms(self, call: Callable[[], object], repeats: int = 15) -> float:
        """Their median."""
        return float(np.median(self.times(call, repeats)))

    def in_time(self, _: float = 0.0) -> None:
        """TimeoutError once the check's time is over."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("the check's time is over")

    def software(self) -> dict:
        card, why = nvml() if self.cuda else (None, "no CUDA device")
        found: dict = {
            "device": label(self.device),
            "driver": card.driver() if card else why,
            "system": f"{platform.system()} {platform.machine()}",
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self.cuda:
            p = torch.cuda.get_device_properties(0)
            found["capability"] = f"{p.major}.{p.minor}, {p.multi_processor_count} multiprocessors"
            found["L2 MB"] = p.L2_cache_size / 1e6
        if card:
            found["card at rest"] = card.state()
        return found

    @torch.inference_mode()
    def ceilings(self) -> dict:
        """Bytes a second that are only read, and products of large matrices: the denominators.

        Read in the ways of a decode step, a product with few columns, and summed; the fastest call
        of any counts, so that nothing which must read as much can be faster.
        """
        numbers, side, rows = CEILINGS[self.device]
        w = torch.randn(numbers // side, side, device=self.device, dtype=self.dtype)
        ways: dict[str, Callable[[], object]] = {"summed": w.view(torch.float32).sum}
        for columns in (1, 8, 16):
            x = torch.randn(columns, side, device=self.device, dtype=self.dtype)
            ways[f"by {columns} columns"] = lambda x=x: torch.nn.functional.linear(x, w)
        size = w.numel() * w.element_size()
        read = {name: size / self.times(way).min() * 1e3 for name, way in ways.items()}
        p = torch.randn(rows, rows, device=self.device, dtype=self.dtype)
        product = 2 * rows**3 / self.ms(lambda: p @ p) * 1e3
        self.read_rate, self.product_rate = max(read.values()), product
        card = nvml()[0] if self.cuda else None
        return {
            "read GB/s": self.read_rate / 1e9,
            **{f"read GB/s, {name}": rate / 1e9 for name, rate in read.items()},
            "product TFLOP/s": product / 1e12,
        } | ({"card at work": card.state()} if card else {})

    def correctness(self) -> dict:
        """The worst logits of any emitted token against a plain forward, preemptions included."""
        torch.set_float32_matmul_precision("highest")  # not TF32, whatever the environment says
        sets = {"padded": attention} | ({"triton": own} if self.cuda and (own := triton()) else {})
        ways = [(name, graphs) for name in sets for graphs in (False, True)]
        tiny, found = SHAPES["tiny"], {}
        # The heads, and so the compiled kernels, of the model; little else.
        narrow = replace(self.shape, layers=2, dim=tiny.dim, hidden=tiny.hidden, vocab=tiny.vocab)
        todo = ((torch.float32, tiny, 1e-5), (torch.bfloat16, narrow, 3e-2))
        for name, graphs in ways:
            for dtype, shape, bound in todo:
                said = f"{name}{', static' * graphs}, {str(dtype).removeprefix('torch.')}"
                try:
                    found[said] = worst_error(self.device, dtype, sets[name], graphs, shape)
                except Exception as error:  # of one way: the others are still of worth
                    found[said] = failed(error)
                    self.judge(f"logits, {said}", np.inf, bound)
                else:
                    self.judge(f"logits, {said}", found[said], bound)
        return found

    def model(self) -> dict:
        """The model that the rest is measured on."""
        self.machine = Machine.of(self.model_name, self.device, 2_200)
        if self.cuda:
            torch.cuda.synchronize()
        weights = self.shape.block_weights + 2 * self.shape.head_weights
        return {"model": self.model_name, "weights GB": weights * self.dtype.itemsize / 1e9}

    @torch.inference_mode()
    def decodes(self) -> dict:
        """Decode steps, computed eagerly and replayed, against weights and KV read once."""
        assert self.machine
        decoder, (rows_of, kv) = (
            self.machine.model,
            ((1, 8, 64), 1008) if self.cuda else ((1, 8), 96),
        )
        block_size, found, width = 16, {}, kv // 16 + 1
        blocks = max(rows_of) * width
        cache = decoder.kv_cache(blocks + 1, block_size)
        ids = torch.zeros(max(rows_of) + 1, kv + 17, dtype=torch.int64, device=self.device)
        scattered = np.random.default_rng(0).permutation(blocks)
        for rows in rows_of:
            graph = DecodeGraph(decoder, ids, cache, width, rows)
            table = scattered[: rows * width].reshape(rows, width)
            position = np.full(rows, kv)
            slot = table[:, kv // block_size] * block_size + kv % block_size

            def step(graph=graph, rows=rows, position=position, slot=slot, table=table):
                graph.step(np.arange(rows), position, slot, table)

            bare = DecodeGraph(products_alone(decoder), ids, cache, width, rows)
            floor = self.shape.read_bytes(rows * (kv + 1), self.dtype.itemsize)
            floor = floor / self.read_rate * 1e3
            took = self.ms(step)
            found[f"{rows} rows, {kv} tokens of KV each"] = {
                "ms": took,
                "its products alone, ms": self.ms(bare.replay),
                "eager ms": self.ms(graph.compute, 8),
                "floor ms": floor,
                "times the floor": took / floor,
            }
            # Below the floor nothing can be: then the check itself is wrong.
            self.judge(f"decode of {rows}, the floor's share", floor / took, 1.0)
            if self.cuda:
                bound = 1.6 if rows == 64 else 1.45
                self.judge(f"decode of {rows}, times the floor", took / floor, bound)
        return found

    def prompts(self) -> dict:
        """One whole prompt a step: the share of the measured product rate."""
        assert self.machine
        found = {}
        for tokens in (256, 512, 1024, 2048) if self.cuda else (64, 256):
            one = np.ones(1, np.int64)
            work = Workload(np.zeros(8), one.repeat(8) * tokens, one.repeat(8), one.repeat(8))
            server = Server(work, "continuous", Limits(1, tokens))
            device = Device(self.machine.model, server)
            took = float(np.median(list(server.steps(device.forward, self.now))[2:]))
            rate = self.shape.flops(tokens, 1, tokens * (tokens + 1) // 2) / took * 1e3
            found[tokens] = {"ms": took, "share of the product rate": rate / self.product_rate}
        if self.cuda:
            self.judge(
                "2,048-token prompt, 0.6 / its share of the product rate",
                0.6 / found[2048]["share of the product rate"],
                1.0,
            )
        return found

    def calibration(self) -> dict:
        """Rounds of three runs: calibrated on the first, the other two predicted.

        A machine drifts: so the runs of a round take turns step by step, a prediction is held
        against its own round, and what is judged is the median of the rounds' errors. The noise is
        the median distance of a measured figure from its median over the rounds.
        """
        assert self.machine
        todo, rounds, longest = scenarios(self.cuda), [], 0.0
        self.machine.warm(*todo[BASE])
        while len(rounds) < ROUNDS and time.monotonic() + longest < self.deadline:
            began = time.monotonic()
            try:
                rounds.append(self.round(list(todo.values())))
            except TimeoutError:
                if not rounds:
                    raise
                break
            longest = max(longest, 1.1 * (time.monotonic() - began))
        # One round says nothing of its noise, and so nothing of the error.
        self.judge("rounds short of two", 2 - len(rounds), 0)
        fits = {cost: [calibrate(r[0].run, cost) for r in rounds] for cost in FITTED}
        found: dict = {
            "rounds": len(rounds),
            "steps": len(rounds[0][0].run.steps),
            "busy s": float(rounds[0][0].run.steps["ms"].sum() / 1e3),
            "median |error| of a step": {
                cost: float(np.median([np.median(np.abs(fit.errors)) for fit in own]))
                for cost, own in fits.items()
            },
            "figures": FIGURES,
            "scenarios": {},
        }
        for k, name in enumerate(todo):
            measured = np.array([figures(r[k].run) for r in rounds])
            middle = np.median(measured, axis=0)
            noise = np.median(np.abs(measured / middle - 1), axis=0)
            part = {"measured ms": middle.tolist(), "noise": noise.tolist()}
            for cost, own in fits.items():
                runs = [
                    predicted(r[k], cost, fit.coefficients.tolist(), cost)
                    for r, fit in zip(rounds, own, strict=True)
                ]
                errors = np.array([figures(run) for run in runs]) / measured - 1
                error = np.median(errors, axis=0)
                part[f"error, {cost}"] = error.tolist()
                part[f"worst round's error, {cost}"] = np.abs(errors).max(axis=0).tolist()
                if cost == FITTED[0] and name != BASE and len(rounds) > 1:
                    for f, figure in enumerate(FIGURES):
                        bound = max(BOUNDS[self.device][figure], 2 * noise[f])
                        self.judge(f"{name}: |error| of {figure}", abs(error[f]), float(bound))
            found["scenarios"][name] = part
        return found

    def round(self, todo: list[tuple[Workload, str, Limits]]) -> list[Record]:
        """All served, whoever is the furthest behind taking the next step."""
        assert self.machine
        servers = [Server(*scenario) for scenario in todo]
        steps = [
            server.steps(
                Device(self.machine.model, server, **self.machine.options).forward, self.now
            )
            for server in servers
        ]
        with quiet():
            while (behind := min(servers, key=lambda server: server.done)).done < 1:
                next(steps[servers.index(behind)])
                self.in_time()
        return [
            Record(
                server.run(self.device),
                {"policy": policy, "limits": server.limits._asdict()},
                {"asked": asked(work)},
            )
            for server, (work, policy, _) in zip(servers, todo, strict=True)
        ]

    def flatness(self) -> dict:
        """Memory of a run under continuous batching, once it is warm."""
        assert self.machine
        scenario = scenarios(self.cuda)["longer prompts"]
        self.machine.warm(*scenario)
        server = Server(*scenario)
        device = Device(self.machine.model, server, **self.machine.options)
        sampler = Sampler(lambda: float(server.state.n.now), cuda=self.cuda)
        with sampler:
            for _ in server.steps(device.forward, self.now):
                self.in_time()
        rows = sampler.rows()
        warm = rows[len(rows) // 4 :]
        change, reserved = (float(np.ptp(warm[name])) for name in (sampler.column, "reserved"))
        if self.cuda:
            self.judge("bytes by which memory in use changes", change, 64 * 2**20)
        found = {"what": sampler.what, "changes by MiB": change / 2**20, "samples": len(rows)}
        return found | {"torch's reserve changes by MiB": reserved / 2**20}

    def both_ways(self) -> list[dict]:
        """Memory of padding and of continuous batching, one process each, in half of what is left
        of the time."""
        ways = memory(self.device, (self.deadline - time.monotonic()) / 2)
        return [{k: v for k, v in way.items() if not isinstance(v, list)} for way in ways]


STAGES = (  # and the seconds that each needs to have left; the last takes all that is left
    ("software", 5),
    ("ceilings", 10),
    ("correctness", 20),
    ("model", 10),
    ("decodes", 30),
    ("prompts", 15),
    ("flatness", 15),
    ("both_ways", 30),
    ("calibration", 30),
)


def check(
    device: str,
    model: str,
    folder: Path,
    seconds: float = 200.0,
    note: Callable[[float], object] = lambda done: None,
    began: float | None = None,
) -> dict:
    """Run the stages; what they found is in `folder`/check.json as well.

    seconds: in which stages begin, from `began` on, by time.monotonic(), or from now; note(share of
    stages done).
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = time.monotonic()
    began = now if began is None else began
    made = Check(device, model, seconds - (now - began))
    said: dict = {"device": device, "model": model, "loading": round(now - began, 1)}
    said |= {"stages": {}, "verdicts": made.verdicts}

    def write(**more) -> None:
        said.update(more, seconds=round(time.monotonic() - began, 1))
        (folder / "check.json").write_text(json.dumps(plain(said), indent=1))

    def hangs() -> None:  # a device that answers no more: nothing else would end the process
        write(hung=name)
        print(json.dumps(plain(said), indent=1), flush=True)
        os._exit(1)

    watch, name = threading.Timer(max(0.0, made.deadline - now) + HANG, hangs), ""
    watch.daemon = True
    watch.start()
    try:
        for k, (name, needs) in enumerate(STAGES):
            at = time.monotonic()
            note(k / len(STAGES))
            if at - began + needs > seconds:
                result: dict | list = {"skipped": f"less than {needs} s were left"}
            else:
                try:
                    result = getattr(made, name)()
                except Exception as error:
                    result = failed(error)
            took = round(time.monotonic() - at, 2)
            said["stages"][name] = {"result": plain(result), "seconds": took}
            write()
    finally:
        watch.cancel()
    note(1.0)
    return plain(said)


def holds(said: dict) -> bool:
    """Whether every stage ran, and every bound is kept."""
    stages = (stage["result"] for stage in said["stages"].values())
    ran = all("failed" not in result and "skipped" not in result for result in stages)
    return ran and all(verdict["holds"] for verdict in said["verdicts"])


def failed(error: Exception) -> dict:
    """What a stage leaves that did not come to its end."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {str(error)[:400]}"
    return {"failed": said, "at": f"{Path(where.filename).name}, {where.name}, line {where.lineno}"}


def plain(value) -> Any:
    """The same for JSON, which has no nan."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def worst_error(
    device: str,
    dtype: torch.dtype,
    kernels: ModuleType,
    graphs: bool,
    shape: Shape = SHAPES["tiny"],
) -> float:
    """Of twelve requests that preempt each other: the largest relative error of one's logits."""
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(1, 90, 12), rng.integers(1, 38, 12)
    work = Workload(np.zeros(12), prompt, output, output)
    server = Server(work, "vllm_v1", Limits(8, 130, 24, 16, 15, 128))
    model = Decoder(shape, device=device, dtype=dtype, longest=160, kernels=kernels)
    machine = Device(model, server, keep_logits=True, graphs=graphs)
    for _ in server.steps(machine.forward, lambda: 0.0):
        pass
    assert server.state.requests["preemptions"].sum() > 0
    return machine.worst_error(server)


def products_alone(model: Decoder) -> Decoder:
    """The same weights; of its steps what is between the products is left out."""
    bare = copy(model)
    bare.kernels = SimpleNamespace(
        keep=lambda qkv, *rest: qkv[:, : model.shape.heads],
        attend=lambda q, *rest: q,
        gate=lambda x: x[:, : model.shape.hidden],
    )
    return bare


def poisson(rate: float, requests: int, prompt, output, seed: int) -> Workload:
    """rate per second; prompt and output: (low, high) tokens, uniform."""
    rng = np.random.default_rng(seed)
    arrival = rng.exponential(1e3 / rate, requests).cumsum()
    prompts, outputs = (
        rng.integers(low, high, requests, endpoint=True) for low, high in (prompt, output)
    )
    return Workload(arrival, prompts, outputs, outputs)


def scenarios(cuda: bool) -> dict[str, tuple[Workload, str, Limits]]:
    """BASE is calibrated on, the others are predicted: other lengths, half the budget.

    Not less: a CPU's kernels are faster at few rows than the line through what BASE has of them.
    """
    if cuda:
        usual, other, rate = Limits(64, 512, 512), Limits(64, 256, 256), 1.5
        short, long, output = (20, 600), (400, 1_800), (20, 150)
    else:
        usual, other, rate = Limits(16, 128, 128), Limits(16, 64, 64), 1.0
        short, long, output = (20, 600), (200, 900), (10, 60)
    return {
        BASE: (poisson(9 * rate, 60, short, output, 1), POLICY, usual),
        "longer prompts": (poisson(4 * rate, 26, long, output, 4), POLICY, usual),
        "another budget": (poisson(7 * rate, 40, short, output, 6), POLICY, other),
    }
