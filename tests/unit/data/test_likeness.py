"""Near-duplicates, by fingerprints of pixels and by a phi that is made here."""

import numpy as np
import pytest
from PIL import Image

from mcpmix.data.audit import Audit, Facts, clusters, inspect_all
from mcpmix.data.likeness import closest, feature_matches, look_of, matches, square, whitened
from mcpmix.data.sample import Sample

RNG = np.random.default_rng(0)


def waves(seed, shift=0.0):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:48, 0:64].astype(float)
    waves = sum(
        30 * np.sin(rng.uniform(0.05, 0.3) * rows + rng.uniform(0.05, 0.3) * (columns + shift) + phase)
        for phase in rng.uniform(0, 6, 5)
    )
    return np.clip(np.stack([120 + waves] * 3, axis=2), 0, 255).astype(np.uint8)


def two_looks(image):
    """Signs and grey levels of a picture, worked out beside the package."""
    grey = Image.fromarray(image).convert("L")
    cells = np.asarray(grey.resize((17, 16), Image.Resampling.BOX)).astype(int)
    return np.diff(cells, axis=1).ravel() > 0, np.asarray(grey.resize((32, 32), Image.Resampling.BOX)).ravel()


def test_matches_agree_with_counting_one_by_one():
    pictures = [waves(seed, shift) for seed in range(4) for shift in (0, 1, 9)]
    looks = [look_of(picture) for picture in pictures]
    assert {len(look) for look in looks} == {1408}
    expected = {
        (first, second)
        for first, (signs, grey) in enumerate(map(two_looks, pictures))
        for second, (others, levels) in enumerate(map(two_looks, pictures))
        if np.sum(signs != others) <= 48 and np.corrcoef(grey, levels)[0, 1] >= 0.975
    }
    assert {(match.first, match.second) for match in matches(looks, looks)} == expected
    assert {(number, number) for number in range(12)} < expected
    assert list(matches([], looks)) == []


def test_pictures_of_one_colour_are_no_near_copies_of_anything():
    flat = [look_of(np.full((20, 20, 3), level, np.uint8)) for level in (0, 128)]
    assert list(matches(flat, flat)) == []


def test_of_several_matches_the_closest_counts():
    looks = [look_of(waves(1, shift)) for shift in (0, 1, 2)]
    best = closest(matches(looks[:1], looks[1:]))
    assert {first: match.second for first, match in best.items()} == {0: 0}
    assert "of 256 signs differ, correlation 0.9" in best[0].how


# --- by features -------------------------------------------------------------------------------------------


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


# --- groups of near-duplicates -----------------------------------------------------------------------------


def facts(name, image=None, group=None):
    sample = Sample(name, name, name, group or name, "x")
    return Facts(sample, look="" if image is None else look_of(image))


def test_nearness_is_passed_on_and_strangers_stay_apart():
    near = [facts(f"a{number}", waves(1, shift=1.0 * number)) for number in range(5)]
    groups = clusters([*near, facts("b", waves(2)), facts("broken")])
    assert groups == {
        "a0": "a0",
        "a1": "a0",
        "a2": "a0",
        "a3": "a0",
        "a4": "a0",
        "b": "b",
        "broken": "broken",
    }


def test_known_groups_are_kept_and_joined():
    groups = clusters(
        [facts("a", waves(1), "p1"), facts("b", waves(2), "p1"), facts("c", waves(2), "p2"),
         facts("d", waves(3), "p2"), facts("e", waves(4), "p3")]
    )  # fmt: skip
    assert groups == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "e"}
