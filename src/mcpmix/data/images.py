"""Images as files: what a folder of new images holds, and how results are written."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.data.sample import ENDINGS


def list_images(images: Path) -> dict[str, Path]:
    """Image files by the name of their results: the path below the folder without its ending.

    Args:
        images: an image, or a folder with images at any depth; hidden files and folders are left out.

    Raises:
        DataError: there are none, or two of them would give results of the same name.
    """
    if images.is_file():
        return {images.stem: images}
    if not images.is_dir():
        raise DataError(f"{images} does not exist. Expected an image or a folder of images: check the path.")
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(images.rglob("*")):
        relative = path.relative_to(images)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.suffix.lower() in ENDINGS and path.is_file() and not hidden:
            found[relative.with_suffix("").as_posix()].append(path)
    if not found:
        raise DataError(f"{images} holds no images. Expected files ending in {', '.join(sorted(ENDINGS))}.")
    repeated = [" and ".join(p.name for p in paths) for paths in found.values() if len(paths) > 1]
    if repeated:
        raise DataError(
            bullet_list(f"Results in {images} would have the same name; rename one of:", repeated)
        )
    return {name: paths[0] for name, paths in found.items()}


def write_png(
    path: Path, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.uint16], note: PngInfo | None = None
) -> None:
    """Write a PNG whole or not at all; its folder is made if needed.

    Args:
        path: the file.
        pixels: (H, W) of 8 or 16 bits, or (H, W, 3) uint8 RGB.
        note: text chunks to put into it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    Image.fromarray(pixels).save(temporary, format="PNG", pnginfo=note)
    temporary.replace(path)
