"""Pictures as pixels: statistics of ImageNet, files, outlines of masks, and the way to tensors and back."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mcpmix.core.files import written

if TYPE_CHECKING:
    import torch

Pixels = npt.NDArray[np.uint8]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp"})


def list_images(folder: Path, *, deep: bool = False, endings: Collection[str] = ENDINGS) -> list[Path]:
    """Image files in a folder, sorted, without hidden ones; `deep` adds those of sub-folders."""
    return sorted(
        path
        for path in (folder.rglob("*") if deep else folder.iterdir())
        if path.suffix.lower() in endings
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def write_png(path: Path, pixels: Pixels | npt.NDArray[np.uint16], note: PngInfo | None = None) -> None:
    """Write a PNG whole or not at all; its folder is made if needed.

    Args:
        pixels: (H, W) of 8 or 16 bits, or (H, W, 3) uint8 RGB.
        note: text chunks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG", pnginfo=note)


def outline(mask: npt.NDArray[Any], *, outside: bool = False) -> npt.NDArray[np.bool_]:
    """The pixels of an (H, W) mask with one of four neighbours outside; so is all beyond the image.

    With `outside`, the pixels around the mask instead: those with one of four neighbours inside it.
    """
    inside = np.pad(np.asarray(mask) != 0, 1)
    here = inside[1:-1, 1:-1]
    around = (inside[:-2, 1:-1], inside[2:, 1:-1], inside[1:-1, :-2], inside[1:-1, 2:])
    if outside:
        return np.asarray(~here & np.logical_or.reduce(around))
    return np.asarray(here & ~np.logical_and.reduce(around))


def as_images(pixels: Pixels, device: "torch.device | str" = "cpu") -> "torch.Tensor":
    """(B, H, W, 3) uint8 pixels as (B, 3, H, W) float32 images in [0, 1]."""
    import torch  # here, because those who only read files do not need it

    own = np.require(pixels, requirements=["C", "W"])  # torch takes no read-only or reversed memory
    return torch.from_numpy(own).to(device).permute(0, 3, 1, 2).float() / 255


def as_targets(masks: Pixels, channels: int, device: "torch.device | str" = "cpu") -> "torch.Tensor":
    """(B, H, W) masks as (B, C, H, W) float32 targets in {0, 1}: lesion, or a channel for each label."""
    import torch

    labels = torch.from_numpy(masks).to(device)
    if channels == 1:
        return labels[:, None].float()
    return torch.nn.functional.one_hot(labels.long(), channels).permute(0, 3, 1, 2).float()


def as_pixels(images: "torch.Tensor") -> Pixels:
    """(B, 3, H, W) images in [0, 1] as (B, H, W, 3) uint8 pixels."""
    return np.asarray((images * 255).round().byte().permute(0, 2, 3, 1).cpu())
