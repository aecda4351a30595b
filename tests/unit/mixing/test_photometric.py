"""The operations against Pillow's, which work on 8 bits."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from mcpmix.data.augment import normalise
from mcpmix.mixing import photometric as ops


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
    "autocontrast": (ops.autocontrast, ImageOps.autocontrast),
    "equalise": (ops.equalise, ImageOps.equalize),
    "posterise 3": (lambda x: ops.posterise(x, 3), lambda x: ImageOps.posterize(x, 3)),
    "posterise 8": (lambda x: ops.posterise(x, 8), lambda x: ImageOps.posterize(x, 8)),
    "solarise": (lambda x: ops.solarize(x, 110 / 255), lambda x: ImageOps.solarize(x, 110)),
    "colour": (lambda x: ops.colour(x, 0.4), lambda x: ImageEnhance.Color(x).enhance(0.4)),
    "contrast": (lambda x: ops.contrast(x, 1.7), lambda x: ImageEnhance.Contrast(x).enhance(1.7)),
    "brightness": (
        lambda x: ops.adjust_brightness(x, 1.6),
        lambda x: ImageEnhance.Brightness(x).enhance(1.6),
    ),
    "sharpness": (lambda x: ops.sharpness(x, 1.8), lambda x: ImageEnhance.Sharpness(x).enhance(1.8)),
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


@pytest.mark.parametrize("operation", [ops.autocontrast, ops.equalise])
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
        "solarise": ops.solarize(image, 180 / 255),  # 256 - int(76.8)
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
    draws = np.random.default_rng(8)
    for _ in range(1000):
        ops.random_operation(torch.zeros(3, 2, 2), recorders, 3.0, draws)
    names, levels_, signs = zip(*seen, strict=True)
    assert stats.chisquare([names.count(name) for name in "abcd"]).pvalue > 0.01
    assert stats.kstest(levels_, stats.uniform(0.1, 2.9).cdf).pvalue > 0.01
    assert set(signs) == {-1.0, 1.0}
    assert stats.binomtest(signs.count(1.0), 1000).pvalue > 0.01


def test_pixels_are_clamped():
    image = as_tensor(picture())
    torch.testing.assert_close(ops.to_pixels(normalise(image[None])), image[None])
    assert float(ops.to_pixels(torch.full((1, 3, 2, 2), 50.0)).max()) == 1.0
