"""Lengths without arrivals."""

from . import Rows, trace


@trace("Lengths only (vidur)", "csv", "num_prefill_tokens", "num_decode_tokens")
def lengths_only(t):
    """No arrivals: whoever uses it chooses a rate."""
    return Rows(None, t.tokens("num_prefill_tokens"), t.tokens("num_decode_tokens"))
