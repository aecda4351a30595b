"""Scores per group and the choice of images."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmix.core.errors import DataError
from mcpmix.report.scores import (
    by_group,
    differences,
    group_gains,
    group_means,
    pick_cases,
    read_scores,
    seed_means,
    spread_over_groups,
)

GROUP_OF = {"a1": "a", "a2": "a", "b1": "b"}


def test_scores_are_read_with_nan(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("id,miou,dsc\na1,1,2.5\nb1,3,nan\n", encoding="utf-8")
    scores = read_scores(path, "dsc", ["b1", "a1"])
    assert scores["a1"] == 2.5
    assert math.isnan(scores["b1"])


@pytest.mark.parametrize("content", ["id,miou\na1,1\n", "id,dsc\na1,high\n", "id,dsc\na1\n"])
def test_damaged_scores_are_named(tmp_path, content):
    path = tmp_path / "scores.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"scores\.csv is not a table of scores.*id and dsc.*evaluate again"):
        read_scores(path, "dsc", ["a1"])


def test_scores_of_other_images_are_refused(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("id,dsc\na1,1\n", encoding="utf-8")
    with pytest.raises(
        DataError, match="scores of 1 images, expected those of the 2 test images; 1 differ, a2"
    ):
        read_scores(path, "dsc", ["a1", "a2"])


def test_group_means_leave_out_undefined_values():
    means = group_means({"a1": 10.0, "a2": math.nan, "b1": math.nan, "z": 1.0}, GROUP_OF)
    assert means["a"] == 10.0
    assert math.isnan(means["b"])
    assert means.keys() == {"a", "b"}


def test_gains_pair_equal_seeds():
    scores = {
        ("full-sup", 0): {"a1": 10.0, "a2": 20.0, "b1": 1.0},
        ("full-sup", 1): {"a1": 30.0, "a2": 30.0, "b1": 2.0},
        ("mcpmix", 1): {"a1": 40.0, "a2": 44.0, "b1": 0.0},
    }
    groups = by_group(scores, GROUP_OF)
    assert groups["full-sup"] == {"a": {0: 15.0, 1: 30.0}, "b": {0: 1.0, 1: 2.0}}
    assert group_gains(groups, "mcpmix", "full-sup") == {"a": {1: 12.0}, "b": {1: -2.0}}
    assert seed_means(groups["full-sup"]) == {"a": 22.5, "b": 1.5}


def test_differences_of_common_names():
    assert differences({"a": 3.0, "b": 1.0}, {"a": 1.0, "c": 5.0}) == {"a": 2.0}


def test_best_median_and_worst_by_hand():
    values = {f"i{k}": float(k) for k in range(9)} | {"undefined": math.nan}
    cases = pick_cases(values, 1)
    assert [(case.kind, case.id, case.value) for case in cases] == [
        ("best", "i8", 8.0),
        ("median", "i4", 4.0),
        ("worst", "i0", 0.0),
    ]
    assert [case.id for case in pick_cases(values, 2)] == ["i8", "i7", "i5", "i4", "i1", "i0"]


@given(st.dictionaries(st.text(max_size=3), st.floats(-100, 100), max_size=20), st.integers(1, 4))
def test_cases_are_extremes_and_come_once(values, each):
    cases = pick_cases(values, each)
    ids = [case.id for case in cases]
    assert len(ids) == len(set(ids))
    assert len(ids) == min(3 * min(each, math.ceil(len(values) / 3)), len(values))
    kinds = {
        kind: [case.value for case in cases if case.kind == kind] for kind in ("best", "median", "worst")
    }
    ranked = sorted(values.values(), reverse=True)
    assert kinds["best"] == ranked[: len(kinds["best"])]
    assert kinds["worst"] == ranked[len(ranked) - len(kinds["worst"]) :]
    if kinds["median"]:
        assert min(kinds["best"]) >= max(kinds["median"])
        assert min(kinds["median"]) >= max(kinds["worst"])


def test_samples_of_as_many_groups_as_possible():
    group_of = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "c1": "c"}
    assert spread_over_groups(group_of, 5) == ["a1", "b1", "c1", "a2", "b2"]
    assert spread_over_groups(group_of, 2) == ["a1", "b1"]
    assert spread_over_groups({}, 2) == []
