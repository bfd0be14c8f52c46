"""Compilation, decided once: every compiled function of the project is decorated from here."""

import hashlib
import shutil
from pathlib import Path

import numba
from numba.core import config

HERE = Path(__file__).parent
CACHE = HERE.parent / ".jit"

# numba's cache on disk watches only the file that a function stands in: after an edit to a helper
# elsewhere its callers would be silently stale. A folder named after all our sources cures that.
SOURCES = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(HERE.rglob("*.py")))).hexdigest()
config.CACHE_DIR = str(CACHE / SOURCES[:12])  # pyright: ignore[reportAttributeAccessIssue]


def jit(*signature):
    """`@jit()` for helpers; `@jit(SIGNATURE)` for functions that are passed around as values."""
    # Compiled code here never allocates. Without the reference counts of arrays that it only
    # borrows (atomic, one for each array of State at each call) it runs nine times as fast.
    return numba.njit(  # pyright: ignore
        *signature, cache=True, nogil=True, _nrt=False, forceinline=not signature
    )


def drop_stale() -> None:
    """Remove the caches of earlier sources."""
    for folder in CACHE.glob("*"):
        if folder.name != SOURCES[:12]:
            shutil.rmtree(folder, ignore_errors=True)
