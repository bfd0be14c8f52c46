"""Recordings of other programs, replayed: equal means equal as floats, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .parameter import ScenarioError
from .run import serve
from .state import Limits
from .traffic import Traffic
from .workload import Workload, draw


class Recording(NamedTuple):
    """A format: the keys that tell it, and the replay of a file, which says what differs first."""

    keys: frozenset[str]
    replay: Callable[[dict], str | None]


RECORDINGS: list[Recording] = []


def recording(*keys: str):
    def register(replay):
        RECORDINGS.append(Recording(frozenset(keys), replay))
        return replay

    return register


@recording("policy", "arrival_ms", "first_tok_ms", "finish_ms", "wall_ms")
def module08(r: dict) -> str | None:
    """A run of the course module's simulator, and its draw of the traffic from the seed."""
    traffic = Traffic(
        rate=r["rate_rps"],
        duration=r["duration_s"],
        seed=r["seed"],
        as_printed=int(r["arrival_unit"] != "ms"),
    )
    drawn = draw(traffic)
    limits = Limits(r["max_num_seqs"], r["max_num_batched_tokens"], r["chunk"])
    columns = [np.array(r[name]) for name in ("arrival_ms", "prompt_len", "out_len")]
    arrival, prompt, output = columns
    run = serve(
        Workload(arrival, prompt, output, output), r["policy"], limits, tuple(r["cost"].values())
    )
    pairs = {
        "arrival_ms": drawn.arrival,
        "prompt_len": drawn.prompt,
        "out_len": drawn.output,
        "first_tok_ms": run.requests["first"],
        "finish_ms": run.requests["finish"],
        "wall_ms": np.array([run.total]),
    }
    for name, ours in pairs.items():
        theirs = np.atleast_1d(r[name])
        if len(ours) != len(theirs):
            return f"{name}: {len(ours)} values, recorded {len(theirs)}"
        for i in np.flatnonzero(ours != theirs)[:1]:
            return f"{name} of request {i}: {ours[i]!r}, recorded {theirs[i]!r}"
    return None


def replay(path: Path) -> str | None:
    """What differs first between the recording at `path` and our run; None where all is equal."""
    try:
        content = json.loads(path.read_text())
        form = next((f for f in RECORDINGS if f.keys <= content.keys()), None)
        return form.replay(content) if form else "no recording of a known format"
    except (OSError, ValueError, AttributeError) as error:
        return f"can't be read: {error}"
    except (KeyError, TypeError, IndexError) as error:
        return f"lacks or misstates a field: {error!r}"


def replay_all(path: Path) -> dict[Path, str | None]:
    """The same for a file, or for each *.json of a folder. ScenarioError if there is none."""
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths or not paths[0].is_file():
        raise ScenarioError(f"{path} holds no recording: give a .json file or a folder of them")
    return {p: replay(p) for p in paths}
