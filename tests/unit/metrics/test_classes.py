import math

import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.metrics import Counts, EmptyRule, class_regions, mean_over_classes, score, score_classes
from mcpmix.metrics.contract import REGION_KEYS, score_keys

CLASSES = ("adenoma", "cancer")


def two_kinds(first, second):
    """A label map: 1 where the first mask is, 2 where the second."""
    labels = np.zeros(first.shape, np.uint8)
    labels[first], labels[second] = 1, 2
    return labels


def test_each_class_and_the_mean_as_the_slow_implementation_has_them(random_mask, slow_score):
    rng, compared = np.random.default_rng(5), 0
    for _ in range(40):
        maps = [two_kinds(*(random_mask(rng, 37, 53) for _ in CLASSES)) for _ in range(2)]
        if not all((labels == number).any() for labels in maps for number in (1, 2)):
            continue
        found = score_classes(*maps, CLASSES)
        wanted = [slow_score(maps[0] == number, maps[1] == number) for number in (1, 2)]
        for name, expected in zip(CLASSES, wanted, strict=True):
            assert found.classes[name] == pytest.approx(expected, rel=1e-9)
        means = {key: np.mean([expected[key] for expected in wanted]) for key in wanted[0]}
        assert found.mean == pytest.approx(means, rel=1e-9)
        compared += 1
    assert compared > 20


def test_regions_as_a_confusion_matrix_of_all_labels_gives_them():
    rng = np.random.default_rng(6)
    truth, prediction = rng.integers(0, 4, (2, 30, 20))
    table = np.zeros((4, 4))  # truth down, prediction across
    np.add.at(table, (truth.ravel(), prediction.ravel()), 1)
    hits, predicted, true = np.diag(table)[1:], table.sum(0)[1:], table.sum(1)[1:]

    found = class_regions(truth, prediction, 4)

    assert found["precision"] == pytest.approx(100 * np.mean(hits / predicted))
    assert found["recall"] == pytest.approx(100 * np.mean(hits / true))
    assert found["dsc"] == pytest.approx(100 * np.mean(2 * hits / (predicted + true)))
    wrong = predicted + true - 2 * hits
    assert found["pixel_accuracy"] == pytest.approx(100 * np.mean(1 - wrong / truth.size))
    iou = (hits / (hits + wrong) + (1 - (hits + wrong) / truth.size) / (1 - hits / truth.size)) / 2
    assert found["miou"] == pytest.approx(100 * np.mean(iou))


def test_one_class_beside_others_scores_as_its_own_pair_of_masks():
    truth = np.array([[0, 1, 1, 2], [0, 1, 2, 2]])
    prediction = np.array([[0, 1, 2, 2], [0, 1, 1, 2]])
    found = score_classes(truth, prediction, CLASSES)

    assert list(found.mean) == list(score_keys())
    assert found.classes["cancer"] == score(truth == 2, prediction == 2)
    assert found.counts["cancer"] == Counts(2, 1, 1, 4)


def test_a_class_that_is_nowhere_is_left_out_of_the_mean():
    truth, prediction = np.zeros((2, 10, 10), int)
    truth[2:6, 2:6] = prediction[2:6, 3:7] = 1
    for rule in (EmptyRule(), EmptyRule(both_empty="perfect")):
        found = score_classes(truth, prediction, CLASSES, rule=rule)
        assert found.mean == found.classes["adenoma"]
    prediction[8, 8] = 2  # a false alarm counts
    found = score_classes(truth, prediction, CLASSES)
    assert found.mean["dsc"] == found.classes["adenoma"]["dsc"] / 2
    assert found.mean["hd95"] == (found.classes["adenoma"]["hd95"] + math.hypot(10, 10)) / 2


def test_without_any_lesion_the_mean_is_that_of_two_empty_masks():
    empty = np.zeros((8, 8), int)
    assert score_classes(empty, empty, CLASSES).mean == pytest.approx(score(empty, empty), nan_ok=True)
    assert class_regions(empty, empty, 3)["miou"] == 100


def test_pooled_scores_leave_out_what_no_image_has():
    rows = [dict.fromkeys(REGION_KEYS, value) for value in (60.0, 20.0, math.nan)]
    counts = [Counts(3, 1, 1, 9), Counts(0, 1, 0, 13), Counts(0, 0, 0, 14)]
    assert mean_over_classes(rows, counts)["dsc"] == 40


@pytest.mark.parametrize(
    ("truth", "prediction", "told"),
    [
        (np.zeros((4, 4), int), np.full((4, 4), 3), "prediction holds 3; expected 0 (background) to 2"),
        (np.zeros((4, 4)), np.zeros((4, 4), int), "truth is float64 (4, 4); expected whole numbers"),
        (np.zeros((4, 4), int), np.zeros((4, 5), int), "(4, 4) and prediction is (4, 5)"),
        (np.full((4, 4), -1), np.zeros((1, 4, 4), int), "truth holds -1"),
    ],
)
def test_other_than_label_maps_are_refused(truth, prediction, told):
    with pytest.raises(DataError) as caught:
        score_classes(truth, prediction, CLASSES)
    assert told in str(caught.value)
