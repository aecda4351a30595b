"""Pictures of the worst cases: where truth and prediction agree, and where they do not."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mcpmix.metrics.files import read_pair
from mcpmix.metrics.masks import as_pair
from mcpmix.metrics.options import FolderOptions

if TYPE_CHECKING:
    from PIL import Image

    from mcpmix.metrics.report import ImageScore

# Colours that stay apart under the common kinds of colour blindness.
FOUND = (240, 240, 240)
MISSED = (230, 159, 0)
INVENTED = (0, 114, 178)
_OPACITY = 0.5
_CAPTION_HEIGHT = 16
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")


def draw_case(
    truth: npt.ArrayLike,
    prediction: npt.ArrayLike,
    image: npt.NDArray[np.uint8] | None = None,
    caption: str = "",
) -> "Image.Image":
    """Paint found pixels light, missed ones orange and invented ones blue, over the image or over black.

    Args:
        truth: (H, W) hard mask.
        prediction: (H, W) hard mask of the same size.
        image: (H, W, 3) of the same size.
        caption: a line of text below.
    """
    from PIL import Image, ImageDraw

    y, p = (mask.astype(bool) for mask in as_pair(truth, prediction))
    canvas = np.zeros((*y.shape, 3)) if image is None else image.astype(np.float64)
    opacity = 1.0 if image is None else _OPACITY
    for area, colour in ((y & p, FOUND), (y & ~p, MISSED), (~y & p, INVENTED)):
        canvas[area] = (1 - opacity) * canvas[area] + opacity * np.array(colour)
    picture = Image.fromarray(canvas.round().astype(np.uint8))
    if not caption:
        return picture
    framed = Image.new("RGB", (picture.width, picture.height + _CAPTION_HEIGHT))
    framed.paste(picture)
    ImageDraw.Draw(framed).text((2, picture.height + 2), caption, fill=FOUND)
    return framed


def draw_worst(
    cases: "Sequence[ImageScore]", options: FolderOptions, out: Path, images: Path | None = None
) -> None:
    """Write a picture per case, numbered from the worst.

    Args:
        cases: worst first.
        options: the settings they were scored with.
        out: folder for the pictures; made if there are cases.
        images: folder of images with the names of the masks. A case without image, or with one of another
            size, is painted on black.
    """
    if cases:
        out.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(cases, start=1):
        truth, prediction, _ = read_pair(case.files, options.threshold)
        value = case.scores[options.worst_by]
        caption = f"{case.files.name}  {options.worst_by} {value:.1f}"
        picture = draw_case(truth, prediction, _image_of(case.files.name, images, truth.shape), caption)
        picture.save(out / f"{number:02d}_{case.files.name.replace('/', '_')}.png")


def _image_of(name: str, folder: Path | None, shape: tuple[int, ...]) -> npt.NDArray[np.uint8] | None:
    from PIL import Image

    candidates = [folder / f"{name}{suffix}" for suffix in _IMAGE_SUFFIXES] if folder else []
    for path in candidates:
        if path.is_file():
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            return pixels if pixels.shape[:2] == shape else None
    return None
