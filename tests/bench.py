"""What `make bench` prints: every speed that the project promises, from one run on this machine.

Ratios hold on a busy machine, absolute figures only on a quiet one.
"""

import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from sim import capacity, sweep
from sim.costs import COSTS
from sim.detail import index
from sim.module08 import Req
from sim.run import serve
from sim.scenario import Scenario
from sim.state import Limits
from sim.traces import reading
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
    limits = Limits(max_num_seqs=256, num_gpu_blocks=40_001, async_scheduling=0)
    speeds = []
    for rate in (36, 100):
        speeds.append(tokens_per_second(module_lengths(1_000_000, rate), "vllm_v1", limits))
        print(f"  {rate:3} req/s {speeds[-1] / 1e6:7.0f} M tok/s")
    print(
        f"  (at least 60 M at 36 req/s; at 100 at most 3 times slower: {speeds[0] / speeds[1]:.2f})"
    )
    cached = limits._replace(enable_prefix_caching=1)
    speed = tokens_per_second(module_lengths(1_000_000, 36), "vllm_v1", cached, runs=1)
    print(f"  with prefix caching {speed / 1e6:.0f} M tok/s  (at least 10 M)")
    speed = tokens_per_second(
        module_lengths(1_000_000, 36), "vllm_v1", limits._replace(async_scheduling=1)
    )
    print(f"  asynchronous, 36 req/s {speed / 1e6:.0f} M tok/s  (at least 40 M)")
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
    shared = Traffic(
        arrivals="poisson",
        rate=36,
        duration=28_000,
        prompt=Lengths("uniform", (544, 1_056)),
        prefixes=64,
        prefix_tokens=512,
    )
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


TIMED = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import sim  # from there, before bench looks here
from bench import COEFFICIENTS, LIMITS, module_lengths, tokens_per_second
for policy in "continuous", "chunked":
    print(tokens_per_second(module_lengths(1_000_000, 36), policy, LIMITS, runs=5))
"""


def bench_grants() -> None:
    """The engine as it is, and a copy of it that puts no grant on record, taken in turns."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "sim", Path(folder) / "sim")
        verbs = Path(folder) / "sim" / "verbs.py"
        recording = "    if r.granted > 0:\n        row = s.grants"
        source = verbs.read_text()
        assert recording in source
        verbs.write_text(source.replace(recording, recording.replace("r.granted > 0", "False")))

        def speeds(root: Path) -> np.ndarray:
            script = TIMED.format(root=str(root), tests=str(Path(__file__).parent))
            said = subprocess.run(
                [sys.executable, "-c", script], check=True, capture_output=True, text=True
            )
            return np.array(said.stdout.split(), float)

        both = [(speeds(ROOT), speeds(Path(folder))) for _ in range(3)]
    ours, without = (np.max(part, axis=0) for part in zip(*both, strict=True))
    for policy, a, b in zip(("continuous", "chunked"), ours, without, strict=True):
        print(
            f"recording prompts step by step, {policy}: {a / 1e6:.0f} M tok/s, without"
            f" {b / 1e6:.0f} M: {100 * (b / a - 1):.1f} % of the time"
        )


def bench_sweep() -> None:
    """In a folder of its own, the workers' start included."""
    opening = Scenario()
    seeds = 1_000 // len(opening.variants) + 1
    asked = sweep.Sweep(scenario=opening, axes=(sweep.Axis.parse("rate:36"),), seeds=seeds)
    with tempfile.TemporaryDirectory() as folder:
        sweep.CACHE = Path(folder)
        for name, seconds in (("with the workers' start", 4.0), ("again, the same rows", 0.5)):
            began = time.perf_counter()
            sweep.run(asked)
            took = time.perf_counter() - began
            print(
                f"{asked.runs:,} runs of 36 req/s for 30 s, {name}: {took:.2f} s  (under {seconds})"
            )
        for name, seconds in (("three variants", 3.0), ("the same again", 0.5)):
            began = time.perf_counter()
            found = capacity.find(capacity.Search(scenario=opening))
            took = time.perf_counter() - began
            runs = sum(c.runs for c in found)
            print(f"capacity of {name}, {runs} runs: {took:.2f} s  (under {seconds})")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def bench_traces(requests: int = 1_000_000) -> None:
    rng = np.random.default_rng(0)
    prompts, outputs = (rng.integers(1, most, requests).tolist() for most in (8_000, 1_000))
    rows = list(zip(range(requests), prompts, outputs, strict=True))
    start = np.datetime64("2023-11-16T18:00:00.0000000", "ns")
    stamps = np.datetime_as_string(start + np.arange(requests) * 1_700_100, unit="ns")
    texts = {
        "Azure, MB": ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        + [f"{stamps[k][:-2].replace('T', ' ')},{p},{o}" for k, p, o in rows],
        "Plain CSV, MB": ["arrival_ms,prompt_len,output_len"]
        + [f"{1.5 * k},{p},{o}" for k, p, o in rows],
        "Mooncake with 8 hashes a request, MB": [
            f'{{"timestamp": {k // 10 * 3000}, "input_length": {p}, "output_length": {o},'
            f' "hash_ids": {[*range(k, k - (-p // 512))]}}}'
            for k, p, o in rows
        ],
    }
    for name, lines in texts.items():
        content = "\n".join(lines).encode()
        began = time.perf_counter()
        found = reading(content)
        seconds = time.perf_counter() - began
        print(
            f"a trace of {len(found.workload):,} requests, {name} {len(content) / 1e6:.0f}:"
            f" {seconds:.2f} s  (under 5)"
        )


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


