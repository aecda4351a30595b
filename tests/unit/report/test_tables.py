"""Tables against values worked out by hand; sentences with the same words ahead and behind."""

import json
import math
import statistics

import pytest

from mcpmix.core.errors import DataError
from mcpmix.report.tables import (
    REGION,
    all_columns,
    basis,
    build_table,
    by_group,
    caution,
    column,
    comparison,
    differences,
    group_gains,
    group_means,
    read_scores,
    read_summary,
    seed_means,
    spread_of,
    spread_text,
    step_note,
    to_markdown,
    to_rows,
    undefined_note,
)

DSC = REGION[-1:]
HD95 = [column("hd95", "HD95")]
GROUP_OF = {"a1": "a", "a2": "a", "b1": "b"}


def summary(n=4, undefined=0, **means):
    return {key: {"mean": value, "n": n, "undefined": undefined} for key, value in means.items()}


def dsc_table(values, columns=DSC):
    key = columns[0]["key"]
    return build_table({run: summary(**{key: value}) for run, value in values.items()}, columns)


def cells(table, key="dsc"):
    return {row["arm"]: row["metrics"][key] for row in table["rows"]}


THREE = {
    ("full-sup", 0): 70.0,
    ("mcpmix-rla", 0): 74.0,
    ("full-sup", 1): 60.0,
    ("mcpmix-rla", 1): 61.0,
    ("full-sup", 2): 62.0,
    ("mcpmix-rla", 2): 69.0,
}


def test_mean_and_sample_deviation_over_seeds():
    cell = cells(dsc_table(THREE))["full-sup"]
    assert cell["values"] == {"0": 70.0, "1": 60.0, "2": 62.0}
    assert cell["spread"]["mean"] == 64
    assert cell["spread"]["sd"] == pytest.approx(statistics.stdev([70, 60, 62]))
    assert spread_text(cell["spread"]) == "64.00 ± 5.29"


def test_the_difference_is_taken_seed_by_seed():
    """Differences 4, 1, 7: their spread is 3, not that of two independent arms."""
    found = cells(dsc_table(THREE))
    assert found["mcpmix-rla"]["delta"] == {"mean": 4.0, "sd": 3.0, "count": 3}
    assert spread_text(found["mcpmix-rla"]["delta"], signed=True) == "+4.00 ± 3.00"
    assert found["full-sup"]["delta"] is None


def test_only_seeds_that_both_have_are_compared():
    table = dsc_table({**THREE, ("mcpmix-rla", 9): 99.0})
    assert cells(table)["mcpmix-rla"]["delta"]["count"] == 3
    assert table["seeds"] == [0, 1, 2, 9]


def test_one_seed_has_no_deviation():
    table = dsc_table({("full-sup", 0): 70.0, ("mcpmix-rla", 0): 68.5})
    cell = cells(table)["mcpmix-rla"]
    assert cell["spread"] == {"mean": 68.5, "sd": None, "count": 1}
    assert cell["delta"]["sd"] is None
    assert "±" not in to_markdown(table, DSC)
    assert to_rows(table, DSC)[2] == ["+ MCPMix + RLA", "68.50", "−1.50"]


@pytest.mark.parametrize(("columns", "best"), [(DSC, "mcpmix-rla"), (HD95, "full-sup")])
def test_the_best_is_the_highest_share_and_the_lowest_distance(columns, best):
    found = cells(dsc_table(THREE, columns), columns[0]["key"])
    assert [arm for arm, cell in found.items() if cell["best"]] == [best]


def test_ties_are_all_best_and_a_lone_arm_is_not():
    tied = dsc_table({("full-sup", 0): 70.0, ("mcpmix", 0): 70.0, ("mcpmix-rla", 0): 60.0})
    assert [cell["best"] for cell in cells(tied).values()] == [True, True, False]
    level = dsc_table({("full-sup", 0): 0.0, ("mcpmix", 0): 0.0, ("mcpmix-rla", 0): math.nan})
    assert not any(cell["best"] for cell in cells(level).values())  # zeros beside zeros are no success
    alone = dsc_table({("full-sup", 0): 70.0})
    assert not cells(alone)["full-sup"]["best"]
    assert alone["reference"] is None
    assert to_rows(alone, DSC) == [["arm", "DSC ↑ (%)"], ["Full-Sup", "70.00"]]


