"""The pairs of a finished run for other programs: own training loops (`mcpmix.open_pairs`), and nnU-Net."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import yaml
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.core.files import new_folder, storage_errors, write_json, written
from mcpmix.core.pixels import Pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.convert import convert
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays
from mcpmix.data.layouts import GIVEN, NNUNET_COUNTERPARTS, NNUNET_RLA, NNUNET_SPLITS, Collection
from mcpmix.data.sample import read_image
from mcpmix.data.splits import KNOWN
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


def export_to_nnunet(
    run: Path, name: str, *, raw: Path, preprocessed: Path, progress: Progress = SILENT
) -> dict[str, int]:
    """Write the data set of a run for nnU-Net, and its counterparts beside what nnU-Net will preprocess.

    `raw/name` has images and masks at their own size, training and validation part as `imagesTr`, test part
    as `imagesTs`. `preprocessed/name` has the counterparts, brought to the size of their images; the split of
    the run as nnU-Net's fold 0, for its own folds would separate images of a patient; and the run's settings
    of RLA. The part `known`, new images of patients of the training part, is left out: it would be counted
    among the test images.

    Args:
        run: folder of a run whose `pairs/` are finished.
        name: of the data set, like Dataset501_Polyps.
        raw: nnU-Net's folder of raw data sets.
        preprocessed: nnU-Net's folder of preprocessed data sets.

    Returns:
        Number of images of each part, left out or not, and of counterparts.

    Raises:
        DataError: there are no pairs, or nnU-Net would not find a data set of this name.
        StorageError: one of the folders is there and not empty.
    """
    pairs = open_pairs(run)
    index = DatasetIndex.read(run / "dataset")
    settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    records = {record.id: record for record in index.records}
    kept = tuple(records[key] for key in sorted(records) if records[key].split != KNOWN)
    split = {record.id: record.split for record in kept}
    grouped = "group" if any(record.group != record.id for record in kept) else ""
    counts = Counter(record.split for record in index.records)
    place = preprocessed / name
    with storage_errors(place), written(new_folder(place)) as folder:
        folder.mkdir()
        with progress.track("Writing counterparts", len(pairs)) as advance:
            for pair in pairs:
                size = records[pair.id].width, records[pair.id].height
                for number, pixels in enumerate(pair.counterparts):
                    grown = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
                    write_png(folder / NNUNET_COUNTERPARTS / pair.id / f"{number}.png", np.array(grown))
                    counts["counterparts"] += 1
                advance()
        fold = {"train": index.part("train"), "val": index.part("validation")}
        ids = {part: [record.id for record in found] for part, found in fold.items()}
        write_json(folder / NNUNET_SPLITS, [ids])
        write_json(folder / NNUNET_COUNTERPARTS / NNUNET_RLA, settings.get("rla", {}))
        # Inside, so that there are both folders or none.
        classes = tuple(settings["data"].get("classes", ()))
        whole = Collection(kept, {GIVEN: split}, grouped=grouped, classes=classes)
        convert(whole, "nnunet", raw / name, progress)
    return dict(counts)
