"""What is read off a sweep's table: worked by hand, and against slow obvious twins."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.curves import bands, binding, binds_above, edges, front, knee, knees


def test_a_knee_is_where_a_curve_turns():
    assert knee([1, 2, 3, 4, 5], [1, 1, 1, 5, 9]) == 2
    assert knee([1, 2, 3, 4, 5], [1, 2, 3, 3, 3]) == 2
    assert knee([1, 2, 3], [1, 2, 3]) is None
    assert knee([1, 2, 3], [4, 4, 4]) is None
    assert knee([1, 2], [1, 9]) is None
    assert knee([1, 2, 3, 4], [1, 9, 2, 1]) == 1


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"problem": "", **columns})


def test_a_band_is_the_seeds_mean_and_range():
    t = table(
        variant=["static"] * 6, rate=[1, 1, 2, 2, 3, 3], seed=[1, 2] * 3, tok_s=[1, 3, 2, 6, 9, 9.0]
    )
    found = bands(t, ["rate"], ["tok_s", "nothing"])
    assert found["mean"].tolist() == [2, 4, 9]
    assert found["low"].tolist() == [1, 2, 9]
    assert found["high"].tolist() == [3, 6, 9]
    assert found["label"].unique().tolist() == ["static"]
    assert knees(found, "rate")["rate"].tolist() == [2]


SHARES = {f"time_{name}": 0.0 for name in ("seats", "blocks", "budget", "batch", "compute", "idle")}


@pytest.mark.parametrize(
    ("shares", "binds"),
    [
        ({"time_seats": 6, "time_blocks": 5, "time_compute": 80, "time_idle": 9}, "seats"),
        ({"time_seats": 5, "time_blocks": 6, "time_compute": 89}, "blocks"),
        ({"time_budget": 100}, "budget"),
        ({"time_batch": 4.9, "time_compute": 95.1}, "compute"),
        ({"time_compute": 90, "time_idle": 10}, "nothing"),
    ],
)
def test_the_limit_that_keeps_the_line_out_longest_binds(shares, binds):
    assert binding(SHARES | shares | {"problem": ""}) == binds


def test_a_limit_binds_above_where_it_does_to_the_end():
    frame = table(
        variant="static",
        rate=[4, 1, 2, 3, 5],
        binds=["seats", "seats", "compute", "blocks", "seats"],
    )
    assert binds_above(frame, "rate", "static") == (3.0, "blocks")
    assert binds_above(frame.assign(binds="compute"), "rate", "static") is None
    assert binds_above(frame, "rate", "other") is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_front_holds_whatever_no_other_beats(values):
    frame = pd.DataFrame(values, columns=["user_tok_s", "tok_s"], dtype=float)
    on = front(frame)
    for k, (x, y) in enumerate(values):
        beaten = any(a >= x and b >= y and (a, b) != (x, y) for a, b in values)
        assert not (bool(on[k]) and beaten)
        if not beaten:
            assert any(bool(on[m]) and values[m] == (x, y) for m in range(len(values)))


def test_a_point_without_a_figure_is_on_no_front():
    frame = pd.DataFrame({"user_tok_s": [np.nan, 2.0], "tok_s": [9.0, 1.0]})
    assert front(frame).tolist() == [False, True]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**36 - 1))
def test_the_border_runs_between_cells_that_differ(height, width, bits):
    feasible = np.array([bits >> k & 1 for k in range(height * width)], bool).reshape(height, width)
    found = {tuple(row) for row in edges(feasible).to_numpy()}
    expected = set()
    for y in range(height):
        for x in range(width):
            for dy, dx, edge in (
                (0, -1, (x, x, y, y + 1)),
                (0, 1, (x + 1, x + 1, y, y + 1)),
                (-1, 0, (x, x + 1, y, y)),
                (1, 0, (x, x + 1, y + 1, y + 1)),
            ):
                inside = 0 <= y + dy < height and 0 <= x + dx < width
                if feasible[y, x] and not (inside and feasible[y + dy, x + dx]):
                    expected.add(edge)
    assert found == expected
