import numpy as np
import pytest

from mcpmix.generator.admission import ExposureLimits, expose


def halves(low, high):
    image = np.full((8, 8, 3), low, np.uint8)
    image[:4] = high
    return image


REAL = np.stack([halves(51, 102), halves(102, 204)])


def test_exposure_by_hand():
    grey, burnt = expose(np.stack([halves(51, 102), halves(0, 255)]))
    assert grey.mean == pytest.approx(0.3)
    assert grey.spread == pytest.approx(0.1)
    assert grey.clipped == 0
    assert burnt.clipped == pytest.approx(0.5)


def test_limits_lie_beyond_the_real_images():
    limits = ExposureLimits.of(REAL, 0.5)
    assert limits.darkest == pytest.approx(0.15)
    assert limits.brightest == pytest.approx(0.8)
    assert limits.flattest == pytest.approx(0.05)
    assert limits.clipped == pytest.approx(0.1)
    tight = ExposureLimits.of(REAL, 0.0)
    assert not any(tight.problem(item) for item in expose(REAL))


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
    assert ExposureLimits.of(REAL, 0.5).problem(expose(image[None])[0]) == problem
