import numpy as np
import pytest
from torch import nn

from mcpmix.data.index import Arrays
from mcpmix.generator.admission import Admission, expose, exposure_limits, exposure_problem, tally
from mcpmix.generator.copies import CopyCheck
from mcpmix.generator.judge import Judge

SIZE = 16


class Bright(nn.Module):
    def forward(self, images):
        return 20 * images[:, :1]


class MeanColour(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))


def picture(blue=0, at=slice(2, 10)):
    """A square of red on a ground of some blue."""
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    image[..., 2] = blue
    image[at, at, 0] = 255
    return image


@pytest.fixture
def admission():
    images = np.stack([picture(0), picture(200)])
    masks = np.zeros((2, SIZE, SIZE), np.uint8)
    masks[:, 2:10, 2:10] = 1
    arrays, groups = Arrays(("a", "b"), images, masks), ["x", "y"]
    judge = Judge([Bright(), Bright()], {"x": 0, "y": 1}, {"a": 1.0, "b": 0.8})
    copies = CopyCheck(MeanColour(), arrays, groups, Arrays((), images[:0], masks[:0]), seed=0)
    limits = {"features": 0.05, "picture": 0.0}
    exposure = exposure_limits(images, 0.5)
    return Admission(judge, copies, arrays, groups, alignment=0.5, copy=limits, exposure=exposure)


def test_good_images_are_admitted_with_all_scores(admission):
    [(scores, reasons)] = admission.assess(picture(100)[None], [0])
    assert reasons == []
    assert scores["alignment"] == 1.0
    assert scores["contrast"] == pytest.approx(1.0, abs=1e-3)
    assert scores["nearest_train"] == "b"
    assert scores["distance_source"] == pytest.approx(0.5, abs=0.01)
    assert scores["distance_held_out"] is None  # there are none; NaN is no JSON
    assert {"mean", "spread", "clipped", "distance_train"} <= scores.keys()
    assert {"picture_source", "picture_train", "alike_train"} <= scores.keys()


@pytest.mark.parametrize(
    ("image", "source", "reasons"),
    [
        (picture(100, slice(10, 16)), 0, ["alignment: 0.00 < 0.50"]),
        (picture(0), 0, ["copy: features of its source at 0.000 < 0.050"]),
        (picture(200), 0, ["copy: features of b at 0.000 < 0.050"]),
        (np.full((SIZE, SIZE, 3), 90, np.uint8), 0, ["blank", "alignment: 0.00 < 0.50"]),
    ],
)
def test_bad_images_are_rejected_with_every_reason(admission, image, source, reasons):
    [(_, found)] = admission.assess(image[None], [source])
    assert found == reasons


def test_thresholds_are_told_with_their_meaning(admission, tmp_path):
    told = admission.summary([], tmp_path, 1)["thresholds"]
    assert set(told) == {"alignment", "copy", "exposure"}
    assert told["copy"]["features"]["limit"] == 0.05
    assert set(told["copy"]["picture"]) == {"limit", "found", "mistaken"}


def test_masks_that_the_judge_misses_in_the_real_image_are_known(admission, tmp_path):
    assert admission.summary([], tmp_path, 1)["unjudgeable"] == []
    admission.judge.real["b"] = 0.4
    assert admission.summary([], tmp_path, 1)["unjudgeable"] == ["b"]


def test_reasons_are_counted_by_kind_once_per_image():
    rows = [
        {"reasons": ["copy: its source at 0.001 < 0.010", "copy: b at 0.002 < 0.010"]},
        {"reasons": ["alignment: 0.10 < 0.50", "too dark"]},
        {"reasons": []},
        {"reasons": ["alignment: 0.20 < 0.50"]},
    ]
    assert tally(rows) == {"alignment": 2, "copy": 1, "too dark": 1}


def halves(low, high):
    image = np.full((8, 8, 3), low, np.uint8)
    image[:4] = high
    return image


REAL = np.stack([halves(51, 102), halves(102, 204)])


def test_exposure_by_hand():
    grey, burnt = expose(np.stack([halves(51, 102), halves(0, 255)]))
    assert grey["mean"] == pytest.approx(0.3)
    assert grey["spread"] == pytest.approx(0.1)
    assert grey["clipped"] == 0
    assert burnt["clipped"] == pytest.approx(0.5)


def test_limits_lie_beyond_the_real_images():
    limits = exposure_limits(REAL, 0.5)
    assert limits["darkest"] == pytest.approx(0.15)
    assert limits["brightest"] == pytest.approx(0.8)
    assert limits["flattest"] == pytest.approx(0.05)
    assert limits["clipped"] == pytest.approx(0.1)
    tight = exposure_limits(REAL, 0.0)
    assert not any(exposure_problem(item, tight) for item in expose(REAL))


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (halves(100, 104), "blank"),
        (halves(0, 60), "too dark"),
        (halves(180, 245), "too bright"),
        (halves(20, 255), "burnt out"),
        (halves(40, 120), ""),
    ],
)
def test_problems_are_named(image, problem):
    assert exposure_problem(expose(image[None])[0], exposure_limits(REAL, 0.5)) == problem
