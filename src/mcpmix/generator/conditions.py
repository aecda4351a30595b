"""What a ControlNet sees: mask and depth, with the depth under the mask filled in from around it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.config import FinetuneConfig
from mcpmix.core.on_demand import OnDemand
from mcpmix.core.pixels import Pixels
from mcpmix.generator.depth import read_depths

_MARGIN = 0.025  # of the side: how far beyond the mask the depth of a lesion may reach
_NOTHING = 1e-6


class Depths(Protocol):
    """N depth maps in [0, 1]: an array N,S,S float32, or what reads them from files."""

    def __getitem__(self, places: list[int], /) -> npt.NDArray[np.float32]: ...


class DepthMaps:
    """The depth maps of N samples, read when they are asked for.

    Args:
        folder: of the finished stage.
    """

    def __init__(self, folder: Path, ids: Sequence[str]) -> None:
        self.folder, self.ids = folder, tuple(ids)

    def __getitem__(self, places: Sequence[int]) -> np.ndarray:
        return read_depths(self.folder, [self.ids[place] for place in places])


class Conditions:
    """Condition images of N training samples, made when they are asked for, as tensors B,2,S,S.

    Args:
        masks: N,S,S in {0, ..., labels - 1}.
        settings: say what is shown (see `condition`).
    """

    def __init__(self, masks: Pixels, depths: Depths, settings: FinetuneConfig, labels: int = 2) -> None:
        def make(place: int) -> Tensor:
            depth = torch.from_numpy(np.array(depths[[place]], np.float32))
            return condition(
                as_levels(masks[[place]], labels), depth, settings.condition, settings.depth_under_mask
            )[0]

        self._images = OnDemand(range(len(masks)), make)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, places: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        return torch.stack([self._images[int(place)] for place in places])


def as_levels(masks: Pixels, labels: int) -> Tensor:
    """Masks B,H,W as the mask channel of a condition: of C labels, label k has the level k / (C - 1)."""
    return torch.from_numpy(masks).float() / (labels - 1)


def condition(masks: Tensor, depths: Tensor, use: str, under_mask: str) -> Tensor:
    """B,2,H,W condition image of a ControlNet: mask and depth.

    Args:
        masks: B,H,W in {0, 1}, or the levels of several classes: see `as_levels`.
        depths: B,H,W in [0, 1].
        use: "both", "mask" or "depth"; the other channel is zero.
        under_mask: what depth shows under the mask: "keep", or "fill" for the continuation of what is around.
            Depth alone is always kept: what was filled would tell where the mask is.
    """
    if under_mask == "fill" and use != "depth":
        depths = fill_depth(depths, masks)
    if use == "mask":
        depths = torch.zeros_like(depths)
    elif use == "depth":
        masks = torch.zeros_like(masks)
    return torch.stack([masks, depths], dim=1)


def swapped_conditions(
    own: Tensor, other: Tensor, depths: Tensor, use: str, under_mask: str
) -> tuple[Tensor, Tensor]:
    """Conditions B,2,H,W of two sets of masks, with the same depth; arguments as for `condition`.

    Depth is filled under both masks. Filled under one mask each, depths would differ just where the masks do,
    and a generator that sees nothing but depth would seem to follow the mask.
    """
    if under_mask == "fill" and use != "depth":
        depths = fill_depth(depths, torch.maximum(own, other))
    return condition(own, depths, use, "keep"), condition(other, depths, use, "keep")


def fill_depth(depths: Tensor, masks: Tensor) -> Tensor:
    """Depths B,H,W whose values under the masks, and a little around, continue those of the surroundings.

    The depth of a real image shows its lesion. A generator that sees it there need not look at the mask, and
    paints the old lesion under a new mask.
    """
    margin = max(1, round(_MARGIN * depths.shape[-1]))
    hole = F.max_pool2d((masks[:, None] > 0).to(depths.dtype), 2 * margin + 1, stride=1, padding=margin)
    known = 1 - hole
    filled = _continued(depths[:, None] * known, known)
    return torch.where(hole > 0, filled, depths[:, None])[:, 0]


def _continued(values: Tensor, known: Tensor) -> Tensor:
    """Fill B,1,H,W from ever coarser means of what is known; `values` are 0 where nothing is.

    Down to one pixel in any case: an image must not depend on the others of its batch.
    """
    height, width = values.shape[-2:]
    if height == width == 1:
        return values / known.clamp(min=_NOTHING)
    odd = (0, width % 2, 0, height % 2)
    coarse = _continued(*(F.avg_pool2d(F.pad(part, odd), 2) for part in (values, known)))
    fine = F.interpolate(coarse, scale_factor=2, mode="bilinear")[..., :height, :width]
    return values + (1 - known) * fine
