"""AIBrix workloads: a line a moment, with the requests that come then."""

import numpy as np

from . import Rows, trace


@trace("AIBrix workload", "jsonl", "timestamp", "requests")
def aibrix(t):
    """Arrivals in ms."""
    lists = t.data["requests"].combine_chunks()
    sizes = np.array([len(row or ()) for row in lists.to_pylist()], np.int64)
    t.mark(sizes == 0, "requests is empty")
    arrival = t.numbers("timestamp")
    each = lists.flatten()
    prompt, output = (
        np.nan_to_num(np.asarray(each.field(name), np.float64))
        for name in ("Prompt Length", "Output Length")
    )
    whole = (prompt >= 1) & (output >= 1) & (prompt % 1 == 0) & (output % 1 == 0)
    line = np.repeat(np.arange(len(t)), sizes)
    wrong = np.bincount(line[~whole], minlength=len(t)) > 0
    t.mark(wrong, "a Prompt Length or Output Length is no whole number of tokens from 1 on")
    t.good = np.repeat(t.good, sizes)
    return Rows(np.repeat(arrival, sizes), prompt.astype(np.int64), output.astype(np.int64))
