"""Operations on the colours of one image that leave every structure where it is.

The set of AugMix without rotation, shear and translation: those would move lesions away from their mask.
Images are (3, H, W), floating point in [0, 1]; so are results.

Three operations are torchvision's. The others are ours because torchvision's give other results: its
`equalize` and `posterize` cut values down to 8 bits where these round, which moves them by up to 0.07 and
0.25; its saturation and contrast take 0.2989 for the weight of red, up to 9e-5 away; and its sharpness
differs by up to 6e-8.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2.functional import adjust_brightness, autocontrast, solarize

from mcpmix.data.augment import denormalise

_LEVELS = 256
_TOP = _LEVELS - 1
GREY = (0.299, 0.587, 0.114)
SMALLEST_LEVEL = 0.1


def to_pixels(images: Tensor) -> Tensor:
    """Pixels of normalised images (..., 3, H, W), clamped to [0, 1]."""
    return denormalise(images).clamp(0, 1)


def equalise(image: Tensor) -> Tensor:
    """Spread the 256 levels of each channel evenly; a channel with too few pixels for that stays."""
    values = (image * _TOP).round().long()
    channels = torch.arange(len(image), device=image.device)[:, None]
    flat = values.flatten(1) + _LEVELS * channels
    counts = torch.bincount(flat.flatten(), minlength=_LEVELS * len(image)).reshape(len(image), _LEVELS)
    highest = counts.gather(1, values.amax((1, 2))[:, None])
    step = (counts.sum(1, keepdim=True) - highest) // _TOP
    before = counts.cumsum(1) - counts
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=_TOP)
    spread = table.flatten()[flat].reshape(image.shape).to(image.dtype) / _TOP
    return torch.where(step[:, :, None] == 0, image, spread)


def posterise(image: Tensor, bits: int) -> Tensor:
    """Keep the `bits` highest of the 8 bits of each value; 1 to 8."""
    kept = 1 << (8 - bits)
    values = (image * _TOP).round()
    return (values / kept).floor() * kept / _TOP


def colour(image: Tensor, factor: float) -> Tensor:
    """Saturation: grey for 0, unchanged for 1, stronger above."""
    return _away_from(_grey(image).expand_as(image), image, factor)


def contrast(image: Tensor, factor: float) -> Tensor:
    """Contrast around the mean grey: none for 0, unchanged for 1, stronger above."""
    return _away_from(_grey(image).mean(), image, factor)


def sharpness(image: Tensor, factor: float) -> Tensor:
    """Sharpness: smoothed over 3 x 3 pixels for 0, unchanged for 1, sharper above; the border stays."""
    kernel = image.new_ones(1, 1, 3, 3)
    kernel[..., 1, 1] = 5
    smooth = image.clone()
    if min(image.shape[1:]) >= 3:
        smooth[:, 1:-1, 1:-1] = F.conv2d(image[:, None], kernel / 13)[:, 0]
    return _away_from(smooth, image, factor)


def _grey(image: Tensor) -> Tensor:
    return torch.tensordot(image.new_tensor(GREY), image, 1)[None]


def _away_from(origin: Tensor, image: Tensor, factor: float) -> Tensor:
    return (origin + factor * (image - origin)).clamp(0, 1)


def _factor(level: float, sign: float) -> float:
    # AugMix has 0.1 + 0.18 * level, which makes images almost black at low levels. This has the same ends,
    # 0.1 and 1.9, at level 10, and changes nothing at level 0.
    return 1 + 0.09 * sign * level


Operation = Callable[[Tensor, float, float], Tensor]
"""From an image, a level in [0.1, 10] and a sign (-1 or 1) to an image."""

STANDARD: dict[str, Operation] = {
    "autocontrast": lambda image, level, sign: autocontrast(image),  # noqa: ARG005
    "equalise": lambda image, level, sign: equalise(image),  # noqa: ARG005
    "posterise": lambda image, level, sign: posterise(image, max(4 - int(0.4 * level), 1)),  # noqa: ARG005
    "solarise": lambda image, level, sign: solarize(image, (256 - int(25.6 * level)) / _TOP),  # noqa: ARG005
}
"""The photometric operations of AugMix's training set."""

ALL: dict[str, Operation] = STANDARD | {
    "colour": lambda image, level, sign: colour(image, _factor(level, sign)),
    "contrast": lambda image, level, sign: contrast(image, _factor(level, sign)),
    "brightness": lambda image, level, sign: adjust_brightness(image, _factor(level, sign)),
    "sharpness": lambda image, level, sign: sharpness(image, _factor(level, sign)),
}
"""With those that AugMix leaves out because they are part of its benchmark; factors centred at 1."""


def random_operation(
    image: Tensor, operations: dict[str, Operation], severity: float, draws: np.random.Generator
) -> Tensor:
    """Apply one operation, each as likely, at a level from U(0.1, severity) and with a random sign."""
    names = list(operations)
    operation = operations[names[int(draws.integers(len(names)))]]
    level, sign = draws.uniform(SMALLEST_LEVEL, severity), 2.0 * draws.integers(2) - 1.0
    return operation(image, float(level), float(sign))
