"""Near-duplicates, by fingerprints of pixels and by a phi that is made here."""

import colorsys

import numpy as np
import pytest
from PIL import Image

from mcpmix.data.audit import Audit
from mcpmix.data.facts import inspect_all
from mcpmix.data.likeness import (
    _joined,
    closest,
    colours_of,
    feature_matches,
    look_of,
    matches,
    runs,
    square,
    whitened,
)
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


# --- by order ----------------------------------------------------------------------------------------------


def video(seed, frames, drift=1.0):
    """Frames of one scene in its own tint, each moved on a little."""
    tint = np.array(colorsys.hsv_to_rgb(0.618 * seed % 1, 0.6, 1))
    return [(waves(seed, shift=drift * number) * tint).astype(np.uint8) for number in range(frames)]


def cut(pictures):
    return runs([look_of(picture) for picture in pictures], [colours_of(picture) for picture in pictures])


def test_runs_are_the_videos():
    lengths = [9, 6, 14, 7, 11, 8, 10]
    found = cut([frame for seed, frames in enumerate(lengths) for frame in video(seed, frames, drift=4)])
    assert found.ordered
    assert found.run_of.tolist() == [seed for seed, frames in enumerate(lengths) for _ in range(frames)]


def test_runs_agree_with_the_rule_one_pair_at_a_time():
    pictures = [frame for seed in range(8) for frame in video(seed, 6, drift=9)]
    count, colours = len(pictures), [colours_of(picture).astype(float) for picture in pictures]
    greys = [two_looks(picture)[1].astype(float) for picture in pictures]

    def apart(i, j):
        return 1 - colours[i] @ colours[j], 1 - np.corrcoef(greys[i], greys[j])[0, 1]

    def rank(value, reference):
        return (sum(other <= value + 1e-6 for other in reference) + 1) / (len(reference) + 1)

    steps = sorted({int(step) for step in np.linspace(count / 4, 3 * count / 4, 64)})
    far = [apart(i, (i + step) % count) for step in steps for i in range(count)]

    def both(pair):
        return sum(np.log(rank(pair[kind], [one[kind] for one in far])) for kind in (0, 1))

    usual = [both(pair) for pair in far]
    linked = [[rank(both(apart(i, i + step)), usual) <= 0.05 if i + step < count else False
               for i in range(count)] for step in range(1, 6)]  # fmt: skip
    open_gap = [
        not any(linked[step - 1][i] for step in range(1, 6) for i in range(max(0, gap - step + 1), gap + 1))
        for gap in range(count - 1)
    ]
    found = cut(pictures)
    assert found.close == pytest.approx(np.mean(linked[0][:-1]))
    cuts = set(np.flatnonzero(np.diff(found.run_of)).tolist())
    assert cuts <= set(np.flatnonzero(open_gap).tolist())  # short runs join, no other gap closes
    assert {6 * number - 1 for number in range(1, 8)} & cuts
    assert min(np.bincount(found.run_of)) >= 5


def test_short_runs_join_the_closer_side():
    gaps = np.array([0.01, 0.01, 0.01, 0.01, 0.2, 0.01, 0.4, 0.01, 0.01, 0.01, 0.01, 0.3])
    before = np.array([0] * 5 + [1] * 2 + [2] * 5 + [3])
    assert _joined(before, gaps).tolist() == [0] * 7 + [1] * 6


def test_an_order_that_means_nothing_is_told_apart():
    pictures = [frame for seed in range(8) for frame in video(seed, 8)]
    shuffled = [pictures[place] for place in np.random.default_rng(1).permutation(len(pictures))]
    assert cut(pictures).close > 0.7
    assert not cut(shuffled).ordered
    assert not cut([waves(seed) for seed in range(60)]).ordered
    few = cut(pictures[:39])
    assert (few.ordered, len(set(few.run_of.tolist()))) == (False, 39)


def test_colours_are_shares_of_a_cube():
    picture = np.zeros((128, 128, 3), np.uint8)
    picture[:32] = (255, 16, 0)
    vector = colours_of(picture)
    assert {place: float(vector[place] ** 2) for place in np.flatnonzero(vector).tolist()} == pytest.approx(
        {0: 0.75, 15 * 256 + 1 * 16: 0.25}, abs=1e-3
    )
