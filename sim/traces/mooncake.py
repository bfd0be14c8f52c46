"""Traces that know which prefixes repeat: Mooncake's and Qwen Bailian's."""

import numpy as np

from . import Rows, trace


@trace("Mooncake", "jsonl", "timestamp", "input_length", "output_length", "hash_ids", tokens=512)
def mooncake(t):
    """Arrivals in ms; the conversation trace has ticks of 3 seconds. An id a 512-token block."""
    return _hashed(t, 512)


@trace(
    "Qwen Bailian",
    "jsonl",
    "chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
    unit="s",
    tokens=16,
)
def qwen_bailian(t):
    """Arrivals in s from 0. An id a 16-token block."""
    return _hashed(t, 16)


def _hashed(t, tokens):
    prompt, output = t.tokens("input_length"), t.tokens("output_length")
    arrival, hashes = t.numbers("timestamp"), t.ids("hash_ids")
    given = np.diff(hashes[1])
    wrong = (given > 0) & (given != -(-prompt // tokens))
    t.mark(wrong, f"hash_ids has not one id for each {tokens} tokens of the prompt")
    return Rows(arrival, prompt, output, hashes)
