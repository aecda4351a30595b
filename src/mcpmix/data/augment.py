"""Paired transforms: parameters are drawn once, then applied to image, counterpart, mask and depth alike.

Flips, rotation, zoom and crop move all four; blur and colour are for images only. Drawn parameters are plain
tensors, one row per sample; kept or written as JSON, they replay exactly.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD

Mode = Literal["bilinear", "nearest"]

LUMA = (0.299, 0.587, 0.114)
_TONE = 0.4  # largest relative change of brightness, contrast and saturation at strength 1
_TINT = 0.1  # largest relative change of one channel against the others at strength 1


@dataclass(frozen=True)
class Geometry:
    """Where the pixels of B samples go: first the flips, then rotation and zoom about the centre."""

    angle: Tensor  # (B,) float32, degrees, counter-clockwise
    zoom: Tensor  # (B,) float32, relative size of what is shown; 2 makes a lesion twice as wide
    hflip: Tensor  # (B,) bool, left and right exchanged
    vflip: Tensor  # (B,) bool, top and bottom exchanged


@dataclass(frozen=True)
class Crop:
    """The windows of B samples that are kept and enlarged to the whole, after all other moves."""

    left: Tensor  # (B,) float32, what is cut off on the left, as a share of the width
    top: Tensor  # (B,) float32, what is cut off at the top, as a share of the height
    side: Tensor  # (B,) float32, sides of the window as shares of the image's, above 0 and up to 1


@dataclass(frozen=True)
class Blur:
    """How unsharp B samples become: (B,) float32 standard deviations in pixels; 0 changes nothing."""

    sigma: Tensor


@dataclass(frozen=True)
class Colour:
    """Changes of colour of B samples, as relative differences: 0 changes nothing."""

    brightness: Tensor  # (B,) float32
    contrast: Tensor  # (B,) float32, about the mean grey of the image
    saturation: Tensor  # (B,) float32, about the grey of each pixel
    tint: Tensor  # (B, 3) float32, gain of each channel; the three sum to 0

    def part(self, rows: slice) -> "Colour":
        """Those of some of the samples."""
        return Colour(self.brightness[rows], self.contrast[rows], self.saturation[rows], self.tint[rows])


def draw_geometry(count: int, rng: torch.Generator, *, rotate: float, scale: float, flip: bool) -> Geometry:
    """Draw flips, rotation and zoom with a CPU generator.

    The number of draws does not depend on the settings, so that switching one off leaves the others as
    they were.

    Args:
        rotate: largest angle in degrees, either way.
        scale: largest relative change of size, 0..1.
        flip: whether to exchange left and right, and top and bottom, each for half of the samples.
    """
    drawn = torch.rand(4, count, generator=rng)
    return Geometry(
        angle=(2 * drawn[0] - 1) * rotate,
        zoom=1 + (2 * drawn[1] - 1) * scale,
        hflip=(drawn[2] < 0.5) & flip,
        vflip=(drawn[3] < 0.5) & flip,
    )


def draw_crop(count: int, rng: torch.Generator, crop: float) -> Crop:
    """Draw windows; up to a share `crop`, 0 to below 1, of each side is cut away, uniformly."""
    drawn = torch.rand(3, count, generator=rng)
    side = 1 - drawn[0] * crop
    return Crop(left=drawn[1] * (1 - side), top=drawn[2] * (1 - side), side=side)


def apply_geometry(
    geometry: Geometry, images: Tensor, mode: Mode = "bilinear", crop: Crop | None = None
) -> Tensor:
    """Move the pixels of a batch, with one interpolation for all moves.

    What lies beyond the border is the reflection of what lies inside. Unlike zeros, that means the same
    before and after normalisation, draws no edge that only augmented images have, and stays true: a lesion
    that is reflected is reflected in its mask as well. Flips are exact; without rotation, zoom and crop
    nothing is interpolated.

    Args:
        images: (B, C, H, W). Any number format with `nearest`, floating point with `bilinear`.
        mode: `bilinear` for images and depth, `nearest` for masks.
        crop: windows of what the geometry shows; None keeps all of it.

    Returns:
        (B, C, H, W) in the number format of `images`.
    """
    if mode == "bilinear" and not images.is_floating_point():
        raise ValueError(f"bilinear needs floating point images, got {images.dtype}; use nearest for masks")
    flipped = torch.where(_column(geometry.hflip, images), images.flip(-1), images)
    flipped = torch.where(_column(geometry.vflip, images), flipped.flip(-2), flipped)
    still = bool((geometry.angle == 0).all() and (geometry.zoom == 1).all())
    if still and (crop is None or bool((crop.side == 1).all())):
        return flipped
    work = flipped if flipped.dtype in (torch.float32, torch.float64) else flipped.float()
    grid = F.affine_grid(
        _sources(geometry, crop, images).to(work.dtype), list(images.shape), align_corners=False
    )
    moved = F.grid_sample(work, grid, mode=mode, padding_mode="reflection", align_corners=False)
    return moved.to(images.dtype)


def draw_blur(count: int, rng: torch.Generator, blur: float) -> Blur:
    """Draw how unsharp each sample becomes, uniformly up to a standard deviation of `blur` pixels."""
    return Blur(torch.rand(count, generator=rng) * blur)


def apply_blur(blur: Blur, images: Tensor) -> Tensor:
    """Blur (B, C, H, W) images by Gaussians, cut off at three standard deviations; borders are reflected.

    Samples of standard deviation 0 are unchanged, bit for bit.
    """
    if not blur.sigma.any():
        return images  # the usual case, and free
    count, channels, height, width = images.shape
    radius = min(math.ceil(3 * float(blur.sigma.max())), height - 1, width - 1)
    place = torch.arange(-radius, radius + 1, dtype=torch.float64)
    wide = blur.sigma.double().cpu()[:, None]
    weights = torch.exp(-(place**2) / (2 * wide.clamp_min(1e-12) ** 2)) * (place.abs() <= 3 * wide)
    weights[:, radius] = 1
    weights = weights / weights.sum(dim=1, keepdim=True)  # each row depends on its own deviation only
    kernels = weights.to(images).repeat_interleave(channels, dim=0)
    rows = F.pad(images.reshape(1, count * channels, height, width), (radius,) * 4, mode="reflect")
    rows = F.conv2d(rows, kernels[:, None, None, :], groups=count * channels)
    return F.conv2d(rows, kernels[:, None, :, None], groups=count * channels).view_as(images)


def draw_colour(count: int, rng: torch.Generator, strength: float) -> Colour:
    """Draw tone and tint; `strength` is 0 (no change) .. 1 (up to 40 percent of tone, 10 percent of tint)."""
    drawn = 2 * torch.rand(count, 6, generator=rng) - 1
    tint = drawn[:, 3:] - drawn[:, 3:].mean(dim=1, keepdim=True)
    tone = drawn[:, :3] * (_TONE * strength)
    return Colour(tone[:, 0], tone[:, 1], tone[:, 2], tint * (_TINT * strength))


def apply_colour(colour: Colour, images: Tensor) -> Tensor:
    """Change the colours of (B, 3, H, W) images in [0, 1]; the identity for a colour of strength 0."""
    if not any(getattr(colour, field.name).any() for field in fields(colour)):
        return images  # the usual case, and free
    # Each step adds a multiple of a difference, so that a multiple of 0 gives back the same bits.
    gain = (colour.brightness[:, None] + colour.tint).to(images)[:, :, None, None]
    images = images + gain * images
    weights = torch.tensor(LUMA, dtype=images.dtype, device=images.device).view(3, 1, 1)
    grey = (images * weights).sum(dim=1, keepdim=True)
    images = images + _column(colour.saturation, images).to(images) * (images - grey)
    middle = grey.mean(dim=(-2, -1), keepdim=True)
    images = images + _column(colour.contrast, images).to(images) * (images - middle)
    return images.clamp(0, 1)


@dataclass(frozen=True)
class Augmentation:
    """All that was drawn for B samples: the same for both images of a pair, their mask and their depth."""

    geometry: Geometry
    crop: Crop
    blur: Blur
    colour: Colour

    def images(self, images: Tensor) -> Tensor:
        """Real or synthetic images, (B, 3, H, W) floating point in [0, 1]: moved, blurred, coloured."""
        return apply_colour(self.colour, apply_blur(self.blur, self.depths(images)))

    def masks(self, masks: Tensor) -> Tensor:
        """Masks or anything that must not be interpolated, (B, C, H, W) of any number format: moved."""
        return apply_geometry(self.geometry, masks, "nearest", self.crop)

    def depths(self, depths: Tensor) -> Tensor:
        """Depth maps, (B, C, H, W) floating point: moved like the images, and nothing else."""
        return apply_geometry(self.geometry, depths, "bilinear", self.crop)

    def as_json(self) -> dict[str, dict[str, list[Any]]]:
        """Lists of numbers by part and field."""
        return {
            part: {name: values.tolist() for name, values in tensors.items()}
            for part, tensors in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: dict[str, dict[str, list[Any]]]) -> Self:
        """What `as_json` gave, bit for bit."""
        kinds: dict[str, Any] = {"geometry": Geometry, "crop": Crop, "blur": Blur, "colour": Colour}
        return cls(
            **{
                part: kind(**{name: torch.tensor(numbers) for name, numbers in values[part].items()})
                for part, kind in kinds.items()
            }
        )


def draw_augmentation(
    count: int,
    rng: torch.Generator,
    *,
    rotate: float,
    scale: float,
    flip: bool,
    colour: float,
    crop: float = 0.0,
    blur: float = 0.0,
) -> Augmentation:
    """Draw everything; switching one part off leaves the others as they were."""
    geometry = draw_geometry(count, rng, rotate=rotate, scale=scale, flip=flip)
    tones = draw_colour(count, rng, colour)
    # Younger than the others and hence last, so that runs without them draw what they always drew.
    return Augmentation(geometry, draw_crop(count, rng, crop), draw_blur(count, rng, blur), tones)


def normalise(images: Tensor) -> Tensor:
    """Bring (B, 3, H, W) images, uint8 or floating point in [0, 1], to ImageNet's mean and deviation."""
    scaled = images if images.is_floating_point() else images.float() / 255
    mean, std = _statistics(scaled)
    return (scaled - mean) / std


