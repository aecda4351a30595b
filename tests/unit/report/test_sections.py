"""Sections of the page from numbers worked out by hand."""

import math

import numpy as np

from mcpmix.report.arms import arms_of
from mcpmix.report.scores import Case
from mcpmix.report.sections import case_view, gate_section, group_section, strip, training_section

FULL, RLA = arms_of(["full-sup", "mcpmix-rla"])


def test_groups_are_in_the_order_of_the_reference_with_undefined_ones_last():
    groups = {
        "full-sup": {"a": {0: 50.0}, "b": {0: 70.0}, "c": {0: math.nan}},
        "mcpmix-rla": {"a": {0: 80.0}, "b": {0: 60.0}, "c": {0: 90.0}},
    }
    section = group_section([FULL, RLA], groups, "full-sup", "patients")
    values, gains = section.charts
    assert [values.svg.index(f">{name}<") for name in "bac"] == sorted(
        values.svg.index(f">{n}<") for n in "bac"
    )
    assert "Full-Sup: lowest 50.0, mean 60.0, highest 70.0." in values.alt
    assert "+ MCPMix + RLA: lowest -10.0, mean 10.0, highest 30.0." in gains.alt
    assert "Full-Sup:" not in gains.alt
    assert len(group_section([FULL], groups, None, "patients").charts) == 1


def log(s):
    rows = [
        {"epoch": k + 1, "s": value, "s_prior": 0.7 * value, "loss_real": value} for k, value in enumerate(s)
    ]
    rows[-1]["validation"] = {"dsc": 60.0}
    return rows


def test_gates_tell_where_they_began_and_ended():
    logs = {("mcpmix-rla", 0): log([0.35, 0.2, 0.1]), ("mcpmix-rla", 1): log([0.35, 0.3, 0.2])}
    section = gate_section(RLA, logs, None)
    assert "after the last epoch: share s from 0.35 to 0.15." in section.text
    assert [chart.caption for chart in section.charts] == [
        "Share s of the synthetic image; dashed: its prior."
    ]
    assert "share s goes from 0.35 to 0.15, its prior from 0.245 to 0.105" in section.charts[0].alt


def test_arms_without_learnable_gates_have_no_such_section():
    logs = {("full-sup", 0): [{"epoch": 1, "loss_real": 1.0, "s": 0.3}]}
    assert gate_section(FULL, logs, None) is None


def test_training_shows_what_was_logged():
    logs = {("full-sup", 0): log([0.5, 0.3]), ("mcpmix-rla", 0): log([0.4, 0.0])}
    section = training_section([FULL, RLA], logs, 1)
    assert len(section.charts) == 2
    assert "Full-Sup goes from 0.5 to 0.3. + MCPMix + RLA goes from 0.4 to 0." in section.charts[0].alt


def test_a_strip_shows_the_real_image_first_and_counterparts_beside_it():
    mask = np.zeros((8, 8), np.uint8)
    mask[2:5, 2:5] = 1
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    made = strip("p1", images[0], mask, images[1:], 0.2)
    assert [tile.caption for tile in made.mixed] == ["real, s = 0", "s = 0.1", "s = 0.2"]
    assert [tile.caption for tile in made.counterparts] == ["synthetic 1", "synthetic 2"]
    assert len({tile.uri for tile in (*made.mixed, *made.counterparts)}) == 5
    assert len({tile.contours for tile in (*made.mixed, *made.counterparts)}) == 1


def test_a_case_shows_truth_and_predictions():
    image = np.zeros((8, 8, 3), np.uint8)
    truth = np.zeros((8, 8), np.uint8)
    truth[2:5, 2:5] = 1
    view = case_view(
        Case("worst", "p1", -12.345), image, truth, [(FULL, truth, 100.0), (RLA, 0 * truth, math.nan)]
    )
    assert view.title == "worst: p1, −12.3 points"
    captions = [tile.caption for tile in view.tiles]
    assert captions == ["truth", "Full-Sup: DSC 100.0", "+ MCPMix + RLA: DSC undefined, nothing found"]
    assert [contour.colour for contour in view.tiles[1].contours] == ["#ffffff", FULL.colour]
    alone = case_view(Case("best", "p1", 45.0), image, truth, [(FULL, truth, 45.0)])
    assert alone.title == "best: p1, DSC 45.0"
