"""CutMix (Yun et al., ICCV 2019) with dense targets."""

from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.mixing.partners import PartnerMix
from mcpmix.mixing.strategy import Search


@final
class CutMix(PartnerMix):
    """Paste a rectangle of the partner, image and mask alike; targets stay hard.

    `lam ~ Beta(beta, beta)`; the box has `sqrt(1 - lam)` of each side, its centre is uniform over the pixels,
    and it is clipped to the image. One box for the batch.

    Search range: beta in {0.5, 1.0}, probability in {0.5, 1.0}; the paper has beta 1, and probability 0.5 on
    CIFAR, 1 on ImageNet. Cost: one interpolation of the batch, nothing against a training step.

    Args:
        beta: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are.
        probability: How often a batch is mixed, in [0, 1].
    """

    search: ClassVar[Search] = {"beta": (0.5, 1.0), "probability": (0.5, 1.0)}

    def __init__(self, beta: float = 1.0, probability: float = 0.5) -> None:
        wrong = [] if beta >= 0.0 else [f"beta is {beta}; expected 0 or more"]
        super().__init__("CutMix", probability, wrong)
        self.beta = beta

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """0 inside the box and 1 outside, (1, 1, height, width)."""
        lam = draws.beta(self.beta, self.beta) if self.beta > 0 else 1.0
        side = np.sqrt(1.0 - lam)
        weight = torch.ones(1, 1, height, width)
        rows, columns = (_interval(length, side, draws) for length in (height, width))
        weight[..., rows, columns] = 0.0
        return weight


def _interval(length: int, share: float, draws: np.random.Generator) -> slice:
    """The pixels of an axis that a box with this share of it covers, around a random centre."""
    half, centre = int(length * share) // 2, int(draws.integers(length))
    return slice(max(centre - half, 0), min(centre + half, length))
