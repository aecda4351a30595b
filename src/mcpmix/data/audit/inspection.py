"""A look at the files of one sample. Whatever is in them, it ends in facts, never in an exception."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.audit.hashing import Fingerprint
from mcpmix.data.sample import Sample, examine_mask, pixel_digest, read_image, size_problems

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

THUMBNAIL = 96  # pixels, longer side
_ORIENTATION = 0x0112
_ENDINGS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (".jpg", ".jpeg"),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._+-]+")
_CORNER = 0.14  # of the sides
_LEAST_SIDE = 32  # pixels, below which nothing can be read
_INK = 235  # grey level from which on a pixel may be writing
_STEP = 90  # levels by which writing differs from what is beside it
_LEAST_STROKES, _MOST_INK = 0.05, 0.35  # shares of a corner


@dataclass(frozen=True)
class Facts:
    """What the files of a sample are.

    Attributes:
        sample: whose files.
        errors: why it cannot be used.
        oddities: kinds of oddities that do no harm by themselves; `mcpmix.data.audit.run` says what
            each means.
        digest: `pixel_digest` of the image; empty if it cannot be read.
        mask_digest: the same of the mask.
        width: pixels; 0 if it cannot be read.
        height: pixels.
        levels: number of grey levels in the mask file.
        area: share of the image that is lesion, 0..1.
        centre: place of the lesion's centre, right and down, 0..1.
        fingerprint: of the image.
        thumbnail: (h, w, 3) uint8, the lesion outlined.
        look: from which the fingerprint comes back (`mcpmix.data.seen`).
        features: (F,) float32, what a feature network says of the image; None if none was asked.
    """

    sample: Sample
    errors: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()
    digest: str = ""
    mask_digest: str = ""
    width: int = 0
    height: int = 0
    levels: int = 0
    area: float = 0.0
    centre: tuple[float, float] = (0.5, 0.5)
    fingerprint: Fingerprint | None = None
    thumbnail: Bytes | None = None
    look: str = ""
    features: Floats | None = None


def inspect(sample: Sample) -> Facts:
    """Look at image and mask of a sample."""
    return look_at(sample)[0]


def look_at(sample: Sample) -> tuple[Facts, Bytes | None]:
    """The same, and the image, (H, W, 3) uint8, if both files could be read."""
    from mcpmix.data.seen import fingerprint_from, look_of  # it asks the audit for its fingerprints

    errors: list[str] = []
    image = mask = None
    levels = 0
    try:
        image = read_image(sample.image)
    except DataError as error:
        errors.append(str(error))
    try:
        mask, levels = examine_mask(sample.mask)
    except DataError as error:
        errors.append(str(error))
    if image is None or mask is None:
        return Facts(sample, tuple(errors), tuple(_name_oddities(sample))), None
    errors += size_problems(sample.image, sample.mask, image, mask)
    oddities = [
        *_name_oddities(sample),
        *file_oddities(sample.image),
        *file_oddities(sample.mask, mask=True),
    ]
    if _looks_written(image):
        oddities.append("text")
    height, width = image.shape[:2]
    look = look_of(image)
    facts = Facts(
        sample,
        tuple(errors),
        tuple(dict.fromkeys(oddities)),
        pixel_digest(image),
        pixel_digest(mask),
        width,
        height,
        levels,
        float(mask.mean()),
        _centre(mask),
        fingerprint_from(look),
        _thumbnail(image, mask),
        look,
    )
    return facts, image


def _name_oddities(sample: Sample) -> Iterator[str]:
    if not _PLAIN_NAME.fullmatch(sample.image.name) or not _PLAIN_NAME.fullmatch(sample.mask.name):
        yield "name"


def file_oddities(path: Path, *, mask: bool = False) -> Iterator[str]:
    """What the reader has to put right, from the header alone.

    Args:
        path: a file that can be read.
        mask: whether it is a mask.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            known = _ENDINGS.get(image.format or "", ())
            if known and path.suffix.lower() not in known:
                yield "ending"
            if image.getexif().get(_ORIENTATION, 1) not in (0, 1):
                yield "turned"
            if image.mode in ("P", "PA"):
                yield "palette"
            if "A" in image.getbands():
                yield "alpha"
            if mask and image.format in ("JPEG", "MPO"):
                yield "lossy mask"
    except Exception:  # a header of a kind that only tifffile reads, or a damaged tag: the pixels were read
        return


def _looks_written(image: Bytes) -> bool:
    """Whether a corner holds writing: thin bright strokes with steep sides on something darker."""
    height, width = image.shape[:2]
    if min(height, width) < _LEAST_SIDE:
        return False
    rows, columns = max(8, round(height * _CORNER)), max(8, round(width * _CORNER))
    for vertical in (slice(0, rows), slice(height - rows, height)):
        for across in (slice(0, columns), slice(width - columns, width)):
            corner = image[vertical, across].mean(axis=2)
            ink = corner >= _INK
            strokes = (np.abs(np.diff(corner, axis=1)) >= _STEP) & (ink[:, 1:] | ink[:, :-1])
            if strokes.mean() >= _LEAST_STROKES and ink.mean() <= _MOST_INK:
                return True
    return False


def _centre(mask: Bytes) -> tuple[float, float]:
    total = int(mask.sum(dtype=np.int64))
    if not total:
        return 0.5, 0.5
    # By sums along the sides: the places of all pixels would fill the memory where an image is large.
    centres = []
    for axis in (0, 1):
        counts = mask.sum(axis=axis, dtype=np.int64)
        centres.append(float((counts @ np.arange(len(counts)) / total + 0.5) / len(counts)))
    return centres[0], centres[1]


def _thumbnail(image: Bytes, mask: Bytes) -> Bytes:
    height, width = image.shape[:2]
    scale = THUMBNAIL / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    inside = np.pad(np.array(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST)) > 0, 1)
    core = inside[1:-1, 1:-1]
    whole = core & inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    small[core & ~whole] = (255, 220, 0)
    return small
