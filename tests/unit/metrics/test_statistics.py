"""Aggregates, intervals and tests, against scipy, against published tables, and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from mcpmix.core.errors import DataError
from mcpmix.metrics import bootstrap_intervals, compare_methods, holm, summarise
from mcpmix.metrics.statistics import Aggregate, aggregate


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
