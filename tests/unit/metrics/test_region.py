"""Region metrics from counts, against scikit-learn's definitions written out, and by hand."""

import math

import numpy as np
import pytest

from mcpmix.metrics import Counts, EmptyRule, count, region_scores


def test_counts_by_hand():
    truth = np.array([[1, 1, 0], [0, 0, 0]])
    prediction = np.array([[1, 0, 1], [1, 0, 0]])
    assert count(truth, prediction) == Counts(tp=1, fp=2, fn=1, tn=2)


def test_scores_by_hand():
    found = region_scores(Counts(tp=6, fp=2, fn=4, tn=8))
    assert found == {
        "miou": pytest.approx(50 * (6 / 12 + 8 / 14)),
        "precision": pytest.approx(75.0),
        "recall": pytest.approx(60.0),
        "pixel_accuracy": pytest.approx(70.0),
        "dsc": pytest.approx(100 * 12 / 18),
    }


def test_miou_can_exceed_dsc_because_it_has_the_background():
    found = region_scores(Counts(tp=10, fp=5, fn=5, tn=980))
    assert found["miou"] > found["dsc"]


def test_miou_averages_the_classes_that_occur():
    assert region_scores(Counts(0, 0, 0, 9))["miou"] == 100.0
    assert region_scores(Counts(9, 0, 0, 0))["miou"] == 100.0
    assert region_scores(Counts(0, 4, 0, 0))["miou"] == 0.0
    assert region_scores(Counts(0, 4, 0, 12))["miou"] == pytest.approx(50 * 12 / 16)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (EmptyRule(), (0.0, 0.0, math.nan)),
        (EmptyRule(one_empty="undefined"), (math.nan, 0.0, math.nan)),
        (EmptyRule(both_empty="perfect"), (0.0, 0.0, 100.0)),
    ],
)
def test_empty_masks(rule, expected):
    missed, nothing = Counts(0, 0, 3, 6), Counts(0, 0, 0, 9)
    found = (
        region_scores(missed, rule)["precision"],
        region_scores(missed, rule)["recall"],
        region_scores(nothing, rule)["dsc"],
    )
    assert found == pytest.approx(expected, nan_ok=True)
    assert region_scores(missed, rule)["dsc"] == 0.0


def test_adding_counts_pools_images():
    a, b = Counts(1, 2, 3, 4), Counts(10, 20, 30, 40)
    assert a + b == Counts(11, 22, 33, 44)
    assert region_scores(a + b)["dsc"] == pytest.approx(100 * 22 / 77)
