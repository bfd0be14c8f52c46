"""The real server and the real browser, each started once for a worker."""

import base64
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
HOST = "127.0.0.1"
UPLOAD_MB = 1  # of the server under test
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PATIENCE = 20_000  # ms, on a machine with other work

# What tests keep goes with them; read where sim.store is imported first.
STORE = tempfile.TemporaryDirectory(prefix="slotscope-store-")
os.environ["SLOTSCOPE_DATABASE_URL"] = f"sqlite:///{STORE.name}/store.db"
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit it: what one has run, all have
    os.environ["SLOTSCOPE_CACHE"] = STORE.name

Visit = Callable[..., Page]


class Server(NamedTuple):
    url: str
    log: Path


def free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def wait_for_health(server: Server, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=5):
                return
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(0.05)
    pytest.fail(f"the server did not start:\n{server.log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    """The app, served. Uploads are limited to UPLOAD_MB."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    command += ["--server.address", HOST, "--server.headless", "true"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ
            | {"SLOTSCOPE_MAX_UPLOAD_MB": str(UPLOAD_MB)}
            | {"SLOTSCOPE_RUNS": str(log.parent / "runs")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    started = Server(f"http://{HOST}:{port}", log)
    try:
        wait_for_health(started, process)
        yield started
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing = f"no browser: none of {', '.join(NAMES)} is here (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def watch(page: Page, faults: list[str]) -> None:
    """Write down whatever a page should not do."""

    def outside(url: str) -> bool:
        return urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).hostname != HOST

    def fault(message) -> bool:
        # Opened at a page's own path, Streamlit looks for its server there first.
        probe = "/_stcore/" in message.location.get("url", "")
        return message.type == "error" and not probe

    page.on("console", lambda m: faults.append(m.text) if fault(m) else None)
    page.on("pageerror", lambda error: faults.append(str(error)))

    def failed(request):
        # A page that is left may still be loading a script, or a picture that it has made itself.
        if request.failure != "net::ERR_ABORTED":
            faults.append(f"failed: {request.url[:200]} {request.failure}")

    page.on("requestfailed", failed)
    page.on("request", lambda r: faults.append(f"outside: {r.url}") if outside(r.url) else None)


def new_context(browser: Browser, **options) -> BrowserContext:
    usual = {"viewport": {"width": 1400, "height": 1000}, "locale": "en-US"}
    context = browser.new_context(**usual | options)
    context.set_default_timeout(PATIENCE)
    return context


@pytest.fixture(scope="session")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    """One whose tabs find Streamlit's own files in the cache: a second less for each test."""
    context = new_context(browser)
    yield context
    context.close()


@pytest.fixture
def visit(browser: Browser, shared_context: BrowserContext, server: Server) -> Iterator[Visit]:
    """visit(address) opens a tab there; with fresh=True, or options of its own, another browser.

    `sent` collects what the page says to the server; dark=True asks for the dark scheme. At the
    end: no page has logged an error or asked another host for anything, and the server has raised
    nothing.
    """
    opened, faults, said = [], [], len(server.log.read_text())

    def go(address: str = "/", *, sent=None, dark=False, fresh=False, **options) -> Page:
        own = fresh or options
        context = new_context(browser, **options) if own else shared_context
        page = context.new_page()
        opened.append(context if own else page)
        watch(page, faults)
        if sent is not None:
            page.on("websocket", lambda socket: socket.on("framesent", lambda f: sent.append(f)))
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.goto(server.url + address)
        return page

    yield go
    seen = list(faults)  # closing a page ends requests, which is no fault of it
    for each in opened:
        each.close()
    assert not seen, "\n".join(seen)
    raised = server.log.read_text()[said:].rpartition("Traceback")
    assert not raised[1], "".join(raised[1:])


@pytest.fixture(scope="session")
def timeline_js() -> str:
    """The timeline's own JavaScript, as an address to import it from."""
    source = (ROOT / "pages" / "ui" / "timeline.js").read_bytes()
    return f"data:text/javascript;base64,{base64.b64encode(source).decode()}"
