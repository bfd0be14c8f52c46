"""The plain form: what anybody can write by hand or from a notebook."""

from . import in_order, milliseconds, trace, whole


@trace("Plain CSV", "arrival_ms", "prompt_len", "output_len")
def plain(table):
    return in_order(
        milliseconds(table.arrival_ms), whole(table.prompt_len), whole(table.output_len)
    )
