"""What the device does, beside what it could do at best, and how well the simulator predicts it.

Stages in order of price; one that fails is recorded and the next still runs, and none begins when
the time is over. Each leaves its part in check.json at once.
"""

import json
import platform
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from sim.state import Limits
from sim.workload import Workload

from .attention import padded
from .bench import memory
from .calibrate import calibrate
from .device import Device, clock, label, triton
from .graphs import DecodeGraph
from .loop import Server
from .memory import Sampler, nvml
from .models import SHAPES, Decoder
from .predict import FIGURES, figures, predicted
from .serve import Machine

BOUNDS = {
    "cpu": dict(zip(FIGURES, (0.10, 0.20, 0.10, 0.20, 0.03), strict=True)),
    "cuda": dict.fromkeys(FIGURES, 0.05),
}
REPEATS = 3
BASE = "calibrated on"
POLICY = "chunked"


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

    def ms(self, call: Callable[[], object], repeats: int = 15, warm: int = 3) -> float:
        """Median of so many calls, each by itself."""
        times = []
        for _ in range(warm + repeats):
            began = self.now()
            call()
            if self.cuda:
                torch.cuda.synchronize()
            times.append(self.now() - began)
        return float(np.median(times[warm:]))

    def in_time(self, _: float = 0.0) -> None:
        """TimeoutError once the check's time is over."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("the check's time is over")

    def software(self) -> dict:
        card, why = nvml() if self.cuda else (None, "no CUDA device")
        return {
            "device": label(self.device),
            "driver": card.driver() if card else why,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "numpy": np.__version__,
            "triton": "there" if triton() else "not installed",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    @torch.inference_mode()
    def ceilings(self) -> dict:
        """Bytes a second that are only read, and products of large matrices: the denominators."""
        side = 4096 if self.cuda else 1024
        numbers, rows = (2**30 if self.cuda else 2**22), (8192 if self.cuda else 512)
        w = torch.randn(numbers // side, side, device=self.device, dtype=self.dtype)
        x = torch.randn(side, 16, device=self.device, dtype=self.dtype)
        read = w.numel() * w.element_size() / self.ms(lambda: w @ x) * 1e3
        product = 2 * rows**3
        p = torch.randn(rows, rows, device=self.device, dtype=self.dtype)
        self.read_rate, self.product_rate = read, product / self.ms(lambda: p @ p) * 1e3
        return {"read GB/s": read / 1e9, "product TFLOP/s": self.product_rate / 1e12}

    def correctness(self) -> dict:
        """The worst logits of any emitted token against a plain forward, preemptions included."""
        attentions = {"padded": (padded, 16)}
        if self.cuda and (kernel := triton()):
            attentions["triton"] = (kernel.paged, kernel.queries(4, 2))
        found = {}
        for name, (attention, tile) in attentions.items():
            for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
                error = worst_error(self.device, dtype, attention, tile)
                found[f"{name}, {str(dtype).removeprefix('torch.')}"] = error
                self.judge(f"logits, {name}, {dtype}", error, bound)
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
        attention = self.machine.options.get("attention", padded)
        for rows in rows_of:
            graph = DecodeGraph(decoder, ids, cache, width, attention, rows)
            table = scattered[: rows * width].reshape(rows, width)
            position = np.full(rows, kv)
            slot = table[:, kv // block_size] * block_size + kv % block_size

            def step(graph=graph, rows=rows, position=position, slot=slot, table=table):
                graph.step(np.arange(rows), position, slot, table)

            step()
            floor = self.shape.read_bytes(rows * (kv + 1), self.dtype.itemsize)
            floor = floor / self.read_rate * 1e3
            took = self.ms(step)
            found[f"{rows} rows, {kv} tokens of KV each"] = {
                "eager ms": self.ms(graph.compute, 8),
                "ms": took,
                "floor ms": floor,
                "times the floor": took / floor,
            }
            if self.cuda:
                self.judge(
                    f"decode of {rows}, times the floor", took / floor, 1.6 if rows == 64 else 1.45
                )
        return found

    def prompts(self) -> dict:
        """One whole prompt a step: the share of the measured product rate."""
        assert self.machine
        found = {}
        for tokens in (256, 512, 1024, 2048) if self.cuda else (64, 256):
            one = np.ones(1, np.int64)
            work = Workload(np.zeros(8), one.repeat(8) * tokens, one.repeat(8), one.repeat(8))
            server = Server(work, "continuous", Limits(1, tokens))
            options = {k: v for k, v in self.machine.options.items() if k != "graphs"}
            device = Device(self.machine.model, server, **options)
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
        """Calibrated on one run; two others predicted, medians of interleaved repeats."""
        assert self.machine
        todo = scenarios(self.cuda)
        self.machine.warm(*todo[BASE])
        records = {name: [] for name in todo}
        for _ in range(REPEATS):  # interleaved, so that drift is seen as noise
            try:
                served = [self.machine.serve(*s, note=self.in_time) for s in todo.values()]
            except TimeoutError:
                if not records[BASE]:
                    raise
                break
            for name, record in zip(todo, served, strict=True):
                records[name].append(record)
        values = {name: np.array([figures(r.run) for r in rs]) for name, rs in records.items()}
        middle = {name: np.median(v, axis=0) for name, v in values.items()}
        noise = {name: (v.max(0) - v.min(0)) / 2 / middle[name] for name, v in values.items()}
        usual = np.argsort(values[BASE][:, -1])[(len(values[BASE]) - 1) // 2]
        base = records[BASE][usual].run  # one run: of those, the one of median busy time
        models = {"calibrated": calibrate(base), "linear": calibrate(base, "linear")}
        found: dict = {
            "repeats": len(records[BASE]),
            "steps": len(base.steps),
            "busy s": float(base.steps["ms"].sum() / 1e3),
            "median |error| of a step": {
                name: float(np.median(np.abs(fit.errors))) for name, fit in models.items()
            },
            "figures": FIGURES,
            "scenarios": {},
        }
        for name, repeats in records.items():
            part = {"measured ms": middle[name].tolist(), "noise": noise[name].tolist()}
            for model, fit in models.items():
                run = predicted(repeats[0], model, fit.coefficients.tolist(), model)
                error = figures(run) / middle[name] - 1
                part[f"error, {model}"] = error.tolist()
                # One round says nothing of its noise, and so nothing of the error.
                if model == "calibrated" and name != BASE and len(repeats) > 1:
                    for k, figure in enumerate(FIGURES):
                        least = BOUNDS[self.device][figure]
                        bound = max(least, 2 * noise[name][k], 2 * noise[BASE][k])
                        self.judge(f"{name}: |error| of {figure}", abs(error[k]), float(bound))
            found["scenarios"][name] = part
        return found

    def flatness(self) -> dict:
        """Memory of a run under continuous batching, once it is warm."""
        assert self.machine
        server = Server(*scenarios(self.cuda)["longer prompts"])
        device = Device(self.machine.model, server, **self.machine.options)
        sampler = Sampler(lambda: float(server.state.n.now), cuda=self.cuda)
        with sampler:
            for _ in server.steps(device.forward, self.now):
                self.in_time()
        rows = sampler.rows()
        what = "used" if sampler.card else "reserved" if self.cuda else "rss"
        warm = rows[what][len(rows) // 4 :]
        change = float(warm.max() - warm.min())
        if self.cuda:
            self.judge("bytes by which memory in use changes", change, 64 * 2**20)
        return {"what": sampler.what, "changes by MiB": change / 2**20, "samples": len(rows)}

    def both_ways(self) -> list[dict]:
        """Memory of padding and of continuous batching, one process each."""
        left = self.deadline - time.monotonic()
        ways = memory(self.device, left)
        return [{k: v for k, v in way.items() if not isinstance(v, list)} for way in ways]


STAGES = (  # and the seconds that each needs to have left
    ("software", 5),
    ("ceilings", 10),
    ("correctness", 20),
    ("model", 10),
    ("decodes", 30),
    ("prompts", 15),
    ("calibration", 60),
    ("flatness", 15),
    ("both_ways", 20),
)


def check(device: str, model: str, folder: Path, seconds: float = 200.0) -> dict:
    """Run the stages; what they found is in `folder`/check.json as well."""
    folder.mkdir(parents=True, exist_ok=True)
    began, made = time.monotonic(), Check(device, model, seconds)
    said: dict = {"device": device, "model": model, "stages": {}}
    for name, needs in STAGES:
        at = time.monotonic()
        if at - began + needs > seconds:
            result: dict | list = {"skipped": f"less than {needs} s were left"}
        else:
            try:
                result = getattr(made, name)()
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                said_ = f"{type(error).__name__}: {str(error)[:400]}"
                result = {"failed": said_, "at": f"{where.name}, line {where.lineno}"}
        said["stages"][name] = {"result": plain(result), "seconds": round(time.monotonic() - at, 2)}
        said["verdicts"] = made.verdicts
        said["seconds"] = round(time.monotonic() - began, 1)
        (folder / "check.json").write_text(json.dumps(said, indent=1))
    return said


def plain(value):
    """The same for JSON, which has no nan."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def worst_error(device: str, dtype: torch.dtype, attention, tile: int = 16) -> float:
    """Of twelve requests that preempt each other: the largest relative error of one's logits."""
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(1, 90, 12), rng.integers(1, 38, 12)
    work = Workload(np.zeros(12), prompt, output, output)
    server = Server(work, "vllm_v1", Limits(8, 130, 24, 16, 15, 128))
    model = Decoder(SHAPES["tiny"], device=device, dtype=dtype, longest=160)
    machine = Device(model, server, attention=attention, tile=tile, keep_logits=True)
    for _ in server.steps(machine.forward, lambda: 0.0):
        pass
    assert server.state.requests["preemptions"].sum() > 0
    return machine.worst_error(server)


def poisson(rate: float, requests: int, prompt, output, seed: int) -> Workload:
    """rate per second; prompt and output: (low, high) tokens, uniform."""
    rng = np.random.default_rng(seed)
    arrival = rng.exponential(1e3 / rate, requests).cumsum()
    prompts, outputs = (
        rng.integers(low, high, requests, endpoint=True) for low, high in (prompt, output)
    )
    return Workload(arrival, prompts, outputs, outputs)


def scenarios(cuda: bool) -> dict[str, tuple[Workload, str, Limits]]:
    """BASE is calibrated on, the others are predicted: other lengths, another budget."""
    if cuda:
        usual, other, rate = Limits(64, 512, 512), Limits(64, 256, 256), 1.5
        short, long, output = (20, 600), (400, 1_800), (20, 150)
    else:
        usual, other, rate = Limits(16, 128, 128), Limits(16, 32, 32), 1.0
        short, long, output = (20, 300), (200, 900), (10, 60)
    return {
        BASE: (poisson(14 * rate, 80, short, output, 1), POLICY, usual),
        "longer prompts": (poisson(4 * rate, 26, long, output, 4), POLICY, usual),
        "another budget": (poisson(10 * rate, 50, short, output, 6), POLICY, other),
    }
