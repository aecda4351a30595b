"""Aggregates, intervals and tests, against scipy, against published tables, and by hand."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import DataError
from mcpmix.metrics import (
    Counts,
    EmptyRule,
    RegionAccumulator,
    bootstrap_intervals,
    compare_methods,
    holm,
    region_scores,
    score,
    score_with_counts,
    summarise,
)
from mcpmix.metrics.contract import REGION_KEYS
from mcpmix.metrics.statistics import Aggregate, aggregate, kid, paired_differences


def test_mean_and_spread():
    values = [3.0, 5.0, 10.0]
    assert aggregate(values) == Aggregate(6.0, pytest.approx(np.std(values, ddof=1)), 3, 0)


def test_undefined_values_are_counted_not_dropped_in_silence():
    found = aggregate([1.0, math.nan, 3.0, math.nan])
    assert (found.mean, found.n, found.undefined) == (2.0, 2, 2)
    assert str(found) == "2.00 ± 1.41 (n=2, 2 undefined)"
    assert str(aggregate([1.0, 3.0])) == "2.00 ± 1.41 (n=2)"


def test_few_and_infinite_values():
    assert math.isnan(aggregate([]).mean)
    assert aggregate([4.0]).mean == 4.0
    assert math.isnan(aggregate([4.0]).sd)
    assert aggregate([4.0, math.inf]).mean == math.inf
    assert math.isnan(aggregate([4.0, math.inf]).sd)


def test_the_order_of_images_does_not_matter():
    rng = np.random.default_rng(0)
    values = (rng.random(1000) * 10.0 ** rng.integers(-8, 8, 1000)).tolist()
    expected = aggregate(values)
    for _ in range(5):
        assert aggregate(rng.permutation(values).tolist()) == expected


def test_summaries_by_metric():
    found = summarise([{"dsc": 80.0, "hd95": 4.0}, {"dsc": 60.0, "hd95": math.nan}])
    assert list(found) == ["dsc", "hd95"]
    assert found["dsc"].mean == 70.0
    assert (found["hd95"].mean, found["hd95"].undefined) == (4.0, 1)
    assert summarise([]) == {}


def test_rows_with_different_metrics_are_refused():
    with pytest.raises(DataError, match=r"row 0 has \['bf1_2'\] and row 1 has \['bf1_3'\]"):
        summarise([{"bf1_2": 1.0}, {"bf1_3": 1.0}])


def test_bootstrap_agrees_with_scipy():
    rng = np.random.default_rng(1)
    values = rng.gamma(2, 10, (150, 2))
    found = bootstrap_intervals(values, resamples=20_000)
    for k in range(2):
        expected = stats.bootstrap(
            (values[:, k],), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
        ).confidence_interval
        spread = values[:, k].std() / math.sqrt(150)
        assert found[k] == pytest.approx([expected.low, expected.high], abs=0.1 * spread)


def test_bootstrap_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(3)
    values = rng.normal(5, 2, (60, 400))  # 400 studies of 60 images
    low, high = bootstrap_intervals(values, confidence=0.9, resamples=500).T
    assert 0.85 < np.mean((low < 5) & (high > 5)) < 0.94


def test_bootstrap_is_reproducible_and_depends_on_the_seed():
    values = np.random.default_rng(4).random((30, 1))
    assert np.array_equal(bootstrap_intervals(values, seed=1), bootstrap_intervals(values, seed=1))
    assert not np.array_equal(bootstrap_intervals(values, seed=1), bootstrap_intervals(values, seed=2))


def test_bootstrap_with_undefined_infinite_and_single_values():
    values = [[1.0, math.nan, math.inf, math.nan], [2.0, 5.0, 1.0, math.nan], [3.0, 7.0, 1.0, 2.0]]
    found = bootstrap_intervals(values)
    assert np.isfinite(found[:2]).all()
    assert 5 <= found[1, 0] < found[1, 1] <= 7
    assert np.isnan(found[2:]).all()


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.01, math.nan, 0.02]) == pytest.approx([0.02, math.nan, 0.02], nan_ok=True)
    assert holm([]) == []


def rows(key, values):
    return [{key: float(value)} for value in values]


def test_signed_rank_by_hand():
    # Differences +1 +2 +3 +4 -5: W- = 5, W+ = 10. Of the 32 sign patterns 10 have a sum of at most 5.
    (test,) = compare_methods(rows("dsc", [1, 2, 3, 4, 0]), rows("dsc", [0, 0, 0, 0, 5]))
    assert test.p == pytest.approx(2 * 10 / 32)
    assert test.effect == pytest.approx((10 - 5) / 15)
    assert test.difference == pytest.approx(1.0)
    assert (test.n, test.excluded) == (5, 0)


def test_effect_is_positive_for_the_better_method_in_either_direction():
    better, worse = [9, 8, 7, 6], [5, 5, 5, 5]
    assert compare_methods(rows("dsc", better), rows("dsc", worse))[0].effect == 1.0
    (distance,) = compare_methods(rows("hd95", better), rows("hd95", worse))
    assert distance.effect == -1.0
    assert distance.difference == pytest.approx(2.5)


def test_equal_methods_do_not_differ():
    (test,) = compare_methods(rows("dsc", [1, 2, 3]), rows("dsc", [1, 2, 3]))
    assert (test.p, test.p_holm, test.effect, test.difference) == (1.0, 1.0, 0.0, 0.0)


def test_undefined_images_are_excluded_and_counted():
    (test,) = compare_methods(rows("dsc", [1, math.nan, 3, 4]), rows("dsc", [0, 2, math.nan, 3]))
    assert (test.n, test.excluded) == (2, 2)
    (none,) = compare_methods(rows("dsc", [math.nan]), rows("dsc", [1]))
    assert (none.n, none.excluded) == (0, 1)
    assert math.isnan(none.p)


def test_p_values_equal_scipy_and_are_corrected_over_metrics():
    rng = np.random.default_rng(6)
    first = [{"dsc": a, "hd95": b} for a, b in rng.normal(0.3, 1, (80, 2))]
    second = [{"dsc": 0.0, "hd95": 0.0}] * 80
    dsc, hd95 = compare_methods(first, second)
    assert dsc.p == pytest.approx(stats.wilcoxon([row["dsc"] for row in first]).pvalue)
    assert [dsc.p_holm, hd95.p_holm] == pytest.approx(holm([dsc.p, hd95.p]))
    assert dsc.low < dsc.difference < dsc.high


def test_methods_on_different_images_are_refused():
    with pytest.raises(DataError, match="first method has 1 images and the second 2"):
        compare_methods(rows("dsc", [1]), rows("dsc", [1, 2]))
    with pytest.raises(DataError, match="same metrics"):
        compare_methods(rows("dsc", [1]), rows("hd95", [1]))


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


def test_groups_of_one_image_are_images():
    values = np.random.default_rng(0).normal(1, 2, (20, 2))
    alone = bootstrap_intervals(values, groups=[f"g{n:02d}" for n in range(20)])
    np.testing.assert_allclose(alone, bootstrap_intervals(values))


def test_the_interval_over_groups_by_hand():
    """Two groups of two values: the mean of a resample is 1, 2 or 3, each extreme one time in four."""
    values, groups = np.array([[1.0], [1.0], [3.0], [3.0]]), ["a", "a", "b", "b"]
    np.testing.assert_allclose(bootstrap_intervals(values, groups=groups), [[1, 3]])
    assert np.isnan(bootstrap_intervals(values, groups=["a"] * 4)).all()
    # A group is as heavy as its defined images: a mean over images, not of group means.
    uneven = np.array([[0.0], [0.0], [0.0], [8.0], [np.nan]])
    found = bootstrap_intervals(uneven, groups=["a", "a", "a", "b", "b"], confidence=0.2)
    np.testing.assert_allclose(found, [[2, 2]])


def test_differences_of_a_comparison():
    first, second = (
        np.array([[5.0, 1.0], [7.0, 1.0], [9.0, np.nan]]),
        np.array([[4.0, 1.0], [5.0, 1.0], [6.0, 1.0]]),
    )
    better, same = paired_differences(first - second, ["a", "b", "b"])
    assert (better.n, better.mean, better.effect) == (3, 2.0, 1.0)
    assert better.low >= 1
    assert (better.group_low, better.group_high) == (1.0, 2.5)
    assert (same.n, same.mean, same.p) == (2, 0.0, 1.0)


# --- KID -------------------------------------------------------------------------------------------------


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
