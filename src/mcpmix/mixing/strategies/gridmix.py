"""GridMix (Baek et al., Pattern Recognition 2021) with dense targets."""

import math
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.partners import PartnerMix
from mcpmix.mixing.strategy import Search


@final
class GridMix(PartnerMix):
    """Take each cell of a grid from the own image or from the partner, image and mask alike; targets hard.

    "cells" is the paper's grid: `lam ~ Beta(alpha, alpha)`, and each of `cells` x `cells` cells keeps the own
    image with probability `lam`. The paper's auxiliary loss on the labels of patches is part of any loss on
    pixels, and so needs no head of its own. "holes" is the regular grid of another method, GridMixup, that is
    often run under this name: `lam ~ U(share)`, and the partner shows through the top-left corner of each of
    `holes` x `holes` patches, with `sqrt(1 - lam)` of the patch's sides. One grid for the batch.

    Search range: cells in {4, 8, 16}, probability in {0.5, 1.0}; holes in {4, 8, 20}.
    Cost: one map and one interpolation of the batch, nothing against a training step.

    Args:
        mode: "cells" or "holes".
        cells: Cells along each side, 1 or more ("cells").
        alpha: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are ("cells").
        holes: Holes along each side, from 1 to half the image's side in pixels ("holes").
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
        super().__init__("GridMix", probability, [text for text, fine in checks.items() if not fine])
        self.mode, self.cells, self.alpha, self.holes, self.share = mode, cells, alpha, holes, (low, high)

    def weight_map(self, count: int, height: int, width: int, draws: np.random.Generator) -> Tensor:  # noqa: ARG002
        """1 where the own image stays and 0 elsewhere, (1, 1, height, width)."""
        own = self._cells(height, width, draws) if self.mode == "cells" else self._holes(height, width, draws)
        return torch.from_numpy(own).float()[None, None]

    def _cells(self, height: int, width: int, draws: np.random.Generator) -> np.ndarray:
        lam = draws.beta(self.alpha, self.alpha) if self.alpha > 0 else 1.0
        own = draws.random((self.cells, self.cells)) < lam
        rows, columns = (np.arange(length) * self.cells // length for length in (height, width))
        return own[np.ix_(rows, columns)]

    def _holes(self, height: int, width: int, draws: np.random.Generator) -> np.ndarray:
        if self.holes > min(height, width) // 2:
            raise ConfigError(
                f"GridMix was asked for {self.holes} holes along sides of {height} x {width} pixels; "
                f"expected at most {min(height, width) // 2}. Lower `holes`."
            )
        side = math.sqrt(1.0 - draws.uniform(*self.share))
        rows, columns = (_in_hole(length, self.holes, side) for length in (height, width))
        return ~(rows[:, None] & columns[None, :])


def _in_hole(length: int, holes: int, share: float) -> np.ndarray:
    """Which pixels of an axis lie in a hole: the first `share` of each patch, at least 1, never all."""
    patch = math.ceil(length / holes)
    hole = min(max(int(patch * share), 1), patch - 1)
    return np.arange(length) % patch < hole
