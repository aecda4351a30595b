"""PixMix (Hendrycks et al., CVPR 2022) for masks, with a mixing set made by code."""

from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.mixing.appearance import AppearanceMix
from mcpmix.mixing.draws import numpy_stream
from mcpmix.mixing.photometric import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.mixing.pictures import mixing_picture
from mcpmix.mixing.strategy import Batch, Search, Term

_SMALLEST = 1e-37  # a power of it is finite in single precision for every exponent in [-1, 0]


@final
class PixMix(AppearanceMix):
    """Add or multiply an image, some times over, with structurally rich pictures or with itself.

    Start from the image or, as likely, from a copy after one random operation. Then 0 to `k` rounds, each as
    likely: the partner is a newly changed copy of the image or the sample's mixing picture, and is added or
    multiplied with random exponents or factors; each of two choices as likely. The mask stays, hard; so no
    operation may move structures, and the geometric ones of the published method are left out. The mixing
    set is not the authors' download but made by code (`mcpmix.mixing.pictures`), each picture when first
    needed.

    Search range: k in {2, 4}, beta in {3, 4, 5}, severity in {1, 3}. Cost: about 5 operations for each image
    on the way in, and one pass of the network.

    Args:
        k: Most rounds, 0 or more.
        beta: How much the image outweighs its partner, above 0; the partner's mean share is 1 / (1 + beta).
            The paper has 3 on CIFAR and 4 on ImageNet.
        severity: Largest level of an operation, in [0.1, 10]; the paper has 3 on CIFAR and 1 on ImageNet.
        all_ops: Also change saturation, contrast, brightness and sharpness, as in the paper's recipe.
        pictures: Size of the mixing set; 0 mixes images with changed copies of themselves only.
        seed: Names the mixing set.
        probability: How often an image is mixed, in [0, 1]; the paper mixes all.
        mean: Mean by which images are normalised, one value per channel.
        std: Standard deviation likewise.
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
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        checks = {
            f"k is {k}; expected 0 or more": k >= 0,
            f"beta is {beta}; expected a value above 0": beta > 0,
            f"pictures is {pictures}; expected 0 or more": pictures >= 0,
            f"probability is {probability}; expected a value in [0, 1]": 0.0 <= probability <= 1.0,
        }
        super().__init__("PixMix", severity, all_ops, mean, std, checks)
        self.k, self.beta, self.probability = k, beta, probability
        self.pictures, self.seed = pictures, seed

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the mixed images under their hard masks."""
        draws, pixels = numpy_stream(rng), self.pixels.denormalise(batch.images)
        images = batch.images.clone()
        for index, image in enumerate(pixels):
            if draws.random() < self.probability:
                images[index] = self.pixels.normalise(self.mixed(image, draws))
        return [Term(images, batch.masks, 1.0, "mixed")]

    def mixed(self, image: Tensor, draws: np.random.Generator) -> Tensor:
        """One image (3, H, W) in [0, 1] after all rounds, like it."""
        picture = self._picture(image, draws)
        result = self.changed(image, draws) if draws.random() < 0.5 else image
        for _ in range(int(draws.integers(self.k + 1))):
            partner = picture if picture is not None and draws.random() < 0.5 else self.changed(image, draws)
            mix = add if draws.random() < 0.5 else multiply
            result = mix(result, partner, *coefficients(self.beta, draws)).clamp(0, 1)
        return result

    def _picture(self, image: Tensor, draws: np.random.Generator) -> Tensor | None:
        if self.pictures == 0:
            return None
        index = int(draws.integers(self.pictures))
        return mixing_picture(self.seed, index, *image.shape[1:]).to(image) / 255


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
