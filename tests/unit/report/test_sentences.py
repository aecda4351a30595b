"""What is said of networks that have learnt nothing; the same words ahead and behind."""

import math

import pytest

from mcpmix.report.sentences import (
    alarms,
    basis,
    caution,
    comparison,
    nothing_learnt,
    step_note,
    undefined_note,
)
from mcpmix.report.tables import REGION, build_table


def table(**scores):
    """One seed of each arm; scores are those of recall, pixel accuracy and DSC."""
    keys = [column["key"] for column in REGION]
    summaries = {}
    for arm, (recall, right, dsc) in scores.items():
        values = dict.fromkeys(keys, 50.0) | {"recall": recall, "pixel_accuracy": right, "dsc": dsc}
        summaries[arm.replace("_", "-"), 0] = {
            key: {"mean": value, "n": 4, "undefined": 0} for key, value in values.items()
        }
    return build_table(summaries, REGION)


def logs(*scores):
    return {("full-sup", 0): [{"epoch": n, "validation": {"dsc": score}} for n, score in enumerate(scores)]}


def test_networks_that_learnt_are_not_spoken_of():
    assert alarms(table(full_sup=(60, 90, 50), mcpmix=(70, 91, 55)), logs(10, 40, 50)) == []


def test_nothing_learnt_comes_first_and_says_what_to_change():
    both = table(full_sup=(0, 89, 0), mcpmix=(0, 89, 0))
    texts = alarms(both, logs(0, 0, 0))
    assert texts[0].startswith("Nothing was learnt: none of the 2 arms has reached a test DSC of 5 %")
    assert "train.epochs" in texts[0]
    assert any(text.startswith("+ MCPMix marks next to nothing: 0.0 %") for text in texts)
    assert any("Validation never rose" in text and "Full-Sup, seed 0" in text for text in texts)
    assert nothing_learnt(both)
    assert not any(cell["best"] for row in both["rows"] for cell in row["metrics"].values())


def test_one_arm_that_fails_beside_one_that_works():
    mixed = table(full_sup=(60, 90, 50), mcpmix=(1, 89, 2))
    assert not nothing_learnt(mixed)
    (text,) = alarms(mixed, {})
    assert text.startswith("+ MCPMix marks next to nothing")


def test_a_network_that_marks_everything():
    (text,) = alarms(table(full_sup=(99, 12, 20)), {})
    assert "marks nearly everything: 99 % of the lesion pixels, and only 12 %" in text


@pytest.mark.parametrize("scores", [(20,), (), (20, 21), (20, 10, 30)])
def test_a_validation_that_rises_once_is_enough(scores):
    assert alarms(table(full_sup=(60, 90, 50)), logs(*scores)) == []


def table_of(reference, method, undefined=0):
    def entry(value):
        return {"dsc": {"mean": value, "n": 4 - undefined, "undefined": undefined}}

    runs = {("full-sup", seed): entry(value) for seed, value in enumerate(reference)}
    runs |= {("mcpmix-rla", seed): entry(value) for seed, value in enumerate(method)}
    return build_table(runs, REGION[-1:])


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
        undefined_note(table_of([60.0], [61.0]), REGION[-1:])
        == "No value was undefined (4 for each arm and metric)."
    )
    assert undefined_note(table_of([60.0, 61.0], [61.0, 62.0], undefined=1), REGION[-1:]).endswith(
        "are in no mean: Full-Sup: DSC 2 of 8; + MCPMix + RLA: DSC 2 of 8."
    )


@pytest.mark.parametrize("other", [[300, 300], [300]])
def test_equal_steps(other):
    note = step_note({"full-sup": [300, 300], "mcpmix": other}, 8)
    assert note.startswith("Every training ran for the same 300 optimiser steps with 8 real images each")


def test_unequal_steps_are_called_unfair():
    note = step_note({"full-sup": [300, 300], "mcpmix": [300, 200]}, 8)
    assert note.endswith("the comparison is not fair. Full-Sup: 300; + MCPMix: 200, 300.")
