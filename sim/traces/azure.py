"""Azure's LLM inference traces share a header; fractions and offsets differ by year."""

from . import Rows, trace


@trace(
    "Azure LLM inference 2023, 2024, 2025",
    "csv",
    "TIMESTAMP",
    "ContextTokens",
    "GeneratedTokens",
    unit="date",
)
def azure(t):
    """Wall clock with fractions of 6 or 7 digits. `NumImages` of 2025 is not used."""
    return Rows(t.dates("TIMESTAMP"), t.tokens("ContextTokens"), t.tokens("GeneratedTokens"))
