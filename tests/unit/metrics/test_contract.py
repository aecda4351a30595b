"""What is accepted as a hard mask, as a length and as a rule, and the message for everything else."""

import math

import numpy as np
import pytest

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.metrics import EmptyRule, higher_is_better, score, score_keys
from mcpmix.metrics.contract import as_mask, as_pair, squared_limit

BITS = np.array([[0, 1], [1, 0]])


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int8, np.uint16, np.int64, np.float16, np.float64])
def test_zeros_and_ones_of_any_type_are_a_mask(kind):
    mask = as_mask(BITS.astype(kind))
    assert mask.dtype == np.uint8
    assert mask.flags.c_contiguous
    assert not mask.flags.writeable
    assert (mask == BITS).all()


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.float32])
def test_zero_and_255_is_a_mask(kind):
    assert (as_mask(BITS.astype(kind) * 255) == BITS).all()


@pytest.mark.parametrize("value", [0, 1, 255])
def test_constant_masks(value):
    assert (as_mask(np.full((2, 3), value)) == (value > 0)).all()


def test_the_input_stays_writeable():
    values = BITS.astype(np.uint8)
    as_mask(values)
    assert values.flags.writeable


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0, 1], [255, 0]], "holds 0, 1, 255"),
        ([[0, 2], [0, 0]], "holds 0, 2"),
        ([[0, -1], [0, 1]], "holds -1, 0, 1"),
        ([[0.0, 0.4], [0.9, 1.0]], "holds 0, 0.4, 0.9, 1"),
        ([[0, 7], [248, 255]], "holds 0, 7, 248, 255"),
        (np.arange(9).reshape(3, 3), "holds 0, 1, 2, 3, 4, 5 and 3 more"),
        ([[0.0, np.nan], [np.nan, 1.0]], "2 of its 4 values are NaN"),
        ([[0.0, np.inf], [0.0, 1.0]], "holds 0, 1, inf"),
    ],
)
def test_other_values_are_refused_and_shown(values, words):
    with pytest.raises(DataError, match=words) as error:
        as_mask(values, "truth")
    assert str(error.value).startswith("truth must be a hard mask with values 0 and 1 or 0 and 255")


def test_soft_maps_are_told_how_to_threshold():
    with pytest.raises(DataError, match="No threshold is applied silently"):
        as_mask(np.full((2, 2), 0.5))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4, 4, 3), r"its shape is \(4, 4, 3\). It looks like a colour image"),
        ((1, 4, 4), r"its shape is \(1, 4, 4\). Take its only channel"),
        ((4, 4, 1), r"mask.squeeze\(\)"),
        ((4,), r"its shape is \(4,\)"),
        ((0, 4), "at least one pixel"),
    ],
)
def test_other_shapes_are_refused(shape, words):
    with pytest.raises(DataError, match=words):
        as_mask(np.zeros(shape, bool))


@pytest.mark.parametrize("values", [[["a", "b"]], [[1j, 0]], [[None, 1]]])
def test_things_that_are_no_numbers_are_refused(values):
    with pytest.raises(DataError, match="must be boolean or numeric"):
        as_mask(values)


def test_both_problems_of_a_pair_come_at_once():
    with pytest.raises(DataError) as error:
        as_pair(np.full((2, 2), 0.5), np.zeros((2, 2, 3)))
    assert "truth must be a hard mask" in str(error.value)
    assert "prediction must be a mask of shape (H, W)" in str(error.value)


def test_0_255_truth_against_0_1_prediction():
    truth, prediction = as_pair(BITS.astype(np.uint8) * 255, BITS.astype(np.uint8))
    assert (truth == prediction).all()


@pytest.mark.parametrize("radius", [0, 0.5, 1, 2**0.5, 2, 3**0.5, 2.5, 3, 7.3, 18**0.5])
def test_integer_limits_decide_like_square_roots(radius):
    squares = np.arange(400)
    assert np.array_equal(squares <= squared_limit(radius), np.sqrt(squares) <= radius)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tolerances": (-1,)}, "a tolerance must be a finite number of pixels, at least 0, but is -1"),
        ({"band": math.nan}, "band must be a finite number of pixels, at least 0, but is nan"),
        ({"tolerances": (2, 2.0)}, "tolerances must differ"),
    ],
)
def test_lengths_that_are_none_are_refused(arguments, words):
    mask = np.ones((3, 3), bool)
    with pytest.raises(ConfigError, match=words):
        score(mask, mask, **arguments)


def test_a_wrong_rule_is_refused():
    with pytest.raises(
        ConfigError, match="one_empty must be one of 'worst', 'infinite', 'undefined', but is 'nan'"
    ):
        EmptyRule(one_empty="nan")  # type: ignore[arg-type]


def test_only_distances_are_better_when_lower():
    assert {key for key in score_keys() if not higher_is_better(key)} == {"hd95", "assd"}
    assert higher_is_better("bf1_0.5")
