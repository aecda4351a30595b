import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch
from mcpmix.mixing.partner_mixes import Mixup


def two_samples():
    """Image 0 without and image 1 with a lesion everywhere."""
    values = torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, 2, 2)
    return Batch(values.expand(-1, 3, -1, -1), values, None, ("a", "b"))


def test_two_samples_by_hand():
    strategy = Mixup()
    for seed in range(20):
        (term,) = strategy.terms(two_samples(), torch_rng(seed))
        lam = strategy.log()["own_share"]
        mixed = term.images[:, 0, 0, 0].tolist()
        swapped, itself = [1 - lam, lam], [0.0, 1.0]  # the two permutations of two samples
        assert mixed == pytest.approx(swapped) or mixed == itself
        assert torch.equal(term.targets, term.images[:, :1])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_follow_the_beta_distribution(alpha):
    draws, strategy = np.random.default_rng(1), Mixup(alpha)
    lam = [float(strategy.weight_map(2, 4, 4, draws)) for _ in range(1000)]
    assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_one_share_for_the_batch_or_one_for_each_sample():
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
def test_alpha_zero_is_the_identity(per_sample):
    (term,) = Mixup(alpha=0.0, per_sample=per_sample).terms(two_samples(), torch_rng("a"))
    assert torch.equal(term.images, two_samples().images)
    assert torch.equal(term.targets, two_samples().masks)


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        Mixup(alpha=-1.0, probability=2.0)
    assert "alpha is -1.0" in str(caught.value)
    assert "probability is 2.0" in str(caught.value)
