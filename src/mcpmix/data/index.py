"""The index of a data set: every sample with its part and the digests of what its files show."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, digest_of, write_json
from mcpmix.data.likeness import look_of
from mcpmix.data.sample import Sample, pixel_digest, read_image, read_mask, size_problems
from mcpmix.data.splits import PARTS, Split

INDEX = "index.json"


@dataclass(frozen=True)
class Record(Sample):
    """A sample with its part of the data set and its content.

    Attributes:
        split: train, validation or test.
        image_sha256: `pixel_digest` of the image as `read_image` gives it.
        mask_sha256: `pixel_digest` of the mask as `read_mask` gives it.
        width: pixels, upright.
        height: pixels, upright.
        look: `look_of` the image, from which its fingerprint comes back.
    """

    split: str
    image_sha256: str
    mask_sha256: str
    width: int
    height: int
    look: str


@dataclass(frozen=True)
class DatasetIndex:
    """All records of a data set.

    Attributes:
        records: in the order train, validation, test, then by id.
    """

    records: tuple[Record, ...]

    def part(self, split: str) -> list[Record]:
        """The records of train, validation or test."""
        if split not in PARTS:
            raise ValueError(f"unknown part {split!r}: expected one of {', '.join(PARTS)}")
        return [record for record in self.records if record.split == split]

    @cached_property
    def digest(self) -> str:
        """Identity of ids, split and content, wherever the files lie."""
        return digest_of(
            sorted((row.id, row.split, row.image_sha256, row.mask_sha256) for row in self.records)
        )

    def write(self, folder: Path) -> None:
        """Write JSON into a folder. Files below the folder are named relative to it, others absolutely."""
        rows = [_as_row(record, folder.resolve()) for record in self.records]
        write_json(folder / INDEX, {"samples": rows})

    @classmethod
    def read(cls, dataset: Artifact | Path) -> Self:
        """Read what `write` wrote, from the data set's artefact or folder.

        Raises:
            DataError: the file is missing or damaged.
        """
        path = dataset / INDEX
        try:
            rows = json.loads(path.read_text(encoding="utf-8"))["samples"]
            return cls(tuple(_from_row(row, path.parent.resolve()) for row in rows))
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist. Run the dataset stage first.") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not an index of a data set ({error!r}). Delete its folder to make it again."
            ) from error


def build_index(samples: Sequence[Sample], split: Split, progress: Progress = SILENT) -> DatasetIndex:
    """Decode the samples that a split names and record what they show.

    Args:
        samples: the data set.
        split: ids of each part, all of them in `samples`.
        progress: where decoding reports to.

    Raises:
        DataError: with every file that cannot be read, or with every image that is in two parts.
    """
    by_id = {sample.id: sample for sample in samples}
    wanted = [(part, name) for part, ids in split.parts().items() for name in sorted(ids)]
    problems = [
        f"{name} ({part}) is not in the data set. Correct the split."
        for part, name in wanted
        if name not in by_id
    ]
    records: list[Record] = []
    with progress.track("Indexing images", len(wanted)) as advance:
        for part, name in wanted:
            if name in by_id:
                try:
                    records.append(_record(by_id[name], part))
                except DataError as error:
                    problems.append(str(error))
            advance()
    if problems:
        raise DataError(bullet_list("The data set cannot be indexed:", problems))
    _refuse_leaks(records)
    return DatasetIndex(tuple(records))


def _record(sample: Sample, part: str) -> Record:
    image, mask = read_image(sample.image), read_mask(sample.mask)
    height, width = image.shape[:2]
    for problem in size_problems(sample.image, sample.mask, image, mask):
        raise DataError(problem)
    return Record(
        **{field.name: getattr(sample, field.name) for field in fields(Sample)},
        split=part,
        image_sha256=pixel_digest(image),
        mask_sha256=pixel_digest(mask),
        width=width,
        height=height,
        look=look_of(image),
    )


def _refuse_leaks(records: Sequence[Record]) -> None:
    """Refuse an image that is in two parts, whatever its files are called."""
    alike: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        alike[record.image_sha256].append(record)
    leaks = [
        " = ".join(f"{record.split} {record.id} ({record.image})" for record in same)
        for same in alike.values()
        if len({record.split for record in same}) > 1
    ]
    if leaks:
        raise DataError(
            bullet_list(
                "Images with identical pixels are in different parts of the split, so test figures would be "
                "too good. Remove the copies, or put them into one part (one group):",
                leaks,
            )
        )


def _as_row(record: Record, folder: Path) -> dict[str, Any]:
    row = {field.name: getattr(record, field.name) for field in fields(Record)}
    for name in ("image", "mask"):
        absolute = row[name].absolute()
        # Only the folder is resolved: a link inside it stays what the user named.
        inside = absolute.parent.resolve() / absolute.name
        row[name] = (inside.relative_to(folder) if inside.is_relative_to(folder) else absolute).as_posix()
    return row


def _from_row(row: dict[str, Any], folder: Path) -> Record:
    if not isinstance(row, dict):
        raise TypeError(f"expected an object, got {row!r}")
    paths = {name: folder / row[name] for name in ("image", "mask")}
    return Record(**{field.name: row[field.name] for field in fields(Record)} | paths)
