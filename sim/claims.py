"""The course module's claims, each beside the value computed from its named inputs.

A verdict is computed: the claimed figure against the value, at the precision of the claim.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from .anatomy import MODULE, Step, free_chunk, parts, step_ms
from .defaults import VLLM, scheduling, where
from .hardware import DEVICES, LLMS
from .metrics import METRICS, figures, longest_wait
from .run import Run, serve
from .scenario import Scenario, Slo
from .state import Limits
from .traffic import Traffic
from .workload import draw

HOLDS, SLIP, CONTRADICTS, UNCHECKED = "holds", "unit slip", "contradicts", "unchecked"
H100 = DEVICES["h100-sxm"]
EIGHT, SEVEN = LLMS["module-8b"], LLMS["module-7b"]
GIB, KIB = 2**30, 2**10


def only_when(condition: str) -> str:
    return f"holds only when {condition}"


def agrees(claimed: float | tuple[float, float], value: float) -> bool:
    """Whether the value is the claimed one at its precision, half a unit of its last digit that
    counts, or 1 % where that is finer; or within what is claimed from and to."""
    if isinstance(claimed, tuple):
        return claimed[0] <= value <= claimed[1]
    digits = f"{claimed:.10g}"
    if "." in digits:
        unit = 10.0 ** -len(digits.partition(".")[2])
    else:
        unit = 10.0 ** (len(digits) - len(digits.rstrip("0")))
    return abs(value - claimed) <= max(unit / 2, 0.01 * abs(claimed)) * (1 + 1e-9)


@dataclass(frozen=True, slots=True)
class Claim:
    number: str
    claim: str  # in our words
    inputs: str
    pairs: tuple[tuple[float | tuple[float, float], float], ...]  # (claimed, computed)
    unit: str  # of each pair, by `; `, or of all
    otherwise: tuple[tuple[str, tuple[float, ...]], ...] = ()  # verdict if these are the claimed
    note: str = ""
    link: str = ""
    claimed: str = ""  # of a default: its value, and
    cases: tuple[tuple[str, str], ...] = ()  # (where, what it is there)

    @property
    def computed(self) -> str:
        if self.cases:
            values = ", ".join(dict.fromkeys(value for _, value in self.cases))
            return values + " by GPU and start" * ("," in values)
        units = self.unit.split("; ")
        units = [""] * (len(self.pairs) - len(units)) + units  # one for all stands last
        each = zip(self.pairs, units, strict=False)
        return "; ".join(f"{value:,.4g} {unit}".rstrip() for (_, value), unit in each)

    @property
    def verdict(self) -> str:
        if self.cases:
            so = [place for place, value in self.cases if value == self.claimed]
            if len(so) == len(self.cases):
                return HOLDS
            return only_when("started " + ", or ".join(so)) if so else CONTRADICTS
        if not self.pairs:
            return UNCHECKED
        if all(agrees(*pair) for pair in self.pairs):
            return HOLDS
        for verdict, values in self.otherwise:
            if all(agrees(c, v) for (c, _), v in zip(self.pairs, values, strict=True)):
                return verdict
        return CONTRADICTS


def ms_to_read(size: float) -> float:
    """Bytes over the H100's bandwidth."""
    return size / (H100.bandwidth_tb_s * 1e12) * 1e3


def at_step(example: str, step: Step) -> str:
    """The page Step cost with this step on the module's device."""
    return f"/step_cost?cost={MODULE[example]}&step={step}"


