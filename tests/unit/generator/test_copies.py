import math

import numpy as np
import pytest
import torch
from torch import nn

from mcpmix.data.index import Arrays
from mcpmix.generator import copies
from mcpmix.generator.copies import Calibration, CopyCheck, copy_problems, near_duplicates, pictures


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


def distances(source, train, nearest, held_out, picture_source, picture_train, alike):
    return {
        "distance_source": source,
        "distance_train": train,
        "nearest_train": nearest,
        "distance_held_out": held_out,
        "picture_source": picture_source,
        "picture_train": picture_train,
        "alike_train": alike,
    }


@pytest.fixture
def check():
    held_out = arrays(flat((255, 0, 0)), "v")
    return CopyCheck(MeanColour(), arrays(TRAIN), ["a", "a", "b"], held_out, seed=0)


def test_distances_are_in_units_of_the_distance_between_groups(check):
    assert check.unit == pytest.approx((0.8 + math.hypot(0.2, 0.8)) / 2)
    images = flat((0, 51, 0), (0, 0, 51))
    first, second = check.measure(check.features(images), images, [0, 0])
    assert first["distance_source"] == pytest.approx(0.2 / check.unit)
    assert first["distance_train"] == pytest.approx(math.hypot(0.2, 0.2) / check.unit)
    assert first["nearest_train"] == "t1"
    assert first["distance_held_out"] == pytest.approx(math.hypot(1, 0.2) / check.unit)
    assert second["nearest_train"] == "t1"
    assert second["distance_train"] == pytest.approx(0, abs=1e-7)


def test_the_source_is_not_among_the_others(check):
    only = check.measure(check.features(TRAIN[2:]), TRAIN[2:], [2])[0]
    assert only["distance_source"] == pytest.approx(0, abs=1e-7)
    assert only["nearest_train"] != "t2"


def test_without_held_out_images_that_distance_is_unknown():
    check = CopyCheck(MeanColour(), arrays(TRAIN), ["a", "a", "a"], arrays(TRAIN[:0], "v"), seed=0)
    assert math.isnan(check.measure(check.features(TRAIN[:1]), TRAIN[:1], [0])[0]["distance_held_out"])
    assert check.unit > 0


def test_the_limit_is_a_quantile_of_near_duplicates_but_below_what_other_groups_reach():
    twins, far = np.linspace(0.1, 0.3, 21), np.linspace(1.0, 2.0, 101)
    free, bound = Calibration(twins, far), Calibration(twins, far - 0.9)
    assert free.limit(0.5) == pytest.approx(0.2)
    assert bound.limit(0.5) == pytest.approx(0.11)  # the second of 101: one in a hundred is below
    assert Calibration(twins, far[:0]).limit(1.0) == pytest.approx(0.3)
    assert free.limit(0.0) == 0.0  # nothing is a copy


def test_what_a_limit_means_is_told():
    calibration = Calibration(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.25, 0.5]))
    assert calibration.as_json(0.35) == {"limit": 0.35, "found": 0.75, "mistaken": 0.5}
    assert Calibration(calibration.twins, np.array([])).as_json(0.35)["mistaken"] is None


def test_strangers_are_the_nearest_of_other_groups_and_of_held_out_images(check):
    # b's image is 0.8 from the nearest of a's; a's two are 0.8 and hypot(0.2, 0.8) from b's;
    # the held-out one is 1 from black
    expected = np.array([0.8, math.hypot(0.2, 0.8), 0.8, 1.0]) / check.unit
    assert check.calibrations["features"].strangers == pytest.approx(expected)
    assert len(check.calibrations["features"].twins) == len(check.calibrations["picture"].twins) == 12


def test_every_kind_of_copy_is_a_reason():
    limits = {"features": 0.1, "picture": 0.2}
    far = distances(0.1, 0.5, "n", math.nan, 0.2, 0.3, "p")
    near = distances(0.05, 0.06, "n", math.nan, 0.15, 0.16, "p")
    assert copy_problems(far, limits) == []
    assert copy_problems(near, limits) == [
        "copy: features of its source at 0.050 < 0.100",
        "copy: features of n at 0.060 < 0.100",
        "copy: picture of its source at 0.150 < 0.200",
        "copy: picture of p at 0.160 < 0.200",
    ]


