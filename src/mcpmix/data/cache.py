"""Decoded pixels on disk: uint8 files that every process maps, so that an image is decoded once per size.

A cache belongs to the digests of its images and masks, in their order, and to their size. Workers, epochs,
arms and stages that ask for the same ones share one copy in memory. It can be deleted at any time.
"""

import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from mcpmix.core.errors import DataError, StorageError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, Workspace, digest_of, read_artifact, storage_errors
from mcpmix.data.index import Record
from mcpmix.data.sample import pixel_digest, read_image, read_mask, resize_image, resize_mask

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


@dataclass(frozen=True)
class Arrays:
    """Images and masks at training size, in the order of `ids`.

    Attributes:
        ids: N ids.
        images: (N, S, S, 3) uint8, RGB.
        masks: (N, S, S) uint8 in {0, 1}.
        place: folder of the files that the arrays map; None if they are in memory. Sent to another process,
            mapped arrays are opened there again and not copied.
    """

    ids: tuple[str, ...]
    images: Bytes
    masks: Bytes
    place: Path | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.place is None:
            return Arrays, (self.ids, self.images, self.masks)
        return _mapped, (self.ids, self.place)


def load_arrays(
    records: Sequence[Record], size: int, cache: Path | None = None, progress: Progress = SILENT
) -> Arrays:
    """Decode records and bring them to `size` x `size` pixels.

    Args:
        records: which ones, in which order.
        size: side in pixels.
        cache: folder of decoded pixels (see `cache_of`), read if they are there and written otherwise; None
            decodes into memory.
        progress: where decoding reports to.

    Raises:
        DataError: with every file that cannot be read or has changed since it was indexed.
        StorageError: the cache cannot be written.
    """
    ids = tuple(record.id for record in records)
    if cache is not None and records:
        digests = [(record.image_sha256, record.mask_sha256) for record in records]
        pixels = cached(cache, digests, size, lambda: _decoded(records, size, progress), progress)
        return Arrays(ids, pixels.images, pixels.masks, pixels.place)
    images = np.empty((len(records), size, size, 3), dtype=np.uint8)
    masks = np.empty((len(records), size, size), dtype=np.uint8)
    for row, (image, mask) in enumerate(_decoded(records, size, progress)):
        images[row], masks[row] = image, mask
    return Arrays(ids, images, masks)


def cache_of(dataset: Path) -> Path:
    """The folder of decoded pixels that belongs to a data set's artefact: beside it, in the run's folder."""
    return dataset.parent / "cache"


def _mapped(ids: tuple[str, ...], place: Path) -> Arrays:
    pixels = reopen(place)
    return Arrays(ids, pixels.images, pixels.masks, place)


def _decoded(records: Sequence[Record], size: int, progress: Progress) -> Iterator[tuple[Bytes, Bytes]]:
    """Images and masks in order; at the end, one error with all files that are not what the index says."""
    problems: list[str] = []
    with progress.track("Loading images", len(records)) as advance:
        for record in records:
            try:
                image, mask = read_image(record.image), read_mask(record.mask)
            except DataError as error:
                problems.append(str(error))
            else:
                problems.extend(changed_files(record, image, mask))
                yield resize_image(image, size), resize_mask(mask, size)
            advance()
    if problems:
        headline = (
            "The data set is no longer what its index says. Restore the files, or delete the run's folder "
            "dataset to make the index again:"
        )
        raise DataError(bullet_list(headline, problems))


def changed_files(record: Record, image: Bytes, mask: Bytes) -> list[str]:
    """Which of a record's two files no longer show what was indexed: a message each.

    Args:
        record: of the index.
        image: (H, W, 3) uint8, as `read_image` gives it now.
        mask: (H, W) uint8, as `read_mask` gives it now.
    """
    found = (
        (record.image, pixel_digest(image) != record.image_sha256),
        (record.mask, pixel_digest(mask) != record.mask_sha256),
    )
    return [f"{path} has changed since it was indexed." for path, differs in found if differs]
