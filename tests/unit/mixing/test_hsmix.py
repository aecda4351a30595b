import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch
from mcpmix.mixing.hsmix import HSMix, combined_regions, per_region, stretched_over_regions


def make_batch(count=3, height=30, width=22):
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
    batch, rng = make_batch(), torch_rng("map", weights)
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
    batch = make_batch()
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
    share = strategy._soft_share(
        torch.zeros(1, 3, 30, 30), torch.tensor([0]), regions, np.random.default_rng(1)
    )
    assert stats.kstest(share.flatten().numpy(), "uniform").pvalue > 0.01
    coarse = regions // 100
    share = strategy._soft_share(
        torch.zeros(1, 3, 30, 30), torch.tensor([0]), coarse, np.random.default_rng(1)
    )
    assert all(len(share[coarse == value].unique()) == 1 for value in range(9))


def test_regions_of_the_hard_image_by_hand():
    own, partner = torch.tensor([[[[0, 0, 1, 1]]]]), torch.tensor([[[[0, 1, 1, 2]]]])
    pasted = torch.tensor([[[[False, True, True, False]]]])
    assert combined_regions(own, partner, pasted).tolist() == [[[[0, 3, 3, 1]]]]
    assert per_region(torch.tensor([[5.0, 6.0, 7.0, 8.0]]), own).tolist() == [[[[5.0, 5.0, 6.0, 6.0]]]]


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
    share = strategy._soft_share(images, torch.tensor([1, 0]), regions, np.random.default_rng(0))
    assert float(share[0, 0, 9, 9]) > 0.9  # the partner has the structure
    assert float(share[1, 0, 9, 9]) < float(share[1, 0, 0, 0]) + 1e-6


def test_one_generator_state_gives_one_result_with_and_without_a_cache():
    batch = make_batch()
    results = [HSMix().terms(batch, torch_rng("again"))[1].images for _ in range(2)]
    assert torch.equal(*results)


def test_mistakes_say_what_to_do():
    with pytest.raises(ConfigError, match=r"HSMix mixes each image with another.*batch_size to 2"):
        HSMix().terms(make_batch(1), torch_rng("x"))
    with pytest.raises(ConfigError) as caught:
        HSMix(9, 3, 2.0, 0.0, "none", "none", "none", 0)
    for name in ("fewest", "select", "compactness", "variant", "weights", "region", "maps"):
        assert f"- {name} is" in str(caught.value)
