"""Copies of images and masks for the writers."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mcpmix.core.artifacts import write_text
from mcpmix.data.collection import Collection
from mcpmix.data.formats.tables import GIVEN
from mcpmix.data.sample import Sample

Step = Callable[[], object]


def given_parts(collection: Collection) -> Mapping[str, str]:
    """The part of each id in the split that comes with the data; empty without one."""
    return collection.splits.get(GIVEN, {})


def known_group(collection: Collection, sample: Sample) -> str:
    """The group of a sample; empty if the data set has none, so that this survives as well."""
    return sample.group if collection.grouped else ""


def copy_files(sample: Sample, folder: Path) -> tuple[str, str]:
    """Copy image and mask, byte for byte, to `images/` and `masks/` below a folder.

    Returns:
        The two paths, relative to `folder`, with slashes.
    """
    paths = []
    for kind, source in (("images", sample.image), ("masks", sample.mask)):
        target = folder / kind / f"{sample.id}{source.suffix.lower()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        paths.append(target.relative_to(folder).as_posix())
    return paths[0], paths[1]


def write_csv(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Rows with equal keys, under a line of these keys."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """One JSON object per line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
