"""Depth maps as files, and the two-channel condition (mask, depth) of the generator."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import write_png

_MARGIN = 0.025  # of the side: how far beyond the mask the depth of a lesion may reach
_NOTHING = 1e-6


def write_depth(path: Path, depth: np.ndarray) -> None:
    """Write H,W depth in [0, 1], near = 1, as a 16-bit PNG, whole or not at all."""
    write_png(path, np.round(depth * 65535).astype(np.uint16))


def read_depths(folder: Path, ids: Sequence[str]) -> np.ndarray:
    """N,H,W float32 depth maps in [0, 1] of the samples with these ids."""
    maps = []
    for name in ids:
        path = folder / f"{name}.png"
        try:
            with Image.open(path) as image:
                maps.append(np.asarray(image, dtype=np.float32) / 65535)
        except OSError as error:
            raise DataError(
                f"Cannot read the depth map {path}: {error}. Delete the depth folder to redo it."
            ) from error
    return np.stack(maps)


def condition(masks: Tensor, depths: Tensor, use: str, under_mask: str) -> Tensor:
    """B,2,H,W condition image of a ControlNet: mask and depth.

    Args:
        masks: B,H,W in {0, 1}.
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
    hole = F.max_pool2d(masks[:, None].to(depths.dtype), 2 * margin + 1, stride=1, padding=margin)
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
