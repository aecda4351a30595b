import math

import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch
from mcpmix.mixing.appearance_mixes import AugMix, jensen_shannon
from mcpmix.mixing.photometric import Pixels


def make_batch(count=3, side=20):
    rng = torch_rng("augmix")
    pixels = torch.rand(count, 3, side, side, generator=rng)
    masks = (torch.rand(count, 1, side, side, generator=rng) > 0.5).float()
    return Batch(Pixels().normalise(pixels), masks, None, tuple(f"case-{i}" for i in range(count)))


def logit(chance):
    return torch.tensor(math.log(chance / (1 - chance)))


def entropy(chance):
    return -sum(p * math.log(p) for p in (chance, 1 - chance) if p > 0)


def test_the_image_and_two_different_views_under_the_hard_masks():
    batch = make_batch()
    terms = AugMix().terms(batch, torch_rng("a"))
    assert [(term.name, term.weight) for term in terms] == [("real", 1.0), ("view1", 0.0), ("view2", 0.0)]
    assert all(term.targets is batch.masks for term in terms)
    assert terms[0].images is batch.images
    assert not torch.allclose(terms[1].images, terms[2].images)
    for term in terms[1:]:
        pixels = term.images * torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
        pixels += torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
        assert -1e-5 < float(pixels.min()) < float(pixels.max()) < 1 + 1e-5


def test_all_views_can_be_supervised():
    terms = AugMix(supervise="all").terms(make_batch(), torch_rng("a"))
    assert [term.weight for term in terms] == pytest.approx([1 / 3] * 3)


def test_without_consistency_one_view_replaces_the_image():
    strategy, batch = AugMix(jsd_weight=0.0), make_batch()
    (term,) = strategy.terms(batch, torch_rng("a"))
    assert (term.name, term.weight) == ("view", 1.0)
    assert not torch.allclose(term.images, batch.images)
    assert float(strategy.consistency([torch.zeros(3, 1, 20, 20)], [term])) == 0.0


class Recorder:
    """An operation that counts its calls and shifts the image."""

    def __init__(self, shift=0.0):
        self.calls, self.shift = 0, shift

    def __call__(self, image, level, sign):
        self.calls += 1
        return image + self.shift


def test_a_view_by_hand():
    """Each operation adds 0.1 and each chain has two, so the mixture of chains is x + 0.2 as weights sum to
    one, and the view is x + 0.2 m with m ~ Beta(1, 1).
    """
    strategy, image = AugMix(depth=2), torch.full((3, 2, 2), 0.5)
    strategy.operations = {"shift": Recorder(0.1)}
    draws = np.random.default_rng(0)
    shares = [(float(strategy.view(image, draws)[0, 0, 0]) - 0.5) / 0.2 for _ in range(600)]
    assert stats.kstest(shares, "uniform").pvalue > 0.01
    assert strategy.operations["shift"].calls == 600 * 3 * 2


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_weights_follow_the_published_distribution(alpha):
    """With one operation that turns black to white once, the view is m times the weight of that chain."""
    strategy, black = AugMix(depth=1, width=3, alpha=alpha), torch.zeros(3, 1, 1)
    values = []
    draws = np.random.default_rng(1)
    for _ in range(800):
        first = iter([1.0, 0.0, 0.0])
        strategy.operations = {"once": lambda image, level, sign, first=first: image + next(first)}
        values.append(float(strategy.view(black, draws)[0, 0, 0]))
    reference = np.random.default_rng(2)
    expected = reference.beta(alpha, alpha, 20000) * reference.beta(alpha, 2 * alpha, 20000)
    assert np.mean(values) == pytest.approx(1 / 2 * 1 / 3, abs=0.02)
    assert stats.ks_2samp(values, expected).pvalue > 0.01


def test_chains_have_one_to_three_operations():
    strategy, image = AugMix(width=1), torch.zeros(3, 2, 2)
    counts, draws = [], np.random.default_rng(3)
    for _ in range(600):
        strategy.operations = {"count": Recorder()}
        strategy.view(image, draws)
        counts.append(strategy.operations["count"].calls)
    assert stats.chisquare(np.bincount(counts, minlength=4)[1:]).pvalue > 0.01
    assert set(counts) == {1, 2, 3}


