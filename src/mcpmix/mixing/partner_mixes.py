"""Mixing each image of a batch with another one: Mixup, CutMix, GridMix and SmoothMix.

All of them are a weight map M of the own image: `M * own + (1 - M) * partner`, and the mask is mixed by the
same map. The share of an image-level label, which the papers on classification need, is never used.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import numpy_stream
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require


def require_partners(batch: Batch, method: str) -> None:
    """Refuse a batch in which an image has no partner but itself."""
    if len(set(batch.ids)) < 2:
        raise ConfigError(
            f"{method} mixes each image with another one of its batch, and this batch holds one sample only "
            f"({batch.ids[0] if batch.ids else 'none'}). Set train.batch_size to 2 or more, with at least "
            "two training images."
        )


def blend(own: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """`weight * own + (1 - weight) * partner`; bitwise `own` where the weight is 1, `partner` where it is 0.

    Images or masks are (B, C, H, W); the weight, in [0, 1], broadcasts to (B, 1, H, W).
    """
    return torch.lerp(partner, own, weight.to(own))


class PartnerMix(FixedStrategy):
    """Base of strategies that mix each image of a batch, and its mask, with a partner from the same batch.

    The partners are a random permutation of the batch, the same for images and masks. As in the published
    methods a sample may be its own partner, with probability 1/B. The mixed images replace the real ones.

    Args:
        method: Name of the method, for messages.
        probability: How often a batch is mixed at all, in [0, 1]; otherwise it stays as it is.
        checks: Of the settings of the subclass, as for `require`.
    """

    needs_pairs: ClassVar[bool] = False

    def __init__(self, method: str, probability: float, checks: Mapping[str, bool]) -> None:
        super().__init__()
        own = {f"probability is {probability}; expected a value in [0, 1]": 0.0 <= probability <= 1.0}
        require(method, {**checks, **own})
        self.method, self.probability = method, probability

    @abstractmethod
    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:
        """The weight of the own image in [0, 1] for a batch of `count` images.

        Returns:
            CPU tensor of a shape that broadcasts to (count, 1, height, width).
        """

    @final
    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term of B images and masks, both mixed by one map; its mean is noted as "own_share"."""
        require_partners(batch, self.method)
        draws = numpy_stream(rng)
        images, masks, share = batch.images, batch.masks, 1.0
        if draws.random() < self.probability:
            count, _, height, width = images.shape
            partners = torch.from_numpy(draws.permutation(count)).to(images.device)
            weight = self.weight_map(count, height, width, draws)
            share = float(weight.mean())
            images, masks = (blend(values, values[partners], weight) for values in (images, masks))
        self.note(own_share=share)
        # One name for mixed and unmixed batches, so that the log of an epoch averages over all its steps.
        return [Term(images, masks, 1.0, "mixed")]


@final
class Mixup(PartnerMix):
    """Convex combinations of pairs: `x' = lam x + (1 - lam) x[pi]`, and the same for the mask (soft).

    `lam ~ Beta(alpha, alpha)`, one for the batch. Binary cross-entropy is linear in its target, so the soft
    mask gives exactly the published sum of two losses.

    Cost: one interpolation of the batch, negligible against a training step.

    Args:
        alpha: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are. The paper
            has 1.0 on CIFAR and 0.1 to 0.4 on ImageNet.
        probability: How often a batch is mixed, in [0, 1]; the paper mixes all.
        per_sample: Draw one `lam` for each sample; the paper draws one for the batch.
    """

    search: ClassVar[Search] = {"alpha": (0.1, 0.2, 0.4, 1.0)}

    def __init__(self, alpha: float = 1.0, probability: float = 1.0, per_sample: bool = False) -> None:
        super().__init__("Mixup", probability, {f"alpha is {alpha}; expected 0 or more": alpha >= 0.0})
        self.alpha, self.per_sample = alpha, per_sample

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """`lam`, (1, 1, 1, 1), or (count, 1, 1, 1) with one for each sample."""
        size = count if self.per_sample else 1
        lam = draws.beta(self.alpha, self.alpha, size) if self.alpha > 0 else np.ones(size)
        return torch.from_numpy(lam).float().reshape(-1, 1, 1, 1)


