"""What all strategies share that mix an image with another one of its batch."""

import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch, build_strategy
from mcpmix.mixing.partner_mixes import PartnerMix, blend

NAMES = ("mixup", "cutmix", "gridmix", "smoothmix")


def make_batch(count=4, height=24, width=32, ids=None):
    """Masks of random pixels; the images are the masks in all three channels."""
    rng = torch_rng("partners", count)
    masks = (torch.rand(count, 1, height, width, generator=rng) > 0.5).float()
    names = ids or tuple(f"case-{index}" for index in range(count))
    return Batch(masks.expand(-1, 3, -1, -1).clone(), masks, None, names)


def always(name):
    return build_strategy(name, probability=1.0)


class Half(PartnerMix):
    """The own image on the left, the partner on the right."""

    def __init__(self, probability=1.0):
        super().__init__("Half", probability)

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
    strategy, batch, rng = Half(0.3), make_batch(), torch_rng("probability")
    mixed = 0
    for _ in range(1000):
        strategy.terms(batch, rng)
        mixed += strategy.log()["own_share"] < 1
    assert stats.binomtest(mixed, 1000, 0.3).pvalue > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_the_map_of_the_mask_is_the_map_of_the_image(name):
    batch, changed = make_batch(), 0
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
    strategy, batch = build_strategy(name, probability=0.0), make_batch()
    (term,) = strategy.terms(batch, torch_rng("a"))
    assert torch.equal(term.images, batch.images)
    assert torch.equal(term.targets, batch.masks)
    assert strategy.log() == {"own_share": 1.0}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [make_batch(1), make_batch(2, ids=("case-0", "case-0"))])
def test_one_sample_has_no_partner(name, batch):
    with pytest.raises(ConfigError, match=r"(?i)mix.*one sample only \(case-0\).*train.batch_size to 2"):
        build_strategy(name).terms(batch, torch_rng("a"))


@pytest.mark.parametrize("name", NAMES)
def test_draws_come_from_the_given_stream_only(name):
    batch, strategy = make_batch(), always(name)
    torch.manual_seed(1)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    (first,) = strategy.terms(batch, torch_rng("x"))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == numpy_state
    (again,) = strategy.terms(batch, torch_rng("x"))
    (other,) = strategy.terms(batch, torch_rng("y"))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.images, other.images)


@pytest.mark.parametrize("name", NAMES)
def test_needs_no_pairs_and_checks_its_probability(name):
    assert not build_strategy(name).needs_pairs
    with pytest.raises(ConfigError, match=r"probability is 1.5; expected a value in \[0, 1\]"):
        build_strategy(name, probability=1.5)
