import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from tests.helpers.batches import make_batch

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.partner_mixes import CutMix, GridMix, Mixup, PartnerMix, SmoothMix, blend
from mcpmix.mixing.registry import build_strategy
from mcpmix.mixing.strategy import Batch

NAMES = ("mixup", "cutmix", "gridmix", "smoothmix")


def mask_batch(count=4, **settings):
    """The images are the masks in all three channels."""
    plain = make_batch(count, 24, 32, **settings)
    return replace(plain, images=plain.masks.expand(-1, 3, -1, -1).clone())


def always(name):
    return build_strategy(name, probability=1.0)


class Half(PartnerMix):
    """The own image on the left, the partner on the right."""

    def __init__(self, probability=1.0):
        super().__init__("Half", probability, {})

    def weight_map(self, count, height, width, draws):
        return (torch.arange(width) < width // 2).float().expand(1, 1, height, width)


def test_blend_by_hand():
    own, partner = torch.tensor([8.0, 8.0, 8.0]), torch.tensor([4.0, 4.0, 4.0])
    assert blend(own, partner, torch.tensor([0.0, 0.25, 1.0])).tolist() == [4.0, 5.0, 8.0]


def test_blend_is_bitwise_at_both_ends():
    own, partner = torch.randn(1000, generator=torch_rng("a")), torch.randn(1000, generator=torch_rng("b"))
    assert torch.equal(blend(own, partner, torch.ones(1)), own)
    assert torch.equal(blend(own, partner, torch.zeros(1)), partner)


def test_half_and_half_by_hand():
    values = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 2, 4)
    batch = Batch(values.expand(-1, 3, -1, -1), (values == 1).float(), None, ("a", "b", "c"))
    strategy = Half()
    (term,) = strategy.terms(batch, torch_rng("half"))
    partners = term.images[:, 0, 0, 3]
    assert sorted(partners.tolist()) == [0.0, 1.0, 2.0]
    assert term.images[:, 0, 0].tolist() == [[own, own, p, p] for own, p in enumerate(partners.tolist())]
    assert torch.equal(term.targets, (term.images[:, :1] == 1).float())
    assert (term.weight, term.name, strategy.log()) == (1.0, "mixed", {"own_share": 0.5})


def test_partners_are_uniform_permutations():
    """Six permutations of three samples, each as often."""
    values = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 2, 4)
    batch = Batch(values.expand(-1, 3, -1, -1), torch.zeros(3, 1, 2, 4), None, ("a", "b", "c"))
    strategy, rng = Half(), torch_rng("permutations")
    drawn = [tuple(strategy.terms(batch, rng)[0].images[:, 0, 0, 3].int().tolist()) for _ in range(1200)]
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 0.01


def test_probability_is_the_share_of_mixed_batches():
    strategy, batch, rng = Half(0.3), mask_batch(), torch_rng("probability")
    mixed = 0
    for _ in range(1000):
        strategy.terms(batch, rng)
        mixed += strategy.log()["own_share"] < 1
    assert stats.binomtest(mixed, 1000, 0.3).pvalue > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_the_map_of_the_mask_is_the_map_of_the_image(name):
    batch, changed = mask_batch(), 0
    for seed in range(10):
        (term,) = always(name).terms(batch, torch_rng(seed))
        assert torch.equal(term.images, term.targets.expand(-1, 3, -1, -1))
        changed += not torch.equal(term.targets, batch.masks)
    assert changed >= 8


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_of_both_images_sum_to_one(name):
    """Mixing equal images changes nothing, whatever the map."""
    image = torch.randn(1, 3, 24, 32, generator=torch_rng("image")).expand(4, -1, -1, -1)
    batch = Batch(image, torch.ones(4, 1, 24, 32), None, ("a", "b", "c", "d"))
    for seed in range(5):
        (term,) = always(name).terms(batch, torch_rng(seed))
        torch.testing.assert_close(term.images, image)
        torch.testing.assert_close(term.targets, batch.masks)