@final
class CutMix(PartnerMix):
    """Paste a rectangle of the partner, image and mask alike; targets stay hard.

    `lam ~ Beta(beta, beta)`; the box has `sqrt(1 - lam)` of each side, its centre is uniform over the pixels,
    and it is clipped to the image. One box for the batch.

    Cost: one interpolation of the batch, negligible against a training step.

    Args:
        beta: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are. The paper
            has 1.
        probability: How often a batch is mixed, in [0, 1]; the paper has 0.5 on CIFAR and 1 on ImageNet.
    """

    search: ClassVar[Search] = {"beta": (0.5, 1.0), "probability": (0.5, 1.0)}

    def __init__(self, beta: float = 1.0, probability: float = 0.5) -> None:
        super().__init__("CutMix", probability, {f"beta is {beta}; expected 0 or more": beta >= 0.0})
        self.beta = beta

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """0 inside the box and 1 outside, (1, 1, height, width)."""
        side = math.sqrt(1.0 - (draws.beta(self.beta, self.beta) if self.beta > 0 else 1.0))
        box = []
        for length in (height, width):
            half, centre = int(length * side) // 2, int(draws.integers(length))
            box.append(slice(max(centre - half, 0), min(centre + half, length)))
        weight = torch.ones(1, 1, height, width)
        weight[..., box[0], box[1]] = 0.0
        return weight


@final
class GridMix(PartnerMix):
    """Take each cell of a grid from the image itself or its partner, image and mask alike; targets stay hard.

    "cells" is the paper's grid: `lam ~ Beta(alpha, alpha)`, and each of `cells` x `cells` cells keeps the own
    image with probability `lam`. The paper's auxiliary loss on the labels of patches is part of any loss on
    pixels, so it needs no separate head. "holes" is the regular grid of another method, GridMixup, which is
    often run under this name: `lam ~ U(share)`, and the partner shows through the top-left corner of each of
    `holes` x `holes` patches, with `sqrt(1 - lam)` of the patch's sides. One grid for the batch.

    Cost: one map and one interpolation of the batch, negligible against a training step.

    Args:
        mode: "cells" or "holes".
        cells: Cells along each side, 1 or more ("cells").
        alpha: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are ("cells").
        holes: Holes along each side, from 1 to half the image's side in pixels ("holes"); 4 and 8 are worth
            trying too.
        share: Smallest and largest `lam`, within (0, 1) ("holes").
        probability: How often a batch is mixed, in [0, 1].
    """

    search: ClassVar[Search] = {"cells": (4, 8, 16), "probability": (0.5, 1.0)}

    def __init__(
        self,
        mode: Literal["cells", "holes"] = "cells",
        cells: int = 8,
        alpha: float = 1.0,
        holes: int = 20,
        share: tuple[float, float] = (0.1, 0.9),
        probability: float = 0.5,
    ) -> None:
        low, high = share
        checks = {
            f"mode is {mode!r}; expected 'cells' or 'holes'": mode in ("cells", "holes"),
            f"cells is {cells}; expected 1 or more": cells >= 1,
            f"alpha is {alpha}; expected 0 or more": alpha >= 0.0,
            f"holes is {holes}; expected 1 or more": holes >= 1,
            f"share is {tuple(share)}; expected 0 < smallest <= largest < 1": 0.0 < low <= high < 1.0,
        }
        super().__init__("GridMix", probability, checks)
        self.mode, self.cells, self.alpha, self.holes, self.share = mode, cells, alpha, holes, (low, high)

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """1 where the own image stays and 0 elsewhere, (1, 1, height, width)."""
        if self.mode == "cells":
            lam = draws.beta(self.alpha, self.alpha) if self.alpha > 0 else 1.0
            cells = draws.random((self.cells, self.cells)) < lam
            rows, columns = (np.arange(length) * self.cells // length for length in (height, width))
            own = cells[np.ix_(rows, columns)]
        else:
            if self.holes > min(height, width) // 2:
                raise ConfigError(
                    f"GridMix was asked for {self.holes} holes along sides of {height} x {width} pixels; "
                    f"expected at most {min(height, width) // 2}. Lower `holes`."
                )
            side = math.sqrt(1.0 - draws.uniform(*self.share))
            inside = []
            for length in (height, width):
                patch = math.ceil(length / self.holes)
                hole = min(max(int(patch * side), 1), patch - 1)  # at least one pixel of a patch, never all
                inside.append(np.arange(length) % patch < hole)
            own = ~(inside[0][:, None] & inside[1][None, :])
        return torch.from_numpy(own).float()[None, None]


@final
class SmoothMix(PartnerMix):
    """Show the image itself through a Gaussian bump, and the partner around it; the mask likewise (soft).

    `G = exp(-distance^2 / (2 sigma^2))` with peak 1, centre uniform over the pixels, and sigma uniform in a
    range of shares of the image's shorter side. One bump for the batch. With the published range most of
    the mask is soft: G is well above 0 nearly everywhere.

    Cost: one map and one interpolation of the batch, negligible against a training step.

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
        checks = {f"sigma is {tuple(sigma)}; expected 0 < smallest <= largest": 0.0 < low <= high}
        super().__init__("SmoothMix", probability, checks)
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
