"""What the files of each sample show, decoded once: for the audit, for groups and for repaired copies."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.device import core_count
from mcpmix.core.pixels import Pixels, outline
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.likeness import Phi, colours_of, look_of, square
from mcpmix.data.sample import Sample, pixel_digest, read_pair

_BATCH = 32  # images at a time
_THUMBNAIL = 96  # pixels, longer side
_YELLOW = (255, 220, 0)
_ORIENTATION = 0x0112
ENDINGS = {  # by format, the usual one first
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (".jpg", ".jpeg"),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._+-]+")
_CORNER = 0.14  # of the sides
_LEAST_SIDE = 32  # pixels, below which nothing can be read
_INK = 235  # grey level from which a pixel may be text
_STEP = 90  # levels by which text differs from what is next to it
_LEAST_STROKES, _MOST_INK = 0.05, 0.35  # shares of a corner
_TINY, _HUGE = 0.0005, 0.9  # shares of the image at which a lesion is worth a look


@dataclass(frozen=True)
class Facts:
    """What the files of a sample show."""

    sample: Sample
    errors: tuple[str, ...] = ()  # why it cannot be used
    oddities: tuple[str, ...] = ()  # keys of `_ODDITIES`
    digest: str = ""  # `pixel_digest` of the image; if a file cannot be read, empty like all below
    mask_digest: str = ""  # the same of the mask
    width: int = 0
    height: int = 0
    levels: int = 0  # number of grey levels in the mask file
    area: float = 0.0  # share of the image that is lesion, 0..1
    border: float = 0.0  # share of the pixels at the edge of the image that are lesion, 0..1
    centre: tuple[float, float] = (0.5, 0.5)  # of the lesion, right and down, 0..1
    look: str = ""  # `look_of` the image
    colours: npt.NDArray[np.float16] | None = None  # `colours_of` the image
    thumbnail: Pixels | None = None  # (h, w, 3) uint8, the lesion outlined
    features: npt.NDArray[np.float32] | None = None  # (F,), what phi says of the image; None without phi


def inspect_all(
    samples: Sequence[Sample], progress: Progress = SILENT, phi: Phi | None = None
) -> tuple[Facts, ...]:
    """Decode every file once, missing and damaged ones included; facts in the order of the ids.

    Args:
        phi: a feature network, to find copies that were mirrored, rotated or recoloured.
    """
    facts: list[Facts] = []
    ordered = sorted(samples, key=lambda sample: sample.id)
    with (
        progress.track("Auditing images", len(samples)) as advance,
        ThreadPoolExecutor(core_count()) as pool,  # decoding and resizing let other threads work
    ):
        for start in range(0, len(ordered), _BATCH):
            found = list(pool.map(inspect, ordered[start : start + _BATCH]))
            seen = [small for _, small in found if small is not None]
            vectors = iter(phi(np.stack(seen)) if phi is not None and seen else ())
            facts += [
                one if small is None else replace(one, features=next(vectors, None)) for one, small in found
            ]
            advance(len(found))
    return tuple(facts)


def inspect(sample: Sample) -> tuple[Facts, Pixels | None]:
    """The facts of a sample, and its image as `square` makes it, if both files could be read."""
    plain = _PLAIN_NAME.fullmatch(sample.image.name) and _PLAIN_NAME.fullmatch(sample.mask.name)
    oddities = [] if plain else ["name"]
    pair, errors = read_pair(sample.image, sample.mask)
    if pair is None:
        return Facts(sample, tuple(errors), tuple(oddities)), None
    image, mask, levels = pair
    oddities += [*file_oddities(sample.image), *file_oddities(sample.mask, mask=True)]
    area, small = float(mask.mean()), square(image)
    seen = {
        "text": _looks_written(image),
        "empty": area == 0,
        "full": area == 1,
        "extreme": 0 < area < _TINY or _HUGE < area < 1,
        "levels": levels > 2,
    }
    oddities += [kind for kind, there in seen.items() if there]
    facts = Facts(
        sample,
        tuple(errors),
        tuple(dict.fromkeys(oddities)),
        digest=pixel_digest(image),
        mask_digest=pixel_digest(mask),
        width=image.shape[1],
        height=image.shape[0],
        levels=levels,
        area=area,
        border=float(np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]]).mean()),
        centre=_centre(mask),
        look=look_of(image),
        colours=colours_of(small),
        thumbnail=_thumbnail(image, mask),
    )
    return facts, small


def file_oddities(path: Path, *, mask: bool = False) -> Iterator[str]:
    """What the reader has to correct, from the header of a readable file."""
    try:
        with path.open("rb") as file, Image.open(file) as image:
            known = ENDINGS.get(image.format or "", ())
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


def _looks_written(image: Pixels) -> bool:
    """Whether a corner contains text: thin bright strokes with steep sides on something darker."""
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


def _centre(mask: Pixels) -> tuple[float, float]:
    total = int(mask.sum(dtype=np.int64))
    if not total:
        return 0.5, 0.5
    # By sums along the sides: the places of all pixels would fill the memory where an image is large.
    counts = [mask.sum(axis=axis, dtype=np.int64) for axis in (0, 1)]
    right, down = (float((side @ np.arange(len(side)) / total + 0.5) / len(side)) for side in counts)
    return right, down


def _thumbnail(image: Pixels, mask: Pixels) -> Pixels:
    height, width = image.shape[:2]
    scale = _THUMBNAIL / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    small[outline(np.array(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST)))] = _YELLOW
    return small