@pytest.mark.parametrize("name", NAMES)
def test_maps_stay_in_range_and_fit_images_that_are_not_square(name):
    draws = np.random.default_rng(0)
    for _ in range(50):
        weight = always(name).weight_map(4, 24, 33, draws)
        assert torch.broadcast_shapes(weight.shape, (4, 1, 24, 33)) == (4, 1, 24, 33)
        assert 0 <= float(weight.min()) <= float(weight.max()) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_probability_zero_leaves_the_batch_alone(name):
    strategy, batch = build_strategy(name, probability=0.0), mask_batch()
    (term,) = strategy.terms(batch, torch_rng("a"))
    assert torch.equal(term.images, batch.images)
    assert torch.equal(term.targets, batch.masks)
    assert strategy.log() == {"own_share": 1.0}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [mask_batch(1), mask_batch(2, ids=("case-0", "case-0"))])
def test_one_sample_has_no_partner(name, batch):
    with pytest.raises(ConfigError, match=r"(?i)mix.*one sample only \(case-0\).*train.batch_size to 2"):
        build_strategy(name).terms(batch, torch_rng("a"))


@pytest.mark.parametrize("name", NAMES)
def test_needs_no_pairs_and_checks_its_probability(name):
    assert not build_strategy(name).needs_pairs
    with pytest.raises(ConfigError, match=r"probability is 1.5; expected a value in \[0, 1\]"):
        build_strategy(name, probability=1.5)


# --- Mixup ----------------------------------------------------------------------------------------------


def two_samples():
    """Image 0 without and image 1 with a lesion everywhere."""
    values = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, 2, 2)
    return Batch(values.expand(-1, 3, -1, -1), values, None, ("a", "b"))


def test_mixup_of_two_samples_by_hand():
    strategy = Mixup()
    for seed in range(20):
        (term,) = strategy.terms(two_samples(), torch_rng(seed))
        lam = strategy.log()["own_share"]
        mixed = term.images[:, 0, 0, 0].tolist()
        swapped, itself = [1 - lam, lam], [0.0, 1.0]  # the two permutations of two samples
        assert mixed == pytest.approx(swapped) or mixed == itself
        assert torch.equal(term.targets, term.images[:, :1])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_follow_the_beta_distribution(alpha):
    draws, strategy = np.random.default_rng(1), Mixup(alpha)
    lam = [float(strategy.weight_map(2, 4, 4, draws)) for _ in range(1000)]
    assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_mixup_has_one_share_for_the_batch_or_one_for_each_sample():
    draws = np.random.default_rng(1)
    assert Mixup().weight_map(8, 4, 4, draws).shape == (1, 1, 1, 1)
    weights = Mixup(alpha=1.0, per_sample=True).weight_map(2000, 4, 4, draws)
    assert weights.shape == (2000, 1, 1, 1)
    assert stats.kstest(weights.flatten().numpy(), "uniform").pvalue > 0.01


def test_soft_masks_give_the_published_sum_of_two_losses():
    rng = torch_rng("loss")
    logits = torch.randn(4, 1, 3, 3, generator=rng)
    own, partner = (torch.rand(2, 4, 1, 3, 3, generator=rng) > 0.5).float()
    lam = 0.3
    soft = F.binary_cross_entropy_with_logits(logits, lam * own + (1 - lam) * partner)
    two = [F.binary_cross_entropy_with_logits(logits, mask) for mask in (own, partner)]
    torch.testing.assert_close(soft, lam * two[0] + (1 - lam) * two[1])


@pytest.mark.parametrize("per_sample", [False, True])
def test_mixup_with_alpha_zero_is_the_identity(per_sample):
    (term,) = Mixup(alpha=0.0, per_sample=per_sample).terms(two_samples(), torch_rng("a"))
    assert torch.equal(term.images, two_samples().images)
    assert torch.equal(term.targets, two_samples().masks)


def test_mixup_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        Mixup(alpha=-1.0, probability=2.0)
    assert "alpha is -1.0" in str(caught.value)
    assert "probability is 2.0" in str(caught.value)


# --- CutMix ---------------------------------------------------------------------------------------------


class ScriptedBox:
    """Gives the draws in this order: lam, then the centre's row and column."""

    def __init__(self, lam, row, column):
        self.lam, self.centre = lam, [row, column]

    def beta(self, a, b):
        return self.lam

    def integers(self, length):
        return self.centre.pop(0)