WATCHED = """async seconds => {
    const find = (node) => {
        for (const each of node.querySelectorAll("*")) {
            if (each.matches(".stage canvas")) return each;
            const inner = each.shadowRoot && find(each.shadowRoot);
            if (inner) return inner;
        }
    };
    const first = find(document), ui = first.getRootNode().timeline, seen = [];
    let data = ui.data, blank = 0, frames = 0;
    const latest = () => Math.max(...ui.data.variants.map((variant) => variant.total));
    const began = performance.now(), before = latest();
    while (performance.now() - began < 1000 * seconds) {
        await new Promise(requestAnimationFrame);
        frames++;
        if (find(document) !== first) blank++;
        const row = first.getContext("2d").getImageData(0, first.height - 12, first.width, 1).data;
        if (!ui.stale && !row.some((value) => value > 0)) blank++;
        if (ui.data !== data) { data = ui.data; seen.push(performance.now()); }
    }
    const gaps = seen.slice(1).map((t, k) => t - seen[k]).sort((a, b) => a - b);
    return {
        rate: seen.length / seconds, frames: frames / seconds, blank,
        p50: gaps[gaps.length >> 1], most: gaps[gaps.length - 1],
        simulated: (latest() - before) / 1000 / seconds,
    };
}"""


def bench_live(seconds: int = 10) -> None:
    """How often the live page shows anew what two policies with 64 seats do."""
    from playwright.sync_api import sync_playwright

    port = free_port()
    server = served(port)
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1680, "height": 1050})
            query = "v=continuous&v=chunked:chunk=128&max_num_seqs=64&rate=45&duration=600"
            open_page(page, f"http://127.0.0.1:{port}/?{query}")
            page.get_by_role("link", name="Live").click()
            page.get_by_role("button", name="Play").click()
            page.get_by_role("button", name="Pause").wait_for()
            time.sleep(3)
            found = page.evaluate(WATCHED, seconds)
            print(
                f"live, two policies, 64 seats, 1x: {found['rate']:.1f} updates a second (about 5),"
                f" p50 {found['p50']:.0f} ms, longest {found['most']:.0f} ms,"
                f" {found['frames']:.0f} frames a second, {found['blank']} of them blank,"
                f" {found['simulated']:.2f} s simulated a second"
            )
            browser.close()
    finally:
        os.killpg(server.pid, signal.SIGTERM)


def bench_index(requests: int = 2_350_000) -> None:
    """What the timeline asks of a run of seven million segments."""
    limits = Limits(max_num_seqs=256, num_gpu_blocks=40_001)
    run = serve(module_lengths(requests, 36), "vllm_v1", limits, COEFFICIENTS)
    began = time.perf_counter()
    found = index(run)
    built = time.perf_counter() - began
    size = sum(part.nbytes for part in (found.order, found.t0, found.t1, found.before))
    seconds = []
    for span in (1.0, 0.1, 0.01):
        began = time.perf_counter()
        t0 = 0.3 * run.total * (1 - span)
        found.shares(t0, t0 + run.total * span, 1_500)
        seconds.append(time.perf_counter() - began)
    whole, tenth, hundredth = (f"{1e3 * s:.0f} ms" for s in seconds)
    print(
        f"index of {len(run.segments):,} segments on 256 seats: {built:.2f} s, {size / 1e6:.0f} MB;"
        f" shares of 1,500 columns of the whole run {whole}, of a tenth {tenth}, of 1 % {hundredth}"
    )


