"""The index of a data set: every sample with its part and the digests of what its files show."""

import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from mcpmix.core.errors import DataError
from mcpmix.core.reading import read_json
from mcpmix.core.stage_folder import Artifact, digest_of, write_json
from mcpmix.data.listing import seen_from
from mcpmix.data.sample import Sample
from mcpmix.data.splits import ALL_PARTS, KNOWN

INDEX = "index.json"


@dataclass(frozen=True)
class Record(Sample):
    """A sample with its part of the data set and its content."""

    split: str  # one of `ALL_PARTS`
    image_sha256: str  # `pixel_digest` of the image as `read_image` gives it
    mask_sha256: str  # `pixel_digest` of the mask as `read_mask` gives it
    width: int  # pixels, upright
    height: int
    look: str  # `look_of` the image, to find near-duplicates of it


@dataclass(frozen=True)
class DatasetIndex:
    """All records of a data set, in the order train, validation, test, known, then by id."""

    records: tuple[Record, ...]

    def part(self, split: str) -> list[Record]:
        """The records of train, validation, test or known, which may be empty."""
        if split not in ALL_PARTS:
            raise ValueError(f"unknown part {split!r}: expected one of {', '.join(ALL_PARTS)}")
        return [record for record in self.records if record.split == split]

    @cached_property
    def digest(self) -> str:
        """Identity of ids, split and content, wherever the files lie; without the part `known`."""
        rows = [row for row in self.records if row.split != KNOWN]
        return digest_of(sorted((row.id, row.split, row.image_sha256, row.mask_sha256) for row in rows))

    @property
    def training_digest(self) -> str:
        """Identity of all that stages before evaluation read: also groups and sources, nothing of `known`."""
        rows = [row for row in self.records if row.split != KNOWN]
        return digest_of([self.digest, sorted((row.id, row.group, row.source) for row in rows)])

    @property
    def whole_digest(self) -> str:
        """Identity of all records, those of `known` too, wherever the files lie."""
        names = ("id", "split", "group", "source", "image_sha256", "mask_sha256")
        return digest_of([[getattr(row, name) for name in names] for row in self.records])

    def write(self, folder: Path) -> None:
        """Write JSON into a folder; files are named relative to it, so that no path of this machine shows."""
        home = folder.resolve()
        rows = []
        for record in self.records:
            row = {field.name: getattr(record, field.name) for field in fields(Record)}
            for name in ("image", "mask"):
                absolute = row[name].absolute()
                # Only the folder is resolved: a link inside it stays what the user named.
                inside = absolute.parent.resolve() / absolute.name
                row[name] = seen_from(home, inside)
            rows.append(row)
        write_json(folder / INDEX, {"samples": rows})

    @classmethod
    def read(cls, dataset: Artifact | Path) -> Self:
        """Read what `write` wrote, from the data set's artefact or folder."""
        path = dataset / INDEX
        folder, names = str(path.parent.resolve()), [field.name for field in fields(Record)]
        try:
            rows: list[dict[str, Any]] = read_json(path)["samples"]
            return cls(
                tuple(
                    Record(
                        **{name: row[name] for name in names}
                        # Texts: paths of paths would take most of the time of a large index.
                        | {
                            name: Path(os.path.normpath(os.path.join(folder, row[name])))  # noqa: PTH118
                            for name in ("image", "mask")
                        }
                    )
                    for row in rows
                )
            )
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist. Run the dataset stage first.") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not an index of a data set ({error!r}). Delete its folder to rebuild it."
            ) from error


def training_digest(dataset: Artifact) -> str:
    """The data set in the keys of stages before evaluation: new images in `known` cost no new training."""
    return str(dataset.manifest.get("counts", {}).get("training", dataset.digest))


def whole_digest(dataset: Artifact) -> str:
    """The data set in the keys of stages that read all of it, wherever its files lie."""
    return str(dataset.manifest.get("counts", {}).get("all", dataset.digest))
