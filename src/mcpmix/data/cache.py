"""Decoded pixels on disk: uint8 files that every process maps, so that an image is decoded once per size.

A cache belongs to the digests of its images and masks, in their order, and to their size. Workers, epochs,
arms and stages that ask for the same ones share one copy in memory. It can be deleted at any time.
"""

import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from mcpmix.core.artifacts import Artifact, StageKey, Workspace, digest_of, read_artifact, storage_errors
from mcpmix.core.errors import StorageError
from mcpmix.core.progress import SILENT, Progress

Bytes = npt.NDArray[np.uint8]
Rows = Iterable[tuple[Bytes, Bytes]]

_LAYOUT = 1  # of the files, and of how images are decoded and resized: count up when either changes
_IMAGES, _MASKS = "images.npy", "masks.npy"
_BUFFER = 2**23  # bytes per write: what is written in large pieces lies in large pages, and is read faster


@dataclass(frozen=True)
class Pixels:
    """Images and masks of one size.

    Attributes:
        images: (N, S, S, 3) uint8. Writing to it changes a private copy, never the file.
        masks: (N, S, S) uint8 in {0, 1}; as above.
        place: folder of the files; None for arrays in memory.
    """

    images: Bytes
    masks: Bytes
    place: Path | None = None


def cached(
    folder: Path,
    digests: Sequence[tuple[str, str]],
    size: int,
    decode: Callable[[], Rows],
    progress: Progress = SILENT,
) -> Pixels:
    """Open the cache of these images, or make it.

    A process that asks for what another one is making waits for it. A cache whose checksums say that it is
    damaged is made again.

    Args:
        folder: place of all caches of a run.
        digests: of each image and its mask.
        size: side in pixels.
        decode: gives (S, S, 3) images and (S, S) masks in the order of `digests`; called only if needed.
        progress: told about a damaged cache.

    Raises:
        StorageError: the disk is full or not writable.
    """
    key = StageKey("cache", {"size": size, "layout": _LAYOUT}, {"pixels": digest_of(list(digests))})
    place = folder / f"{size}px-{key.digest[:16]}"
    with storage_errors(place):
        folder.mkdir(parents=True, exist_ok=True)
        # Killed holders lose the lock to the operating system, so that waiting for it always ends.
        with FileLock(folder / f".{place.name}.lock"):
            try:
                if (artifact := read_artifact(place)) is not None:
                    return _verified(artifact)
            except (StorageError, OSError, ValueError, KeyError) as error:
                progress.say(f"{place} is damaged ({_first_line(error)}); it is made again.")
            shutil.rmtree(place, ignore_errors=True)
            _write(place, key, len(digests), size, decode())
    return reopen(place)


def reopen(place: Path) -> Pixels:
    """Map the files of a cache that this or another process has opened with `cached`."""
    # Copy-on-write: torch wants arrays it could write to, and the file must stay as it is.
    maps = (np.lib.format.open_memmap(place / name, mode="c") for name in (_IMAGES, _MASKS))
    images, masks = (np.asarray(array) for array in maps)
    return Pixels(images, masks, place)


def _verified(artifact: Artifact) -> Pixels:
    """Map a finished cache; ValueError if a row is not what was written."""
    pixels = reopen(artifact.folder)
    sums: list[int] = artifact.manifest["counts"]["checksums"]
    if not len(sums) == len(pixels.images) == len(pixels.masks):
        raise ValueError(f"{len(pixels.images)} images, {len(pixels.masks)} masks, {len(sums)} checksums")
    wrong = sum(
        _checksum(image, mask) != wanted
        for image, mask, wanted in zip(pixels.images, pixels.masks, sums, strict=True)
    )
    if wrong:
        raise ValueError(f"{wrong} of {len(sums)} images are not what was written")
    return pixels


def _write(place: Path, key: StageKey, count: int, size: int, rows: Rows) -> None:
    """Write in a temporary folder; it gets its name when it is complete."""
    space = Workspace(place, key)
    space.prepare()
    sums = []
    # Written, not mapped: a full disk is then an error that can be told, where a map would end the process.
    files = ((space.folder / name).open("wb", buffering=_BUFFER) for name in (_IMAGES, _MASKS))
    with next(files) as images, next(files) as masks:
        _write_header(images, (count, size, size, 3))
        _write_header(masks, (count, size, size))
        for image, mask in rows:
            images.write(np.ascontiguousarray(image).data)
            masks.write(np.ascontiguousarray(mask).data)
            sums.append(_checksum(image, mask))
    space.finish(images=len(sums), checksums=sums)


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8)), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})


def _checksum(image: Bytes, mask: Bytes) -> int:
    return zlib.crc32(np.ascontiguousarray(mask).data, zlib.crc32(np.ascontiguousarray(image).data))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0]
