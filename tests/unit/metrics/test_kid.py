"""The kernel distance, against its definition."""

import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.metrics.kid import kid


def slow_kid(x, y):
    """The definition, pair by pair."""

    def k(a, b):
        return (sum(p * q for p, q in zip(a, b, strict=True)) / len(a) + 1) ** 3

    within_x = [k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    within_y = [k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j]
    across = [k(a, b) for a in x for b in y]
    return np.mean(within_x) + np.mean(within_y) - 2 * np.mean(across)


@pytest.fixture
def features():
    rng = np.random.default_rng(0)
    return rng.normal(size=(7, 5)), rng.normal(size=(6, 5)) + 0.5


def test_against_the_definition(features):
    assert kid(*features).value == pytest.approx(slow_kid(*features), rel=1e-10)


def test_error_is_that_of_leaving_one_out(features):
    x, y = features
    left = np.array([slow_kid(np.delete(x, i, axis=0), y) for i in range(len(x))])
    expected = np.sqrt((len(x) - 1) / len(x) * ((left - left.mean()) ** 2).sum())
    assert kid(x, y).error == pytest.approx(expected, rel=1e-8)


def test_hand_worked():
    # One feature: kernel (ab + 1)^3; within x all pairs 1, within y 8, across 1.
    assert kid([[0.0], [0.0], [0.0]], [[1.0], [1.0]]) == pytest.approx((7.0, 0.0))


def test_unbiased_around_zero_for_one_distribution_and_growing_with_the_distance():
    rng = np.random.default_rng(1)
    same = [kid(rng.normal(size=(20, 4)), rng.normal(size=(20, 4))).value for _ in range(200)]
    assert min(same) < 0 < max(same)
    assert abs(np.mean(same)) < 4 * np.std(same) / np.sqrt(200)
    x, y = rng.normal(size=(60, 4)), rng.normal(size=(60, 4))
    values = [kid(x + shift, y).value for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values)


@pytest.mark.parametrize(("x", "y"), [((2, 4), (9, 4)), ((9, 4), (1, 4)), ((9, 4), (9, 5)), ((9,), (9, 4))])
def test_what_does_not_fit_is_said(x, y):
    with pytest.raises(DataError, match="kid expects features"):
        kid(np.zeros(x), np.zeros(y))
