"""What `make bench` prints: every speed that the project promises, from one run on this machine.

Ratios hold on a busy machine, absolute figures only on a quiet one.
"""

import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from sim.costs import COSTS
from sim.module08 import Req
from sim.run import serve
from sim.state import Limits
from sim.traffic import Lengths, Traffic
from sim.workload import Workload, draw

COEFFICIENTS = tuple(c.default for c in COSTS["linear"].coefficients)
LIMITS = Limits(chunk=128)
SEATS, BUDGET, CHUNK = LIMITS[:3]
ROOT = Path(__file__).parents[1]


def module_lengths(requests: int, rate: float) -> Workload:
    """Poisson arrivals at `rate` req/s with the course module's lengths."""
    drawn = draw(Traffic(arrivals="poisson", rate=rate, duration=1.02 * requests / rate + 10))
    return drawn.rows(np.arange(requests))


def requests_of(work: Workload) -> list[Req]:
    rows = zip(work.arrival.tolist(), work.prompt.tolist(), work.output.tolist(), strict=True)
    return [Req(i, *row) for i, row in enumerate(rows)]


def tokens_per_second(work: Workload, policy: str, limits: Limits, runs: int = 3) -> float:
    """The best of a few runs, recording included."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        serve(work, policy, limits, COEFFICIENTS)
        seconds.append(time.perf_counter() - began)
    return work.output.sum() / min(seconds)


def step_ms(prefill: int, decodes: int) -> float:
    overhead, per_token, base, per_seq = COEFFICIENTS
    return overhead + per_token * prefill + (base + per_seq * decodes if decodes else 0.0)


# The module's three loops in plain Python: requests are objects, lines are lists.


def plain_static(requests: list[Req]) -> None:
    now, i = 0.0, 0
    while i < len(requests):
        now, wave = max(now, requests[i].arrival), []
        while i < len(requests) and len(wave) < SEATS and requests[i].arrival <= now:
            wave.append(requests[i])
            i += 1
        now += step_ms(max(r.prompt_len for r in wave) * len(wave), 0)
        for r in wave:
            r.first_tok = now
        for _ in range(max(r.out_len for r in wave) - 1):
            now += step_ms(0, len(wave))
        for r in wave:
            r.finish = now


def plain_continuous(requests: list[Req]) -> None:
    now, i = 0.0, 0
    waiting, running = deque(), []
    while i < len(requests) or waiting or running:
        if not waiting and not running:
            now = max(now, requests[i].arrival)
        while i < len(requests) and requests[i].arrival <= now:
            waiting.append(requests[i])
            i += 1
        room, new = BUDGET - len(running), []
        seats = SEATS - len(running)
        while waiting and len(new) < seats and waiting[0].prompt_len <= room:
            room -= waiting[0].prompt_len
            new.append(waiting.popleft())
        now += step_ms(sum(r.prompt_len for r in new), len(running))
        running = [r for r in running if not emit(r, now)] + [r for r in new if not emit(r, now)]


def plain_chunked(requests: list[Req]) -> None:
    now, i = 0.0, 0
    waiting, running, prefilling = deque(), [], []
    while i < len(requests) or waiting or running or prefilling:
        if not waiting and not running and not prefilling:
            now = max(now, requests[i].arrival)
        while i < len(requests) and requests[i].arrival <= now:
            waiting.append(requests[i])
            i += 1
        room = BUDGET - len(running)
        while waiting and len(running) + len(prefilling) < SEATS and room > 0:
            prefilling.append(waiting.popleft())
        used = 0
        for r in prefilling:
            take = min(CHUNK, r.prompt_len - r.prefill_done, room - used)
            r.prefill_done += take
            used += take
        now += step_ms(used, len(running))
        ready = [r for r in prefilling if r.prefill_done == r.prompt_len]
        prefilling = [r for r in prefilling if r.prefill_done < r.prompt_len]
        running = [r for r in running if not emit(r, now)] + [r for r in ready if not emit(r, now)]


def emit(r: Req, now: float) -> bool:
    """One token of r; True when it was the last."""
    r.generated += 1
    if r.generated == 1:
        r.first_tok = now
    if r.generated < r.out_len:
        return False
    r.finish = now
    return True


PLAIN = {"static": plain_static, "continuous": plain_continuous, "chunked": plain_chunked}


def bench_vllm() -> None:
    print(
        "vLLM 0.33.0 with KV accounting, 1,000,000 requests, 256 seats, budget 8192, 40,000 blocks"
    )
    limits, speeds = Limits(max_num_seqs=256, num_gpu_blocks=40_001), []
    for rate in (36, 100):
        speeds.append(tokens_per_second(module_lengths(1_000_000, rate), "vllm_v1", limits))
        print(f"  {rate:3} req/s {speeds[-1] / 1e6:7.0f} M tok/s")
    print(
        f"  (at least 60 M at 36 req/s; at 100 at most 3 times slower: {speeds[0] / speeds[1]:.2f})"
    )
    cached = limits._replace(enable_prefix_caching=1)
    speed = tokens_per_second(module_lengths(1_000_000, 36), "vllm_v1", cached, runs=1)
    print(f"  with prefix caching {speed / 1e6:.0f} M tok/s  (at least 10 M)")
    print(f"  peak memory {peak_gb():.2f} GB  (under 1.5)")


def bench_sglang() -> None:
    print("SGLang 0.5.18, 1,000,000 requests, 256 seats, 640,000 tokens of KV in pages of 1")
    limits = Limits(max_num_seqs=256, block_size=1, num_gpu_blocks=640_000)
    work = module_lengths(1_000_000, 36)
    speed = tokens_per_second(work, "sglang", limits)
    print(f"  36 req/s {speed / 1e6:7.0f} M tok/s  (at least 30 M)")
    cached = limits._replace(enable_prefix_caching=1)
    speed = tokens_per_second(work, "sglang", cached, runs=1)
    print(f"  with radix cache {speed / 1e6:.0f} M tok/s  (at least 5 M)")
    lengths, prefixes = Lengths("uniform", (544, 1_056)), {"prefixes": 64, "prefix_tokens": 512}
    shared = Traffic(arrivals="poisson", rate=36, duration=28_000, prompt=lengths, **prefixes)
    speed = tokens_per_second(draw(shared), "sglang_lpm", cached, runs=1)
    print(f"  and lpm over 64 shared prefixes {speed / 1e6:.0f} M tok/s  (at least 5 M)")
    print(f"  peak memory {peak_gb():.2f} GB  (under 1.5)")


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def bench_engine() -> None:
    print(
        "Simulated output tokens per second, 1,000,000 requests of the module's lengths, 32 seats,"
    )
    print(
        "chunk 128, slots, segments and steps recorded; against the module's loop in plain Python"
    )
    for rate in (16, 36):
        work, few = module_lengths(1_000_000, rate), module_lengths(4_000, rate)
        for policy in PLAIN:
            ours = tokens_per_second(work, policy, LIMITS)
            began = time.perf_counter()
            PLAIN[policy](requests_of(few))
            plain = few.output.sum() / (time.perf_counter() - began)
            target = "" if policy == "static" else "  (at least 200 M, 100 times)"
            name = f"  {policy:12}{rate:3} req/s"
            print(f"{name} {ours / 1e6:7.0f} M tok/s {ours / plain:7.0f} times{target}")
    print(f"  peak memory {peak_gb():.2f} GB  (under 1.5)")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def bench_page() -> None:
    from playwright.sync_api import sync_playwright

    port = free_port()
    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1680, "height": 1050})
        began = time.perf_counter()
        server = subprocess.Popen(
            ["make", "--no-print-directory", "run", f"PORT={port}", "HOST=127.0.0.1"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            open_page(page, f"http://127.0.0.1:{port}/")
            seconds = time.perf_counter() - began
            print(f"make run to first painted timeline: {seconds:.1f} s  (under 6)")
            for query, name, target in (
                ("", "the opening scenario", 0.7),
                ("?arrivals=poisson&rate=40&duration=250", "10,000 requests", 2.5),
            ):
                open_page(page, f"http://127.0.0.1:{port}/{query}")
                seconds = [change(page, f"{100 + k}") for k in range(11)][1:]
                print(
                    f"control change to painted, {name}: p50 {statistics.median(seconds):.2f} s,"
                    f" max {max(seconds):.2f} s  (p50 under {target})"
                )
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            browser.close()


PAINTED = """c => {
    const ui = c.getRootNode().timeline;
    return ui?.data && !ui.stale ? ui.data.link : null;
}"""


def open_page(page, url: str) -> None:
    for _ in range(200):
        try:
            page.goto(url)
            break
        except Exception:  # the server is not up yet
            time.sleep(0.05)
    page.locator(".stage canvas").wait_for()
    while page.locator(".stage canvas").evaluate(PAINTED) is None:
        time.sleep(0.02)


def change(page, seed: str) -> float:
    """Type another seed; seconds until the timeline is painted anew."""
    canvas = page.locator(".stage canvas")
    before = canvas.evaluate(PAINTED)
    box = page.get_by_label("Seed", exact=True)
    box.fill(seed)
    began = time.perf_counter()
    box.press("Enter")
    while canvas.evaluate(PAINTED) in (None, before):
        time.sleep(0.01)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(f"numpy {np.__version__}, Python {sys.version.split()[0]}")
    bench_engine()
    bench_vllm()
    bench_sglang()
    if "engine" not in sys.argv:
        bench_page()