def test_undefined_values_are_counted_and_shown_as_such():
    table = build_table(
        {
            ("full-sup", 0): summary(n=3, undefined=1, dsc=50.0),
            ("full-sup", 1): summary(n=4, undefined=0, dsc=60.0),
            ("mcpmix", 0): summary(n=0, undefined=4, dsc=math.nan),
        },
        DSC,
    )
    first, second = cells(table).values()
    assert (first["scored"], first["undefined"], table["images"]) == (7, 1, 4)
    assert spread_text(second["spread"]) == "–"
    assert spread_text(second["delta"], signed=True) == "–"
    assert second["values"] == {"0": None}


def test_a_table_is_plain_json():
    table = dsc_table({**THREE, ("mcpmix", 0): math.nan})
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def test_columns_are_those_of_the_paper_with_units_and_direction():
    region, boundary, sides = all_columns((2, 2.5))
    assert [c["label"] for c in region] == [
        "mIoU", "PA", "Recall", "Precision", "DSC", "pooled mIoU", "pooled DSC",
    ]  # fmt: skip
    assert [tuple(c.values()) for c in boundary] == [
        ("hd95", "HD95", "px", False),
        ("assd", "ASSD", "px", False),
        ("bf1_2", "BF1@2", "%", True),
        ("bf1_2.5", "BF1@2.5", "%", True),
        ("biou", "BIoU", "%", True),
    ]
    assert [c["key"] for c in sides] == ["bp_2", "br_2", "bp_2.5", "br_2.5"]


def test_markdown_by_hand():
    assert to_markdown(dsc_table(THREE), DSC) == (
        "|  | DSC ↑ (%) |\n| --- | ---: |\n"
        "| Full-Sup | 64.00 ± 5.29 |\n| + MCPMix + RLA | **68.00 ± 6.56** |\n\n"
        "| minus Full-Sup | DSC ↑ (%) |\n| --- | ---: |\n| + MCPMix + RLA | +4.00 ± 3.00 |\n"
    )


def test_rows_for_a_terminal():
    assert to_rows(dsc_table(THREE), DSC) == [
        ["arm", "DSC ↑ (%)", "Δ DSC"],
        ["Full-Sup", "64.00 ± 5.29", "–"],
        ["+ MCPMix + RLA", "68.00 ± 6.56 *", "+4.00 ± 3.00"],
    ]


def test_nothing_to_tabulate():
    with pytest.raises(DataError, match="mcpmix evaluate"):
        build_table({}, DSC)


def test_all_summaries_without_a_metric_are_named():
    summaries = {("full-sup", 0): summary(miou=1.0), ("mcpmix", 3): summary(miou=1.0)}
    with pytest.raises(DataError, match=r"full-sup seed 0: no dsc.*\n.*mcpmix seed 3: no dsc"):
        build_table(summaries, DSC)


def test_evaluations_over_different_images_do_not_fit():
    summaries = {("full-sup", 0): summary(n=4, dsc=1.0), ("mcpmix", 0): summary(n=5, dsc=1.0)}
    with pytest.raises(DataError, match=r"full-sup seed 0: 4 images\n.*mcpmix seed 0: 5 images"):
        build_table(summaries, DSC)


def test_a_summary_is_read_with_its_undefined_and_pooled_numbers(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(
        '{"dsc": {"mean": NaN, "sd": NaN, "n": 0, "undefined": 3, "pooled": NaN}, '
        '"miou": {"mean": 50, "sd": 1, "n": 2, "undefined": 1, "pooled": 60}}',
        encoding="utf-8",
    )
    found = read_summary(path)
    assert math.isnan(found["dsc"]["mean"])
    assert (found["dsc"]["undefined"], found["pooled_dsc"]["undefined"]) == (3, 3)
    assert found["pooled_miou"] == {"mean": 60, "n": 3, "undefined": 0}


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"dsc": 3}', '{"dsc": {"mean": 1}}', '{"dsc": {"mean": "x"}}']
)
def test_a_damaged_summary_is_named(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"summary\.json is not a summary of scores.*evaluate again"):
        read_summary(path)


