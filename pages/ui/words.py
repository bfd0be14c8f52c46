"""Text as it is, in places that would read it as markup."""

import re


def plain(text: str) -> str:
    """Markdown that shows `text` as it is: a title or an address may hold anything."""
    return re.sub(r"([^A-Za-z0-9\s])", r"\\\1", " ".join(text.split()), flags=re.ASCII)
