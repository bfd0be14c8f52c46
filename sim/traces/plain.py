"""The plain form: what anybody can write by hand or from a notebook; and columns named by hand."""

from . import Rows, Trace, trace


@trace("Plain CSV", "csv", "arrival_ms", "prompt_len", "output_len")
def plain(t):
    """Times in ms from any zero, lengths in tokens."""
    return Rows(t.numbers("arrival_ms", "a number of ms"), *lengths(t))


def lengths(t):
    return t.tokens("prompt_len"), t.tokens("output_len")


def _mapped(t):
    scale = {"arrival_ms": 1e6, "arrival_s": 1e9}
    arrival = t.dates("arrival_date") if "arrival_date" in t else None
    for name in scale.keys() & set(t.data.column_names):
        arrival = t.numbers(name) * scale[name]
    return Rows(arrival, *lengths(t))


# What a column of an unknown CSV may be said to be.
ROLES = {
    "arrival_ms": "arrival, ms",
    "arrival_s": "arrival, s",
    "arrival_date": "arrival, date and time",
    "prompt_len": "prompt, tokens",
    "output_len": "output, tokens",
}
MAPPED = Trace("mapped", "CSV with columns named by hand", "csv", (), "ns", "", 0, _mapped)
