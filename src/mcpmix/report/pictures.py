"""Pictures of the page: photographs as data URIs, contours as paths in the pixels of the image."""

import base64
import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from mcpmix.core.pixels import Pixels
from mcpmix.mixing.mcpmix import mix
from mcpmix.report.arms import Arm

Contour = tuple[str, str]
"""SVG path data in pixels of the picture, and a colour `#rrggbb`."""

TRUTH_COLOUR = "#ffffff"
"""Colour of the true contour."""
_QUALITY = 92  # JPEG without chroma subsampling: no visible loss, a quarter of the bytes of PNG
_STEP = 0.1  # between two shares of a strip
_SIMPLIFY = 0.3  # pixels by which a contour may be smoothed to save bytes
_BANK = {  # pictures that synthesis draws, and what they show
    "alignment.png": "How well the judge finds the lesion under its mask, in synthetic and in real images.",
    "sheet.png": "Contact sheet of the bank.",
}


@dataclass(frozen=True)
class Tile:
    """A picture with contours, a caption and a text alternative."""

    uri: str  # `data:` URI of the picture, perhaps reduced
    width: int  # pixels of the picture that the contours refer to, as is `height`
    height: int
    contours: Sequence[Contour]
    caption: str
    alt: str


def make_tile(image: Pixels, contours: Sequence[Contour], caption: str, alt: str, *, side: int = 224) -> Tile:
    """A tile of an (H, W, 3) image, embedded with at most `side` pixels on its longest side."""
    picture = Image.fromarray(image)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return Tile(jpeg_uri(picture), image.shape[1], image.shape[0], contours, caption, alt)


def jpeg_uri(picture: Image.Image) -> str:
    """A picture within a page: a `data:` URI."""
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def contour_path(mask: npt.NDArray[np.generic]) -> str:
    """The outlines of a hard mask (H, W) as SVG path data; empty for an empty mask.

    A lesion that touches the border is closed along it.
    """
    from skimage import measure

    tools: Any = measure  # without types
    padded = np.pad(np.asarray(mask) != 0, 1).astype(float)
    parts = []
    for line in tools.find_contours(padded, 0.5):
        points = tools.approximate_polygon(line, _SIMPLIFY)[:-1] - 0.5  # padding of 1, pixel centres at +0.5
        parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for y, x in points) + "Z")
    return "".join(parts)


# --- training samples ---------------------------------------------------------------------------------------


def spread_over_groups(group_of: Mapping[str, str], count: int) -> list[str]:
    """At most `count` ids, of as many groups as possible: the first of each, then the second of each, ..."""
    members: dict[str, list[str]] = defaultdict(list)
    for name, group in group_of.items():
        members[group].append(name)
    turns = zip_longest(*members.values())
    return [name for turn in turns for name in turn if name is not None][:count]


def shares(largest: float) -> list[float]:
    """Synthetic shares of a strip: 0, 0.1, 0.2 ... up to `largest`, in (0, 1], which always is the last."""
    return [*(round(_STEP * k, 10) for k in range(math.ceil(largest / _STEP - 1e-9))), largest]


def strip(
    name: str, real: Pixels, mask: Pixels, counterparts: Sequence[Pixels], largest: float
) -> tuple[list[Tile], list[Tile]]:
    """The transition from a real image to its first counterpart under one mask, and all counterparts.

    Images are (S, S, 3), the mask (S, S); `largest` is the largest synthetic share, in (0, 1].
    """
    contours = [(contour_path(mask), TRUTH_COLOUR)]
    first, second = (torch.from_numpy(pixels)[None].float() for pixels in (real, counterparts[0]))
    mixed = []
    for share in shares(largest):
        image = mix(first, second, share)[0].round().to(torch.uint8).numpy()
        caption = "real, s = 0" if share == 0 else f"s = {share:g}"
        alt = f"{name}: share {share:g} of the synthetic image, with the contour of the mask"
        mixed.append(make_tile(image, contours, caption, alt))
    alone = []
    for number, image in enumerate(counterparts, start=1):
        alt = f"{name}: synthetic counterpart {number} under the same mask"
        alone.append(make_tile(image, contours, f"synthetic {number}", alt))
    return mixed, alone


def bank_tiles(folder: Path) -> list[Tile]:
    """The pictures that synthesis has drawn, as far as they are there, at their own size."""
    tiles = []
    for name, caption in _BANK.items():
        if (folder / name).exists():
            with Image.open(folder / name) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            tiles.append(make_tile(pixels, [], caption, caption, side=max(pixels.shape)))
    return tiles


# --- test images --------------------------------------------------------------------------------------------


def pick_cases(values: Mapping[str, float], each: int) -> list[tuple[str, str]]:
    """Choose at most `each` images with the highest, the middle and the lowest values; none twice.

    NaN is left out, ties go by id.

    Returns:
        Kind ("best", "median" or "worst") and id, in falling order: the very worst last.
    """
    order = sorted((name for name in values if not math.isnan(values[name])), key=lambda n: (-values[n], n))
    each = min(each, math.ceil(len(order) / 3))
    best, rest = order[:each], order[each:]
    worst = rest[max(len(rest) - each, 0) :]
    middle = [name for name in rest if name not in worst]
    # The median of all images, as near as the ones left allow.
    start = max(0, min(len(order) // 2 - each // 2 - each, len(middle) - each))
    chosen = {"best": best, "median": middle[start : start + each], "worst": worst}
    return [(kind, name) for kind, names in chosen.items() for name in names]


def case_tiles(
    name: str, image: Pixels, truth: Pixels, predictions: Sequence[tuple[Arm, Pixels, float]]
) -> list[Tile]:
    """A test image (H, W, 3) with the truth, then with the prediction of each arm over it.

    Predictions are hard masks (H, W), like the truth, each with its DSC in percent.
    """
    contour = (contour_path(truth), TRUTH_COLOUR)
    tiles = [make_tile(image, [contour], "truth", f"Test image {name} with the contour of the truth")]
    for arm, mask, dsc in predictions:
        text = f"{arm.label}: {'DSC undefined' if math.isnan(dsc) else f'DSC {dsc:.1f}'}"
        text += "" if mask.any() else ", nothing found"
        alt = f"Test image {name}: contours of the truth and of the prediction of {text}"
        tiles.append(make_tile(image, [contour, (contour_path(mask), arm.colour)], text, alt))
    return tiles
