"""Changing how single images look, under their unchanged hard masks: AugMix, PixMix and DiffuseMix.

The operations on colours are those of AugMix without rotation, shear and translation: these would move
lesions away from their mask. Three of them are torchvision's. The others are ours because torchvision's give
other results: its `equalize` and `posterize` cut values down to 8 bits where these round, which moves them by
up to 0.07 and 0.25; its saturation and contrast take 0.2989 for the weight of red, up to 9e-5 away; and its
sharpness differs by up to 6e-8.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.seeds import numpy_stream
from mcpmix.data.augment import LUMA, normalise, to_pixels
from mcpmix.mixing.pictures import fractal_picture, mixing_picture
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require

_LEVELS = 256
_TOP = _LEVELS - 1
_SMALLEST_LEVEL = 0.1
_DEEPEST = 3
_TINY = 1e-7
_SMALLEST = 1e-37  # a power of it is finite in single precision for every exponent in [-1, 0]


class AppearanceMix(FixedStrategy):
    """Base of strategies that change images by random operations and leave the masks as they are, hard.

    Args:
        method: Name of the method, for messages.
        severity: Largest level of an operation, in [0.1, 10].
        all_ops: Also change saturation, contrast, brightness and sharpness.
        checks: Of the settings of the subclass, as for `require`.
    """

    needs_pairs: ClassVar[bool] = False
    ahead: ClassVar[bool] = True

    def __init__(self, method: str, severity: float, all_ops: bool, checks: dict[str, bool]) -> None:
        super().__init__()
        text = f"severity is {severity}; expected a value from {_SMALLEST_LEVEL} to 10"
        require(method, {**checks, text: _SMALLEST_LEVEL <= severity <= 10})
        self.severity = severity
        self.operations = ALL if all_ops else STANDARD

    def changed(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """An image (3, H, W) in [0, 1] after one operation, each as likely, of random level and sign."""
        names = list(self.operations)
        operation = self.operations[names[int(draws.integers(len(names)))]]
        level, sign = draws.uniform(_SMALLEST_LEVEL, self.severity), 2.0 * draws.integers(2) - 1.0
        return operation(image, float(level), float(sign))


@final
class AugMix(AppearanceMix):
    """Mix short chains of random operations on one image, and penalise inconsistent predictions.

    A view is `(1 - m) x + m sum_i w_i chain_i(x)`, `w ~ Dirichlet(alpha, ...)`, `m ~ Beta(alpha, alpha)`. The
    network sees the image and two views; the loss is that of the image (`supervise="clean"`, as published) or
    of all three, plus `jsd_weight` times the Jensen-Shannon divergence of the three predictions. Targets stay
    hard. Two things differ from the classification method. Chains contain no rotation, shear or translation:
    inside a mixture these leave ghosts of lesions that no mask describes. The divergence, of [p, 1 - p], is
    averaged over pixels: a sum would make its weight grow with the image.

    Cost: three times the forward and backward pass, and about 6 operations for each view of each image.
    `jsd_weight=0` is the published mode without consistency: one view in place of the image, at the cost of
    one pass.

    Args:
        width: Number of chains, 1 or more.
        depth: Operations of each chain, 0 or more; None draws 1, 2 or 3. 0 leaves the images as they are.
        alpha: Parameter of the Dirichlet and Beta distributions, above 0.
        severity: Largest level of an operation, in [0.1, 10]; the paper has 3 on CIFAR and 1 on ImageNet.
        jsd_weight: Weight of the divergence, 0 or more.
        supervise: "clean" or "all": which predictions the masks teach.
        all_ops: Also change saturation, contrast, brightness and sharpness.
    """

    search: ClassVar[Search] = {"jsd_weight": (1.0, 4.0, 12.0), "severity": (1.0, 3.0)}

    def __init__(
        self,
        width: int = 3,
        depth: int | None = None,
        alpha: float = 1.0,
        severity: float = 3.0,
        jsd_weight: float = 12.0,
        supervise: Literal["clean", "all"] = "clean",
        all_ops: bool = False,
    ) -> None:
        checks = {
            f"width is {width}; expected 1 or more": width >= 1,
            f"depth is {depth}; expected 0 or more, or None": depth is None or depth >= 0,
            f"alpha is {alpha}; expected a value above 0": alpha > 0,
            f"jsd_weight is {jsd_weight}; expected 0 or more": jsd_weight >= 0,
            f"supervise is {supervise!r}; expected 'clean' or 'all'": supervise in ("clean", "all"),
        }
        super().__init__("AugMix", severity, all_ops, checks)
        self.width, self.depth, self.alpha = width, depth, alpha
        self.jsd_weight, self.supervise = jsd_weight, supervise

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The images and two views of them, or one view where nothing asks for consistency."""
        draws, pixels = numpy_stream(rng), to_pixels(batch.images)
        names = ("view1", "view2") if self.jsd_weight > 0 else ("view",)
        views = [normalise(torch.stack([self.view(image, draws) for image in pixels])) for _ in names]
        if self.jsd_weight == 0:
            return [Term(views[0], batch.masks, 1.0, names[0])]
        own, other = (1.0, 0.0) if self.supervise == "clean" else (1 / 3, 1 / 3)
        real = Term(batch.images, batch.masks, own, "real")
        return [real, *(Term(v, batch.masks, other, name) for v, name in zip(views, names, strict=True))]

    def consistency(self, logits: Sequence[Tensor], terms: Sequence[Term]) -> Tensor:  # noqa: ARG002
        """`jsd_weight` times the divergence of the three predictions, which is noted as "jsd"; 0-d."""
        if self.jsd_weight == 0:
            return torch.zeros((), device=logits[0].device)
        divergence = jensen_shannon(logits)
        self.note(jsd=float(divergence.detach()))
        return self.jsd_weight * divergence

    def view(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """One view of an image (3, H, W) in [0, 1], like it."""
        weights = draws.dirichlet([self.alpha] * self.width)
        share = draws.beta(self.alpha, self.alpha)
        mixed = torch.zeros_like(image)
        for weight in weights:
            depth = int(draws.integers(1, _DEEPEST + 1)) if self.depth is None else self.depth
            chain = image
            for _ in range(depth):
                chain = self.changed(chain, draws)
            mixed += float(weight) * chain
        return torch.lerp(image, mixed, float(share))


def jensen_shannon(logits: Sequence[Tensor]) -> Tensor:
    """Jensen-Shannon divergence of predictions, in nats, averaged over pixels; 0-d, 0 or more.

    Binary with one channel, in [0, log 2] for two; with several, over the labels.
    """
    values = torch.stack([part.float() for part in logits])
    if values.shape[2] > 1:
        logs = values.log_softmax(2)
        middle = logs.exp().mean(0).clamp_min(_TINY).log()
        return (logs.exp() * (logs - middle)).sum(2).mean()
    chances = values.sigmoid()
    centre = chances.mean(0).clamp(_TINY, 1 - _TINY)
    lesion = chances * (F.logsigmoid(values) - centre.log())
    background = (1 - chances) * (F.logsigmoid(-values) - (1 - centre).log())
    return (lesion + background).mean()


@final
class PixMix(AppearanceMix):
    """Repeatedly add or multiply an image with structurally rich pictures or with itself.

    Start from the image or, with equal probability, from a copy after one random operation. Then apply 0 to
    `k` rounds, each number with equal probability: the partner is a newly changed copy of the image or the
    sample's mixing picture, and is added with random factors or multiplied with random exponents; both
    choices have equal probability. The mask stays hard and unchanged, so no operation may move structures,
    and the geometric ones of the published method are left out. The mixing set is not the authors' download:
    code generates each picture when it is first needed (`mcpmix.mixing.pictures`).

    Cost: about 5 operations for each input image, and one pass of the network.

    Args:
        k: Most rounds, 0 or more.
        beta: How much the image outweighs its partner, above 0; the partner's mean share is 1 / (1 + beta).
            The paper has 3 on CIFAR and 4 on ImageNet.
        severity: Largest level of an operation, in [0.1, 10]; the paper has 3 on CIFAR and 1 on ImageNet.
        all_ops: Also change saturation, contrast, brightness and sharpness, as in the paper's recipe.
        pictures: Size of the mixing set; 0 mixes images with changed copies of themselves only.
        seed: Names the mixing set.
        probability: How often an image is mixed, in [0, 1]; the paper mixes all.
    """

    search: ClassVar[Search] = {"k": (2, 4), "beta": (3.0, 4.0, 5.0), "severity": (1.0, 3.0)}

    def __init__(
        self,
        k: int = 4,
        beta: float = 3.0,
        severity: float = 3.0,
        all_ops: bool = True,
        pictures: int = 256,
        seed: int = 0,
        probability: float = 1.0,
    ) -> None:
        checks = {
            f"k is {k}; expected 0 or more": k >= 0,
            f"beta is {beta}; expected a value above 0": beta > 0,
            f"pictures is {pictures}; expected 0 or more": pictures >= 0,
            f"probability is {probability}; expected a value in [0, 1]": 0.0 <= probability <= 1.0,
        }
        super().__init__("PixMix", severity, all_ops, checks)
        self.k, self.beta, self.probability = k, beta, probability
        self.pictures, self.seed = pictures, seed

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the mixed images under their hard masks."""
        draws, pixels = numpy_stream(rng), to_pixels(batch.images)
        images = batch.images.clone()
        for index, image in enumerate(pixels):
            if draws.random() < self.probability:
                images[index] = normalise(self.mixed(image, draws))
        return [Term(images, batch.masks, 1.0, "mixed")]

    def mixed(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """One image (3, H, W) in [0, 1] after all rounds, like it."""
        picture = None
        if self.pictures > 0:
            index = int(draws.integers(self.pictures))
            picture = mixing_picture(self.seed, index, *image.shape[1:]).to(image) / 255
        result = self.changed(image, draws) if draws.random() < 0.5 else image
        for _ in range(int(draws.integers(self.k + 1))):
            partner = picture if picture is not None and draws.random() < 0.5 else self.changed(image, draws)
            mix = add if draws.random() < 0.5 else multiply
            result = mix(result, partner, *coefficients(self.beta, draws)).clamp(0, 1)
        return result


def coefficients(beta: float, draws: np.random.Generator) -> tuple[float, float]:
    """Factors, or exponents, of the image and of its partner.

    As likely: Beta(beta, 1) and Beta(1, beta), or 1 + Beta(1, beta) and -Beta(1, beta).
    """
    if draws.random() < 0.5:
        return float(draws.beta(beta, 1)), float(draws.beta(1, beta))
    return 1 + float(draws.beta(1, beta)), -float(draws.beta(1, beta))


def add(image: Tensor, partner: Tensor, own: float, other: float) -> Tensor:
    """`own * image + other * partner` around mid-grey, not clamped: pixels are taken to [-1, 1] and back."""
    return (own * (2 * image - 1) + other * (2 * partner - 1) + 1) / 2


def multiply(image: Tensor, partner: Tensor, own: float, other: float) -> Tensor:
    """`image^own * partner^other` around mid-grey, not clamped: pixels are taken to [0, 2] and back.

    Exponents: `own` 0 or more, `other` -1 or more.
    """
    return (2 * image) ** own * (2 * partner).clamp(min=_SMALLEST) ** other / 2


@final
class DiffuseMix(FixedStrategy):
    """One half of the image, the other half of its edited version, and a fractal over both; the mask stays.

    The edited version is the batch's synthetic counterpart, generated under the same mask; the paper's editor
    is InstructPix2Pix, which does not see masks. Each sample draws whether its halves lie side by side or one
    above the other, and its fractal. The original is always on the left or on top, and a linear ramp joins
    the halves, as published. Code generates the fractals (iterated function systems); they are not the
    authors' download.

    Training uses the mixed images in addition to the real ones, as published: both in equal numbers.

    Cost: two images for each one; the edit is made beforehand.

    Args:
        fractal: Weight of the fractal, in [0, 1]; the paper has 0.2.
        ramp: Width of the passage between the halves, in sides of the image, in [0, 1]; the paper has 20 of
            256 pixels.
        pictures: Number of fractals, 1 or more.
        seed: Names the set of fractals.
    """

    needs_pairs: ClassVar[bool] = True
    search: ClassVar[Search] = {"fractal": (0.1, 0.2, 0.3)}

    def __init__(
        self, fractal: float = 0.2, ramp: float = 20 / 256, pictures: int = 256, seed: int = 0
    ) -> None:
        super().__init__()
        checks = {
            f"fractal is {fractal}; expected a weight in [0, 1]": 0 <= fractal <= 1,
            f"ramp is {ramp}; expected a share of the side in [0, 1]": 0 <= ramp <= 1,
            f"pictures is {pictures}; expected 1 or more": pictures >= 1,
        }
        require("DiffuseMix", checks)
        self.fractal, self.ramp, self.pictures, self.seed = fractal, ramp, pictures, seed

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """The real and the mixed images, each with half of the weight, under the same hard masks."""
        draws = numpy_stream(rng)
        edited = batch.pairs()
        count, _, height, width = batch.images.shape
        across = half_share(width, self.ramp).expand(height, width)
        down = half_share(height, self.ramp)[:, None].expand(height, width)
        share = torch.stack([across if draws.random() < 0.5 else down for _ in range(count)])[:, None]
        mixed = torch.lerp(batch.images, edited, share.to(edited))
        if self.fractal > 0:
            chosen = draws.integers(self.pictures, size=count)
            fractals = torch.stack([fractal_picture(self.seed, int(i), height, width) for i in chosen])
            # Normalising is affine, so blending normalised images is blending pixels.
            mixed = torch.lerp(mixed, normalise(fractals.to(mixed) / 255), self.fractal)
        return [
            Term(batch.images, batch.masks, 0.5, "real"),
            Term(mixed, batch.masks, 0.5, "mixed"),
        ]


def half_share(length: int, ramp: float) -> Tensor:
    """0 on the first half of an axis, 1 on the second, (length,); a ramp of this share of it joins them."""
    centres = (torch.arange(length) + 0.5) / length - 0.5
    return (centres > 0).float() if ramp == 0 else (centres / ramp + 0.5).clamp(0, 1)


# --- operations on the colours of one image, (3, H, W) in [0, 1] -------------------------------------------


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


def _torchvision() -> ModuleType:
    """Its operations on images; imported when one is drawn, because it takes seconds to load."""
    from torchvision.transforms.v2 import functional

    return functional


def _grey(image: Tensor) -> Tensor:
    return torch.tensordot(image.new_tensor(LUMA), image, 1)[None]


def _away_from(origin: Tensor, image: Tensor, factor: float) -> Tensor:
    return (origin + factor * (image - origin)).clamp(0, 1)


def _factor(level: float, sign: float) -> float:
    # AugMix has 0.1 + 0.18 * level, which makes images almost black at low levels. This has the same ends,
    # 0.1 and 1.9, at level 10, and changes nothing at level 0.
    return 1 + 0.09 * sign * level


Operation = Callable[[Tensor, float, float], Tensor]
"""From an image, a level in [0.1, 10] and a sign (-1 or 1) to an image."""

STANDARD: dict[str, Operation] = {
    "autocontrast": lambda image, level, sign: _torchvision().autocontrast(image),  # noqa: ARG005
    "equalise": lambda image, level, sign: equalise(image),  # noqa: ARG005
    "posterise": lambda image, level, sign: posterise(image, max(4 - int(0.4 * level), 1)),  # noqa: ARG005
    "solarise": lambda image, level, sign: _torchvision().solarize(  # noqa: ARG005
        image, (256 - int(25.6 * level)) / _TOP
    ),
}
"""The photometric operations of AugMix's training set."""

ALL: dict[str, Operation] = STANDARD | {
    "colour": lambda image, level, sign: colour(image, _factor(level, sign)),
    "contrast": lambda image, level, sign: contrast(image, _factor(level, sign)),
    "brightness": lambda image, level, sign: _torchvision().adjust_brightness(image, _factor(level, sign)),
    "sharpness": lambda image, level, sign: sharpness(image, _factor(level, sign)),
}
"""With those that AugMix leaves out because they are part of its benchmark; factors centred at 1."""