def test_depth_zero_is_the_identity():
    batch = make_batch()
    for term in AugMix(depth=0).terms(batch, torch_rng("a")):
        torch.testing.assert_close(term.images, batch.images, atol=1e-5, rtol=1e-5)


def test_divergence_by_hand():
    """Entropy of the mean prediction less the mean entropy: 0.2, 0.5 and 0.8 have the mean 0.5."""
    logits = [torch.full((2, 1, 3, 3), float(logit(p))) for p in (0.2, 0.5, 0.8)]
    expected = math.log(2) - (2 * entropy(0.2) + math.log(2)) / 3
    assert float(jensen_shannon(logits)) == pytest.approx(expected, abs=1e-6)


def test_divergence_is_a_mean_over_pixels():
    """One pixel of four disagrees; the size of the image does not matter."""
    small = [torch.zeros(1, 1, 2, 2) for _ in range(3)]
    small[0][..., 0, 0] = logit(0.9)
    large = [part.repeat(5, 1, 8, 8) for part in small]
    mean = (0.9 + 0.5 + 0.5) / 3
    expected = (entropy(mean) - (entropy(0.9) + 2 * math.log(2)) / 3) / 4
    assert float(jensen_shannon(small)) == pytest.approx(expected, abs=1e-6)
    assert float(jensen_shannon(large)) == pytest.approx(expected, abs=1e-6)


def test_divergence_of_certain_predictions_is_finite_and_bounded():
    sure = [torch.full((1, 1, 2, 2), value, requires_grad=True) for value in (200.0, -200.0)]
    divergence = jensen_shannon(sure)
    divergence.backward()
    assert float(divergence.detach()) == pytest.approx(math.log(2), abs=1e-5)
    assert all(bool(part.grad.isfinite().all()) for part in sure)
    assert float(jensen_shannon([torch.full((1, 1, 2, 2), 200.0)] * 3)) == pytest.approx(0, abs=1e-6)


def test_consistency_is_weighted_and_pulls_predictions_together():
    strategy = AugMix(jsd_weight=6.0)
    logits = [torch.full((1, 1, 2, 2), value, requires_grad=True) for value in (-1.0, 0.0, 1.0)]
    penalty = strategy.consistency(logits, [])
    penalty.backward()
    assert float(penalty.detach()) == pytest.approx(6 * float(jensen_shannon(logits).detach()))
    assert strategy.log() == pytest.approx({"jsd": float(penalty.detach()) / 6})
    assert logits[0].grad.max() < 0 < logits[2].grad.min()


def test_the_divergence_is_computed_in_full_precision():
    logits = [torch.full((1, 1, 2, 2), value).bfloat16() for value in (-1.0, 0.0, 1.0)]
    assert jensen_shannon(logits).dtype == torch.float32


def test_a_batch_of_one_is_enough():
    terms = AugMix().terms(make_batch(1), torch_rng("a"))
    assert not torch.allclose(terms[1].images, terms[0].images)


def test_draws_come_from_the_given_stream_only():
    strategy, batch = AugMix(), make_batch()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = strategy.terms(batch, torch_rng("x"))[1].images
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, strategy.terms(batch, torch_rng("x"))[1].images)
    assert not torch.equal(first, strategy.terms(batch, torch_rng("y"))[1].images)


def test_more_operations_on_request():
    assert len(AugMix().operations) == 4
    assert {"colour", "contrast", "brightness", "sharpness"} <= set(AugMix(all_ops=True).operations)


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        AugMix(width=0, depth=-1, alpha=0.0, severity=11.0, jsd_weight=-1.0, supervise="none")
    words = ("width is 0", "depth is -1", "alpha is 0.0", "severity is 11.0", "jsd_weight is -1.0", "'none'")
    assert all(word in str(caught.value) for word in words)
    assert not AugMix.needs_pairs
