"""The plain form: what anybody can write by hand or from a notebook; and columns named by hand."""

from collections.abc import Mapping

from . import Rows, Trace, trace


@trace("Plain CSV", "csv", "arrival_ms", "prompt_len", "output_len")
def plain(t):
    """Times in ms from any zero, lengths in tokens."""
    return Rows(t.numbers("arrival_ms", "a number of ms"), *lengths(t))


def lengths(t):
    return t.tokens("prompt_len"), t.tokens("output_len")


UNITS = {"arrival_ms": "ms", "arrival_s": "s", "arrival_date": "date"}


def mapped(mapping: Mapping[str, str]) -> Trace:
    """The form of a CSV whose columns were named by hand."""
    unit = next((unit for name, unit in UNITS.items() if name in mapping), "ms")
    return Trace("mapped", "CSV with columns named by hand", "csv", (), unit, "", 0, _mapped)


def _mapped(t):
    arrival = None
    for name in UNITS:
        if name in t:
            arrival = t.dates(name) if name == "arrival_date" else t.numbers(name)
    return Rows(arrival, *lengths(t))


# What a column of an unknown CSV may be said to be.
ROLES = {
    "arrival_ms": "arrival, ms",
    "arrival_s": "arrival, s",
    "arrival_date": "arrival, date and time",
    "prompt_len": "prompt, tokens",
    "output_len": "output, tokens",
}
