"""A PostgreSQL of the tests' own, on a socket in a folder: it needs Debian's `postgresql`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL. Skips where none is installed, and fails there in CI."""
    initdb, server = program("initdb"), program("pg_ctl")
    if initdb is None or server is None:
        missing = "no PostgreSQL here (apt-get install postgresql)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="slotscope-pg-"))  # a socket's path has to be short
    as_who: dict = {}
    if os.geteuid() == 0:  # which PostgreSQL refuses to run as
        as_who = {"user": "postgres", "group": "postgres", "extra_groups": []}
        shutil.chown(folder, "postgres", "postgres")
    data, quiet = str(folder / "data"), {"check": True, "capture_output": True, "cwd": folder}
    subprocess.run([initdb, "-D", data, "-U", "slotscope", "-A", "trust", "-N"], **quiet, **as_who)
    options = f"-c listen_addresses='' -k {folder} -F"
    log = str(folder / "log")
    subprocess.run([server, "-D", data, "-w", "-l", log, "-o", options, "start"], **quiet, **as_who)
    try:
        yield f"postgresql://slotscope@/postgres?host={folder}"
    finally:
        subprocess.run([server, "-D", data, "-w", "-m", "immediate", "stop"], **quiet, **as_who)
        shutil.rmtree(folder, ignore_errors=True)
