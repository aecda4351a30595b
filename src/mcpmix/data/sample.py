"""One image with its mask: what it is, how its files are read, how it is brought to the training size."""

import hashlib
import io
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS, Pixels, list_images

_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_KINDS = "PNG, JPEG, TIFF or BMP"
_LESION = 128  # grey level from which a pixel is lesion
_TIFF_MAGIC = (b"II*\0", b"MM\0*")
_PLAIN_TIFFS = ((8, 1, 1, 1), (8, 3, 1, 1))  # bits, channels, unsigned, interleaved
_BLACK, _WHITE = 12, 243  # levels of black and white, as JPEG may have blurred them
_MASK_SHARE = 0.97  # of black and white pixels, above which a grey picture is a mask
_LOOKED_AT = 8  # pairs, to tell images from masks
_JPEG_TINT = 8  # grey levels by which JPEG may pull the channels of a grey image apart
_SHOWN = 6  # values of a mask that a message names
_FILTERS = Lock()  # filters of warnings belong to all threads


@dataclass(frozen=True)
class Sample:
    """An image and its mask on disk."""

    id: str  # unique within the data set; the stem of the image file, unless a table names another
    image: Path
    mask: Path
    group: str  # patient, lesion or video sequence; splits never separate a group
    source: str  # name of the data set
    # How many values a pixel of the mask can have: 2, or background and one for each class.
    labels: int = field(default=2, kw_only=True)


def read_image(path: Path, content: bytes | None = None, *, most_pixels: int | None = None) -> Pixels:
    """Read an image as RGB, (H, W, 3).

    EXIF orientation is applied. Grey is repeated in the three channels, palettes are replaced by their
    colours, transparent parts are composited over black.

    Args:
        content: the bytes of the file, if they are in memory already; `path` then is its name in messages.
        most_pixels: a stricter limit than the usual one.

    Raises:
        DataError: the file is missing, damaged, too large, in print colours (CMYK), or has more than 8 bits
            per channel.
    """
    with _opened(path, content=content, most_pixels=most_pixels) as image:
        ImageOps.exif_transpose(image, in_place=True)  # a large image fits into memory, but not many copies
        if image.has_transparency_data:
            clear = image if image.mode == "RGBA" else image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), clear)
            del clear
        return np.array(image if image.mode == "RGB" else image.convert("RGB"), dtype=np.uint8)


def shows_mask(image: Pixels) -> bool:
    """Whether an (H, W, 3) picture is black and white only: a mask or an empty picture, no photograph."""
    spread = image.max(axis=2).astype(int) - image.min(axis=2)
    extreme = (image.max(axis=2) <= _BLACK) | (image.min(axis=2) >= _WHITE)
    return bool(extreme.mean() > _MASK_SHARE and spread.max() <= _BLACK)


def likely_mistake(pairs: Sequence[tuple[Path, Path]]) -> str:
    """A sentence if the first pairs of image and mask look as if their folders were swapped; else empty."""
    swapped = 0
    for image, mask in pairs[:_LOOKED_AT]:
        with suppress(DataError):
            swapped += shows_mask(read_image(image)) and not shows_mask(read_image(mask))
    if 2 * swapped <= min(len(pairs), _LOOKED_AT):
        return ""
    images, masks = pairs[0][0].parent, pairs[0][1].parent
    return (
        f"The folders seem to be swapped: {images} holds masks, {masks} photographs. Give them the other way "
        "round.\n"
    )


def has_alpha(path: Path) -> bool:
    """Whether an image file has a channel or colour that stands for transparency; reads its head only."""
    with _opened(path) as image:
        return image.has_transparency_data


def read_mask(path: Path, labels: int = 2) -> Pixels:
    """Read a mask as lesion (1) and background (0), (H, W), or as the number of the class of each pixel.

    Every pixel of level 128 or more is lesion. If the brightest level of the file is 1, every pixel above 0
    is, unless the file is a JPEG, in which a level of 1 is noise. With more than two labels the levels of the
    file, or the indices of its palette, are the labels themselves.

    Args:
        labels: how many there are, background included.

    Raises:
        DataError: as `read_grey`; or (if it is not a JPEG) it holds levels between 2 and 127 only, which this
            rule would read as an empty mask; or, with more than two labels, other values than these.
    """
    return examine_mask(path, labels)[0]


