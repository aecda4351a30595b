import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch
from mcpmix.mixing.partner_mixes import CutMix


class Scripted:
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
def test_boxes_by_hand(lam, centre, rows, columns):
    expected = torch.ones(8, 16)
    expected[slice(*rows), slice(*columns)] = 0
    assert torch.equal(CutMix().weight_map(2, 8, 16, Scripted(lam, *centre))[0, 0], expected)


def test_sampling_has_the_moments_of_the_published_distribution():
    """With r^2 = 1 - lam ~ U(0, 1) and a uniform centre: the middle pixel is covered with probability r^2, a
    corner with (r/2)^2, and the clipped box has the mean area (r - r^2/4)^2.
    """
    draws, strategy = np.random.default_rng(3), CutMix()
    maps = 1 - torch.cat([strategy.weight_map(2, 100, 100, draws) for _ in range(3000)])[:, 0]
    assert stats.binomtest(int(maps[:, 50, 50].sum()), 3000, 1 / 2).pvalue > 0.01
    assert stats.binomtest(int(maps[:, 0, 0].sum()), 3000, 1 / 8).pvalue > 0.01
    assert float(maps.mean()) == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.02)


def test_targets_stay_hard():
    rng = torch_rng("hard")
    masks = (torch.rand(4, 1, 16, 16, generator=rng) > 0.5).float()
    batch = Batch(torch.randn(4, 3, 16, 16, generator=rng), masks, None, ("a", "b", "c", "d"))
    for _ in range(20):
        (term,) = CutMix(probability=1.0).terms(batch, rng)
        assert set(term.targets.unique().tolist()) == {0.0, 1.0}
        originals = (term.images[:, None] == batch.images[None]).all(2)  # each pixel is one of some sample
        assert bool(originals.any(1).all())


def test_beta_zero_is_the_identity():
    assert float(CutMix(beta=0.0).weight_map(2, 8, 8, np.random.default_rng(0)).min()) == 1.0


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"CutMix cannot be built(.|\n)*beta is -0.5; expected 0 or more"):
        CutMix(beta=-0.5)
