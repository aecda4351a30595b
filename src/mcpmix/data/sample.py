"""One image with its mask: what it is, how its files are read, how it is brought to the training size."""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS, list_images

Bytes = npt.NDArray[np.uint8]

_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_KINDS = "PNG, JPEG, TIFF or BMP"
_LESION = 128  # grey level from which on a pixel is lesion
_TIFF_MAGIC = (b"II*\0", b"MM\0*")
_PLAIN_TIFFS = ((8, 1, 1, 1), (8, 3, 1, 1))  # bits, channels, unsigned, interleaved
_AT_ONCE = 1 << 22  # pixels whose levels are counted, which takes 8 bytes each
_JPEG_TINT = 8  # grey levels by which JPEG may pull the channels of a grey image apart


@dataclass(frozen=True)
class Sample:
    """An image and its mask on disk.

    Attributes:
        id: unique name within the data set; the stem of the image file.
        image: image file.
        mask: mask file.
        group: patient, lesion or video sequence; splits never cut a group.
        source: name of the data set.
    """

    id: str
    image: Path
    mask: Path
    group: str
    source: str


def read_image(path: Path) -> Bytes:
    """Read an image as RGB.

    EXIF orientation is applied. Grey is repeated in the three channels, palettes are replaced by their
    colours, transparent parts are laid over black.

    Returns:
        (H, W, 3) uint8.

    Raises:
        DataError: the file is missing, damaged, too large, in print colours (CMYK), or has more than 8 bits
            per channel.
    """
    with _opened(path) as image:
        ImageOps.exif_transpose(image, in_place=True)  # a large image fits into memory, but not many copies
        if image.has_transparency_data:
            clear = image if image.mode == "RGBA" else image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), clear)
            del clear
        return np.array(image if image.mode == "RGB" else image.convert("RGB"), dtype=np.uint8)


def has_alpha(path: Path) -> bool:
    """Whether an image file has a fourth channel or colour that stands for transparency; reads its head only.

    Raises:
        DataError: as `read_image`, where the head shows it.
    """
    with _opened(path) as image:
        return image.has_transparency_data


def read_mask(path: Path) -> Bytes:
    """Read a mask as lesion (1) and background (0).

    If the brightest level of the file is 1 or 0, every pixel above 0 is lesion; otherwise every pixel of
    level 128 or more. Files with several channels must be grey; palettes stand for their colours, or, where
    those are not grey, for the class numbers 0 and 1.

    Returns:
        (H, W) uint8 in {0, 1}.

    Raises:
        DataError: the file is missing, damaged or coloured, has transparent parts or more than 8 bits per
            channel, or (if it is not a JPEG) holds levels between 2 and 127 only, which this rule would
            read as an empty mask.
    """
    return examine_mask(path)[0]


def examine_mask(path: Path) -> tuple[Bytes, int]:
    """A mask as `read_mask` gives it, and the number of grey levels in its file.

    A clean mask has 1 or 2, one blurred by JPEG has many.

    Raises:
        DataError: as `read_mask`.
    """
    levels, lossy = _read_levels(path)
    brightest = int(levels.max())
    if 1 < brightest < _LESION and not lossy:
        raise DataError(
            f"{path}: the brightest level of this mask is {brightest}. Expected 0 and 1, or 0 and 255 with "
            f"the lesion at {_LESION} or more. If the levels are class numbers, save one class as 255."
        )
    lesion = levels > 0 if brightest <= 1 else levels >= _LESION
    return lesion.astype(np.uint8), _count_levels(levels)


def resize_image(image: Bytes, size: int) -> Bytes:
    """Bring an image to `size` x `size` pixels, bilinear, antialiased when it shrinks.

    Args:
        image: (H, W, 3) uint8.
        size: side in pixels.

    Returns:
        (size, size, 3) uint8; the aspect ratio is not kept.
    """
    # One side after the other, in this order: from version 13 on, Pillow itself starts with the height if the
    # image is tall, which moves levels by one, and a segmenter shall see the same pixels on every machine.
    narrow = Image.fromarray(image).resize((size, len(image)), Image.Resampling.BILINEAR)
    return np.array(narrow.resize((size, size), Image.Resampling.BILINEAR))


def resize_mask(mask: Bytes, size: int) -> Bytes:
    """Bring a mask to `size` x `size` pixels by nearest neighbour, so that it stays hard.

    Args:
        mask: (H, W) uint8.
        size: side in pixels.

    Returns:
        (size, size) uint8 with no value that was not in `mask`.
    """
    return np.array(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST))


def pixel_digest(pixels: Bytes) -> str:
    """SHA-256 of decoded pixels and their shape: equal for two files that show the same, however packed."""
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def size_problems(image: Path, mask: Path, image_pixels: Bytes, mask_pixels: Bytes) -> list[str]:
    """What is wrong with the sizes of an image and its mask: one message, or none."""
    (height, width), (mask_height, mask_width) = image_pixels.shape[:2], mask_pixels.shape
    if (height, width) == (mask_height, mask_width):
        return []
    return [
        f"{mask} is {mask_width} x {mask_height} pixels, but its image {image} is {width} x {height}. "
        "Expected equal sizes: export the mask at the size of its image."
    ]


