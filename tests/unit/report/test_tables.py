"""Tables against values worked out by hand."""

import json
import math
import statistics

import pytest

from mcpmix.core.errors import DataError
from mcpmix.report.tables import (
    REGION,
    all_columns,
    build_table,
    by_group,
    column,
    differences,
    group_gains,
    read_metrics,
    read_summary,
    seed_means,
    spread_of,
    spread_text,
    to_markdown,
    to_rows,
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
    scores = read_metrics(path, ["dsc"], ["b1", "a1"])
    assert scores["a1"] == [2.5]
    assert math.isnan(scores["b1"][0])


@pytest.mark.parametrize("content", ["id,miou\na1,1\n", "id,dsc\na1,high\n", "id,dsc\na1\n"])
def test_damaged_scores_are_named(tmp_path, content):
    path = tmp_path / "scores.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"scores\.csv is not a table of scores.*id and dsc.*evaluate again"):
        read_metrics(path, ["dsc"], ["a1"])


def test_scores_of_other_images_are_refused(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("id,dsc\na1,1\n", encoding="utf-8")
    with pytest.raises(
        DataError, match="scores of 1 images, expected those of the 2 test images; 1 differ, a2"
    ):
        read_metrics(path, ["dsc"], ["a1", "a2"])


def test_group_means_leave_out_undefined_values():
    means = by_group({("mcpmix", 0): {"a1": 10.0, "a2": math.nan, "b1": math.nan}}, GROUP_OF)["mcpmix"]
    assert means["a"] == {0: 10.0}
    assert math.isnan(means["b"][0])


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
