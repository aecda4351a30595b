"""A part of a data set in memory, decoded and resized once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.index import Record
from mcpmix.data.sample import pixel_digest, read_image, read_mask, resize_image, resize_mask


@dataclass(frozen=True)
class Arrays:
    """Images and masks at training size, in the order of `ids`.

    Attributes:
        ids: N ids.
        images: (N, S, S, 3) uint8, RGB.
        masks: (N, S, S) uint8 in {0, 1}.
    """

    ids: tuple[str, ...]
    images: npt.NDArray[np.uint8]
    masks: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ids)


def load_arrays(records: Sequence[Record], size: int, progress: Progress = SILENT) -> Arrays:
    """Decode records and bring them to `size` x `size` pixels.

    Args:
        records: which ones, in which order.
        size: side in pixels.
        progress: where decoding reports to.

    Raises:
        DataError: with every file that cannot be read or has changed since it was indexed.
    """
    images = np.empty((len(records), size, size, 3), dtype=np.uint8)
    masks = np.empty((len(records), size, size), dtype=np.uint8)
    problems: list[str] = []
    with progress.track("Loading images", len(records)) as advance:
        for row, record in enumerate(records):
            try:
                image, mask = read_image(record.image), read_mask(record.mask)
            except DataError as error:
                problems.append(str(error))
            else:
                changed = (
                    (record.image, pixel_digest(image) != record.image_sha256),
                    (record.mask, pixel_digest(mask) != record.mask_sha256),
                )
                problems.extend(
                    f"{path} has changed since it was indexed." for path, differs in changed if differs
                )
                images[row], masks[row] = resize_image(image, size), resize_mask(mask, size)
            advance()
    if problems:
        headline = (
            "The data set is no longer what its index says. Restore the files, or make the index again:"
        )
        raise DataError(bullet_list(headline, problems))
    return Arrays(tuple(record.id for record in records), images, masks)