def examine_mask(path: Path, labels: int = 2) -> tuple[Pixels, int]:
    """A mask as `read_mask` gives it, and the number of grey levels in its file: 1 or 2, or many by JPEG."""
    levels, lossy = read_grey(path, indices=labels > 2)
    brightest = int(levels.max())
    if labels > 2:
        found = np.flatnonzero(Image.fromarray(levels).histogram()).tolist()
        if brightest < labels and not lossy:
            return levels, len(found)
        values = ", ".join(map(str, found[:_SHOWN])) + (" ..." if len(found) > _SHOWN else "")
        reason = "it is a JPEG, which blurs labels" if lossy else f"it holds {values}"
        raise DataError(
            f"{path}: expected the labels 0 to {labels - 1} (0: background, then data.classes in order), "
            f"but {reason}. Save the numbers of the classes as grey levels or palette indices of a PNG."
        )
    if 1 < brightest < _LESION and not lossy:
        raise DataError(
            f"{path}: the brightest level of this mask is {brightest}. Expected 0 and 1, or 0 and 255 with "
            f"the lesion at {_LESION} or more. If the levels are class numbers, name the classes in "
            "data.classes, or save one class as 255."
        )
    lesion = levels >= (1 if brightest == 1 and not lossy else _LESION)
    return lesion.astype(np.uint8), int(np.count_nonzero(Image.fromarray(levels).histogram()))


def read_grey(path: Path, *, deep: bool = False, indices: bool = False) -> tuple[npt.NDArray[Any], bool]:
    """The grey levels of a mask file, (H, W), upright, and whether JPEG may have blurred them.

    Files with several channels must be grey; palettes stand for their colours, or, where those are not grey,
    for the class numbers 0 and 1.

    Args:
        deep: whether 16 bits, floating point and GIF are allowed too; otherwise levels are uint8.
        indices: whether palettes stand for the numbers of their colours.

    Raises:
        DataError: the file is missing, damaged or coloured, has transparent parts or several pages, or more
            than 8 bits per channel.
    """
    with _opened(path, deep=deep) as image:
        lossy = image.format in ("JPEG", "MPO")  # MPO: a JPEG with previews, from some cameras
        pages = 1 if lossy else getattr(image, "n_frames", 1)
        if pages > 1:
            raise DataError(
                f"{path} has {pages} pages. Expected one mask: save the page that it is on alone."
            )
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode[0] in "IF" or (indices and image.mode == "P"):
            return np.array(image), lossy
        if "A" in image.getbands() and image.getchannel("A").getextrema() != (255, 255):
            raise DataError(
                f"{path} has transparent parts. Expected a mask without transparency: save it as grey or "
                "black and white, without an alpha channel."
            )
        if image.mode in ("1", "L", "LA"):
            return np.array(image if image.mode == "L" else image.convert("L")), lossy
        colours = image.convert("RGB")
        bands = np.stack([np.asarray(band) for band in colours.split()])  # along the last axis it is slow
        tint = int(np.ptp(bands, axis=0).max())
        if tint <= (_JPEG_TINT if lossy else 0):
            return np.array(colours.convert("L")), lossy
        if image.mode == "P" and np.asarray(image).max() <= 1:
            return np.array(image), lossy
        raise DataError(
            f"{path} is coloured: its channels differ by up to {tint} levels. Expected a mask in grey or "
            "black and white: save the lesion as white on black."
        )


def resize_image(image: Pixels, size: int) -> Pixels:
    """Bring an (H, W, 3) image to `size` x `size` pixels, bilinear, antialiased when it shrinks."""
    # One side after the other, in this order: from version 13 on, Pillow itself starts with the height if the
    # image is tall, which moves levels by one, and a segmenter shall see the same pixels on every machine.
    narrow = Image.fromarray(image).resize((size, len(image)), Image.Resampling.BILINEAR)
    return np.array(narrow.resize((size, size), Image.Resampling.BILINEAR))


def resize_mask(mask: Pixels, size: int) -> Pixels:
    """Bring an (H, W) mask to `size` x `size` pixels by nearest neighbour, so that it stays hard."""
    return np.array(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST))


def pixel_digest(pixels: Pixels) -> str:
    """SHA-256 of decoded pixels and their shape: equal for two files that show the same, however packed."""
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def read_pair(
    image: Path, mask: Path, labels: int = 2
) -> tuple[tuple[Pixels, Pixels, int] | None, list[str]]:
    """Read an image and its mask, with so many labels, and compare their sizes.

    Returns:
        What `read_image` and `examine_mask` give, or None if one of them cannot be read; and every problem.
    """
    problems = []
    pixels = lesion = None
    try:
        pixels = read_image(image)
    except DataError as error:
        problems.append(str(error))
    try:
        lesion = examine_mask(mask, labels)
    except DataError as error:
        problems.append(str(error))
    if pixels is None or lesion is None:
        return None, problems
    (height, width), (mask_height, mask_width) = pixels.shape[:2], lesion[0].shape
    if (height, width) != (mask_height, mask_width):
        advice = "Expected equal sizes: export the mask at the size of its image."
        if (width, height) == (mask_height, mask_width) and _is_turned(image) != _is_turned(mask):
            advice = (
                "One of the two is turned by its EXIF orientation and the other is not: turn the pixels of "
                "the image and remove the tag, or turn the mask in the same way."
            )
        problems.append(
            f"{mask} is {mask_width} x {mask_height} pixels, but its image {image} is {width} x {height}. "
            f"{advice}"
        )
    return (pixels, *lesion), problems


