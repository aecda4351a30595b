"""`images/` and `masks/` by stem, with `groups.csv` and `split.json` where they are known."""

from pathlib import Path

from mcpmix.core.errors import DataError
from mcpmix.data.collection import Collection
from mcpmix.data.folder import scan_folder
from mcpmix.data.formats.files import Step, copy_files, given_parts, write_csv
from mcpmix.data.formats.tables import GIVEN
from mcpmix.data.splits import PARTS, Split, read_lists, write_split

GROUPS, SPLIT = "groups.csv", "split.json"


def read(root: Path) -> Collection:
    """Read a folder that holds `images/` and `masks/`, perhaps `groups.csv` and `split.json`.

    Raises:
        DataError: with every problem; all files are decoded.
    """
    groups = root / GROUPS if (root / GROUPS).is_file() else None
    samples = tuple(scan_folder(root / "images", root / "masks", groups))
    splits = {}
    if (root / SPLIT).is_file():
        splits[GIVEN] = {name: part for part, ids in read_lists(root / SPLIT).items() for name in ids}
        unknown = sorted(set(splits[GIVEN]) - {sample.id for sample in samples})
        if unknown:
            raise DataError(f"{root / SPLIT} names ids without images: {', '.join(unknown)}. Correct it.")
    return Collection(samples, splits, grouped="group" if groups else "")


def write(collection: Collection, folder: Path, step: Step) -> None:
    """Write `images/` and `masks/`; `groups.csv` and `split.json` where the data has groups and a split."""
    for sample in collection.samples:
        copy_files(sample, folder)
        step()
    write_tables(collection, folder)


def write_tables(collection: Collection, folder: Path) -> None:
    """Write `groups.csv` and `split.json` where the data has groups and a split."""
    if collection.grouped:
        rows = [{"id": sample.id, "group": sample.group} for sample in collection.samples]
        write_csv(folder / GROUPS, rows)
    parts = given_parts(collection)
    if parts:
        write_split(
            folder / SPLIT,
            Split(*(tuple(sorted(name for name in parts if parts[name] == part)) for part in PARTS)),
        )
