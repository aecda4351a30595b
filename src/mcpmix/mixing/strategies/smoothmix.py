"""SmoothMix (Lee et al., CVPR workshops 2020) with dense targets."""

from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.mixing.partners import PartnerMix
from mcpmix.mixing.strategy import Search


@final
class SmoothMix(PartnerMix):
    """Show the own image through a Gaussian bump, and the partner around it; the mask likewise (soft).

    `G = exp(-distance^2 / (2 sigma^2))` with peak 1, centre uniform over the pixels, and sigma uniform in a
    range of shares of the image's shorter side. One bump for the batch. With the published range most of
    the mask is soft: G is well above 0 nearly everywhere.

    Search range: sigma in {(0.1, 0.25), (0.25, 0.5), (0.5, 1.0)}, probability in {0.5, 1.0}.
    Cost: one map and one interpolation of the batch, nothing against a training step.

    Args:
        sigma: Smallest and largest width of the bump as a share of the shorter side, above 0. Very large
            values leave the images as they are.
        probability: How often a batch is mixed, in [0, 1].
    """

    search: ClassVar[Search] = {
        "sigma": ((0.1, 0.25), (0.25, 0.5), (0.5, 1.0)),
        "probability": (0.5, 1.0),
    }

    def __init__(self, sigma: tuple[float, float] = (0.25, 0.5), probability: float = 0.5) -> None:
        low, high = sigma
        wrong = [] if 0.0 < low <= high else [f"sigma is {tuple(sigma)}; expected 0 < smallest <= largest"]
        super().__init__("SmoothMix", probability, wrong)
        self.sigma = (low, high)

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """The bump, (1, 1, height, width)."""
        row, column = int(draws.integers(height)), int(draws.integers(width))
        sigma = draws.uniform(*self.sigma) * min(height, width)
        vertical, horizontal = (
            torch.exp(-0.5 * ((torch.arange(length) - centre) / sigma) ** 2)
            for length, centre in ((height, row), (width, column))
        )
        return (vertical[:, None] * horizontal[None, :])[None, None]