def arithmetic() -> list[Claim]:
    kv, context = EIGHT.kv_per_token, 32 * 1024 * EIGHT.kv_per_token
    full = step_ms(MODULE["decode"], Step(decodes=32, context=1024))
    one = ms_to_read(EIGHT.weights)
    eight = step_ms(MODULE["decode"], Step(decodes=8, context=1024))
    flop = EIGHT.flop_per_token * 32
    busy, slots = 2000 + 7 * 50, 8 * 2000
    batch_s = 2000 * eight / 1e3
    per_token = SEVEN.flop_per_token / 400e12 * 1e3
    prompt = SEVEN.flop_per_token * 2048
    attention = SEVEN.flop_per_pair * 2048**2 / 2
    floor_ms = ms_to_read(SEVEN.weights)
    best = free_chunk(MODULE["prefill"], 0)
    stretched = parts(MODULE["prefill"], Step(decodes=32, context=0, prefill=120))["GEMM"]
    steps = ceil(2048 / 120)
    pool = 8 * GIB // (4096 * kv)
    ideal = H100.tflops / H100.bandwidth_tb_s
    waiting = 10 * batch_s
    static = "/?v=static&v=continuous&max_num_seqs=8&arrivals=list&list=" + ";".join(
        ["0:1:2000"] + ["0:1:50"] * 7
    )
    static += f"&cost={MODULE['decode']}"
    alone = (
        "/?v=chunked:chunk=120&v=continuous&arrivals=list&list=0:2048:2&baseline=1"
        f"&cost={MODULE['prefill']}"
    )
    queue = (
        "/?v=static&v=continuous&arrivals=poisson&rate=10&duration=60&max_num_seqs=8"
        f"&output=fixed:2000&cost={MODULE['decode']}"
    )
    reserved = (
        "/?v=orca_max&v=vllm_v1&arrivals=burst&requests=128&prompt=fixed:2100&output=fixed:200"
        "&max_model_len=4096&num_gpu_blocks=4097&max_num_seqs=64&baseline=0"
    )
    chunks = "/?v=chunked:chunk=87&v=chunked:chunk=120&baseline=0&cost=" + str(MODULE["prefill"])

    def decode(n: int, tokens: int = 1024) -> str:
        return at_step("decode", Step(decodes=n, context=tokens))

    def prefill(n: int, decodes: int = 0) -> str:
        return at_step("prefill", Step(decodes=decodes, context=1, prefill=n))

    return [
        Claim("1", "Reading 16 GB of weights takes 4.78 ms", "16 GB, 3.35 TB/s",
              ((4.78, one),), "ms", link=decode(1, 1)),
        Claim("2", "KV of a token is 128 KiB", "2 x 32 layers x 8 KV heads x 128 x 2 B",
              ((128, kv / KIB),), "KiB",
              note=f"Qwen3-8B's own config has {LLMS['qwen3-8b'].layers} layers:"
              f" {LLMS['qwen3-8b'].kv_per_token:,.0f} B", link=decode(1, 4096)),
        Claim("3", "4096 tokens take 512 MiB; eight such 4 GiB", "128 KiB a token",
              ((512, 4096 * kv / 2**20), (4, 8 * 4096 * kv / GIB)), "MiB; GiB",
              link=decode(8, 4096)),
        Claim("4", "A step of 32 sequences of 1024 tokens reads 20 GiB in 5.97 ms",
              "16 GB + 32 x 1024 x 128 KiB, 3.35 TB/s", ((5.97, full),), "ms",
              ((SLIP, (ms_to_read((16 + context / GIB) * 1e9),)),),
              f"{(EIGHT.weights + context) / 1e9:.2f} GB are read; 4 GiB were taken for 4 GB",
              decode(32)),
        Claim("5", "It computes 512 GFLOP in 1.46 ms", "2 x 8e9 x 32, 350 TFLOP/s",
              ((512, flop / 1e9), (1.46, flop / 350e12 * 1e3)), "GFLOP; ms", link=decode(32)),
        Claim("6", "5300 tok/s at 32 against 209 at 1, 25 times", "the steps of claims 4 and 1",
              ((5300, 32 / full * 1e3), (209, 1e3 / one), (25, 32 * one / full)),
              "tok/s; tok/s; times", link=decode(32)),
        Claim("7", "An H100 SXM has 495 TFLOP/s in bf16, dense", H100.source,
              ((495, H100.tflops),), "TFLOP/s",
              note="495 is TF32, dense; further down the module itself uses 989", link=decode(32)),
        Claim("8", "A static batch of 8 (2000, seven of 50) uses 14.7 % of its slots",
              "2000 + 7 x 50 of 8 x 2000", ((14.7, 100 * busy / slots),), "%", link=static),
        Claim("9", "At 8 a step takes 5.1 ms, the pass 10.2 s: 230 against 1570 tok/s, 6.8 times",
              "16 GB + 8 x 1024 x 128 KiB, 3.35 TB/s",
              ((5.1, eight), (10.2, batch_s), (230, busy / batch_s), (1570, 8 / eight * 1e3),
               (6.8, slots / busy)), "ms; s; tok/s; tok/s; times", link=static),
        Claim("10", "10 req/s against 10-s batches of 8: about 100 queue",
              "the batch of claim 9", ((100, 10 * waiting - 8 * 10),), "after ten batches",
              ((only_when("one batch is waited for"), (waiting,)),),
              f"it grows by {10 - 8 / batch_s:.1f} a second without end", queue),
        Claim("11", "Reserving 4096 tokens each, 8 GiB hold 16 requests, 54 % used at 2200",
              "128 KiB a token", ((16, pool), (54, 100 * 2200 / 4096)), "requests; %",
              link=reserved),
        Claim("12", "A prompt of 2048 on 7B is 28.7 TFLOP, 72 ms", "2 x 7e9 x 2048, 400 TFLOP/s",
              ((28.7, (prompt + attention) / 1e12), (72, (prompt + attention) / 400e9)),
              "TFLOP; ms, both with causal attention",
              ((only_when("attention is left out"), (prompt / 1e12, prompt / 400e9)),),
              link=prefill(2048)),
        Claim("13", "Reading 14 GiB of weights takes 4.2 ms", "14 GiB, 3.35 TB/s",
              ((4.2, ms_to_read(14 * GIB)),), "ms", ((SLIP, (ms_to_read(14e9),)),),
              link=prefill(0, 1)),
        Claim("14", "The ridge is at 295; at 40 to 50 % of peak 120 to 150", "989 / 3.35",
              ((295, ideal), (120, 0.4 * ideal), (150, 0.5 * ideal)), "FLOP/B",
              link=prefill(0, 32)),
        Claim("15", "A token computes 35 µs; 2080 take 73 ms, 17 times the step of 4.2",
              "2 x 7e9, 400 TFLOP/s",
              ((35, 1e3 * per_token), (73, 2080 * per_token), (17, 2080 * per_token / floor_ms)),
              "µs; ms; times", link=prefill(2048, 32)),
        Claim("16", "The best chunk is 120", "14 GB, 2 x 7e9, 400 TFLOP/s, 32 running",
              ((120, free_chunk(MODULE["prefill"], 32)),), "tokens",
              ((only_when("nobody decodes"), (best,)),),
              f"beside 32 decodes a chunk of 120 takes {stretched:.2f} ms,"
              f" {100 * (stretched / floor_ms - 1):.0f} % over the floor", chunks),
        Claim("17", "2048 tokens at 120 a step take 17 steps, 71 ms", "steps of 4.18 ms",
              ((17, steps), (71, steps * floor_ms)), "steps; ms",
              ((CONTRADICTS + ": off by one", (2048 // 120, 2048 // 120 * floor_ms)),),
              link=alone),
        Claim("18", "0.2 ms of overhead are 5 % of a step at 128", "0.2 ms, 4.2 ms",
              ((5, 100 * 0.2 / 4.2),), "%", link=at_step("prefill", Step(
                  decodes=0, context=1, prefill=128)).replace("overhead_ms=0", "overhead_ms=0.2")),
        Claim("19", "Under load vLLM is 1.5 to 2.7 times llama.cpp", "no source is given", (), ""),
    ]  # fmt: skip


def defaults() -> list[Claim]:
    """What the module says of defaults: vLLM's without a version, SGLang's with one."""
    newest = VLLM[0]
    gpus = "/?" + "&".join(f"v=vllm-{newest}-{gpu}-api" for gpu in ("h100", "b200", "l4"))
    policies = "/?v=sglang-0.5.18-h100-api&v=sglang-0.4.0-h100-api&baseline=0"
    return [
        *(
            Claim(number, f"The default of {name} is {value}", f"vLLM {newest} by GPU and start",
                  (), "", note="By version: Defaults, below", link=f"{gpus}&baseline=0",
                  claimed=value, cases=where(name, newest))
            for number, name, value in (
                ("20", "max_num_batched_tokens", "8192"), ("21", "max_num_seqs", "256")
            )
        ),
        *(
            Claim(number, f"SGLang {version} schedules {policy} by default", "its arguments",
                  (), "", note=note, link=policies, claimed=policy, cases=scheduling(version))
            for number, version, policy, note in (
                ("22", "0.4.0", "lpm", ""),
                ("23", "0.5.18", "fcfs", "So it is since 0.4.3.post4 of March 2025"),
            )
        ),
    ]  # fmt: skip


# Exercise 08.1: the printed table (TTFT p50, p95, TPOT p50, p95, ms; tok/s; s) and the code's own.
PRINTED = {
    "static": (1920, 8410, 78, 210, 168, 350),
    "continuous": (410, 1180, 52, 96, 385, 153),
    "chunked-8": (268, 640, 55, 104, 379, 155),
    "chunked-32": (330, 880, 53, 99, 383, 154),
}
PRINTED_TRAFFIC = (486, 1043, 121)  # requests, mean prompt, mean output
COLUMNS = ("TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "tok/s", "wall, s")
EXERCISE = ("static", "continuous", "chunked-8", "chunked-32", "chunked-128", "chunked-512")


def exercise(name: str, *, as_printed: bool = False, seed: int = 1234, rate: float = 16.0) -> Run:
    """A row of exercise 08.1: `chunked-8` is chunked with chunk 8."""
    policy, _, chunk = name.partition("-")
    workload = draw(Traffic(rate=rate, seed=seed, as_printed=int(as_printed)))
    limits = Limits(chunk=int(chunk or 512))
    return serve(workload, policy, limits, Scenario().cost, label=name)


def row_of(run: Run) -> tuple[float, ...]:
    """In the order of COLUMNS."""
    every = figures(run, Slo())
    ttft, tpot = METRICS["ttft"].of(run), METRICS["tpot_to_release"].of(run)
    return (
        ttft.quantile(0.5),
        ttft.quantile(0.95),
        tpot.quantile(0.5),
        tpot.quantile(0.95),
        every["tok_s"],
        every["total_s"],
    )


THREE = "/?v=static&v=continuous&v=chunked&rate=16"
SWEEP = "/?" + "&".join(
    ["v=continuous", *(f"v=chunked:chunk={n}" for n in (8, 32, 128, 512)), "baseline=0", "rate=16"]
)


# Exercise 08.2 with a step of 1 ms whatever it holds: the time is the number of calls. Here, and
# not in the exercise, a prompt's call emits its first token.
CALLS = (
    "/?v=static&v=continuous&v=static:max_num_seqs=8&v=continuous:max_num_seqs=8&max_num_seqs=32"
    "&overhead_ms=1&prefill_ms_per_token=0&decode_base_ms=0&decode_ms_per_seq=0&arrivals=list&list="
)


def of_the_exercises() -> list[Claim]:
    """What the module expects its two exercises to print."""
    runs = {name: exercise(name) for name in ("static", "continuous", "chunked-8")}
    static, continuous, chunked = map(row_of, runs.values())
    drawn, seed = runs["static"].requests, "seed 1234, 16 req/s, 30 s, arrivals in ms"
    calls = [model_calls(lengths_of_08_2(), batch) for batch in (8, 32)]
    fewer = [c["pad to max"][0] / c["continuous"][0] for c in calls]
    decodes = [c["pad to max"][1] / c["continuous"][1] for c in calls]
    return [
        Claim("24", "The traffic: 486 requests, mean prompt 1043, output 121", seed,
              ((486, len(drawn)), (1043, drawn["prompt"].mean()), (121, drawn["output"].mean())),
              "requests; tokens; tokens", link=THREE),
        Claim("25", "Continuous: 2.3 times the tok/s of static, TTFT p95 3 to 4 times lower", seed,
              ((2.3, continuous[4] / static[4]), ((3, 4), static[1] / continuous[1])),
              "times; times", link=THREE),
        Claim("26", "chunked-8 halves TTFT p95 once more, for 1 to 2 % of the tok/s", seed,
              ((2, continuous[1] / chunked[1]), ((1, 2), 100 * (1 - chunked[4] / continuous[4]))),
              "times; %", link=SWEEP, note="a smaller chunk makes TTFT later, not earlier"),
        Claim("27", "Continuous needs 1.5 to 2 times fewer model calls at 8 and at 32",
              "lengths of exercise 08.2, seed 7", tuple(((1.5, 2), x) for x in fewer),
              "times; times", note=f"of decode calls alone {decodes[0]:.2f} and {decodes[1]:.2f}:"
              " each refill is a prompt call of its own",
              link=CALLS + ";".join(f"0:64:{n}" for n in lengths_of_08_2())),
    ]  # fmt: skip


def every() -> list[Claim]:
    return [*arithmetic(), *defaults(), *of_the_exercises()]


def lengths_of_08_2(requests: int = 64, seed: int = 7) -> list[int]:
    """Outputs of exercise 08.2: lognormal around 180, 64 to 512 tokens."""
    rng = random.Random(seed)
    return [int(min(512, max(64, rng.lognormvariate(log(180), 0.5)))) for _ in range(requests)]


def model_calls(lengths: Sequence[int], batch: int) -> dict[str, tuple[int, int]]:
    """(all calls, decode calls) of padding to the longest and of continuous batching.

    A prompt pass is a call of its own; continuous batching pays one for each refill.
    """
    waves = [lengths[k : k + batch] for k in range(0, len(lengths), batch)]
    padded = sum(map(max, waves))
    left, active, refills, decodes = list(lengths), [], 0, 0
    while left or active:
        if left and len(active) < batch:
            new, left = left[: batch - len(active)], left[batch - len(active) :]
            active, refills = active + list(new), refills + 1
        decodes += 1
        active = [n - 1 for n in active if n > 1]
    return {"pad to max": (padded + len(waves), padded), "continuous": (decodes + refills, decodes)}


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the module's checklist, run."""

    number: int
    claim: str
    holds: bool | None  # None: not to be seen here
    measured: str
    link: str = ""


def checklist(seeds: int = 30, go_on: Callable[[float], object] = lambda done: None) -> list[Check]:
    """The module's nine checks at 16 req/s, the spread over so many seeds."""
    runs = {name: exercise(name) for name in EXERCISE}
    rows = {name: row_of(run) for name, run in runs.items()}
    static, continuous = rows["static"], rows["continuous"]
    lost = [
        run.label for run in runs.values()
        if np.isnan(run.requests["finish"]).any()
        or (run.steps["decodes"].astype(np.int64) * run.steps["repeats"]).sum()
        != (run.requests["output"] - 1).sum()
    ]  # fmt: skip
    ratio = continuous[3] / continuous[2]
    chunked = [rows[name] for name in ("chunked-8", "chunked-32", "chunked-128", "chunked-512")]
    again = np.array_equal(exercise("continuous").requests, runs["continuous"].requests)
    spread = []
    for k in range(seeds):
        spread.append(row_of(exercise("continuous", seed=1234 + k))[1])
        go_on((k + 1) / seeds)
    off = max(abs(np.array(spread) / spread[0] - 1))
    waits = {name: run.requests["start"] - run.requests["arrival"] for name, run in runs.items()}
    limit = Slo().max_wait
    worst = max(waits, key=lambda name: waits[name].max())
    who = longest_wait(runs[worst])
    wall = [
        abs(run.requests["output"].sum() / rows[n][4] / rows[n][5] - 1) for n, run in runs.items()
    ]
    return [
        Check(1, "No output token is lost or counted twice", not lost,
              f"{len(runs)} runs, {runs['static'].requests['output'].sum():,} tokens each", THREE),
        Check(2, "Static is worse than continuous on TTFT p50 and p95",
              bool(static[0] > continuous[0] and static[1] > continuous[1]),
              f"{static[0] / continuous[0]:,.0f} and {static[1] / continuous[1]:,.0f} times",
              THREE),
        Check(3, "Continuous: TPOT p95 is at most 2.5 times its p50", bool(ratio <= 2.5),
              f"{ratio:.2f} times", THREE),
        Check(4, "Chunking improves TTFT p95, and not its p50",
              all(r[1] < continuous[1] for r in chunked)
              and not all(r[0] < continuous[0] for r in chunked),
              f"p95 {continuous[1]:,.0f} ms without; "
              + ", ".join(f"{r[1]:,.0f}" for r in chunked) + " at 8, 32, 128, 512", SWEEP),
        Check(5, "A larger chunk (8 to 32): more tok/s, worse TTFT p95",
              chunked[1][4] > chunked[0][4] and chunked[1][1] > chunked[0][1],
              f"tok/s {chunked[0][4]:,.0f} to {chunked[1][4]:,.0f},"
              f" TTFT p95 {chunked[0][1]:,.0f} to {chunked[1][1]:,.0f} ms", SWEEP),
        Check(6, "Output tokens over tok/s is the wall time", bool(max(wall) < 1e-9),
              f"within {max(wall):.1g}", THREE),
        Check(7, "The same seed gives the same to the bit; others keep TTFT p95 within 10 %",
              bool(again and off <= 0.10),
              f"same seed {'equal' if again else 'different'}; over {seeds} seeds p95 goes from"
              f" {min(spread):,.0f} to {max(spread):,.0f} ms, up to {100 * off:.0f} % off", THREE),
        Check(8, f"Nobody waits longer than {limit / 1e3:g} s", bool(waits[worst].max() <= limit),
              f"longest {waits[worst].max() / 1e3:,.1f} s, request {who} under {worst}", THREE),
        Check(9, "On a device memory is steady under continuous and peaks when padded", None,
              "a device run shows it; the simulator has no memory of activations", "/device"),
    ]  # fmt: skip