def scenes(count, size=64):
    """Scenes alike in colour, which is all that `MeanColour` sees, and different as pictures."""
    rng = np.random.default_rng(5)
    coarse = torch.from_numpy(rng.random((count, 3, 5, 5))).float()
    coarse = coarse - coarse.mean((2, 3), keepdim=True) + 0.5
    smooth = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
    return (smooth.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()


def blurred(images):
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    soft = torch.nn.functional.avg_pool2d(tensor, 5, 1, 2, count_include_pad=False)
    return soft.permute(0, 2, 3, 1).round().to(torch.uint8).numpy()


def recoloured(images):
    return (0.8 * images + (20, 5, 10)).round().astype(np.uint8)


@pytest.fixture(scope="module")
def gallery():
    images = scenes(60)
    groups = [f"g{i // 2}" for i in range(40)]
    check = CopyCheck(MeanColour(), arrays(images[:40]), groups, arrays(images[40:], "v"), seed=0)
    return check, images


def called_copies(check, images):
    limits = check.limits(0.95, 1.0)
    measured = check.measure(check.features(images), images, range(len(images)))
    return np.array([bool(copy_problems(distances, limits)) for distances in measured])


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        blurred,
        recoloured,
        lambda x: blurred(recoloured(x)),
        lambda x: x[:, :, ::-1],
        lambda x: np.rot90(x, 1, (1, 2)),
        lambda x: np.rot90(x, 3, (1, 2))[:, ::-1],
    ],
    ids=["as it is", "blurred", "recoloured", "both", "mirrored", "turned", "turned and mirrored"],
)
def test_copies_are_found_however_they_are_dressed(gallery, change):
    check, images = gallery
    assert called_copies(check, change(images[:40])).all()


def test_images_of_others_are_no_copies_even_where_features_cannot_tell(gallery):
    check, images = gallery
    # Near-duplicates are as far from their originals as strangers are, in these features.
    near = check.calibrations["features"]
    assert np.median(near.twins) > np.median(near.strangers)
    assert called_copies(check, images[40:]).mean() <= 0.05
    limits, halved = check.limits(0.95, 1.0), check.limits(0.95, 0.5)
    assert halved == {kind: limit / 2 for kind, limit in limits.items()}
    told = check.as_json(limits)
    assert told["picture"]["found"] == pytest.approx(0.95, abs=0.01)
    assert told["picture"]["mistaken"] == 0.0
    assert told["features"]["mistaken"] <= 0.01
    assert told["features"]["found"] < 0.5


def test_the_distance_of_pictures_is_that_of_their_correlation():
    one, two = pictures(scenes(2))
    r = np.corrcoef(one, two)[0, 1]
    assert np.linalg.norm(one - two) == pytest.approx(math.sqrt(2 - 2 * r), rel=1e-6)
    flat_one, flat_two = pictures(flat((90, 90, 90), (90, 91, 90)))
    assert np.linalg.norm(flat_one) == np.linalg.norm(flat_two) == 0


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


def test_of_many_images_some_are_compared_with_all_others(gallery, monkeypatch):
    check, images = gallery
    groups = [f"g{i // 2}" for i in range(40)]
    monkeypatch.setattr(copies, "_MOST_COMPARED", 8)
    monkeypatch.setattr(copies, "_BLOCK", 100)  # two rows of 40 at a time
    few = CopyCheck(MeanColour(), arrays(images[:40]), groups, arrays(images[40:], "v"), seed=0)
    some, unseen = np.linspace(0, 39, 8).astype(int), np.linspace(0, 19, 8).astype(int)
    for kind, all_of in check.calibrations.items():
        scale = few.unit / check.unit if kind == "features" else 1.0
        expected = np.concatenate([all_of.strangers[some], all_of.strangers[40 + unseen]])
        assert few.calibrations[kind].strangers * scale == pytest.approx(expected, abs=1e-9)
        assert len(few.calibrations[kind].twins) == 4 * 8
        assert few.calibrations[kind].twins.mean() * scale == pytest.approx(all_of.twins.mean(), rel=0.3)
    assert few.unit == pytest.approx(check.unit, rel=0.3)
