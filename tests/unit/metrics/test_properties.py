"""What must hold for every pair of masks."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mcpmix.metrics import count, score

SETTINGS = settings(deadline=None, max_examples=150)
SWAPPED = {"precision": "recall", "recall": "precision"}


@st.composite
def pairs(draw, lesions=False):
    """Two masks of one random size; with `lesions`, neither is empty."""
    shape = draw(array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20))
    dense = draw(st.booleans())
    fill = st.just(False) if not dense else st.nothing()
    masks = [draw(arrays(bool, shape, elements=st.booleans(), fill=fill)) for _ in range(2)]
    if lesions:
        assume(all(mask.any() for mask in masks))
    return masks


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-9, nan_ok=True), key


@SETTINGS
@given(pairs())
def test_swapping_truth_and_prediction_swaps_precision_and_recall(pair):
    truth, prediction = pair
    swapped = score(prediction, truth)
    for key, value in score(truth, prediction).items():
        twin = SWAPPED.get(key, key.replace("bp_", "x_").replace("br_", "bp_").replace("x_", "br_"))
        assert swapped[twin] == pytest.approx(value, abs=1e-9, nan_ok=True), key


@SETTINGS
@given(pairs(), st.sampled_from(range(1, 8)))
def test_flips_and_rotations_change_nothing(pair, symmetry):
    def turn(mask):
        turned = np.rot90(mask, symmetry % 4)
        return turned[::-1] if symmetry >= 4 else turned

    assert_equal(score(*map(turn, pair)), score(*pair))


@SETTINGS
@given(pairs(), st.integers(0, 6), st.integers(0, 6))
def test_translation_inside_a_padded_frame_changes_nothing(pair, down, right):
    def place(mask, row, column):
        frame = np.zeros((40, 40), bool)
        frame[row : row + mask.shape[0], column : column + mask.shape[1]] = mask
        return frame

    at_origin = [place(mask, 5, 5) for mask in pair]
    moved = [place(mask, 5 + down, 5 + right) for mask in pair]
    assert_equal(score(*moved), score(*at_origin))


@SETTINGS
@given(pairs())
def test_dice_follows_from_iou(pair):
    counts = count(*pair)
    assume(not (counts.truth_empty and counts.prediction_empty))
    iou = counts.tp / (counts.tp + counts.fp + counts.fn)
    assert score(*pair)["dsc"] == pytest.approx(100 * 2 * iou / (1 + iou))


@SETTINGS
@given(pairs(lesions=True))
def test_a_perfect_prediction_is_perfect(pair):
    found = score(pair[0], pair[0].copy())
    assert found == {key: 0.0 if key in ("hd95", "assd") else 100.0 for key in found}


@SETTINGS
@given(pairs(lesions=True))
def test_boundary_f1_grows_with_the_tolerance_to_100(pair):
    tolerances = (0, 1, 1.5, 2, 4, 8, 100)
    found = score(*pair, tolerances=tolerances)
    for kind in ("bp", "br", "bf1"):
        values = [found[f"{kind}_{tolerance:g}"] for tolerance in tolerances]
        assert values == sorted(values)
        assert values[-1] == 100.0


@SETTINGS
@given(pairs(lesions=True))
def test_distances_are_bounded_by_the_image(pair):
    found = score(*pair)
    diagonal = math.hypot(*pair[0].shape)
    assert 0 <= found["assd"] < diagonal
    assert 0 <= found["hd95"] < diagonal


@SETTINGS
@given(pairs())
def test_every_percentage_is_one(pair):
    for key, value in score(*pair).items():
        if key not in ("hd95", "assd"):
            assert math.isnan(value) or 0 <= value <= 100


@SETTINGS
@given(pairs())
def test_counts_add_up(pair):
    counts = count(*pair)
    assert counts.tp + counts.fp + counts.fn + counts.tn == pair[0].size
    assert min(counts.tp, counts.fp, counts.fn, counts.tn) >= 0
    assert counts.tp + counts.fn == pair[0].sum()
