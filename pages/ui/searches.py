"""Work that outlasts a page's run: a thread that anybody who asks for the same can watch."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import streamlit as st

from sim import sweep
from sim.parameter import ScenarioError

from .text import plain

UNSEEN = 8.0  # seconds without anybody watching, after which a job ends; what it has stays
KEPT = 40  # finished jobs, with their results
GLANCE = 0.4  # seconds that a page waits for a job before it shows how far it is
REFRESH = 3.0  # seconds between two looks at what a job has so far


class Ended(Exception):
    """Cancelled, or nobody is looking."""


class Job:
    """`work(go_on)` in a thread of its own; go_on(done, of) reports, and ends it on request."""

    def __init__(self, work: Callable[[Callable[[int, int], None]], Any]):
        self.done, self.of, self.began, self.seen = 0, 0, time.monotonic(), time.monotonic()
        self.result, self.error, self.cancelled, self.abandoned = None, "", False, False
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work) -> None:
        try:
            self.result = work(self._go_on)
        except ScenarioError as error:
            self.error = str(error)
        except Ended:
            pass
        except Exception as error:
            self.error = f"the runs ended: {type(error).__name__}: {error}"
            raise

    def _go_on(self, done: int, of: int) -> None:
        self.done, self.of = done, of
        self.abandoned = time.monotonic() > self.seen + UNSEEN
        if self.cancelled or self.abandoned:
            raise Ended

    def cancel(self) -> None:
        self.cancelled = True

    def watch(self) -> None:
        """Somebody looks."""
        self.seen = time.monotonic()

    @property
    def running(self) -> bool:
        return self.thread.is_alive() and not self.cancelled

    def wait(self, seconds: float) -> None:
        """A short job is done before anybody sees its progress."""
        self.thread.join(seconds)

    @property
    def progress(self) -> str:
        """How many runs are done, and how long the rest will take."""
        if not self.done:
            return "Starting"
        left = (time.monotonic() - self.began) / self.done * (self.of - self.done)
        return f"{self.done:,} of {self.of:,} runs, about {max(1, round(left)):,} s left"


@st.cache_resource(show_spinner=False)
def _jobs() -> OrderedDict[tuple, Job]:
    return OrderedDict()


_lock = threading.Lock()


def job(key: tuple, work: Callable[[Callable[[int, int], None]], Any]) -> Job:
    """The job of that key, begun if there is none or nobody had looked at it."""
    with _lock:
        jobs = _jobs()
        if key not in jobs or jobs[key].abandoned:
            jobs[key] = Job(work)
        jobs.move_to_end(key)
        jobs[key].watch()
        for old in [k for k, j in jobs.items() if not j.thread.is_alive()][:-KEPT]:
            del jobs[old]
        return jobs[key]


def forget(key: tuple) -> None:
    """So that the next call begins it again; what it had run is on disk."""
    with _lock:
        _jobs().pop(key, None)


def found(key: tuple) -> Any:
    """What the job of that key has found; None as long as it has not."""
    return _jobs()[key].result if key in _jobs() else None


def watched(key: tuple, job: Job, show, partly=None) -> None:
    """`show()` once the job is done; till then how far it is, and `partly()`: what it has so far,
    and keeps when it is cancelled."""
    job.wait(GLANCE)

    def look():
        job.watch()
        if not job.running and st.session_state.pop(f"running {key}", False):
            st.rerun()
        if job.result is not None:
            show()
            return
        if job.error:
            _failed(key, job)
        elif job.cancelled:
            kept, again = ("; these are kept", "Go on") if partly else ("", "Start again")
            st.warning(f"Cancelled after {job.done:,} of {job.of:,} runs{kept}.")
            st.button(again, key=f"again {key}", on_click=forget, args=(key,))
        else:
            st.session_state[f"running {key}"] = True
            left, right = st.columns([6, 1], vertical_alignment="center")
            left.progress(min(1.0, job.done / max(1, job.of)), job.progress)
            right.button("Cancel", key=f"cancel {key}", on_click=job.cancel)

    st.fragment(look, run_every=0.5 if job.running else None)()
    if partly and job.result is None:
        st.fragment(partly, run_every=REFRESH if job.running else None)()


def _failed(key: tuple, job: Job) -> None:
    st.error(f"{plain(job.error)}.")
    left, right, _ = st.columns([1, 1, 4])
    left.button("Try again", key=f"retry {key}", on_click=forget, args=(key,))
    if sweep.CLUSTER in job.error:
        right.button(
            "Run here",
            key=f"here {key}",
            on_click=st.session_state.update,
            args=({"run_here": True},),
        )