@pytest.mark.parametrize(
    ("lam", "centre", "rows", "columns"),
    [
        (0.75, (4, 8), (2, 6), (4, 12)),  # half of each side: 4 of 8 and 8 of 16 pixels
        (0.75, (0, 15), (0, 2), (11, 16)),  # clipped at the top and on the right
        (0.0, (4, 8), (0, 8), (0, 16)),  # the whole partner
        (1.0, (4, 8), (0, 0), (0, 0)),  # nothing of it
    ],
)
def test_cutmix_boxes_by_hand(lam, centre, rows, columns):
    expected = torch.ones(8, 16)
    expected[slice(*rows), slice(*columns)] = 0
    assert torch.equal(CutMix().weight_map(2, 8, 16, ScriptedBox(lam, *centre))[0, 0], expected)


def test_cutmix_has_the_moments_of_the_published_distribution():
    """With r^2 = 1 - lam ~ U(0, 1) and a uniform centre: the middle pixel is covered with probability r^2, a
    corner with (r/2)^2, and the clipped box has the mean area (r - r^2/4)^2.
    """
    draws, strategy = np.random.default_rng(3), CutMix()
    maps = 1 - torch.cat([strategy.weight_map(2, 100, 100, draws) for _ in range(3000)])[:, 0]
    assert stats.binomtest(int(maps[:, 50, 50].sum()), 3000, 1 / 2).pvalue > 0.01
    assert stats.binomtest(int(maps[:, 0, 0].sum()), 3000, 1 / 8).pvalue > 0.01
    assert float(maps.mean()) == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.02)


def test_cutmix_targets_stay_hard():
    rng = torch_rng("hard")
    masks = (torch.rand(4, 1, 16, 16, generator=rng) > 0.5).float()
    batch = Batch(torch.randn(4, 3, 16, 16, generator=rng), masks, None, ("a", "b", "c", "d"))
    for _ in range(20):
        (term,) = CutMix(probability=1.0).terms(batch, rng)
        assert set(term.targets.unique().tolist()) == {0.0, 1.0}
        originals = (term.images[:, None] == batch.images[None]).all(2)  # each pixel is one of some sample
        assert bool(originals.any(1).all())


def test_cutmix_with_beta_zero_is_the_identity():
    assert float(CutMix(beta=0.0).weight_map(2, 8, 8, np.random.default_rng(0)).min()) == 1.0


def test_cutmix_settings_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"CutMix cannot be built(.|\n)*beta is -0.5; expected 0 or more"):
        CutMix(beta=-0.5)


# --- GridMix --------------------------------------------------------------------------------------------


class ScriptedGrid:
    """Gives one lam and these numbers for the cells."""

    def __init__(self, lam, numbers=None):
        self.lam, self.numbers = lam, numbers

    def beta(self, a, b):
        return self.lam

    def uniform(self, low, high):
        return self.lam

    def random(self, shape):
        return np.reshape(self.numbers, shape)


def test_gridmix_cells_by_hand():
    """The own image stays where the number is below lam; 3 rows and 5 columns do not divide by 2."""
    weight = GridMix(cells=2).weight_map(2, 3, 5, ScriptedGrid(0.5, [0.1, 0.9, 0.6, 0.4]))[0, 0]
    assert weight.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]


def test_gridmix_holes_by_hand():
    """Two patches of four pixels along each side; 1 - lam = 1/4 makes holes of two."""
    weight = GridMix(mode="holes", holes=2).weight_map(2, 8, 8, ScriptedGrid(0.75))[0, 0]
    hole = torch.tensor([1, 1, 0, 0, 1, 1, 0, 0])
    assert torch.equal(weight, 1.0 - torch.outer(hole, hole))


@pytest.mark.parametrize(("lam", "width"), [(0.999, 1), (0.001, 3)])
def test_holes_are_never_empty_and_never_everything(lam, width):
    weight = GridMix(mode="holes", holes=2).weight_map(2, 8, 8, ScriptedGrid(lam))[0, 0]
    assert weight[0, :4].tolist() == [0.0] * width + [1.0] * (4 - width)


def test_every_number_of_own_cells_is_as_likely():
    """Bernoulli cells under one lam ~ U(0, 1): the count is uniform on 0 .. N^2."""
    draws, strategy = np.random.default_rng(4), GridMix(cells=3)
    counts = [int(strategy.weight_map(2, 3, 3, draws).sum()) for _ in range(2000)]
    assert stats.chisquare(np.bincount(counts, minlength=10)).pvalue > 0.01


