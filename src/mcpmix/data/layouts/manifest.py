"""A CSV or JSONL with the columns image and mask, and perhaps id, group (or patient ...) and split."""

from pathlib import Path

from mcpmix.core.errors import DataError
from mcpmix.data.layouts.tables import (
    Collection,
    Step,
    collect,
    copy_files,
    given_parts,
    known_group,
    read_rows,
    write_csv,
)

NAMES = ("manifest.csv", "manifest.jsonl")


def read(root: Path) -> Collection:
    """Read a manifest; paths in it are relative to its folder, or absolute.

    Args:
        root: the file, or a folder that holds `manifest.csv` or `manifest.jsonl`.

    Raises:
        DataError: with every problem of its rows.
    """
    table = root
    if root.is_dir():
        table = next((root / name for name in NAMES if (root / name).is_file()), root / NAMES[0])
    if table.suffix.lower() not in (".csv", ".tsv", ".txt", ".jsonl"):
        raise DataError(f"{table} is no manifest. Expected a file ending in .csv, .tsv or .jsonl.")
    return collect(read_rows(table), ("image",), ("mask",), "manifest")


def write(collection: Collection, folder: Path, step: Step) -> None:
    """Write `manifest.csv`, `images/` and `masks/`."""
    parts = given_parts(collection)
    rows = []
    for sample in collection.samples:
        image, mask = copy_files(sample, folder)
        rows.append(
            {
                "id": sample.id,
                "image": image,
                "mask": mask,
                "group": known_group(collection, sample),
                "split": parts.get(sample.id, ""),
            }
        )
        step()
    write_csv(folder / NAMES[0], rows)
