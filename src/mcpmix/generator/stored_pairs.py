"""The pairs of a finished run for own training loops: `mcpmix.open_pairs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import yaml

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import Pixels
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.cache import cache_of, load_arrays
from mcpmix.data.index import DatasetIndex
from mcpmix.data.sample import read_image
from mcpmix.generator.ledger import admitted_replicas, read_rows


@dataclass(frozen=True)
class Pair:
    """A training image with its mask and its counterparts, all at the size of the run, S pixels a side."""

    id: str
    group: str  # patient, lesion or video: never put images of one into two parts
    image: Pixels  # (S, S, 3) RGB
    mask: Pixels  # (S, S), 0 and 1; the label of the image and of every counterpart
    counterparts: Pixels  # (K, S, S, 3); K is 0 where none was admitted


class StoredPairs(Sequence[Pair]):
    """The training part of a run with its bank of pairs, read when an item is asked for."""

    def __init__(self, run: Path) -> None:
        dataset, bank = read_artifact(run / "dataset"), read_artifact(run / "pairs")
        if dataset is None or bank is None:
            missing = "dataset" if dataset is None else "pairs"
            raise DataError(
                f"{run / missing} is not finished, so there are no pairs to open. Expected the folder of a "
                "run: `mcpmix synthesize CONFIG` makes them."
            )
        records = DatasetIndex.read(dataset).part("train")
        settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        self._arrays = load_arrays(records, int(settings["data"]["size"]), cache_of(dataset.folder))
        self._groups = {record.id: record.group for record in records}
        self._replicas = admitted_replicas(read_rows(bank.folder), self._arrays.ids)
        self._folder = bank.folder

    def __len__(self) -> int:
        """The number of training images."""
        return len(self._arrays.ids)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> list[Pair]: ...
    def __getitem__(self, place: int | slice) -> Pair | list[Pair]:
        """One pair, or a list of them."""
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        name, image = self._arrays.ids[place], self._arrays.images[place]
        files = [self._folder / "images" / name / f"{number}.png" for number in self._replicas[place]]
        drawn = (
            np.stack([read_image(file) for file in files]) if files else np.empty((0, *image.shape), np.uint8)
        )
        return Pair(name, self._groups[name], np.array(image), np.array(self._arrays.masks[place]), drawn)


def open_pairs(run: Path | str) -> StoredPairs:
    """The training images of a run with masks and synthetic counterparts, for a Dataset of one's own.

    Args:
        run: folder of a run whose `pairs/` are finished.

    Raises:
        DataError: they are not.
    """
    return StoredPairs(Path(run))