def _is_turned(path: Path) -> bool:
    """Whether the EXIF orientation of a readable file swaps its sides."""
    with _opened(path) as image:
        return image.getexif().get(0x0112, 1) in (5, 6, 7, 8)


def named_images(images: Path) -> dict[str, Path]:
    """Image files by the name of their results: the path below the folder without its ending.

    Args:
        images: an image, or a folder with images at any depth.
    """
    if images.is_file():
        return {images.stem: images}
    if not images.is_dir():
        raise DataError(f"{images} does not exist. Expected an image or a folder of images: check the path.")
    found: dict[str, list[Path]] = defaultdict(list)
    for path in list_images(images, deep=True):
        found[path.relative_to(images).with_suffix("").as_posix()].append(path)
    if not found:
        raise DataError(f"{images} holds no images. Expected files ending in {', '.join(sorted(ENDINGS))}.")
    repeated = [" and ".join(p.name for p in paths) for paths in found.values() if len(paths) > 1]
    if repeated:
        headline = f"Results in {images} would have the same name; rename one of:"
        raise DataError(bullet_list(headline, repeated))
    return {name: paths[0] for name, paths in found.items()}


@contextmanager
def _opened(
    path: Path, *, deep: bool = False, content: bytes | None = None, most_pixels: int | None = None
) -> Iterator[Image.Image]:
    """Open an image file; whatever fails while it is read becomes a DataError."""
    limit = most_pixels or Image.MAX_IMAGE_PIXELS
    try:
        # A file object, because Pillow maps files that it opens by name, and maps turned TIFFs wrongly.
        source: BinaryIO = path.open("rb") if content is None else io.BytesIO(content)
        with source as file, _decoder(file, (*_FORMATS, "GIF") if deep else _FORMATS) as image:
            if limit is not None and image.width * image.height > limit:
                raise Image.DecompressionBombError
            _refuse_other_colours(path, image, deep=deep)
            if 0 in image.size:
                raise ValueError(f"it has {image.width} x {image.height} pixels")
            yield image
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist. Check the path, or restore the file.") from error
    except PermissionError as error:
        raise DataError(f"{path} may not be read by this user. Change its permissions.") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path} is larger than {(limit or 0) // 1_000_000} million pixels. Save it smaller; networks "
            "see a small square."
        ) from error
    except Exception as error:  # decoders fail on damaged files with errors of nearly every kind
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            size = path.stat().st_size if content is None else len(content)
            reason = f"it is not a {_KINDS} file" if size else "the file is empty"
        raise DataError(
            f"{path} cannot be read: {reason}. Expected an intact {_KINDS} file: export it again, or remove "
            "the image together with its mask."
        ) from error


def _decoder(file: BinaryIO, formats: tuple[str, ...]) -> Image.Image:
    """Pillow's view of a file; where it does not know a TIFF's layout, that of tifffile.

    CVC-ClinicDB's originals, for one, have three channels and call them grey.
    """
    try:
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(file, formats=formats)
    except UnidentifiedImageError:
        file.seek(0)
        if file.read(4) not in _TIFF_MAGIC:
            raise
    import tifffile  # here, because few files need it

    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        page = tiff.pages.first
        size = page.imagewidth * page.imagelength
        if Image.MAX_IMAGE_PIXELS is not None and size > Image.MAX_IMAGE_PIXELS:
            raise Image.DecompressionBombError
        layout = (page.bitspersample, page.samplesperpixel, page.sampleformat, int(page.planarconfig))
        if layout not in _PLAIN_TIFFS:
            raise ValueError(
                f"a TIFF of {page.samplesperpixel} channels of {page.bitspersample} bits, in place of 1 or 3 "
                "of 8 bits"
            )
        return Image.fromarray(np.ascontiguousarray(page.asarray()))


def _refuse_other_colours(path: Path, image: Image.Image, *, deep: bool) -> None:
    """Refuse 16 bits, also where Pillow would silently cut them to the upper 8, and print colours."""
    # In BMP, 16 are the bits of a whole pixel, not of a channel.
    tiles = getattr(image, "tile", []) if image.format in ("PNG", "TIFF") else []
    layouts = [str(part) for tile in tiles for part in (tile[3] if isinstance(tile[3], tuple) else [tile[3]])]
    found = image.mode if image.mode[0] in "IF" else next((text for text in layouts if ";16" in text), "")
    if found and not (deep and found == image.mode):
        raise DataError(
            f"{path} has more than 8 bits per channel ({found}). Expected 8: choose the range of levels to "
            "show and save it with 8 bits per channel."
        )
    if image.mode in ("CMYK", "LAB"):  # without the profile that made them, they have no certain RGB
        raise DataError(
            f"{path} has {len(image.getbands())} colour channels ({image.mode}). Expected RGB or grey: save "
            "it as RGB with the colour profile it was made with."
        )
