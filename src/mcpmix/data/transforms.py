"""Paired transforms: parameters are drawn once, then applied to image, counterpart, mask and depth alike.

Drawn parameters are plain tensors, one row per sample; kept or written as JSON, they replay exactly.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

Mode = Literal["bilinear", "nearest"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_LUMA = (0.299, 0.587, 0.114)
_TONE = 0.4  # largest relative change of brightness, contrast and saturation at strength 1
_TINT = 0.1  # largest relative change of one channel against the others at strength 1


class _Recorded:
    """Tensors that go to JSON and come back bit for bit."""

    def as_json(self) -> dict[str, list[Any]]:
        """Lists of numbers by field."""
        return {field.name: getattr(self, field.name).tolist() for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, values: dict[str, list[Any]]) -> Self:
        """What `as_json` gave."""
        return cls(**{name: torch.tensor(value) for name, value in values.items()})


@dataclass(frozen=True)
class Geometry(_Recorded):
    """Where the pixels of B samples go: first the flips, then rotation and zoom about the centre.

    Attributes:
        angle: (B,) float32, degrees, counter-clockwise.
        zoom: (B,) float32, relative size of what is shown; 2 makes a lesion twice as wide.
        mirrored: (B,) bool, left and right exchanged.
        upended: (B,) bool, top and bottom exchanged.
    """

    angle: Tensor
    zoom: Tensor
    mirrored: Tensor
    upended: Tensor


@dataclass(frozen=True)
class Colour(_Recorded):
    """Changes of colour of B samples, as relative differences: 0 changes nothing.

    Attributes:
        brightness: (B,) float32.
        contrast: (B,) float32, about the mean grey of the image.
        saturation: (B,) float32, about the grey of each pixel.
        tint: (B, 3) float32, gain of each channel; the three sum to 0.
    """

    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    tint: Tensor


def draw_geometry(count: int, rng: torch.Generator, *, rotate: float, scale: float, flip: bool) -> Geometry:
    """Draw flips, rotation and zoom for `count` samples.

    The number of draws does not depend on the settings, so that switching one off leaves the others as
    they were.

    Args:
        count: number of samples.
        rng: a CPU generator.
        rotate: largest angle in degrees, either way.
        scale: largest relative change of size, 0..1.
        flip: whether to exchange left and right, and top and bottom, each for half of the samples.
    """
    drawn = torch.rand(4, count, generator=rng)
    return Geometry(
        angle=(2 * drawn[0] - 1) * rotate,
        zoom=1 + (2 * drawn[1] - 1) * scale,
        mirrored=(drawn[2] < 0.5) & flip,
        upended=(drawn[3] < 0.5) & flip,
    )


def apply_geometry(geometry: Geometry, images: Tensor, mode: Mode = "bilinear") -> Tensor:
    """Move the pixels of a batch.

    What lies beyond the border is the reflection of what lies inside. Unlike zeros, that means the same
    before and after normalisation, draws no edge that only augmented images have, and stays true: a lesion
    that is reflected is reflected in its mask as well. Flips are exact; without rotation and zoom nothing
    is interpolated.

    Args:
        geometry: drawn for B samples.
        images: (B, C, H, W). Any number format with `nearest`, floating point with `bilinear`.
        mode: `bilinear` for images and depth, `nearest` for masks.

    Returns:
        (B, C, H, W) in the number format of `images`.
    """
    if mode == "bilinear" and not images.is_floating_point():
        raise ValueError(f"bilinear needs floating point images, got {images.dtype}; use nearest for masks")
    flipped = torch.where(_column(geometry.mirrored, images), images.flip(-1), images)
    flipped = torch.where(_column(geometry.upended, images), flipped.flip(-2), flipped)
    if bool((geometry.angle == 0).all() and (geometry.zoom == 1).all()):
        return flipped
    work = flipped if flipped.dtype in (torch.float32, torch.float64) else flipped.float()
    grid = F.affine_grid(_sources(geometry, images).to(work.dtype), list(images.shape), align_corners=False)
    moved = F.grid_sample(work, grid, mode=mode, padding_mode="reflection", align_corners=False)
    return moved.to(images.dtype)


def draw_colour(count: int, rng: torch.Generator, strength: float) -> Colour:
    """Draw brightness, contrast, saturation and tint for `count` samples.

    Args:
        count: number of samples.
        rng: a CPU generator.
        strength: 0 (no change) .. 1 (up to 40 percent of tone and 10 percent of tint).
    """
    drawn = 2 * torch.rand(count, 6, generator=rng) - 1
    tint = drawn[:, 3:] - drawn[:, 3:].mean(dim=1, keepdim=True)
    tone = drawn[:, :3] * (_TONE * strength)
    return Colour(tone[:, 0], tone[:, 1], tone[:, 2], tint * (_TINT * strength))


def apply_colour(colour: Colour, images: Tensor) -> Tensor:
    """Change the colours of a batch; exactly the identity for a colour drawn at strength 0.

    Args:
        colour: drawn for B samples.
        images: (B, 3, H, W) floating point in [0, 1].

    Returns:
        (B, 3, H, W) in [0, 1].
    """
    if not any(getattr(colour, field.name).any() for field in fields(colour)):
        return images  # the usual case, and free
    # Each step adds a multiple of a difference, so that a multiple of 0 gives back the same bits.
    gain = (colour.brightness[:, None] + colour.tint).to(images)[:, :, None, None]
    images = images + gain * images
    grey = _grey(images)
    images = images + _column(colour.saturation, images).to(images) * (images - grey)
    middle = grey.mean(dim=(-2, -1), keepdim=True)
    images = images + _column(colour.contrast, images).to(images) * (images - middle)
    return images.clamp(0, 1)


def normalise(images: Tensor) -> Tensor:
    """Bring images to the mean and standard deviation of ImageNet.

    Args:
        images: (B, 3, H, W) uint8, or floating point in [0, 1].

    Returns:
        (B, 3, H, W), float32 for uint8, otherwise in the number format of `images`.
    """
    scaled = images if images.is_floating_point() else images.float() / 255
    mean, std = _statistics(scaled)
    return (scaled - mean) / std


def denormalise(images: Tensor) -> Tensor:
    """Undo `normalise`.

    Args:
        images: (B, 3, H, W) floating point, normalised.

    Returns:
        (B, 3, H, W), in [0, 1] for what came from there; not clamped.
    """
    mean, std = _statistics(images)
    return images * std + mean


def _statistics(like: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = (
        torch.tensor(values, dtype=like.dtype, device=like.device).view(3, 1, 1)
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return mean, std


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(_LUMA, dtype=images.dtype, device=images.device).view(3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True)


def _column(values: Tensor, images: Tensor) -> Tensor:
    """(B,) as (B, 1, 1, 1) on the device of the images."""
    return values.to(images.device)[:, None, None, None]


def _sources(geometry: Geometry, images: Tensor) -> Tensor:
    """(B, 2, 3): from places in the result to places in the source, in units of half the sides."""
    height, width = images.shape[-2:]
    angle = geometry.angle.double() * (math.pi / 180)
    cosine, sine = torch.cos(angle) / geometry.zoom, torch.sin(angle) / geometry.zoom
    zero = torch.zeros_like(cosine)
    # Rows count downwards, and sides may differ: hence the signs and the ratios.
    rows = (
        torch.stack([cosine, -sine * height / width, zero], dim=-1),
        torch.stack([sine * width / height, cosine, zero], dim=-1),
    )
    return torch.stack(rows, dim=1).to(images.device)
