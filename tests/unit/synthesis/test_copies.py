import math

import numpy as np
import pytest
import torch
from torch import nn

from mcpmix.data.arrays import Arrays
from mcpmix.synthesis.copies import CopyCheck, near_duplicates


class MeanColour(nn.Module):
    """phi that can be worked out by hand: the mean of each channel."""

    def forward(self, images):
        return images.mean((2, 3))


def flat(*colours):
    return np.stack([np.full((16, 16, 3), colour, np.uint8) for colour in colours])


def arrays(images, prefix="t"):
    masks = np.zeros(images.shape[:3], np.uint8)
    return Arrays(tuple(f"{prefix}{i}" for i in range(len(images))), images, masks)


TRAIN = flat((0, 0, 0), (0, 0, 51), (0, 204, 0))  # features 0, 0.2 b, 0.8 g


@pytest.fixture
def check():
    held_out = arrays(flat((255, 0, 0)), "v")
    return CopyCheck(MeanColour(), arrays(TRAIN), ["a", "a", "b"], held_out, seed=0)


def test_distances_are_in_units_of_the_distance_between_groups(check):
    assert check.unit == pytest.approx((0.8 + math.hypot(0.2, 0.8)) / 2)
    features = check.features(flat((0, 51, 0), (0, 0, 51)))
    first, second = check.measure(features, [0, 0])
    assert first.source == pytest.approx(0.2 / check.unit)
    assert first.train == pytest.approx(math.hypot(0.2, 0.2) / check.unit)
    assert first.nearest == "t1"
    assert first.held_out == pytest.approx(math.hypot(1, 0.2) / check.unit)
    assert second.nearest == "t1"
    assert second.train == pytest.approx(0, abs=1e-7)


def test_the_source_is_not_among_the_others(check):
    only = check.measure(check.features(TRAIN[2:]), [2])[0]
    assert only.source == pytest.approx(0, abs=1e-7)
    assert only.nearest != "t2"


def test_without_held_out_images_that_distance_is_unknown():
    check = CopyCheck(MeanColour(), arrays(TRAIN), ["a", "a", "a"], arrays(TRAIN[:0], "v"), seed=0)
    assert math.isnan(check.measure(check.features(TRAIN[:1]), [0])[0].held_out)
    assert check.unit > 0


def test_the_limit_is_a_quantile_of_near_duplicates_and_shrinks_with_strength(check):
    assert check.limit(0.5, 1.0) == pytest.approx(float(np.median(check.twins)))
    assert check.limit(1.0, 1.0) == pytest.approx(float(check.twins.max()))
    assert check.limit(0.5, 0.4) == pytest.approx(0.4 * check.limit(0.5, 1.0))
    assert check.limit(0.0, 1.0) <= check.twins.min()
    assert len(check.twins) == 12


def test_spread_is_the_mean_pairwise_distance(check):
    features = check.features(TRAIN)
    expected = (0.2 + 0.8 + math.hypot(0.2, 0.8)) / 3 / check.unit
    assert check.spread(features) == pytest.approx(expected)
    assert math.isnan(check.spread(features[:1]))


def test_near_duplicates_are_near_but_not_equal():
    rng = torch.Generator().manual_seed(0)
    coarse = torch.rand(3, 3, 4, 4, generator=rng)
    images = torch.nn.functional.interpolate(coarse, (32, 32), mode="bilinear")
    twins = near_duplicates(images, rng)
    gap = (twins - images).abs().mean((1, 2, 3))
    assert (gap > 1e-3).all()
    assert (gap < 0.06).all()
    assert twins.min() >= 0
    assert twins.max() <= 1