def denormalise(images: Tensor) -> Tensor:
    """Undo `normalise`; not clamped."""
    mean, std = _statistics(images)
    return images * std + mean


def to_pixels(images: Tensor) -> Tensor:
    """Pixels of normalised images (..., 3, H, W), clamped to [0, 1]."""
    return denormalise(images).clamp(0, 1)


def _statistics(like: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = (
        torch.tensor(values, dtype=like.dtype, device=like.device).view(3, 1, 1)
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return mean, std


def _column(values: Tensor, images: Tensor) -> Tensor:
    """(B,) as (B, 1, 1, 1) on the device of the images."""
    return values.to(images.device)[:, None, None, None]


def _sources(geometry: Geometry, crop: Crop | None, images: Tensor) -> Tensor:
    """(B, 2, 3): from places in the result to places in the source, in units of half the sides."""
    height, width = images.shape[-2:]
    angle = geometry.angle.double() * (math.pi / 180)
    cosine, sine = torch.cos(angle) / geometry.zoom, torch.sin(angle) / geometry.zoom
    # Rows count downwards, and sides may differ: hence the signs and the ratios.
    turn = torch.stack(
        [
            torch.stack([cosine, -sine * height / width], dim=-1),
            torch.stack([sine * width / height, cosine], dim=-1),
        ],
        dim=1,
    )
    if crop is None:
        return torch.cat([turn, torch.zeros_like(turn[:, :, :1])], dim=2).to(images.device)
    side = crop.side.double()
    centre = torch.stack([2 * crop.left.double() + side - 1, 2 * crop.top.double() + side - 1], dim=-1)
    return torch.cat([turn * side[:, None, None], turn @ centre[:, :, None]], dim=2).to(images.device)
