"""Text as it is, in places that would read it as markup."""

import re


def plain(text: str) -> str:
    """Markdown that shows `text` as it is: a title or an address may hold anything."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))