def bench_million() -> None:
    """A run of a million requests on the page: memory, what is sent, and how soon a zoom shows."""
    from playwright.sync_api import sync_playwright

    bench_index()
    run = "?arrivals=poisson&max_num_seqs=256&num_gpu_blocks=40001&v=vllm_v1"
    with sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        for name, query in (
            ("36 req/s", f"{run}&rate=36&duration=27778"),
            ("100 req/s, beside continuous", f"{run}&rate=100&duration=10000&v=continuous"),
        ):
            port = free_port()
            server = served(port)
            try:
                _million(browser, f"http://127.0.0.1:{port}/", query, name, server)
            finally:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait()
        browser.close()


def _million(browser, url: str, query: str, name: str, server: subprocess.Popen) -> None:
    page, heard = browser.new_page(viewport={"width": 1680, "height": 1050}), []
    page.set_default_timeout(300_000)
    open_page(page, url)  # the server is up, and its imports done
    page.on("websocket", lambda socket: socket.on("framereceived", lambda f: heard.append(len(f))))
    began = time.perf_counter()
    open_page(page, url + query)
    painted = time.perf_counter() - began
    done = "document.querySelector('[data-testid=stApp]').dataset.testScriptState"
    page.wait_for_function(f"{done} === 'notRunning'")
    whole_page = time.perf_counter() - began
    canvas, sent = page.locator(".stage canvas"), sum(heard)
    whole = canvas.evaluate("c => c.getRootNode().timeline.data.whole")
    rng, seconds, largest = np.random.default_rng(0), [], 0
    for k in range(40):
        page.wait_for_timeout(400)
        heard.clear()
        span = whole if k == 0 else whole ** rng.uniform(0.55, 1.0)
        t0 = float(rng.uniform(0, whole - span))
        seconds.append(canvas.evaluate(ZOOM, [t0, t0 + span]) / 1e3)
        page.wait_for_timeout(200)
        largest = max(largest, sum(heard))
    p50, p95 = np.quantile(seconds, (0.5, 0.95))
    print(f"1,000,000 requests on the page, 256 seats, {name}: timeline after {painted:.1f} s, the")
    print(
        f"  rest after {whole_page:.1f} s; sent {sent / 1e6:.2f} MB to open, at most"
        f" {largest / 1e6:.2f} MB for a zoom  (under 2)"
    )
    print(f"  zoom to painted p50 {p50:.2f} s, p95 {p95:.2f} s  (under 0.5)")
    print(f"  peak memory of the server {most_gb(server):.2f} GB  (under 3)")
    page.close()


# Seconds from a new window to its rows or grid on the screen.
ZOOM = """async (canvas, [t0, t1]) => {
    const ui = canvas.getRootNode().timeline, began = performance.now(), frame = () =>
      new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const answered = ({ raw, asked }) => (raw && t0 >= raw[0] && t1 <= raw[1]) ||
      (Math.abs(asked[0] - t0) < 1 && Math.abs(asked[1] - t1) < 1);
    ui.show({ t0, t1 });
    while (!answered(ui.data.part)) await new Promise((done) => setTimeout(done, 5));
    await frame();
    return performance.now() - began;
}"""


def most_gb(server: subprocess.Popen) -> float:
    """The largest resident size that any of the server's processes has had."""
    own = Path("/proc").glob("[0-9]*/status")
    texts = [text for path in own if (text := _status(path)) and f"NSpgid:\t{server.pid}\n" in text]
    peaks = [line.split()[1] for text in texts for line in text.splitlines() if "VmHWM" in line]
    return max(map(int, peaks)) / 1e6


