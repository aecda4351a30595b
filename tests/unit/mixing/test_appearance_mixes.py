import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats
from tests.helpers.batches import make_batch, share_batch
from torchvision.transforms.v2 import functional

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import denormalise, normalise
from mcpmix.mixing import appearance_mixes as ops
from mcpmix.mixing.appearance_mixes import (
    AugMix,
    DiffuseMix,
    PixMix,
    add,
    coefficients,
    half_share,
    jensen_shannon,
    multiply,
)
from mcpmix.mixing.pictures import fractal_picture
from mcpmix.mixing.strategy import Batch

# --- AugMix ---------------------------------------------------------------------------------------------


def logit(chance):
    return torch.tensor(math.log(chance / (1 - chance)))


def entropy(chance):
    return -sum(p * math.log(p) for p in (chance, 1 - chance) if p > 0)


def test_the_image_and_two_different_views_under_the_hard_masks():
    batch = make_batch(3, 20, 20)
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
    terms = AugMix(supervise="all").terms(make_batch(3, 20, 20), torch_rng("a"))
    assert [term.weight for term in terms] == pytest.approx([1 / 3] * 3)


def test_without_consistency_one_view_replaces_the_image():
    strategy, batch = AugMix(jsd_weight=0.0), make_batch(3, 20, 20)
    (term,) = strategy.terms(batch, torch_rng("a"))
    assert (term.name, term.weight) == ("view", 1.0)
    assert not torch.allclose(term.images, batch.images)
    assert float(strategy.consistency([torch.zeros(3, 1, 20, 20)], [term])) == 0.0


class Counted:
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
    strategy.operations = {"shift": Counted(0.1)}
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
        strategy.operations = {"count": Counted()}
        strategy.view(image, draws)
        counts.append(strategy.operations["count"].calls)
    assert stats.chisquare(np.bincount(counts, minlength=4)[1:]).pvalue > 0.01
    assert set(counts) == {1, 2, 3}


def test_depth_zero_is_the_identity():
    batch = make_batch(3, 20, 20)
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


def test_augmix_of_a_batch_of_one():
    terms = AugMix().terms(make_batch(1, 20, 20), torch_rng("a"))
    assert not torch.allclose(terms[1].images, terms[0].images)


def test_more_operations_on_request():
    assert len(AugMix().operations) == 4
    assert {"colour", "contrast", "brightness", "sharpness"} <= set(AugMix(all_ops=True).operations)


def test_augmix_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        AugMix(width=0, depth=-1, alpha=0.0, severity=11.0, jsd_weight=-1.0, supervise="none")
    words = ("width is 0", "depth is -1", "alpha is 0.0", "severity is 11.0", "jsd_weight is -1.0", "'none'")
    assert all(word in str(caught.value) for word in words)
    assert not AugMix.needs_pairs


# --- PixMix ---------------------------------------------------------------------------------------------


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
    batch = make_batch(3, 16, 16)
    (term,) = PixMix().terms(batch, torch_rng("a"))
    assert term.targets is batch.masks
    assert (term.weight, term.name) == (1.0, "mixed")
    assert not torch.allclose(term.images, batch.images)
    pixels = term.images * torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    pixels += torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    assert -1e-5 < float(pixels.min()) < float(pixels.max()) < 1 + 1e-5


def test_the_batch_itself_stays():
    batch = make_batch(3, 16, 16)
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

    monkeypatch.setattr(ops, "add", spy("add"))
    monkeypatch.setattr(ops, "multiply", spy("multiply"))
    white = torch.full((3, 2, 2), 255, dtype=torch.uint8)
    monkeypatch.setattr(ops, "mixing_picture", lambda *_: white)
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

    monkeypatch.setattr(ops, "mixing_picture", spy)
    strategy, draws = PixMix(k=0, pictures=8, seed=7), np.random.default_rng(3)
    for _ in range(400):
        strategy.mixed(torch.full((3, 5, 6), 0.5), draws)
    assert stats.chisquare(np.bincount(indices, minlength=8)).pvalue > 0.01


def test_without_pictures_images_mix_with_themselves(monkeypatch):
    monkeypatch.setattr(ops, "mixing_picture", None)  # would fail if called
    batch = make_batch(3, 16, 16)
    (term,) = PixMix(pictures=0).terms(batch, torch_rng("a"))
    assert not torch.allclose(term.images, batch.images)


def test_degenerate_settings_are_the_identity():
    batch = make_batch(3, 16, 16)
    (term,) = PixMix(probability=0.0).terms(batch, torch_rng("a"))
    assert torch.equal(term.images, batch.images)
    plain = PixMix(k=0)
    plain.operations = {"nothing": lambda image, level, sign: image}
    (term,) = plain.terms(batch, torch_rng("a"))
    torch.testing.assert_close(term.images, batch.images, atol=1e-5, rtol=1e-5)