def test_spread_of_nothing():
    assert spread_text(spread_of([])) == "–"
    assert spread_of([math.nan, 3.0]) == {"mean": 3.0, "sd": None, "count": 1}


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


def table_of(reference, method, undefined=0):
    def entry(value):
        return {"dsc": {"mean": value, "n": 4 - undefined, "undefined": undefined}}

    runs = {("full-sup", seed): entry(value) for seed, value in enumerate(reference)}
    runs |= {("mcpmix-rla", seed): entry(value) for seed, value in enumerate(method)}
    return build_table(runs, DSC)


def say(reference, method, groups):
    return comparison(table_of(reference, method), "mcpmix-rla", groups, "test patients")


def test_ahead_and_behind_differ_in_one_word_and_the_counts():
    groups = {"a": 3.0, "b": 1.0, "c": -1.0}
    ahead = say([60.0, 62.0], [63.0, 67.0], groups)
    behind = say([63.0, 67.0], [60.0, 62.0], {name: -value for name, value in groups.items()})
    assert ahead == (
        "+ MCPMix + RLA is 4.00 ± 1.41 points of DSC ahead of Full-Sup (mean ± standard deviation of the "
        "difference over 2 seeds): ahead in 2 of 2 seeds and in 2 of 3 test patients."
    )
    assert behind == (
        ahead.replace("DSC ahead of", "DSC behind")
        .replace("in 2 of 2", "in 0 of 2")
        .replace("2 of 3", "1 of 3")
    )


def test_no_difference_is_level():
    text = say([60.0, 61.0], [60.0, 61.0], {"a": 0.0})
    assert "is level with Full-Sup in DSC, 0.00 ± 0.00 points apart (" in text
    assert "ahead in 0 of 2 seeds and in 0 of 1 test patients" in text


def test_one_seed_gets_no_spread():
    text = say([60.0], [64.0], {"a": 4.0, "b": math.nan})
    assert text == (
        "+ MCPMix + RLA is 4.00 points of DSC ahead of Full-Sup (difference of one seed; no spread can be "
        "given): ahead in 1 of 1 seed and in 1 of 1 test patients."
    )


def test_nothing_defined_cannot_be_compared():
    assert "cannot be compared" in say([math.nan], [50.0], {})


def test_caution_grows_with_fewer_seeds():
    assert "One seed" in caution(1)
    assert caution(3).startswith("3 seeds are few")
    assert caution(10) == ""


def test_basis_counts_images_groups_and_seeds():
    text = basis(table_of([60.0, 61.0], [60.0, 62.0]), "test images of 2 patients")
    assert text.startswith(
        "Each figure is the mean over 4 test images of 2 patients, then mean ± standard deviation over 2 "
        "seeds."
    )
    assert "differences from Full-Sup" in text
    alone = basis(table_of([60.0], []), "new images of 2 known groups")
    assert "4 new images of 2 known groups, for one seed" in alone
    assert "differences" not in alone


def test_undefined_values_are_listed_where_they_are():
    assert (
        undefined_note(table_of([60.0], [61.0]), DSC) == "No value was undefined (4 for each arm and metric)."
    )
    assert undefined_note(table_of([60.0, 61.0], [61.0, 62.0], undefined=1), DSC).endswith(
        "are in no mean: Full-Sup: DSC 2 of 8; + MCPMix + RLA: DSC 2 of 8."
    )


@pytest.mark.parametrize("other", [[300, 300], [300]])
def test_equal_steps(other):
    note = step_note({"full-sup": [300, 300], "mcpmix": other}, 8)
    assert note.startswith("Every training ran for the same 300 optimiser steps with 8 real images each")


def test_unequal_steps_are_called_unfair():
    note = step_note({"full-sup": [300, 300], "mcpmix": [300, 200]}, 8)
    assert note.endswith("the comparison is not fair. Full-Sup: 300; + MCPMix: 200, 300.")
