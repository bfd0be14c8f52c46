"""The real server and the real browser, each started once for a worker."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

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

Visit = Callable[..., Page]


def free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def wait_for_health(url: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=5):
                return
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(0.05)
    pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[str]:
    """Its address. Uploads are limited to UPLOAD_MB."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port)]
    command += ["--server.address", HOST, "--server.headless", "true"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"SLOTSCOPE_MAX_UPLOAD_MB": str(UPLOAD_MB)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for_health(f"http://{HOST}:{port}", process, log)
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing = f"no browser: none of {', '.join(NAMES)} is here (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def watch(page: Page, faults: list[str]) -> None:
    """Write down whatever a page should not do."""

    def outside(url: str) -> bool:
        return urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).hostname != HOST

    page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("requestfailed", lambda r: faults.append(f"failed: {r.url[:200]} {r.failure}"))
    page.on("request", lambda r: faults.append(f"outside: {r.url}") if outside(r.url) else None)


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[Visit]:
    """visit(address, **options of the context) opens a fresh context there.

    At the end: no page has logged an error, and none has asked another host for anything.
    """
    contexts, faults = [], []

    def go(address: str = "/", **options) -> Page:
        options = {"viewport": {"width": 1400, "height": 1000}, "locale": "en-US"} | options
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(20_000)
        page = contexts[-1].new_page()
        watch(page, faults)
        page.goto(server + address)
        return page

    yield go
    seen = list(faults)  # closing a page ends requests, which is no fault of it
    for context in contexts:
        context.close()
    assert not seen, "\n".join(seen)


@pytest.fixture
def page(visit: Visit) -> Page:
    """The opening page in a fresh context."""
    return visit("/")