def test_probability_counts_images():
    strategy, batch, rng = PixMix(probability=0.4, pictures=0), make_batch(50, 4, 4), torch_rng("p")
    strategy.operations = {"black": lambda image, level, sign: torch.zeros_like(image)}
    strategy.k = 0  # an image is left alone, or black in half of the cases
    changed = sum(
        int((strategy.terms(batch, rng)[0].images - batch.images).abs().flatten(1).amax(1).gt(0.1).sum())
        for _ in range(10)
    )
    assert stats.binomtest(changed, 500, 0.2).pvalue > 0.01


def test_pixmix_of_a_batch_of_one():
    batch = make_batch(1, 16, 16)
    results = [PixMix().terms(batch, torch_rng(seed))[0].images for seed in range(5)]
    assert sum(not torch.allclose(result, batch.images, atol=1e-4) for result in results) >= 3


def test_pixmix_settings_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        PixMix(k=-1, beta=0.0, severity=0.0, pictures=-1, probability=2.0)
    words = ("k is -1", "beta is 0.0", "severity is 0.0", "pictures is -1", "probability is 2.0")
    assert all(word in str(caught.value) for word in words)
    assert not PixMix.needs_pairs


# --- DiffuseMix -----------------------------------------------------------------------------------------


def test_halves_and_ramp_by_hand():
    assert half_share(6, 0.0).tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(half_share(8, 0.5), torch.tensor([0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1]))
    published = half_share(256, 20 / 256)
    assert published[:118].max() == 0
    assert published[138:].min() == 1
    assert float(published.sum()) == pytest.approx(128)
    assert float(half_share(5, 0.0).sum()) == 2  # the middle pixel stays original


def test_original_left_or_above_each_as_likely_and_the_mask_stays():
    strategy, rng, batch = DiffuseMix(fractal=0.0, ramp=0.0), torch_rng("halves"), share_batch(200, 8, 16)
    real, mixed = strategy.terms(batch, rng)
    assert torch.equal(real.images, batch.images)
    assert (real.name, mixed.name) == ("real", "mixed")
    assert real.weight + mixed.weight == 1
    assert torch.equal(mixed.targets, batch.masks)
    beside, above = torch.zeros(8, 16), torch.zeros(8, 16)
    beside[:, 8:], above[4:] = 1, 1
    is_beside, is_above = ((mixed.images == share).flatten(1).all(1) for share in (beside, above))
    assert bool((is_beside ^ is_above).all())
    assert stats.binomtest(int(is_beside.sum()), 200, 0.5).pvalue > 0.01


def test_the_fractal_is_blended_in_pixels():
    batch = share_batch(1, 32, 32)
    plain = DiffuseMix(fractal=0.0, ramp=0.0).terms(batch, torch_rng("same"))[1].images
    mixed = DiffuseMix(fractal=0.2, ramp=0.0, pictures=1, seed=3).terms(batch, torch_rng("same"))[1].images
    picture = fractal_picture(3, 0, 32, 32) / 255
    expected = 0.8 * denormalise(plain) + 0.2 * picture
    torch.testing.assert_close(denormalise(mixed), expected, atol=1e-5, rtol=0)


def test_a_fractal_alone_and_no_edit_are_the_extremes():
    batch = share_batch(2, 16, 16)
    same = Batch(batch.images, batch.masks, batch.images, batch.ids)
    assert torch.equal(DiffuseMix(fractal=0.0).terms(same, torch_rng("x"))[1].images, batch.images)
    alone = DiffuseMix(fractal=1.0, pictures=1).terms(batch, torch_rng("x"))[1].images
    torch.testing.assert_close(alone[0], normalise(fractal_picture(0, 0, 16, 16) / 255))


def test_a_batch_of_one_is_fine_and_one_state_gives_one_result():
    batch = share_batch(1, 8, 16)
    results = [DiffuseMix().terms(batch, torch_rng("again"))[1].images for _ in range(2)]
    assert torch.equal(*results)


def test_mistakes_say_what_to_do():
    with pytest.raises(DataError, match="mcpmix synthesize"):
        DiffuseMix().terms(make_batch(), torch_rng("x"))
    with pytest.raises(ConfigError) as caught:
        DiffuseMix(fractal=2.0, ramp=-1.0, pictures=0)
    for name in ("fractal", "ramp", "pictures"):
        assert f"- {name} is" in str(caught.value)


# --- the operations against Pillow's, which work on 8 bits ------------------------------------------------


def picture(seed=0, height=40, width=56):
    """Smooth colours with some noise, 8 bits, H,W,3, that leave out the darkest and the lightest levels."""
    draws = np.random.default_rng(seed)
    rows, columns = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    channels = [np.sin(3 * rows + k) * np.cos(4 * columns - k) for k in range(3)]
    values = 120 + 70 * np.stack(channels, -1) + draws.normal(0, 8, (height, width, 3))
    return values.clip(0, 255).astype(np.uint8)


def as_tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def levels(image):
    return (image * 255).permute(1, 2, 0).numpy()


