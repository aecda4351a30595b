"""A part of a data set at training size, decoded once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.cache import cached, reopen
from mcpmix.data.index import Record
from mcpmix.data.sample import pixel_digest, read_image, read_mask, resize_image, resize_mask

Bytes = npt.NDArray[np.uint8]


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