def _count_levels(levels: Bytes) -> int:
    flat = levels.ravel()
    counts = np.zeros(256, np.int64)
    for start in range(0, flat.size, _AT_ONCE):
        counts += np.bincount(flat[start : start + _AT_ONCE], minlength=256)
    return int(np.count_nonzero(counts))


def _read_levels(path: Path) -> tuple[Bytes, bool]:
    """Grey levels of a mask file, (H, W) uint8, and whether JPEG may have blurred them."""
    with _opened(path) as image:
        lossy = image.format in ("JPEG", "MPO")  # MPO: a JPEG with previews, from some cameras
        upright = ImageOps.exif_transpose(image)
        if "A" in upright.getbands() and upright.getchannel("A").getextrema() != (255, 255):
            raise DataError(
                f"{path} has transparent parts. Expected a mask without transparency: save it as grey or "
                "black and white, without an alpha channel."
            )
        if upright.mode in ("1", "L", "LA"):
            return np.array(upright.convert("L"), dtype=np.uint8), lossy
        colours = np.array(upright.convert("RGB"), dtype=np.uint8)
        tint = int(np.ptp(colours, axis=2).max())
        if tint <= (_JPEG_TINT if lossy else 0):
            return np.array(upright.convert("RGB").convert("L"), dtype=np.uint8), lossy
        if upright.mode == "P":
            numbers = np.array(upright, dtype=np.uint8)
            if numbers.max() <= 1:
                return numbers, lossy
        raise DataError(
            f"{path} is coloured: its channels differ by up to {tint} levels. Expected a mask in grey or "
            "black and white: save the lesion as white on black."
        )


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image with 8 bits per channel; whatever fails while it is read becomes a DataError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # A file object, because Pillow maps files that it opens by name, and maps turned TIFFs wrongly.
            with path.open("rb") as file, _decoder(file) as image:
                _refuse_deep(path, image)
                _refuse_print_colours(path, image)
                yield image
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist. Check the path, or restore the file.") from error
    except PermissionError as error:
        raise DataError(f"{path} may not be read by this user. Change its permissions.") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        limit = (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        raise DataError(
            f"{path} is larger than {limit} million pixels. Save it smaller; networks see a small square."
        ) from error
    except Exception as error:  # decoders fail on damaged files with errors of nearly every kind
        raise DataError(
            f"{path} cannot be read: {_reason(path, error)}. Expected an intact {_KINDS} file: export it "
            "again, or remove the image together with its mask."
        ) from error


def _decoder(file: BinaryIO) -> Image.Image:
    """Pillow's view of a file; where it does not know a TIFF's layout, that of tifffile.

    CVC-ClinicDB's originals, for one, have three channels and call them grey.
    """
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        file.seek(0)
        if file.read(4) not in _TIFF_MAGIC:
            raise
        file.seek(0)
        return _read_odd_tiff(file)


def _read_odd_tiff(file: BinaryIO) -> Image.Image:
    import tifffile  # here, because few files need it

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


def _reason(path: Path, error: Exception) -> str:
    if not isinstance(error, UnidentifiedImageError):
        return str(error) or type(error).__name__
    return f"it is not a {_KINDS} file" if path.stat().st_size else "the file is empty"


def _refuse_deep(path: Path, image: Image.Image) -> None:
    """Refuse 16-bit files, also those that Pillow would silently cut to the upper 8 bits."""
    raw = next((str(part) for part in _raw_modes(image) if ";16" in str(part)), None)
    deep = image.mode if image.mode[0] in "IF" else raw
    if deep is not None:
        raise DataError(
            f"{path} has more than 8 bits per channel ({deep}). Expected 8: choose the range of levels to "
            "show and save it with 8 bits per channel."
        )


def _refuse_print_colours(path: Path, image: Image.Image) -> None:
    """Refuse inks and Lab: without the colour profile that made them they have no certain RGB."""
    if image.mode in ("CMYK", "LAB"):
        raise DataError(
            f"{path} has {len(image.getbands())} colour channels ({image.mode}). Expected RGB or grey: save "
            "it as RGB with the colour profile it was made with."
        )


def _raw_modes(image: Image.Image) -> Iterator[object]:
    """Pixel layouts in the file. In BMP, 16 are the bits of a whole pixel, not of a channel."""
    if image.format in ("PNG", "TIFF"):
        for tile in getattr(image, "tile", []):
            yield from tile[3] if isinstance(tile[3], tuple) else (tile[3],)


def named_images(images: Path) -> dict[str, Path]:
    """Image files by the name of their results: the path below the folder without its ending.

    Args:
        images: an image, or a folder with images at any depth.

    Raises:
        DataError: there are none, or two of them would give results of the same name.
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
        raise DataError(
            bullet_list(f"Results in {images} would have the same name; rename one of:", repeated)
        )
    return {name: paths[0] for name, paths in found.items()}
