"""Defaults of engines by version, GPU and how they are started: no figure is one everywhere."""

import pandas as pd

from .parameter import written
from .presets import ENGINES, GPUS, USAGES, preset

VLLM = [version for version, engine in ENGINES.items() if engine.program == "vllm"]  # newest first
STARTS = {usage: label.partition(",")[0] for usage, label in USAGES.items()}


def table(name: str) -> pd.DataFrame:
    """vLLM's default of that name: a row a version and start, a column a GPU."""
    rows = []
    for version in VLLM:
        for usage, start in STARTS.items():
            row = {"version": ENGINES[version].label, "started as": start}
            for gpu in GPUS:
                engine = preset(f"vllm-{version}-{gpu}-{usage}")
                assert engine
                row[gpu] = written(engine.defaults[name])
            rows.append(row)
    return pd.DataFrame(rows)


def where(name: str, version: str) -> tuple[tuple[str, str], ...]:
    """(as what and on which GPUs vLLM of that version is started, its default of that name)."""
    by_start: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    shown = table(name)
    for row in shown.loc[shown["version"] == ENGINES[version].label].to_dict("records"):
        for value in dict.fromkeys(row[gpu] for gpu in GPUS):
            on = tuple(gpu.upper() for gpu in GPUS if row[gpu] == value)
            by_start.setdefault((value, on), []).append(row["started as"])
    return tuple(
        (f"{'' if len(starts) == len(STARTS) else f'as {starts[0]} '}on {', '.join(on)}", value)
        for (value, on), starts in by_start.items()
    )


def scheduling(version: str) -> tuple[tuple[str, str], ...]:
    """(the engine, the scheduling policy that it starts with)."""
    return ((ENGINES[version].label, next(iter(ENGINES[version].policies))),)
