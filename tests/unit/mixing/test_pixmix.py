import numpy as np
import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch
from mcpmix.mixing import appearance_mixes as pixmix
from mcpmix.mixing.appearance_mixes import PixMix, add, coefficients, multiply
from mcpmix.mixing.photometric import Pixels


def make_batch(count=3, side=16):
    rng = torch_rng("pixmix")
    pixels = torch.rand(count, 3, side, side, generator=rng)
    masks = (torch.rand(count, 1, side, side, generator=rng) > 0.5).float()
    return Batch(Pixels().normalise(pixels), masks, None, tuple(f"case-{i}" for i in range(count)))


def test_add_by_hand():
    """In [-1, 1]: 0.8 * 0.5 + 0.2 * (-1) = 0.2, which is the pixel 0.6."""
    assert float(add(torch.tensor(0.75), torch.tensor(0.0), 0.8, 0.2)) == pytest.approx(0.6)


def test_multiply_by_hand():
    """In [0, 2]: 1.44^0.5 * 0.25^0.5 = 1.2 * 0.5 = 0.6, which is the pixel 0.3."""
    assert float(multiply(torch.tensor(0.72), torch.tensor(0.125), 0.5, 0.5)) == pytest.approx(0.3)


@pytest.mark.parametrize("mix", [add, multiply])
def test_a_partner_without_weight_changes_nothing(mix):
    image, partner = torch.rand(2, 3, 8, 8, generator=torch_rng("identity"))
    torch.testing.assert_close(mix(image, partner, 1.0, 0.0), image)
    # Mid-grey is neutral for both: 0 when adding, 1 when multiplying.
    torch.testing.assert_close(mix(image, torch.full_like(image, 0.5), 1.0, 0.7), image)


def test_black_partners_give_finite_pixels():
    black, grey = torch.zeros(3, 2, 2), torch.full((3, 2, 2), 0.5)
    for image in (black, grey):
        for other in (-1.0, -0.5, 0.5, 1.0):
            assert bool(multiply(image, black, 1.5, other).isfinite().all())


@pytest.mark.parametrize("beta", [3.0, 4.0])
def test_coefficients_follow_the_published_distribution(beta):
    draws = np.random.default_rng(1)
    drawn = np.array([coefficients(beta, draws) for _ in range(2000)])
    convex = drawn[:, 1] > 0
    assert stats.binomtest(int(convex.sum()), 2000).pvalue > 0.01
    assert stats.kstest(drawn[convex, 0], stats.beta(beta, 1).cdf).pvalue > 0.01
    assert stats.kstest(drawn[convex, 1], stats.beta(1, beta).cdf).pvalue > 0.01
    assert stats.kstest(drawn[~convex, 0] - 1, stats.beta(1, beta).cdf).pvalue > 0.01
    assert stats.kstest(-drawn[~convex, 1], stats.beta(1, beta).cdf).pvalue > 0.01
    assert np.abs(drawn[:, 1]).mean() == pytest.approx(1 / (1 + beta), abs=0.02)


def test_one_term_under_the_hard_masks():
    batch = make_batch()
    (term,) = PixMix().terms(batch, torch_rng("a"))
    assert term.targets is batch.masks
    assert (term.weight, term.name) == (1.0, "mixed")
    assert not torch.allclose(term.images, batch.images)
    pixels = term.images * torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    pixels += torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    assert -1e-5 < float(pixels.min()) < float(pixels.max()) < 1 + 1e-5


def test_the_batch_itself_stays():
    batch = make_batch()
    before = batch.images.clone()
    PixMix().terms(batch, torch_rng("a"))
    assert torch.equal(batch.images, before)


