"""The imagefolder of Hugging Face: `train/metadata.jsonl` with the names of image and mask."""

from pathlib import Path

from mcpmix.core.errors import DataError
from mcpmix.data.layouts.tables import (
    Collection,
    Row,
    Step,
    collect,
    copy_files,
    given_parts,
    known_group,
    part_name,
    read_rows,
    write_jsonl,
)
from mcpmix.data.splits import PARTS

_METADATA = ("metadata.jsonl", "metadata.csv")
_IMAGE = ("image_file_name", "file_name")
_MASK = ("mask_file_name", "label_file_name", "annotation_file_name")
_SPLIT = "split"


def read(root: Path) -> Collection:
    """Read the metadata files in `root` and in its folders train, validation and test (or val, dev ...).

    Paths are relative to the metadata file. The folder is the split, unless a row names one.

    Raises:
        DataError: there is none, or with every problem of the rows.
    """
    if not root.is_dir():
        raise DataError(f"{root} is no folder. Expected one with {_METADATA[0]} in it or in its train/.")
    places = [root, *(path for path in sorted(root.iterdir()) if path.is_dir())]
    tables = [place / name for place in places for name in _METADATA if (place / name).is_file()]
    if not tables:
        raise DataError(f"{root} holds no {' or '.join(_METADATA)}, nor do its folders. Expected one there.")
    rows = [_with_split(row, root) for table in tables for row in read_rows(table)]
    return collect(rows, _IMAGE, _MASK, "imagefolder")


def write(collection: Collection, folder: Path, step: Step) -> None:
    """Write a folder per part with `metadata.jsonl`, `images/` and `masks/`.

    Samples without a part go to train/, as that is what readers look for; `split` keeps what was given.
    """
    parts = given_parts(collection)
    rows: dict[str, list[dict[str, str]]] = {}
    for sample in collection.samples:
        part = parts.get(sample.id, "")
        place = part or PARTS[0]
        image, mask = copy_files(sample, folder / place)
        group = known_group(collection, sample)
        row = {"id": sample.id, _IMAGE[0]: image, _MASK[0]: mask, "group": group, _SPLIT: part}
        rows.setdefault(place, []).append(row)
        step()
    for place, lines in rows.items():
        write_jsonl(folder / place / _METADATA[0], lines)


def _with_split(row: Row, root: Path) -> Row:
    part = part_name(row.table.parent.name)
    if _SPLIT in row.values or row.table.parent == root or part not in PARTS:
        return row
    return Row(row.table, row.line, {**row.values, _SPLIT: part})