CASES = {
    "autocontrast": (functional.autocontrast, ImageOps.autocontrast),
    "equalise": (ops.equalise, ImageOps.equalize),
    "posterise 3": (lambda x: ops.posterise(x, 3), lambda x: ImageOps.posterize(x, 3)),
    "posterise 8": (lambda x: ops.posterise(x, 8), lambda x: ImageOps.posterize(x, 8)),
    "solarise": (lambda x: functional.solarize(x, 110 / 255), lambda x: ImageOps.solarize(x, 110)),
    "colour": (lambda x: ops.colour(x, 0.4), lambda x: ImageEnhance.Color(x).enhance(0.4)),
    "contrast": (
        lambda x: ops.contrast(x, 1.7),
        lambda x: ImageEnhance.Contrast(x).enhance(1.7),
    ),
    "brightness": (
        lambda x: functional.adjust_brightness(x, 1.6),
        lambda x: ImageEnhance.Brightness(x).enhance(1.6),
    ),
    "sharpness": (
        lambda x: ops.sharpness(x, 1.8),
        lambda x: ImageEnhance.Sharpness(x).enhance(1.8),
    ),
    "blur": (lambda x: ops.sharpness(x, 0.1), lambda x: ImageEnhance.Sharpness(x).enhance(0.1)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_operations_are_those_of_pillow(name, seed):
    ours, theirs = CASES[name]
    pixels = picture(seed)
    expected = np.asarray(theirs(Image.fromarray(pixels))).astype(float)
    difference = np.abs(levels(ours(as_tensor(pixels))) - expected)
    rounding = 0.01 if name.startswith(("posterise", "equalise", "solarise")) else 1.5
    assert difference.max() <= rounding
    assert name == "posterise 8" or np.abs(expected - pixels).mean() > 1


@pytest.mark.parametrize("operation", [functional.autocontrast, ops.equalise])
def test_a_flat_image_stays(operation):
    flat = torch.full((3, 32, 32), 0.4)
    assert torch.equal(operation(flat), flat)


def test_channels_are_equalised_apart():
    image = as_tensor(picture())
    image[1] = 0.25
    result = ops.equalise(image)
    assert torch.equal(result[1], image[1])
    assert float(result[0].std()) > float(image[0].std())


@pytest.mark.parametrize("operation", [ops.colour, ops.contrast, ops.sharpness])
def test_factor_one_changes_nothing(operation):
    image = as_tensor(picture())
    torch.testing.assert_close(operation(image, 1.0), image)


@pytest.mark.parametrize("name", ops.ALL)
def test_results_stay_in_range_at_any_level_and_size(name):
    for level in (0.1, 3.0, 10.0):
        for sign in (-1.0, 1.0):
            for side in (1, 2, 33):
                image = as_tensor(picture(2))[:, :side, :side]
                result = ops.ALL[name](image, level, sign)
                assert result.shape == image.shape
                assert 0 <= float(result.min()) <= float(result.max()) <= 1


def test_structures_stay_in_place():
    """A lesion that differs from its surroundings in colour keeps its outline under every operation."""
    image = torch.full((3, 24, 24), 0.35)
    image[:, 8:16, 8:16] = torch.tensor([0.75, 0.6, 0.5])[:, None, None]
    for name, operation in ops.ALL.items():
        if name != "sharpness":  # reaches one pixel further
            changed = (operation(image, 3.0, 1.0) - operation(image, 3.0, 1.0)[:, :1, :1]).abs().sum(0) > 1e-4
            assert torch.equal(changed, image[0] > 0.5), name


def test_levels_by_hand():
    image = as_tensor(picture())
    for name, expected in {
        "posterise": ops.posterise(image, 3),  # 4 - int(0.4 * 3)
        "solarise": functional.solarize(image, 180 / 255),  # 256 - int(76.8)
        "brightness": image * 0.73,
        "contrast": ops.contrast(image, 1 - 0.27),
    }.items():
        torch.testing.assert_close(ops.ALL[name](image, 3.0, -1.0), expected)


def test_the_draw_is_uniform_over_operations_levels_and_signs():
    seen = []
    recorders = {
        name: (lambda image, level, sign, name=name: seen.append((name, level, sign)) or image)
        for name in "abcd"
    }
    strategy, draws = AugMix(severity=3.0), np.random.default_rng(8)
    strategy.operations = recorders
    for _ in range(1000):
        strategy.changed(torch.zeros(3, 2, 2), draws)
    names, levels_, signs = zip(*seen, strict=True)
    assert stats.chisquare([names.count(name) for name in "abcd"]).pvalue > 0.01
    assert stats.kstest(levels_, stats.uniform(0.1, 2.9).cdf).pvalue > 0.01
    assert set(signs) == {-1.0, 1.0}
    assert stats.binomtest(signs.count(1.0), 1000).pvalue > 0.01


def test_divergence_of_several_classes_by_hand():
    chances = [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]
    logits = [torch.tensor(part).log()[None, :, None, None] + 5 for part in chances]
    middle = [(a + b) / 2 for a, b in zip(*chances, strict=True)]
    expected = sum(p * math.log(p / m) / 2 for part in chances for p, m in zip(part, middle, strict=True))
    assert float(jensen_shannon(logits)) == pytest.approx(expected, rel=1e-5)
    assert float(jensen_shannon([logits[0]] * 3)) == pytest.approx(0, abs=1e-6)
