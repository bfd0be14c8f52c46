"""Splitwise: as vidur ships it, and as its own simulator reads it."""

from . import Rows, trace


@trace(
    "Splitwise (vidur)", "csv", "arrived_at", "num_prefill_tokens", "num_decode_tokens", unit="s"
)
def splitwise(t):
    """Azure's rows of 2023, seconds from 0."""
    arrival = t.numbers("arrived_at", "a number of seconds")
    return Rows(arrival, t.tokens("num_prefill_tokens"), t.tokens("num_decode_tokens"))


@trace("splitwise-sim", "csv", "arrival_timestamp", "prompt_size", "token_size", unit="s")
def splitwise_sim(t):
    """Whole seconds."""
    arrival = t.numbers("arrival_timestamp", "a number of seconds")
    return Rows(arrival, t.tokens("prompt_size"), t.tokens("token_size"))
