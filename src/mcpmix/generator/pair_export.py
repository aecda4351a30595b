"""The data set of a run and its counterparts in the layout of nnU-Net: `mcpmix export-pairs`."""

from collections import Counter
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import new_folder, storage_errors, write_json, written
from mcpmix.data.convert import convert
from mcpmix.data.index import DatasetIndex
from mcpmix.data.layouts import GIVEN, NNUNET_COUNTERPARTS, NNUNET_RLA, NNUNET_SPLITS, Collection
from mcpmix.data.splits import KNOWN
from mcpmix.generator.stored_pairs import open_pairs


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
        convert(Collection(kept, {GIVEN: split}, grouped=grouped), "nnunet", raw / name, progress)
    return dict(counts)
