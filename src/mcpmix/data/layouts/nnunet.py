"""The raw layout of nnU-Net v2 for RGB images: one file with three channels, labels 0 and 1."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.stage_folder import write_json
from mcpmix.data.layouts.tables import (
    GIVEN,
    Collection,
    Row,
    Step,
    given_parts,
    known_group,
    read_rows,
    write_csv,
)
from mcpmix.data.sample import Sample, read_image, read_mask

_DESCRIPTION = "dataset.json"
_EXTRA = "samples.csv"  # groups and parts, for which nnU-Net has no place
_CHANNEL = "_0000"
_FOLDERS = {"train": ("imagesTr", "labelsTr"), "test": ("imagesTs", "labelsTs")}
_NAME = re.compile(r"Dataset\d{3}_\w+")


def read(root: Path) -> Collection:
    """Read `imagesTr` and `labelsTr`, and `imagesTs` with `labelsTs` where these exist.

    Groups and parts come from `samples.csv` (id, group, split) if it is there; otherwise each image is its
    own group, and cases in `imagesTs` are the test part.

    Raises:
        DataError: with every problem.
    """
    ending = _file_ending(root)
    problems: list[str] = []
    samples: dict[str, Sample] = {}
    tested: set[str] = set()
    for part, (images, labels) in _FOLDERS.items():
        for sample in _cases(root / images, root / labels, ending, problems, required=part == "train"):
            samples[sample.id] = sample
            if part == "test":
                tested.add(sample.id)
    if problems:
        raise DataError(bullet_list(f"{len(problems)} problem(s) with {root}:", problems))
    parts = {name: "test" if name in tested else "train" for name in samples} if tested else {}
    grouped = ""
    if (root / _EXTRA).is_file():
        extra = {row.values.get("id", ""): row for row in read_rows(root / _EXTRA)}
        samples = {name: _grouped(sample, extra) for name, sample in samples.items()}
        parts = {name: row.values["split"] for name, row in extra.items() if row.values.get("split")}
        grouped = "group" if any(row.values.get("group") for row in extra.values()) else ""
    ordered = tuple(samples[name] for name in sorted(samples))
    return Collection(ordered, splits={GIVEN: parts} if parts else {}, grouped=grouped)


def write(collection: Collection, folder: Path, step: Step) -> None:
    """Write PNG images, labels 0 and 1, `dataset.json` and `samples.csv`.

    Pixels are those that `read_image` and `read_mask` give; the test part goes to `imagesTs`.
    """
    parts = given_parts(collection)
    counts = {"train": 0, "test": 0}
    for name in _FOLDERS["train"]:  # a reader expects them, also where all samples are for test
        (folder / name).mkdir(parents=True, exist_ok=True)
    for sample in collection.samples:
        part = "test" if parts.get(sample.id) == "test" else "train"
        images, labels = (folder / name for name in _FOLDERS[part])
        _save(images / f"{sample.id}{_CHANNEL}.png", read_image(sample.image))
        _save(labels / f"{sample.id}.png", read_mask(sample.mask))
        counts[part] += 1
        step()
    description = {
        "channel_names": {"0": "R", "1": "G", "2": "B"},
        "labels": {"background": 0, "lesion": 1},
        "numTraining": counts["train"],
        "file_ending": ".png",
        "overwrite_image_reader_writer": "NaturalImage2DIO",
    }
    write_json(folder / _DESCRIPTION, description)
    write_csv(
        folder / _EXTRA,
        [
            {"id": sample.id, "group": known_group(collection, sample), "split": parts.get(sample.id, "")}
            for sample in collection.samples
        ],
    )


def check_name(folder: Path) -> None:
    """Refuse a folder that nnU-Net would not find.

    Raises:
        DataError: its name is not like Dataset501_Polyps.
    """
    if not _NAME.fullmatch(folder.name):
        raise DataError(
            f"{folder.name} is no name of an nnU-Net data set. Expected one like Dataset501_Polyps: three "
            "digits, an underscore, letters."
        )


def _file_ending(root: Path) -> str:
    path = root / _DESCRIPTION
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return str(content["file_ending"])
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist. Expected the raw folder of an nnU-Net data set.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}). Expected JSON with file_ending.") from error


def _cases(
    images: Path, labels: Path, ending: str, problems: list[str], *, required: bool
) -> Iterator[Sample]:
    if not (images.is_dir() and labels.is_dir()):
        if required:
            problems.append(f"{images} or {labels} does not exist. Expected both.")
        return
    labelled = {path.name.removesuffix(ending) for path in labels.iterdir() if path.name.endswith(ending)}
    for image in sorted(path for path in images.iterdir() if path.name.endswith(ending)):
        stem = image.name.removesuffix(ending)
        case = stem.removesuffix(_CHANNEL)
        if case == stem:
            problems.append(
                f"{image}: expected {_CHANNEL} before the ending, RGB in one file. Merge channels."
            )
        elif case not in labelled:
            problems.append(f"{image} has no label. Expected {labels / (case + ending)}.")
        else:
            labelled.discard(case)
            yield Sample(case, image, labels / f"{case}{ending}", case, "nnunet")
    problems += [f"{labels / (case + ending)} has no image in {images}." for case in sorted(labelled)]


def _grouped(sample: Sample, extra: dict[str, Row]) -> Sample:
    group = extra[sample.id].values.get("group", "") if sample.id in extra else ""
    return Sample(sample.id, sample.image, sample.mask, group or sample.id, sample.source)


def _save(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, format="PNG")
