import numpy as np
import pytest
import torch
from scipy import stats
from tests.helpers.batches import make_batch

import mcpmix.mixing.hsmix as module
from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import normalise, to_pixels
from mcpmix.mixing.hsmix import (
    HSMix,
    centre_surround,
    per_region,
    stretched_over_regions,
    superpixels,
    window_mean,
)
from mcpmix.mixing.strategy import Batch, Originals


def carried(count=3, height=30, width=22):
    """The image carries its mask in the second channel, under colours that differ in blocks."""
    rng = torch_rng("hsmix", count)
    coarse = torch.randn(count, 3, height // 5, width // 5, generator=rng)
    images = torch.nn.functional.interpolate(coarse, (height, width), mode="nearest")
    masks = (images[:, :1] > 0).float()
    images[:, 1:2] = masks
    return Batch(images, masks, None, tuple(f"case-{i}" for i in range(count)))


@pytest.mark.parametrize("weights", ["saliency", "random"])
@pytest.mark.parametrize("region", ["sum", "mean"])
def test_masks_are_mixed_by_the_map_of_the_images(weights, region):
    batch, rng = carried(), torch_rng("map", weights)
    strategy = HSMix(weights=weights, region=region)
    partly = 0
    for _ in range(4):
        hard, soft = strategy.terms(batch, rng)
        assert (hard.name, hard.weight, soft.name, soft.weight) == ("hard", 0.5, "soft", 0.5)
        for term in (hard, soft):
            torch.testing.assert_close(term.images[:, 1:2], term.targets)
            assert 0 <= float(term.targets.min()) <= float(term.targets.max()) <= 1
        assert set(hard.targets.unique().tolist()) <= {0.0, 1.0}
        partly += int(((soft.targets > 0) & (soft.targets < 1)).sum())
    assert partly > 0
    assert all(0 <= share <= 1 for share in strategy.log().values())


def test_whole_superpixels_are_pasted_with_the_published_probability():
    labels = torch.arange(400).reshape(1, 1, 20, 20).repeat(8, 1, 1, 1) // 2
    pasted = HSMix(select=0.2).pasted(labels, np.random.default_rng(4))
    assert torch.equal(pasted[..., ::2], pasted[..., 1::2])  # two pixels each
    chosen = pasted[..., ::2].flatten()
    assert stats.binomtest(int(chosen.sum()), len(chosen), 0.2).pvalue > 0.01
    assert not torch.equal(pasted[0], pasted[1])


@pytest.mark.parametrize("select", [0.0, 1.0])
def test_selecting_none_or_all_is_one_of_the_images(select):
    batch = carried()
    (term,) = HSMix(select=select, variant="hard").terms(batch, torch_rng("all"))
    assert term.weight == 1.0
    if select == 0.0:
        assert torch.equal(term.images, batch.images)
        assert torch.equal(term.targets, batch.masks)
    else:
        same = (term.images[:, None] == batch.images[None]).flatten(2).all(2)
        assert (same.sum(1) == 1).all()  # a permutation of the batch
        assert torch.equal(term.targets, batch.masks[same.int().argmax(1)])


def test_random_weights_are_uniform_and_constant_in_each_superpixel(monkeypatch):
    strategy = HSMix(weights="random", variant="soft")
    regions = torch.arange(900).reshape(1, 1, 30, 30)
    share = strategy.soft_share(
        torch.zeros(1, 3, 30, 30), torch.tensor([0]), regions, np.random.default_rng(1)
    )
    assert stats.kstest(share.flatten().numpy(), "uniform").pvalue > 0.01
    coarse = regions // 100
    share = strategy.soft_share(
        torch.zeros(1, 3, 30, 30), torch.tensor([0]), coarse, np.random.default_rng(1)
    )
    assert all(len(share[coarse == value].unique()) == 1 for value in range(9))


def test_values_of_regions_by_hand():
    labels = torch.tensor([[[[0, 0, 1, 1]]]])
    assert per_region(torch.tensor([[5.0, 6.0]]), labels).tolist() == [[[[5.0, 5.0, 6.0, 6.0]]]]


def test_soft_regions_are_the_superpixels_of_the_hard_image(monkeypatch):
    own = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]]).reshape(2, 1, 1, 4)
    pasted = torch.tensor([False, True, True, False]).expand(2, 1, 1, 4)
    strategy, seen = HSMix(), []
    monkeypatch.setattr(strategy, "labels", lambda batch, choices: own)
    monkeypatch.setattr(strategy, "pasted", lambda labels, draws: pasted)
    monkeypatch.setattr(
        strategy, "soft_share", lambda i, p, regions, d: seen.append((p, regions)) or i[:, :1]
    )
    for number in range(8):
        strategy.terms(make_batch(2, 1, 4), torch_rng(number))
    swapped = next(regions for partners, regions in seen if partners.tolist() == [1, 0])
    assert swapped.flatten(1).tolist() == [[0, 4, 4, 1], [0, 3, 4, 2]]  # the partner counts on from 3


