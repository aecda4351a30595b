"""Images alike by their features: the rule, and copies that no comparison of pixels finds."""

import numpy as np
import pytest
from PIL import Image

from mcpmix.data import features as feature_search
from mcpmix.data.audit import Audit, inspect_all, square
from mcpmix.data.features import feature_matches, whitened
from mcpmix.data.sample import Sample

RNG = np.random.default_rng(0)


def brute(units, groups, first, second):
    """The rule as it is written down, one pair at a time."""
    distance = np.array([[1 - float(a @ b) for b in units] for a in units])
    nearest = [
        min(distance[i, j] for j in range(len(units)) if groups[i] != groups[j]) for i in range(len(units))
    ]
    usual = np.percentile(nearest, 90)
    return {(i, j) for i in first for j in second if i != j and distance[i, j] < 0.05 * usual}


def test_feature_matches_agree_with_the_rule():
    features = RNG.normal(size=(60, 9)) @ RNG.normal(size=(9, 9)) + 5  # correlated, away from 0
    features[50:55] = features[:5] + RNG.normal(0, 1e-3, (5, 9))
    features = features.astype(np.float32)
    groups = [f"g{number // 2}" for number in range(60)]
    first, second = list(range(45, 60)), list(range(45))
    found = {(pair.first, pair.second) for pair in feature_matches(features, groups, first, second)}
    assert found == brute(whitened(features), groups, first, second)
    assert found >= {(50 + number, number) for number in range(5)}
    assert len(found) < 10


def test_what_is_whitened_has_equal_spread_and_norm_one():
    features = (RNG.normal(size=(400, 6)) * [100, 10, 1, 1, 1, 1]).astype(np.float32)
    units = whitened(features)
    assert units.shape == (400, 6)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1, rtol=1e-5)
    spread = units.std(axis=0)
    assert spread.max() / spread.min() < 1.2
    assert whitened(features[:40]).shape == (40, 6)
    assert whitened(features[:8]).shape == (8, 2)  # a quarter of the images
    assert np.isfinite(whitened(np.ones((50, 3), np.float32))).all()


def test_independent_pictures_do_not_flood():
    features = RNG.normal(size=(500, 64)).astype(np.float32)
    names = [str(number) for number in range(500)]
    assert list(feature_matches(features, names, range(250), range(250, 500))) == []


def test_too_few_images_or_one_group_say_nothing():
    features = RNG.normal(size=(40, 4)).astype(np.float32)
    features[1:31:2] = features[0:30:2]  # most images have a copy
    names = [str(number) for number in range(40)]
    assert list(feature_matches(features, names, [0], [1]))
    assert list(feature_matches(features[:38], names[:38], [0], [1])) == []
    assert list(feature_matches(features, ["one"] * 40, [0], [1])) == []
    assert list(feature_matches(features, names, [], [1])) == []


def blobs(seed):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:64, 0:64]
    image = np.zeros((64, 64, 3))
    for _ in range(6):
        row, column, size = rng.uniform(5, 59), rng.uniform(5, 59), rng.uniform(4, 12)
        blob = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / size**2)
        image += blob[..., None] * rng.uniform(20, 200, 3)
    return np.clip(image, 0, 255).astype(np.uint8)


def histogram_phi(pixels):
    """Does not see how a picture is turned: histograms of its channels."""
    assert pixels.shape[1:] == (128, 128, 3)
    assert pixels.dtype == np.uint8
    return np.array(
        [[np.histogram(image[..., c], 8, (0, 256))[0] for c in range(3)] for image in pixels], np.float32
    ).reshape(len(pixels), -1)


@pytest.fixture
def samples(tmp_path):
    made = []
    for number in range(64):
        image, mask = tmp_path / f"s{number:02}.png", tmp_path / f"m{number:02}.png"
        pixels = blobs(number)
        if number == 63:
            pixels = np.rot90(blobs(0)).copy()  # the hash does not see that it is number 0
        Image.fromarray(pixels).save(image)
        Image.fromarray(np.pad(np.full((9, 9), 255, np.uint8), (20, 35))).save(mask)
        made.append(Sample(image.stem, image, mask, image.stem, "x"))
    return made


def test_a_turned_copy_across_the_split_is_found_by_features_only(samples):
    parts = {sample.id: "test" if number >= 50 else "train" for number, sample in enumerate(samples)}
    audit = Audit(inspect_all(samples, phi=histogram_phi), parts)
    assert audit.near == {}
    assert {name: other for name, (other, _) in audit.alike.items()} == {"s63": "s00"}
    finding = next(finding for finding in audit.findings if "features" in finding.title)
    assert finding.ids == ("s63", "s00")
    assert finding.items[0].startswith("test s63 ~ train s00 (distance 0.0000, usual ")
    assert audit.warned
    without = Audit(inspect_all(samples), parts)
    assert without.alike == {}
    assert not without.warned


def test_phi_sees_squares():
    assert square(np.zeros((10, 300, 3), np.uint8)).shape == (128, 128, 3)


def test_what_is_usual_among_many_is_asked_of_some(monkeypatch):
    features = RNG.normal(size=(300, 20)).astype(np.float32)
    features[150:160] = features[:10] + RNG.normal(0, 1e-3, (10, 20))
    sides = [str(number) for number in range(300)], range(150, 300), range(150)
    every = list(feature_matches(features, *sides))
    monkeypatch.setattr(feature_search, "_MOST_USUAL", 100)
    some = list(feature_matches(features, *sides))
    assert [(m.first, m.second) for m in some] == [(m.first, m.second) for m in every]
    assert every[0].how != some[0].how  # another percentile, of a hundred distances
