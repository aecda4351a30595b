"""What is said of networks that have learnt nothing."""

import pytest

from mcpmix.report.alarms import alarms, nothing_learnt
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
