"""Boundary distances: exact, in both directions, for masks of every kind."""

import numpy as np
import pytest
from scipy import ndimage

from mcpmix.metrics import boundary as module
from mcpmix.metrics import boundary_distances
from mcpmix.metrics.contract import squared_limit


def brute_force(truth, prediction):
    """Every boundary pixel against every other, without any distance transform."""

    def edge(mask):
        padded = np.pad(mask, 1)
        inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
        return np.argwhere(mask & ~inner)

    a, b = edge(truth), edge(prediction)
    table = np.sqrt(((a[:, None] - b[None]) ** 2).sum(2))
    return table.min(1), table.min(0)


def test_equals_every_pixel_against_every_other(random_pair):
    rng = np.random.default_rng(3)
    for _ in range(150):
        truth, prediction = random_pair(rng, 40)
        for found, expected in zip(
            boundary_distances(truth, prediction), brute_force(truth, prediction), strict=True
        ):
            assert np.array_equal(found, expected)


def test_empty_masks():
    lesion, empty = np.ones((3, 3), bool), np.zeros((3, 3), bool)
    from_truth, from_prediction = boundary_distances(lesion, empty)
    assert np.array_equal(from_truth, np.full(8, np.inf))
    assert from_prediction.size == 0
    assert [part.size for part in boundary_distances(empty, lesion)] == [0, 8]
    assert [part.size for part in boundary_distances(empty, empty)] == [0, 0]


def test_both_ways_of_measuring_agree(random_pair, monkeypatch):
    rng = np.random.default_rng(4)
    pairs = [random_pair(rng, 60) for _ in range(100)]
    searched = [boundary_distances(*pair) for pair in pairs]
    monkeypatch.setattr(module.kernels, "measure", lambda pixels, gaps, squared: -1.0)
    for pair, expected in zip(pairs, searched, strict=True):
        for a, b in zip(boundary_distances(*pair), expected, strict=True):
            assert np.array_equal(a, b)


def test_images_too_large_for_16_bits(monkeypatch):
    truth, prediction = np.zeros((2, 3, 20_000), bool)
    truth[0, 5] = truth[2, 19_999] = prediction[1, 17_000] = True
    wide, _ = boundary_distances(truth, prediction)
    assert np.array_equal(wide, np.sqrt([1 + 16_995**2, 1 + 2_999**2]))
    tall, _ = boundary_distances(truth.T, prediction.T)
    assert np.array_equal(np.sort(tall), np.sort(wide))


def test_wide_numbers_equal_narrow_ones(random_pair, monkeypatch):
    rng = np.random.default_rng(12)
    pairs = [random_pair(rng) for _ in range(30)]
    narrow = [boundary_distances(*pair) for pair in pairs]
    monkeypatch.setattr(module, "_NARROW_SIDE", 0)
    for pair, expected in zip(pairs, narrow, strict=True):
        for a, b in zip(boundary_distances(*pair), expected, strict=True):
            assert np.array_equal(a, b)


def test_the_workspace_is_given_back(monkeypatch):
    monkeypatch.setattr(module, "_KEPT_BYTES", 100)
    workspace = module._Workspace()
    assert workspace.take("small", (10,), np.uint8).base is workspace.take("small", (5,), np.uint8).base
    assert (
        workspace.take("large", (101,), np.uint8).base is not workspace.take("large", (101,), np.uint8).base
    )


@pytest.mark.parametrize("radius", [0, 0.5, 1, 2**0.5, 2, 3**0.5, 2.5, 3, 7.3, 18**0.5])
def test_integer_limits_decide_like_square_roots(radius):
    squares = np.arange(400)
    assert np.array_equal(squares <= squared_limit(radius), np.sqrt(squares) <= radius)


@pytest.mark.parametrize("band", [0, 1, 1.4, 2, 3.7, 9, 1000])
def test_bands_are_all_pixels_within_the_radius(random_pair, band):
    rng = np.random.default_rng(9)
    for _ in range(20):
        truth, prediction = (mask.astype(np.uint8) for mask in random_pair(rng, 50))
        found = module.compare(truth, prediction, module.survey(truth, prediction)[1], (), band)
        bands = []
        for mask in (truth, prediction):
            inner = ndimage.binary_erosion(mask, ndimage.generate_binary_structure(2, 1), border_value=0)
            bands.append(ndimage.distance_transform_edt(~((mask == 1) & ~inner)) <= band)
        assert found.band_both == (bands[0] & bands[1]).sum()
        assert found.band_either == (bands[0] | bands[1]).sum()
