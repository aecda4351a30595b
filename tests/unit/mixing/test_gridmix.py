import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.partner_mixes import GridMix


class Scripted:
    """Gives one lam and these numbers for the cells."""

    def __init__(self, lam, numbers=None):
        self.lam, self.numbers = lam, numbers

    def beta(self, a, b):
        return self.lam

    def uniform(self, low, high):
        return self.lam

    def random(self, shape):
        return np.reshape(self.numbers, shape)


def test_cells_by_hand():
    """The own image stays where the number is below lam; 3 rows and 5 columns do not divide by 2."""
    weight = GridMix(cells=2).weight_map(2, 3, 5, Scripted(0.5, [0.1, 0.9, 0.6, 0.4]))[0, 0]
    assert weight.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]


def test_holes_by_hand():
    """Two patches of four pixels along each side; 1 - lam = 1/4 makes holes of two."""
    weight = GridMix(mode="holes", holes=2).weight_map(2, 8, 8, Scripted(0.75))[0, 0]
    hole = torch.tensor([1, 1, 0, 0, 1, 1, 0, 0])
    assert torch.equal(weight, 1.0 - torch.outer(hole, hole))


@pytest.mark.parametrize(("lam", "width"), [(0.999, 1), (0.001, 3)])
def test_holes_are_never_empty_and_never_everything(lam, width):
    weight = GridMix(mode="holes", holes=2).weight_map(2, 8, 8, Scripted(lam))[0, 0]
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


def test_alpha_zero_is_the_identity():
    assert float(GridMix(alpha=0.0).weight_map(2, 16, 16, np.random.default_rng(0)).min()) == 1.0


def test_one_cell_is_one_of_the_two_images():
    draws = np.random.default_rng(0)
    means = {float(GridMix(cells=1).weight_map(2, 8, 8, draws).mean()) for _ in range(30)}
    assert means == {0.0, 1.0}


def test_more_holes_than_pixels_allow():
    with pytest.raises(ConfigError, match="20 holes along sides of 32 x 64 pixels; expected at most 16"):
        GridMix(mode="holes").weight_map(2, 32, 64, np.random.default_rng(0))


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        GridMix(mode="dots", cells=0, alpha=-1.0, holes=0, share=(0.0, 1.0), probability=-0.1)
    words = ("mode is 'dots'", "cells is 0", "alpha is -1.0", "holes is 0", "share is (0.0, 1.0)", "is -0.1")
    assert all(word in str(caught.value) for word in words)
