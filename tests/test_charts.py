"""Charts, by what they tell Vega-Lite to draw."""

import numpy as np
import pandas as pd
import pytest

from pages.ui import charts
from sim.bins import counted
from sim.metrics import Sample


def drawn(sample: Sample, log: bool, cumulative: bool) -> tuple[np.ndarray, np.ndarray]:
    """The points of the first variant's line: x in ms, y in %."""
    chart = charts.distribution(
        counted({"v": sample}, log),
        pd.DataFrame({"variant": ["v"], "p95": [sample.quantile(0.95)], "label": ["p95"]}),
        title="TTFT",
        of="requests",
        log=log,
        limit=None,
        colours={"v": "#000000"},
        dark=False,
        cumulative=cumulative,
    )
    line = chart["layer"][0 if cumulative else 1]
    rows = chart["datasets"][line["data"]["name"]]
    x, y = (line["encoding"][axis]["field"] for axis in "xy")
    return rows[x].to_numpy(), rows[y].to_numpy()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("q", [0.5, 0.95])
def test_a_running_sum_goes_through_the_percentiles(log, q):
    sample = Sample(np.random.default_rng(5).gamma(4, 10, 20_000))
    x, y = drawn(sample, log, cumulative=True)
    assert (y[0], y[-1]) == (0, pytest.approx(100))
    assert np.interp(sample.quantile(q), x, y) == pytest.approx(100 * q, abs=0.5)


def test_a_histogram_ends_where_its_last_bin_does():
    sample = Sample(np.array([1.0, 2.0, 8.0]))
    x, y = drawn(sample, False, cumulative=False)
    assert (x[-1], y[-1]) == (8, 0)
    assert y[-2] == pytest.approx(100 / 3)
