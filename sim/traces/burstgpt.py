"""BurstGPT, all three files: the third has two columns more, and failures have no response."""

from . import Rows, trace


@trace("BurstGPT 1, 2, 3", "csv", "Timestamp", "Request tokens", "Response tokens", unit="s")
def burstgpt(t):
    """Seconds from local midnight of the first day. `Elapsed time` is E2E, and is not used."""
    arrival = t.numbers("Timestamp", "a number of seconds")
    prompt, output = t.tokens("Request tokens", 0), t.tokens("Response tokens", 0)
    t.leave_out(output == 0, "failed: no response tokens")
    t.mark(prompt == 0, "Request tokens is 0 where there is a response")
    return Rows(arrival, prompt, output)