def test_cells_are_alike():
    draws, strategy = np.random.default_rng(5), GridMix(cells=4, alpha=2.0)
    maps = torch.cat([strategy.weight_map(2, 4, 4, draws) for _ in range(2000)])[:, 0]
    assert maps.mean(0).flatten().tolist() == pytest.approx([0.5] * 16, abs=0.05)
    # Two cells under one Beta(2, 2) draw have the covariance Var(lam) = 1/20.
    covariance = np.cov(maps[:, 0, 0].numpy(), maps[:, 3, 3].numpy())[0, 1]
    assert covariance == pytest.approx(1 / 20, abs=0.015)


def test_the_share_outside_holes_is_uniform():
    draws, strategy = np.random.default_rng(6), GridMix(mode="holes", holes=1, share=(0.1, 0.9))
    shares = [float(strategy.weight_map(2, 500, 500, draws).mean()) for _ in range(400)]
    assert stats.kstest(shares, stats.uniform(0.1, 0.8).cdf).pvalue > 0.01


def test_gridmix_with_alpha_zero_is_the_identity():
    assert float(GridMix(alpha=0.0).weight_map(2, 16, 16, np.random.default_rng(0)).min()) == 1.0


def test_one_cell_is_one_of_the_two_images():
    draws = np.random.default_rng(0)
    means = {float(GridMix(cells=1).weight_map(2, 8, 8, draws).mean()) for _ in range(30)}
    assert means == {0.0, 1.0}


def test_more_holes_than_pixels_allow():
    with pytest.raises(ConfigError, match="20 holes along sides of 32 x 64 pixels; expected at most 16"):
        GridMix(mode="holes").weight_map(2, 32, 64, np.random.default_rng(0))


def test_gridmix_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        GridMix(mode="dots", cells=0, alpha=-1.0, holes=0, share=(0.0, 1.0), probability=-0.1)
    words = ("mode is 'dots'", "cells is 0", "alpha is -1.0", "holes is 0", "share is (0.0, 1.0)", "is -0.1")
    assert all(word in str(caught.value) for word in words)


# --- SmoothMix ------------------------------------------------------------------------------------------


class ScriptedBump:
    """Gives the centre's row and column, and the smallest sigma."""

    def __init__(self, row, column):
        self.centre = [row, column]

    def integers(self, length):
        return self.centre.pop(0)

    def uniform(self, low, high):
        return low


def test_smoothmix_bump_by_hand():
    weight = SmoothMix(sigma=(0.5, 0.9)).weight_map(2, 4, 6, ScriptedBump(1, 4))[0, 0]
    assert weight.shape == (4, 6)
    for row in range(4):
        for column in range(6):
            squared = (row - 1) ** 2 + (column - 4) ** 2
            assert float(weight[row, column]) == pytest.approx(math.exp(-squared / (2 * 2.0**2)))


def test_smoothmix_centres_and_widths_follow_the_published_distribution():
    """The width is read from the bump: beside the peak it is exp(-1 / (2 sigma^2))."""
    draws, strategy = np.random.default_rng(2), SmoothMix()
    rows, columns, widths = [], [], []
    for _ in range(600):
        weight = strategy.weight_map(2, 60, 90, draws)[0, 0].double()
        row, column = divmod(int(weight.argmax()), 90)
        beside = weight[row, column - 3 if column > 45 else column + 3]
        rows.append((row + draws.random()) / 60)  # spread over its pixel, to be continuous
        columns.append((column + draws.random()) / 90)
        widths.append(math.sqrt(-9 / (2 * math.log(beside))) / 60)
    assert stats.kstest(rows, "uniform").pvalue > 0.01
    assert stats.kstest(columns, "uniform").pvalue > 0.01
    assert stats.kstest(widths, stats.uniform(0.25, 0.25).cdf).pvalue > 0.01


def test_a_very_wide_bump_is_the_identity():
    weight = SmoothMix(sigma=(1e9, 1e9)).weight_map(2, 32, 32, np.random.default_rng(0))
    assert torch.equal(weight, torch.ones(1, 1, 32, 32))


@pytest.mark.parametrize("sigma", [(0.0, 0.5), (0.5, 0.25), (-1.0, 1.0)])
def test_smoothmix_settings_that_do_not_fit(sigma):
    with pytest.raises(ConfigError, match="expected 0 < smallest <= largest"):
        SmoothMix(sigma=sigma)
