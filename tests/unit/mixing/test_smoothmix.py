import math

import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.partner_mixes import SmoothMix


class Scripted:
    """Gives the centre's row and column, and the smallest sigma."""

    def __init__(self, row, column):
        self.centre = [row, column]

    def integers(self, length):
        return self.centre.pop(0)

    def uniform(self, low, high):
        return low


def test_the_bump_by_hand():
    weight = SmoothMix(sigma=(0.5, 0.9)).weight_map(2, 4, 6, Scripted(1, 4))[0, 0]
    assert weight.shape == (4, 6)
    for row in range(4):
        for column in range(6):
            squared = (row - 1) ** 2 + (column - 4) ** 2
            assert float(weight[row, column]) == pytest.approx(math.exp(-squared / (2 * 2.0**2)))


def test_centres_and_widths_follow_the_published_distribution():
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
def test_settings_that_do_not_fit(sigma):
    with pytest.raises(ConfigError, match="expected 0 < smallest <= largest"):
        SmoothMix(sigma=sigma)