def _status(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


VIEWERS, THINK = 20, 15.0  # seconds between a viewer's changes


def bench_viewers() -> None:
    """VIEWERS who each change the seed THINK seconds after they had the last; then one of them
    exports decks instead, first with the same pause after each, then deck upon deck."""
    from playwright.sync_api import sync_playwright

    port, seconds, faults, stop = free_port(), [], [], threading.Event()
    server = served(port)
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page()
            open_page(page, f"http://127.0.0.1:{port}/")
            for rest, name in ((None, "none exporting"), (THINK, "one exporting"), (0, "no rest")):
                stop.clear()
                seconds.clear()
                viewers = [
                    threading.Thread(target=view, args=(port, k, stop, seconds, faults))
                    for k in range(VIEWERS - 1)
                ]
                for viewer in viewers:
                    viewer.start()
                began, files = time.perf_counter(), 0
                while (left := 45 - (time.perf_counter() - began)) > 0:
                    if rest is not None:
                        export_once(page)
                        files += 1
                    time.sleep(left if rest is None else min(left, rest))
                stop.set()
                for viewer in viewers:
                    viewer.join()
                p95 = np.quantile(seconds, 0.95)
                print(
                    f"{VIEWERS} viewers, {name}, {files} decks: {len(seconds)} reruns, p50"
                    f" {np.median(seconds):.2f} s, p95 {p95:.2f} s, max {max(seconds):.2f} s,"
                    f" {len(faults)} errors  (p95 under 1.5, no error)"
                )
            browser.close()
    finally:
        os.killpg(server.pid, signal.SIGTERM)


def view(port: int, k: int, stop: threading.Event, seconds: list, faults: list) -> None:
    """One viewer, without a browser: what Streamlit's own page says to the server and hears."""
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
    from websockets.sync.client import connect

    url, rng = f"ws://127.0.0.1:{port}/_stcore/stream", np.random.default_rng(k)
    with connect(url, subprotocols=["streamlit"], max_size=None) as socket:  # type: ignore[list-item]
        stop.wait(rng.uniform(0, THINK))
        while not stop.is_set():
            asked = BackMsg()
            asked.rerun_script.query_string = f"seed={rng.integers(1_000_000)}"
            began = time.perf_counter()
            socket.send(asked.SerializeToString())
            while True:
                heard = ForwardMsg.FromString(socket.recv(60, decode=False))
                if heard.delta.new_element.WhichOneof("type") == "exception":
                    faults.append(heard.delta.new_element.exception.message)
                if heard.WhichOneof("type") == "script_finished":
                    break
            seconds.append(time.perf_counter() - began)
            stop.wait(THINK)


def export_once(page) -> None:
    """Have a deck made, and wait until it can be had."""
    if not page.get_by_role("button", name="PowerPoint deck").is_visible():
        page.get_by_role("button", name="Export").first.click()
    page.get_by_role("button", name="PowerPoint deck").click(timeout=120_000)
    ready = page.get_by_role("button", name="Download slotscope.pptx")
    for state in ("hidden", "visible"):
        ready.wait_for(state=state, timeout=120_000)


def served(port: int) -> subprocess.Popen:
    """`make run`, keeping nothing of what is saved."""
    folder = tempfile.mkdtemp(prefix="slotscope-bench-")
    return subprocess.Popen(
        ["make", "run", f"PORT={port}", "HOST=127.0.0.1"],
        cwd=ROOT,
        env=os.environ | {"SLOTSCOPE_DATABASE_URL": f"sqlite:///{folder}/store.db"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def bench_device() -> None:
    """The loop on this machine's CPU: exercise 08.2, and how well the simulator predicts it."""
    from gpu_probe.check import FIGURES, check

    subprocess.run([sys.executable, "-m", "gpu_probe", "bench", "--device", "cpu"], cwd=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        said = check("cpu", "small", Path(folder))
    found = said["stages"]["calibration"]["result"]
    print(
        f"Predicted beside measured, medians of {found.get('rounds', 0)} rounds; % off, and noise"
    )
    for name, part in found.get("scenarios", {}).items():
        for row in ("noise", "error, calibrated", "error, linear"):
            cells = "".join(
                f"  {figure} {100 * x:+6.1f}" for figure, x in zip(FIGURES, part[row], strict=True)
            )
            print(f"  {name:16}{row:18}{cells}")
    for verdict in said["verdicts"]:
        mark = "holds" if verdict["holds"] else "FAILS"
        print(
            f"  {mark}: {verdict['what']} {verdict['value']:.3g} (at most {verdict['bound']:.3g})"
        )


if __name__ == "__main__":
    print(f"numpy {np.__version__}, Python {sys.version.split()[0]}")
    bench_engine()
    bench_vllm()
    bench_traces()
    bench_sweep()
    bench_sglang()
    bench_grants()
    if "engine" not in sys.argv:
        bench_page()
        bench_live()
        bench_million()
        bench_viewers()
        bench_device()
