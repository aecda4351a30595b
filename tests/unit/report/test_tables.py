"""Tables against values worked out by hand."""

import json
import math
import statistics

import pytest

from mcpmix.core.errors import DataError
from mcpmix.report.tables import (
    Spread,
    boundary_columns,
    build_table,
    from_json,
    read_summary,
    region_columns,
    to_json,
    to_markdown,
    to_rows,
)

DSC = region_columns()[-1:]
HD95 = boundary_columns(())[:1]


def summary(n=4, undefined=0, **means):
    return {key: {"mean": value, "n": n, "undefined": undefined} for key, value in means.items()}


def dsc_table(values, columns=DSC):
    key = columns[0].key
    return build_table({run: summary(**{key: value}) for run, value in values.items()}, columns)


THREE = {
    ("full-sup", 0): 70.0,
    ("mcpmix-rla", 0): 74.0,
    ("full-sup", 1): 60.0,
    ("mcpmix-rla", 1): 61.0,
    ("full-sup", 2): 62.0,
    ("mcpmix-rla", 2): 69.0,
}


def test_mean_and_sample_deviation_over_seeds():
    cell = dsc_table(THREE).row("full-sup").cells["dsc"]
    assert cell.values == {0: 70.0, 1: 60.0, 2: 62.0}
    assert cell.spread.mean == 64
    assert cell.spread.sd == pytest.approx(statistics.stdev([70, 60, 62]))
    assert cell.spread.text() == "64.00 ± 5.29"


def test_the_difference_is_taken_seed_by_seed():
    """Differences 4, 1, 7: their spread is 3, not that of two independent arms."""
    delta = dsc_table(THREE).row("mcpmix-rla").cells["dsc"].delta
    assert (delta.mean, delta.sd, delta.count) == (4.0, 3.0, 3)
    assert delta.text(signed=True) == "+4.00 ± 3.00"
    assert dsc_table(THREE).row("full-sup").cells["dsc"].delta is None


def test_only_seeds_that_both_have_are_compared():
    table = dsc_table({**THREE, ("mcpmix-rla", 9): 99.0})
    assert table.row("mcpmix-rla").cells["dsc"].delta.count == 3
    assert table.seeds == (0, 1, 2, 9)


def test_one_seed_has_no_deviation():
    table = dsc_table({("full-sup", 0): 70.0, ("mcpmix-rla", 0): 68.5})
    cell = table.row("mcpmix-rla").cells["dsc"]
    assert cell.spread.sd is None
    assert cell.delta.sd is None
    assert "±" not in to_markdown(table)
    assert to_rows(table)[2] == ["+ MCPMix + RLA", "68.50", "−1.50"]
    assert to_json(table)["rows"][1]["metrics"]["dsc"]["spread"] == {"mean": 68.5, "sd": None, "count": 1}


@pytest.mark.parametrize(("columns", "best"), [(DSC, "mcpmix-rla"), (HD95, "full-sup")])
def test_the_best_is_the_highest_share_and_the_lowest_distance(columns, best):
    table = dsc_table(THREE, columns)
    assert [row.arm for row in table.rows if row.cells[columns[0].key].best] == [best]


def test_ties_are_all_best_and_a_lone_arm_is_not():
    tied = dsc_table({("full-sup", 0): 70.0, ("mcpmix", 0): 70.0, ("mcpmix-rla", 0): math.nan})
    assert [row.cells["dsc"].best for row in tied.rows] == [True, True, False]
    alone = dsc_table({("full-sup", 0): 70.0})
    assert not alone.rows[0].cells["dsc"].best
    assert alone.reference is None
    assert to_rows(alone) == [["arm", "DSC ↑ (%)"], ["Full-Sup", "70.00"]]


def test_undefined_values_are_counted_and_shown_as_such():
    columns = region_columns()[-1:]
    table = build_table(
        {
            ("full-sup", 0): summary(n=3, undefined=1, dsc=50.0),
            ("full-sup", 1): summary(n=4, undefined=0, dsc=60.0),
            ("mcpmix", 0): summary(n=0, undefined=4, dsc=math.nan),
        },
        columns,
    )
    first, second = (row.cells["dsc"] for row in table.rows)
    assert (first.scored, first.undefined, table.images) == (7, 1, 4)
    assert second.spread.text() == "–"
    assert second.delta.text(signed=True) == "–"
    assert json.loads(json.dumps(to_json(table), allow_nan=False))["rows"][1]["metrics"]["dsc"]["values"] == {
        "0": None
    }


def test_columns_are_those_of_the_paper_with_units_and_direction():
    assert [column.heading for column in region_columns()] == [
        "mIoU ↑ (%)",
        "PA ↑ (%)",
        "Recall ↑ (%)",
        "Precision ↑ (%)",
        "DSC ↑ (%)",
    ]
    assert [(c.key, c.label, c.unit, c.higher_is_better) for c in boundary_columns((2, 2.5))] == [
        ("hd95", "HD95", "px", False),
        ("assd", "ASSD", "px", False),
        ("bf1_2", "BF1@2", "%", True),
        ("bf1_2.5", "BF1@2.5", "%", True),
        ("biou", "BIoU", "%", True),
    ]


def test_markdown_by_hand():
    assert to_markdown(dsc_table(THREE)) == (
        "|  | DSC ↑ (%) |\n| --- | ---: |\n"
        "| Full-Sup | 64.00 ± 5.29 |\n| + MCPMix + RLA | **68.00 ± 6.56** |\n\n"
        "| minus Full-Sup | DSC ↑ (%) |\n| --- | ---: |\n| + MCPMix + RLA | +4.00 ± 3.00 |\n"
    )


def test_rows_for_a_terminal():
    assert to_rows(dsc_table(THREE)) == [
        ["arm", "DSC ↑ (%)", "Δ DSC"],
        ["Full-Sup", "64.00 ± 5.29", "–"],
        ["+ MCPMix + RLA", "68.00 ± 6.56 *", "+4.00 ± 3.00"],
    ]


def test_json_and_back():
    table = dsc_table(THREE)
    assert from_json(json.loads(json.dumps(to_json(table)))) == table


def test_a_table_of_fewer_columns():
    columns = (*region_columns()[-2:],)
    table = build_table({("full-sup", 0): summary(dsc=1.0, precision=2.0)}, columns)
    assert to_rows(table.select(DSC))[1] == ["Full-Sup", "1.00"]


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


def test_a_summary_is_read_with_its_undefined_numbers(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text('{"dsc": {"mean": NaN, "sd": NaN, "n": 0, "undefined": 3}}', encoding="utf-8")
    entry = read_summary(path)["dsc"]
    assert math.isnan(entry["mean"])
    assert entry["undefined"] == 3


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"dsc": 3}', '{"dsc": {"mean": 1}}', '{"dsc": {"mean": "x"}}']
)
def test_a_damaged_summary_is_named(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"summary\.json is not a summary of scores.*evaluate again"):
        read_summary(path)


def test_spread_of_nothing():
    assert Spread.of([]).text() == "–"
    assert Spread.of([math.nan, 3.0]) == Spread(3.0, None, 1)