def test_rounds_partners_and_starts_are_drawn_as_published(monkeypatch):
    """Operations give 0.25 and pictures are white, so that each mixing tells what it was given."""
    seen = []

    def spy(name):
        def mix(image, partner, own, other):
            seen.append((name, float(image.max()), float(partner.max())))
            return torch.full_like(image, 0.75)  # later rounds do not start from the image

        return mix

    monkeypatch.setattr(pixmix, "add", spy("add"))
    monkeypatch.setattr(pixmix, "multiply", spy("multiply"))
    white = torch.full((3, 2, 2), 255, dtype=torch.uint8)
    monkeypatch.setattr(pixmix, "mixing_picture", lambda *_: white)
    strategy, image = PixMix(), torch.full((3, 2, 2), 0.5)
    strategy.operations = {"quarter": lambda x, level, sign: torch.full_like(x, 0.25)}
    draws, rounds, unmixed = np.random.default_rng(2), [], []
    for _ in range(1000):
        before = len(seen)
        result = float(strategy.mixed(image, draws).max())
        rounds.append(len(seen) - before)
        if rounds[-1] == 0:
            unmixed.append(result)
    assert stats.chisquare(np.bincount(rounds, minlength=5)).pvalue > 0.01  # 0 to 4, each as likely
    for count, total in (
        (unmixed.count(0.5), len(unmixed)),  # the image itself or a changed copy
        (sum(name == "add" for name, _, _ in seen), len(seen)),
        (sum(partner == 1.0 for _, _, partner in seen), len(seen)),
    ):
        assert stats.binomtest(count, total).pvalue > 0.01
    assert set(unmixed) == {0.5, 0.25}
    assert {partner for _, _, partner in seen} == {1.0, 0.25}
    assert {start for _, start, _ in seen} == {0.5, 0.25, 0.75}


def test_pictures_of_the_set_are_drawn_alike(monkeypatch):
    indices = []

    def spy(seed, index, height, width):
        assert (seed, height, width) == (7, 5, 6)
        indices.append(index)
        return torch.zeros(3, height, width, dtype=torch.uint8)

    monkeypatch.setattr(pixmix, "mixing_picture", spy)
    strategy, draws = PixMix(k=0, pictures=8, seed=7), np.random.default_rng(3)
    for _ in range(400):
        strategy.mixed(torch.full((3, 5, 6), 0.5), draws)
    assert stats.chisquare(np.bincount(indices, minlength=8)).pvalue > 0.01


def test_without_pictures_images_mix_with_themselves(monkeypatch):
    monkeypatch.setattr(pixmix, "mixing_picture", None)  # would fail if called
    batch = make_batch()
    (term,) = PixMix(pictures=0).terms(batch, torch_rng("a"))
    assert not torch.allclose(term.images, batch.images)


def test_degenerate_settings_are_the_identity():
    batch = make_batch()
    (term,) = PixMix(probability=0.0).terms(batch, torch_rng("a"))
    assert torch.equal(term.images, batch.images)
    plain = PixMix(k=0)
    plain.operations = {"nothing": lambda image, level, sign: image}
    (term,) = plain.terms(batch, torch_rng("a"))
    torch.testing.assert_close(term.images, batch.images, atol=1e-5, rtol=1e-5)


def test_probability_counts_images():
    strategy, batch, rng = PixMix(probability=0.4, pictures=0), make_batch(50, side=4), torch_rng("p")
    strategy.operations = {"black": lambda image, level, sign: torch.zeros_like(image)}
    strategy.k = 0  # an image is left alone, or black in half of the cases
    changed = sum(
        int((strategy.terms(batch, rng)[0].images - batch.images).abs().flatten(1).amax(1).gt(0.1).sum())
        for _ in range(10)
    )
    assert stats.binomtest(changed, 500, 0.2).pvalue > 0.01


def test_a_batch_of_one_is_enough():
    batch = make_batch(1)
    results = [PixMix().terms(batch, torch_rng(seed))[0].images for seed in range(5)]
    assert sum(not torch.allclose(result, batch.images, atol=1e-4) for result in results) >= 3


def test_draws_come_from_the_given_stream_only():
    strategy, batch = PixMix(pictures=8), make_batch()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = strategy.terms(batch, torch_rng("x"))[0].images
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, strategy.terms(batch, torch_rng("x"))[0].images)
    assert not torch.equal(first, strategy.terms(batch, torch_rng("y"))[0].images)


def test_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        PixMix(k=-1, beta=0.0, severity=0.0, pictures=-1, probability=2.0)
    words = ("k is -1", "beta is 0.0", "severity is 0.0", "pictures is -1", "probability is 2.0")
    assert all(word in str(caught.value) for word in words)
    assert not PixMix.needs_pairs
