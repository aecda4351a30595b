"""Mixup (Zhang et al., ICLR 2018) with dense targets."""

from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.mixing.partners import PartnerMix
from mcpmix.mixing.strategy import Search


@final
class Mixup(PartnerMix):
    """Convex combinations of pairs: `x' = lam x + (1 - lam) x[pi]`, and the same for the mask (soft).

    `lam ~ Beta(alpha, alpha)`, one for the batch. Binary cross-entropy is linear in its target, so the soft
    mask gives exactly the published sum of two losses.

    Search range: alpha in {0.1, 0.2, 0.4, 1.0}; the paper has 1.0 on CIFAR and 0.1 to 0.4 on ImageNet.
    Cost: one interpolation of the batch, nothing against a training step.

    Args:
        alpha: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are.
        probability: How often a batch is mixed, in [0, 1]; the paper mixes all.
        per_sample: Draw one `lam` for each sample; the paper draws one for the batch.
    """

    search: ClassVar[Search] = {"alpha": (0.1, 0.2, 0.4, 1.0)}

    def __init__(self, alpha: float = 1.0, probability: float = 1.0, per_sample: bool = False) -> None:
        wrong = [] if alpha >= 0.0 else [f"alpha is {alpha}; expected 0 or more"]
        super().__init__("Mixup", probability, wrong)
        self.alpha, self.per_sample = alpha, per_sample

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """`lam`, (1, 1, 1, 1), or (count, 1, 1, 1) with one for each sample."""
        size = count if self.per_sample else 1
        lam = draws.beta(self.alpha, self.alpha, size) if self.alpha > 0 else np.ones(size)
        return torch.from_numpy(lam).float().reshape(-1, 1, 1, 1)