def test_soft_weights_by_hand():
    regions = torch.tensor([[[[0, 0, 2, 3]]]])  # number 1 is empty and does not count
    ratio = torch.tensor([[[[0.2, 0.4, 0.8, 0.5]]]])
    summed = stretched_over_regions(ratio, regions, average=False)
    # Sums over the four pixels: 0.6 / 4, 0.8 / 4, 0.5 / 4.
    span = 0.2 - 0.125 + 1e-5
    torch.testing.assert_close(summed[0, 0, 0], torch.tensor([0.025, 0.025, 0.075, 0.0]) / span)
    averaged = stretched_over_regions(ratio, regions, average=True)
    torch.testing.assert_close(averaged[0, 0, 0], torch.tensor([0.0, 0.0, 0.5, 0.2]) / (0.5 + 1e-5))


def test_the_more_salient_image_has_more_weight():
    """One region each: a flat image and one with structure; only the ratio counts."""
    images = torch.zeros(2, 3, 32, 32)
    images[1, :, 8:12, 8:12] = 2.0
    regions = torch.zeros(2, 1, 32, 32, dtype=torch.int64)
    regions[:, :, 6:14, 6:14] = 1
    strategy = HSMix(region="mean")
    share = strategy.soft_share(images, torch.tensor([1, 0]), regions, np.random.default_rng(0))
    assert float(share[0, 0, 9, 9]) > 0.9  # the partner has the structure
    assert float(share[1, 0, 9, 9]) < float(share[1, 0, 0, 0]) + 1e-6


def test_mistakes_say_what_to_do():
    with pytest.raises(ConfigError, match=r"HSMix mixes each image with another.*batch_size to 2"):
        HSMix().terms(carried(1), torch_rng("x"))
    with pytest.raises(ConfigError) as caught:
        HSMix(9, 3, 2.0, 0.0, "none", "none", "none", 0)
    for name in ("fewest", "select", "compactness", "variant", "weights", "region", "maps"):
        assert f"- {name} is" in str(caught.value)


# --- superpixels and saliency ---------------------------------------------------------------------------


def quarters():
    """Four colours in four quarters, normalised: (1, 3, 24, 24)."""
    image = torch.zeros(1, 3, 24, 24)
    image[:, 0, :12], image[:, 1, :, :12] = 1.0, 1.0
    return normalise(image)


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
    pixels = to_pixels(quarters())[0].permute(1, 2, 0).numpy()
    labels = superpixels(pixels, 16, 8.0)
    assert sorted(np.unique(labels)) == list(range(labels.max() + 1))
    assert labels.max() >= 3
    for value in np.unique(labels):
        assert len(np.unique(pixels[labels == value], axis=0)) == 1  # none crosses an edge


def test_maps_are_made_once_and_move_with_augmentation(calls):
    image = quarters()
    strategy = HSMix(4, 20, maps=2)
    plain = Batch(image, image[:, :1], None, ("a",), Originals(lambda: image, lambda maps: maps))
    labels = strategy.labels(plain, np.array([0]))
    turned = Batch(image.mT, image[:, :1], None, ("a",), Originals(lambda: image, lambda maps: maps.mT))
    assert torch.equal(strategy.labels(turned, np.array([0])), labels.mT)
    assert labels.dtype == torch.int64
    assert len(calls) == 1
    strategy.labels(plain, np.array([1]))
    assert len(calls) == 2
    assert all(4 <= segments <= 20 for segments in calls)


def test_without_originals_the_image_of_the_batch_counts(calls):
    image, strategy = quarters(), HSMix(16, 16, maps=1)
    first = strategy.labels(Batch(image, image[:, :1], None, ("a",)), np.array([0]))
    flat = Batch(torch.zeros_like(image), image[:, :1], None, ("a",))
    second = strategy.labels(flat, np.array([0]))
    assert len(calls) == 2
    assert not torch.equal(first, second)


def test_numbers_of_superpixels_belong_to_the_sample_and_not_to_the_order_of_calls(calls):
    image = quarters().expand(2, -1, -1, -1)
    originals = Originals(lambda: image, lambda maps: maps)
    for ids in (("a", "b"), ("b", "a")):
        strategy = HSMix(5, 500, maps=1)
        strategy.labels(Batch(image, image[:, :1], None, ids, originals), np.array([0, 0]))
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
