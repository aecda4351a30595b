"""Regions that stand out, on walls made by hand and on phantom frames whose masks are known."""

import numpy as np
import pytest
from tools.pretrain.regions import raised_region

from mcpmix import phantom
from mcpmix.data.phantom_set import PRETRAINING_SEED

SIZE = 96


def wall():
    """A wall that comes nearer to the right."""
    return np.tile(np.linspace(0.3, 0.7, SIZE), (SIZE, 1))


def ellipse(row, column, height, width):
    y, x = np.mgrid[:SIZE, :SIZE]
    return ((y - row) / height) ** 2 + ((x - column) / width) ** 2 <= 1


def overlap(found, mask):
    return (found & mask).sum() / (found | mask).sum()


def test_a_bump_is_found_where_it_is():
    bump = ellipse(40, 55, 12, 8)
    region = raised_region(wall() + 0.1 * bump)
    assert overlap(region.mask, bump) > 0.8


def test_of_two_bumps_the_clearer_one_is_taken():
    clear, faint = ellipse(30, 30, 9, 9), ellipse(65, 65, 9, 9)
    region = raised_region(wall() + 0.15 * clear + 0.05 * faint)
    assert overlap(region.mask, clear) > 0.8
    assert region.rise > raised_region(wall() + 0.05 * faint).rise


@pytest.mark.parametrize(
    "depth",
    [
        wall(),
        wall() - 0.1 * ellipse(48, 48, 10, 10),  # a hollow
        wall() + 0.1 * (np.arange(SIZE) > 48)[:, None],  # a step right through the image
        wall() + 0.1 * (ellipse(48, 48, 30, 30) & ~ellipse(44, 40, 30, 30)),  # a fold
        wall() + 0.1 * ellipse(48, 48, 1.2, 1.2),  # a speck
        wall() + 0.1 * ellipse(0, 48, 12, 12),  # cut by the border
        np.zeros((SIZE, SIZE)),
    ],
    ids=["wall", "hollow", "step", "fold", "speck", "border", "nothing"],
)
def test_what_is_not_a_bump_is_not_clear(depth):
    region = raised_region(depth)
    assert region is None or region.rise < 0.004


def test_the_rim_of_a_round_view_is_no_region():
    view = ellipse(48, 48, 40, 40)
    bump = ellipse(50, 50, 8, 8)
    region = raised_region((wall() + 0.1 * bump) * view)
    assert overlap(region.mask, bump) > 0.7


def test_clear_regions_of_phantom_frames_are_their_lesions():
    found = []
    for number in range(40):
        scene = phantom.render(PRETRAINING_SEED, number, 0, 128)
        region = raised_region(scene.depth)
        if region is not None and region.rise >= 0.004:
            found.append(overlap(region.mask, scene.mask > 0))
    assert len(found) > 12
    assert np.mean(found) > 0.7
