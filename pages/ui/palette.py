"""Colours that stay apart for colour-blind readers; phases and variants never share one."""

# Okabe and Ito's, and Tol's muted set, less the blues (decode), the oranges (prefill) and the greys
# (padding): for a light ground, and lighter for a dark one.
VARIANTS = (
    ("#007a5a", "#2fc89b"),  # green
    ("#b5468f", "#ea8fca"),  # reddish purple
    ("#6b6b00", "#cfcf4d"),  # olive
    ("#882255", "#e0709e"),  # wine
    ("#117733", "#8fd19e"),
    ("#5b3a8e", "#b79cf0"),  # violet
)
BETTER, WORSE = ("#0f7b4a", "#4fd08f"), ("#b3261e", "#ff8a80")


def variant_colours(k: int) -> tuple[str, str]:
    """The colour of variant k on a light and on a dark ground."""
    return VARIANTS[k % len(VARIANTS)]
