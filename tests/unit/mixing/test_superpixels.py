import numpy as np
import pytest
import torch

import mcpmix.mixing.hsmix as module
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.hsmix import SuperpixelCache, centre_surround, superpixels, window_mean
from mcpmix.mixing.photometric import Pixels
from mcpmix.mixing.strategy import Batch, Originals


def quarters():
    """Four colours in four quarters, normalised: (1, 3, 24, 24)."""
    image = torch.zeros(1, 3, 24, 24)
    image[:, 0, :12], image[:, 1, :, :12] = 1.0, 1.0
    return Pixels().normalise(image)


@pytest.fixture
def calls(monkeypatch):
    """Counts the superpixel maps that are made."""
    made = []

    def count(pixels, segments, compactness):
        made.append(segments)
        return superpixels(pixels, segments, compactness)

    monkeypatch.setattr(module, "superpixels", count)
    return made


def test_superpixels_follow_the_edges_of_the_image():
    pixels = Pixels().denormalise(quarters())[0].permute(1, 2, 0).numpy()
    labels = superpixels(pixels, 16, 8.0)
    assert sorted(np.unique(labels)) == list(range(labels.max() + 1))
    assert labels.max() >= 3
    for value in np.unique(labels):
        assert len(np.unique(pixels[labels == value], axis=0)) == 1  # none crosses an edge


def test_maps_are_made_once_and_move_with_augmentation(calls):
    image = quarters()
    cache = SuperpixelCache(4, 20, 8.0, maps=2)
    plain = Batch(image, image[:, :1], None, ("a",), Originals(lambda: image, lambda maps: maps))
    labels = cache.labels(plain, Pixels(), np.array([0]))
    turned = Batch(image.mT, image[:, :1], None, ("a",), Originals(lambda: image, lambda maps: maps.mT))
    assert torch.equal(cache.labels(turned, Pixels(), np.array([0])), labels.mT)
    assert labels.dtype == torch.int64
    assert len(calls) == 1
    cache.labels(plain, Pixels(), np.array([1]))
    assert len(calls) == 2
    assert all(4 <= segments <= 20 for segments in calls)


def test_without_originals_the_image_of_the_batch_counts(calls):
    image, cache = quarters(), SuperpixelCache(16, 16, 8.0, maps=1)
    first = cache.labels(Batch(image, image[:, :1], None, ("a",)), Pixels(), np.array([0]))
    flat = Batch(torch.zeros_like(image), image[:, :1], None, ("a",))
    second = cache.labels(flat, Pixels(), np.array([0]))
    assert len(calls) == 2
    assert not torch.equal(first, second)


def test_numbers_of_superpixels_belong_to_the_sample_and_not_to_the_order_of_calls(calls):
    image = quarters().expand(2, -1, -1, -1)
    originals = Originals(lambda: image, lambda maps: maps)
    for ids in (("a", "b"), ("b", "a")):
        cache = SuperpixelCache(5, 500, 8.0, maps=1)
        cache.labels(Batch(image, image[:, :1], None, ids, originals), Pixels(), np.array([0, 0]))
    assert calls == [calls[0], calls[1], calls[1], calls[0]]
    assert calls[0] != calls[1]


def test_window_means_by_hand():
    values = torch.arange(9.0).reshape(1, 1, 3, 3)
    means = window_mean(values, 1)[0, 0]
    assert float(means[1, 1]) == 4.0
    assert float(means[0, 0]) == (0 + 1 + 3 + 4) / 4  # cut off at the border
    assert torch.equal(window_mean(values, 2)[0, 0], torch.full((3, 3), 4.0))


@pytest.mark.parametrize("radius", [1, 3, 6])
def test_window_means_against_loops(radius):
    values = torch.from_numpy(np.random.default_rng(radius).random((2, 1, 9, 14)))
    means = window_mean(values, radius)
    for row in range(9):
        for column in range(14):
            window = values[:, :, max(row - radius, 0) : row + radius + 1, max(column - radius, 0) :]
            window = window[..., : min(column, radius) + radius + 1]
            torch.testing.assert_close(means[:, :, row, column], window.mean((2, 3)))


@pytest.mark.parametrize("size", [(48, 30), (200, 130)])
def test_what_stands_out_is_salient(size):
    pixels = torch.full((2, 3, *size), 0.3, dtype=torch.float64)
    assert float(centre_surround(pixels).max()) < 1e-12
    row, column, half = size[0] // 2, size[1] // 2, size[1] // 20 + 1
    pixels[1, :, row - half : row + half, column - half : column + half] = 0.9
    saliency = centre_surround(pixels)
    assert saliency.shape == (2, 1, *size)
    assert float(saliency[1, 0, row, column]) > 0.2
    assert float(saliency[1, 0, 0, 0]) < 0.05


def test_saliency_does_not_depend_on_the_order_of_the_batch():
    pixels = torch.rand(2, 3, 20, 20, generator=torch_rng("order"))
    assert torch.equal(centre_surround(pixels.flip(0)), centre_surround(pixels).flip(0))
