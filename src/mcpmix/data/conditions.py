"""Depth maps as files, and the two-channel condition (mask, depth) of the generator."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mcpmix.core.errors import DataError
from mcpmix.data.images import write_png


def write_depth(path: Path, depth: np.ndarray) -> None:
    """H,W depth in [0, 1], near = 1, as a 16-bit PNG, whole or not at all."""
    write_png(path, np.round(depth * 65535).astype(np.uint16))


def read_depth(path: Path) -> np.ndarray:
    """H,W float32 depth in [0, 1]; the counterpart of `write_depth`."""
    try:
        with Image.open(path) as image:
            return np.asarray(image, dtype=np.float32) / 65535
    except OSError as error:
        raise DataError(
            f"Cannot read the depth map {path}: {error}. Delete the depth folder to redo it."
        ) from error


def read_depths(folder: Path, ids: Sequence[str]) -> np.ndarray:
    """N,H,W float32 depth maps of the given samples."""
    return np.stack([read_depth(folder / f"{name}.png") for name in ids])


def condition(masks: Tensor, depths: Tensor, use: str) -> Tensor:
    """B,2,H,W condition image: mask and depth; a channel not in `use` ("both", "mask", "depth") is zero."""
    if use == "mask":
        depths = torch.zeros_like(depths)
    elif use == "depth":
        masks = torch.zeros_like(masks)
    return torch.stack([masks, depths], dim=1)
