"""Mixed images on their way to the real ones."""

import math

import numpy as np
import pytest

from mcpmix.bench.distribution import Features, Point, trend


def test_the_trend_of_distances():
    assert trend([1, 2, 3], [5.0, 3.0, 1.0]) == pytest.approx(-1)
    assert trend([1, 2, 3], [1.0, 3.0, 5.0]) == pytest.approx(1)
    assert math.isnan(trend([1], [5.0]))
    assert math.isnan(trend([1, 2], [5.0, 5.0]))


def test_the_map_has_room_around_all_points():
    found = Features(
        np.array([[0.0, 0.0], [1.0, 2.0]]), [Point(1, 0.5, 1.0, np.array([[-1.0, 0.0], [9.0, 8.0]]))]
    )
    low, high = found.bounds
    assert low == pytest.approx([-1.5, -0.4])
    assert high == pytest.approx([9.5, 8.4])
