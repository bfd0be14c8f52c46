"""ServeGen's clients: a rate and a law of intervals for each window of ten minutes."""

import math

import numpy as np

from ..parameter import ScenarioError
from . import Rows, trace

WINDOW = 600.0  # s
FASTEST = 100_000  # req/s of one client
MOST = 20_000_000  # requests of a file


@trace("ServeGen client", "bare", "start_s", "rate_rps", "cv", "law", "p1", "p2", unit="s")
def servegen(t):
    """Rates, not requests: intervals are drawn by each window's law and shape, at its rate."""
    start, rate, law = t.numbers("start_s"), t.numbers("rate_rps"), t.texts("law")
    shape = t.numbers("p1")
    t.mark(start % WINDOW != 0, f"start_s is no multiple of {WINDOW:g}")
    t.mark((rate < 0) | (rate > FASTEST), f"rate_rps is not from 0 to {FASTEST:,}")
    busy = (rate > 0) & t.good
    t.mark(busy & ~np.isin(law, ["Gamma", "Weibull"]), "law is neither Gamma nor Weibull")
    t.mark(busy & ~(shape > 0), "p1, the shape, is not above 0")
    parts = [np.zeros(0)]
    if (asked := WINDOW * rate[busy & t.good].sum()) > MOST:
        raise ScenarioError(f"its rates ask for {asked:,.0f} requests, over {MOST:,}: cut the file")
    for k in np.flatnonzero(busy & t.good):
        rng = np.random.default_rng([0, int(start[k])])
        parts.append(start[k] + _times(rng, law[k], shape[k], rate[k]))
    arrival = np.concatenate(parts)
    t.good = np.ones(len(arrival), bool)
    return Rows(arrival, None, None)


def _times(rng, law: str, shape: float, rate: float) -> np.ndarray:
    """s within the window."""
    size = math.ceil(rate * WINDOW * 2) + 64
    gaps = rng.gamma(shape, 1.0, size) if law == "Gamma" else rng.weibull(shape, size)
    mean = shape if law == "Gamma" else math.gamma(1 + 1 / shape)
    times = (gaps / mean / rate).cumsum()
    return times[times < WINDOW]
