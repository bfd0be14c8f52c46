"""Azure's LLM inference traces of 2023 and 2024 share a header; fractions and offsets differ."""

from . import in_order, timestamps, trace, whole


@trace("Azure LLM inference 2023, 2024", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
def azure(table):
    return in_order(
        timestamps(table.TIMESTAMP), whole(table.ContextTokens), whole(table.GeneratedTokens)
    )
