"""Decoded pixels on disk: uint8 files that every process maps, so that an image is decoded once per size.

A cache belongs to the digests of its images and masks, in their order, and to their size. Stage 0 writes
those of the training and the validation part, which it decodes anyway. Workers, epochs, arms and stages that
ask for the same images share one copy in memory. A cache can be deleted at any time.
"""

import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import Pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.reading import read_json
from mcpmix.core.stage_folder import digest_of, storage_errors, write_json
from mcpmix.data.index import Record
from mcpmix.data.sample import pixel_digest, read_pair, resize_image, resize_mask

_LAYOUT = 1  # of the files, and of how images are decoded and resized: count up when either changes
_IMAGES, _MASKS, _CHECKSUMS = "images.npy", "masks.npy", "checksums.json"
_BUFFER = 2**23  # bytes per write: what is written in large pieces lies in large pages, and is read faster


@dataclass(frozen=True)
class Arrays:
    """Images and masks at training size. Writing to them changes a private copy, never a file."""

    ids: tuple[str, ...]
    images: Pixels  # (N, S, S, 3) uint8, RGB
    masks: Pixels  # (N, S, S) uint8 in {0, 1}
    # Folder of the files that the arrays map; None if they are in memory. Sent to another process, mapped
    # arrays are opened there again and not copied.
    place: Path | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.place is None:
            return Arrays, (self.ids, self.images, self.masks)
        return _mapped, (self.ids, self.place)

    def take(self, ids: Sequence[str]) -> "Arrays":
        """The rows of some ids, in memory; for all of them, these arrays."""
        if self.ids == tuple(ids):
            return self
        row_of = {name: row for row, name in enumerate(self.ids)}
        rows = [row_of[name] for name in ids]
        return Arrays(tuple(ids), self.images[rows], self.masks[rows])


def cache_of(dataset: Path) -> Path:
    """The folder of decoded pixels that belongs to a data set's artefact: next to it, in the run's folder."""
    return dataset.parent / "cache"


def load_arrays(
    records: Sequence[Record], size: int, cache: Path | None = None, progress: Progress = SILENT
) -> Arrays:
    """Images and masks of records at `size` x `size` pixels.

    A process that asks for what another one is writing waits for it. A cache whose checksums show damage is
    rewritten.

    Args:
        cache: folder of decoded pixels (see `cache_of`), read if they are there and written otherwise; None
            decodes into memory.

    Raises:
        DataError: with every file that cannot be read or has changed since it was indexed.
        StorageError: the cache cannot be written.
    """
    ids = tuple(record.id for record in records)
    if cache is None or not records:
        images = np.empty((len(records), size, size, 3), dtype=np.uint8)
        masks = np.empty((len(records), size, size), dtype=np.uint8)
        for row, (_, image, mask) in enumerate(_decoded(records, progress)):
            images[row], masks[row] = resize_image(image, size), resize_mask(mask, size)
        return Arrays(ids, images, masks)
    place = cache / _name(records, size)
    with storage_errors(place):
        cache.mkdir(parents=True, exist_ok=True)
        # Killed holders lose the lock to the operating system, so that waiting for it always ends.
        with FileLock(cache / f".{place.name}.lock"):
            if place.exists():
                try:
                    return _verified(ids, place)
                except (OSError, ValueError, TypeError) as error:
                    reason = (str(error) or type(error).__name__).split("\n")[0]
                    progress.say(f"{place} is damaged ({reason}); it is rewritten.")
            with new_cache(cache, place.name, len(records), size) as add:
                for record, image, mask in _decoded(records, progress):
                    add(record, image, mask)
    return _mapped(ids, place)


@contextmanager
def new_cache(
    folder: Path, name: str, count: int, size: int
) -> Iterator[Callable[[Record, Pixels, Pixels], None]]:
    """Yield a function that adds a record with its decoded image and mask.

    At the end they are a cache that `load_arrays` finds; after an error there is none.

    Args:
        name: of the temporary folder; must not be in use elsewhere at the same time.
        count: number of records that will be added.
    """
    temporary = folder / f"{name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)  # a kill may have left it
    temporary.mkdir(parents=True)
    records: list[Record] = []
    sums: list[int] = []
    try:
        # Written, not mapped: a full disk is then an error with a message, where a map would end the process.
        with (
            (temporary / _IMAGES).open("wb", buffering=_BUFFER) as images,
            (temporary / _MASKS).open("wb", buffering=_BUFFER) as masks,
        ):
            for file, shape in ((images, (count, size, size, 3)), (masks, (count, size, size))):
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)

            def add(record: Record, image: Pixels, mask: Pixels) -> None:
                image, mask = resize_image(image, size), resize_mask(mask, size)
                images.write(image.data)
                masks.write(mask.data)
                sums.append(_checksum(image, mask))
                records.append(record)

            yield add
        write_json(temporary / _CHECKSUMS, sums)
        place = folder / _name(records, size)
        shutil.rmtree(place, ignore_errors=True)
        temporary.replace(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _name(records: Sequence[Record], size: int) -> str:
    digests = [(record.image_sha256, record.mask_sha256) for record in records]
    return f"{size}px-{digest_of([_LAYOUT, size, digests])[:16]}"


def _mapped(ids: tuple[str, ...], place: Path) -> Arrays:
    # Copy-on-write: torch wants arrays it could write to, and the file must stay as it is.
    maps = (np.lib.format.open_memmap(place / name, mode="c") for name in (_IMAGES, _MASKS))
    images, masks = (np.asarray(array) for array in maps)
    return Arrays(ids, images, masks, place)


def _verified(ids: tuple[str, ...], place: Path) -> Arrays:
    """Map a cache; ValueError if a row is not what was written."""
    arrays = _mapped(ids, place)
    sums: list[int] = read_json(place / _CHECKSUMS)
    if not len(sums) == len(arrays.images) == len(arrays.masks):
        raise ValueError(f"{len(arrays.images)} images, {len(arrays.masks)} masks, {len(sums)} checksums")
    rows = zip(arrays.images, arrays.masks, sums, strict=True)
    wrong = sum(_checksum(image, mask) != wanted for image, mask, wanted in rows)
    if wrong:
        raise ValueError(f"{wrong} of {len(sums)} images are not what was written")
    return arrays


def _checksum(image: Pixels, mask: Pixels) -> int:
    return zlib.crc32(mask.data, zlib.crc32(image.data))


def _decoded(records: Sequence[Record], progress: Progress) -> Iterator[tuple[Record, Pixels, Pixels]]:
    """Images and masks in order; at the end, one error with all files that are not what the index says."""
    problems: list[str] = []
    with progress.track("Loading images", len(records)) as advance:
        for record in records:
            pair, found = read_pair(record.image, record.mask)
            problems += found
            if pair is not None:
                image, mask, _ = pair
                problems += changed_files(record, image, mask)
                yield record, image, mask
            advance()
    if problems:
        headline = (
            "The data set is no longer what its index says. Restore the files, or delete the run's folder "
            "dataset to rebuild the index:"
        )
        raise DataError(bullet_list(headline, problems))


def changed_files(record: Record, image: Pixels, mask: Pixels) -> list[str]:
    """A message for each of a record's two files that no longer shows what was indexed.

    Args:
        image: (H, W, 3) uint8, as `read_image` gives it now.
        mask: (H, W) uint8, as `read_mask` gives it now.
    """
    found = (
        (record.image, pixel_digest(image) != record.image_sha256),
        (record.mask, pixel_digest(mask) != record.mask_sha256),
    )
    return [f"{path} has changed since it was indexed." for path, differs in found if differs]
