"""Region metrics from counts, against scikit-learn's definitions written out, and by hand."""

import json
import math

import numpy as np
import pytest
import torch

from mcpmix.core.errors import DataError
from mcpmix.metrics import (
    Counts,
    EmptyRule,
    RegionAccumulator,
    count,
    region_scores,
    score,
    score_with_counts,
)
from mcpmix.metrics.contract import REGION_KEYS


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


@pytest.fixture
def batches():
    rng = np.random.default_rng(0)
    truth = torch.from_numpy(rng.random((24, 1, 17, 23)) < 0.3)
    prediction = truth ^ torch.from_numpy(rng.random((24, 1, 17, 23)) < rng.random((24, 1, 1, 1)) * 0.5)
    truth[3] = prediction[3] = False  # undefined
    truth[5] = False  # false alarm
    prediction[7] = False  # missed
    return prediction, truth


def test_equals_scoring_each_image(batches):
    prediction, truth = batches
    accumulator = RegionAccumulator()
    for start in range(0, 24, 5):
        accumulator.update(prediction[start : start + 5], truth[start : start + 5])
    found = accumulator.compute()
    rows = [score_with_counts(y[0].numpy(), p[0].numpy()) for y, p in zip(truth, prediction, strict=True)]
    pooled = region_scores(sum((counts for _, counts in rows), Counts(0, 0, 0, 0)))
    for key in REGION_KEYS:
        assert found[key] == pytest.approx(np.nanmean([scores[key] for scores, _ in rows]))
        assert found[f"pooled_{key}"] == pooled[key]
    assert found["images"] == 24
    assert found["undefined"] == 1


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.float32, torch.int64])
def test_truth_of_any_type_and_masks_without_channel(batches, kind):
    prediction, truth = batches
    expected, found = RegionAccumulator(), RegionAccumulator()
    expected.update(prediction, truth)
    found.update(prediction[:, 0], truth[:, 0].to(kind))
    assert found.compute() == expected.compute()


def test_merging_processes_equals_one_process_exactly(batches):
    prediction, truth = batches
    whole = RegionAccumulator()
    whole.update(prediction, truth)
    for order in ([0, 1, 2], [2, 0, 1]):
        parts = []
        for rank in order:
            part = RegionAccumulator()
            part.update(prediction[rank::3], truth[rank::3])
            sent = RegionAccumulator()
            sent.load_state_dict(json.loads(json.dumps(part.state_dict())))
            parts.append(sent)
        first, *others = parts
        for other in others:
            first.merge(other)
        assert first.compute() == whole.compute()


def test_named_images_count_once(batches):
    prediction, truth = batches
    names = [f"image {k}" for k in range(24)]
    whole, padded = RegionAccumulator(), RegionAccumulator()
    whole.update(prediction, truth)
    padded.update(prediction, truth, names)
    padded.update(prediction[:4], truth[:4], names[:4])  # a sampler that fills its last batch
    assert padded.compute() == whole.compute()


def test_one_name_with_two_results_is_refused(batches):
    prediction, truth = batches
    accumulator = RegionAccumulator()
    accumulator.update(prediction[:2], truth[:2], ["a", "a"])
    with pytest.raises(DataError, match="image 'a' came twice with different results"):
        accumulator.compute()


def test_no_images():
    found = RegionAccumulator().compute()
    assert found["images"] == 0
    assert math.isnan(found["dsc"])
    assert math.isnan(found["pooled_dsc"])


def test_reset_forgets(batches):
    accumulator = RegionAccumulator()
    accumulator.update(*batches)
    accumulator.reset()
    assert accumulator.compute()["images"] == 0


def test_rule_is_used(batches):
    prediction, truth = batches
    accumulator = RegionAccumulator(EmptyRule(both_empty="perfect"))
    accumulator.update(prediction[3:4], truth[3:4])
    assert accumulator.compute()["dsc"] == 100.0


def test_counts_beyond_32_bits_do_not_overflow():
    accumulator = RegionAccumulator()
    accumulator.load_state_dict({"counts": [[2**40, 0, 2**40, 0]] * 2, "names": [None, None]})
    assert accumulator.compute()["pooled_recall"] == 50.0


def test_large_masks_are_counted_exactly():
    mask = torch.ones(1, 1, 5000, 4000, dtype=torch.bool)  # more than float32 can count one by one
    mask[..., 0] = False
    accumulator = RegionAccumulator()
    accumulator.update(mask, torch.ones_like(mask))
    assert accumulator.state_dict()["counts"] == [[5000 * 3999, 0, 5000, 0]]


@pytest.mark.parametrize(
    ("prediction", "truth", "words"),
    [
        (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), "prediction must be a boolean mask"),
        (torch.zeros(1, 1, 2, 2).bool(), torch.zeros(1, 1, 2, 3), r"\(1, 1, 2, 2\) and \(1, 1, 2, 3\)"),
        (torch.zeros(1, 2, 2, 2).bool(), torch.zeros(1, 2, 2, 2), "must have one channel"),
        (torch.zeros(2, 2).bool(), torch.zeros(2, 2), r"must both be \(B, 1, H, W\)"),
        (torch.zeros(0, 1, 2, 2).bool(), torch.zeros(0, 1, 2, 2), "not empty"),
    ],
)
def test_wrong_batches_are_refused(prediction, truth, words):
    with pytest.raises(DataError, match=words):
        RegionAccumulator().update(prediction, truth)


def test_wrong_number_of_names_is_refused(batches):
    with pytest.raises(DataError, match="1 came for 24"):
        RegionAccumulator().update(*batches, ["a"])


@pytest.mark.parametrize("value", [0.5, 255.0, math.nan])
def test_a_truth_that_is_not_hard_is_found_when_results_are_asked_for(value):
    accumulator = RegionAccumulator()
    accumulator.update(torch.ones(1, 1, 2, 2).bool(), torch.full((1, 1, 2, 2), value))
    with pytest.raises(
        DataError, match="truth must be a hard mask of 0 and 1, but 4 pixels had other values"
    ):
        accumulator.compute()


def test_agrees_with_the_whole_suite_on_one_image(batches):
    prediction, truth = batches
    accumulator = RegionAccumulator()
    accumulator.update(prediction[:1], truth[:1])
    expected = score(truth[0, 0].numpy(), prediction[0, 0].numpy())
    assert {key: accumulator.compute()[key] for key in REGION_KEYS} == {
        key: expected[key] for key in REGION_KEYS
    }
