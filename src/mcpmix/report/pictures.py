"""Small pictures with contours: photographs as data URIs, contours as paths in the pixels of the image."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]

_QUALITY = 92  # JPEG without chroma subsampling: no visible loss, a quarter of the bytes of PNG
_STEP = 0.1  # between two shares of a strip
_SIMPLIFY = 0.3  # pixels by which a contour may be smoothed to save bytes


@dataclass(frozen=True)
class Contour:
    """A closed line over a picture.

    Attributes:
        path: SVG path data, in pixels of the picture.
        colour: `#rrggbb`.
    """

    path: str
    colour: str


@dataclass(frozen=True)
class Tile:
    """A picture with contours and a caption.

    Attributes:
        uri: `data:` URI.
        width: pixels of the picture that the contours refer to.
        height: likewise.
        contours: drawn in this order.
        caption: text below.
        alt: what it shows, for those who do not see it.
    """

    uri: str
    width: int
    height: int
    contours: tuple[Contour, ...]
    caption: str
    alt: str


def make_tile(image: Pixels, contours: Sequence[Contour], caption: str, alt: str, *, side: int = 224) -> Tile:
    """A tile of an image.

    Args:
        image: (H, W, 3) uint8.
        contours: in pixels of `image`.
        caption: text below.
        alt: what it shows.
        side: longest side in pixels at which the image is embedded; it is never enlarged.
    """
    height, width = image.shape[:2]
    return Tile(photo_uri(image, side), width, height, tuple(contours), caption, alt)


def photo_uri(image: Pixels, side: int) -> str:
    """(H, W, 3) uint8 as a JPEG `data:` URI whose longest side is at most `side` pixels."""
    picture = Image.fromarray(image)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def contour_path(mask: npt.NDArray[np.generic]) -> str:
    """The outlines of a hard mask as SVG path data; empty for an empty mask.

    Args:
        mask: (H, W); lesion where it is not 0. A lesion that touches the border is closed along it.
    """
    from skimage import measure

    tools: Any = measure  # without types
    padded = np.pad(np.asarray(mask) != 0, 1).astype(float)
    parts = []
    for line in tools.find_contours(padded, 0.5):
        points = tools.approximate_polygon(line, _SIMPLIFY)[:-1] - 0.5  # padding of 1, pixel centres at +0.5
        parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for y, x in points) + "Z")
    return "".join(parts)


def shares(largest: float) -> list[float]:
    """Synthetic shares of a strip: 0, 0.1, 0.2 ... up to `largest`, in (0, 1], which always is the last."""
    count = int(np.floor(largest / _STEP + 1e-9))
    steps = [round(_STEP * k, 10) for k in range(count + 1)]
    return steps if abs(steps[-1] - largest) < 1e-9 else [*steps, largest]


def mixtures(real: Pixels, synthetic: Pixels, at: Sequence[float]) -> list[Pixels]:
    """Mixed images as training sees them, before normalisation.

    Args:
        real: (S, S, 3) uint8.
        synthetic: its counterpart, likewise.
        at: synthetic shares in [0, 1].

    Returns:
        One (S, S, 3) uint8 image for each share.
    """
    import torch

    from mcpmix.mixing.mcpmix import mix

    first, second = (torch.from_numpy(pixels)[None].float() for pixels in (real, synthetic))
    return [mix(first, second, share)[0].round().to(torch.uint8).numpy() for share in at]
