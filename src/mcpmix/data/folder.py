"""A user's own files: images and masks that belong together by name, and tables (CSV and JSONL)."""

import csv
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS, list_images
from mcpmix.data.sample import Sample, read_pair

MASK_SUFFIXES = ("_segmentation", "_mask", "-mask", "_gt")


def scan_folder(
    images: Path, masks: Path, groups: Path | None = None, *, left_out: list[str] | None = None
) -> list[Sample]:
    """Pair images with masks by name. Nothing is decoded, unless to report all problems at once.

    A mask belongs to the image with the same stem, or with the same stem and one of `MASK_SUFFIXES`; case
    does not matter. Both may lie in one folder if the masks have such a suffix. Hidden files and files with
    other endings are passed over.

    Args:
        groups: CSV with the columns id (stem or name of the image file) and group; without it each image is
            its own group.
        left_out: takes the problems of single files, which are then left out; without it they are errors.

    Returns:
        Samples in the order of their ids.

    Raises:
        DataError: with every problem of the folders, each with its file and remedy.
    """
    problems: list[str] = []
    image_files = _files(images, "images", problems)
    if os.path.realpath(images) != os.path.realpath(masks):  # `resolve` would fail on links in a circle
        mask_files = _files(masks, "masks", problems)
    else:
        mask_files = [path for path in image_files if _without_suffix(path.stem)]
        image_files = [path for path in image_files if not _without_suffix(path.stem)]
    # Without one of the folders, naming every file of the other as single would only hide the cause.
    pairs = [] if problems else pair_files(image_files, mask_files, masks, problems)
    group_of = {image.stem: image.stem for image in image_files}
    if groups is not None:
        group_of = _read_groups(groups, image_files, problems)
    if problems and pairs and left_out is not None:
        left_out += problems
        pairs = [(image, mask) for image, mask in pairs if group_of.get(image.stem)]
    elif problems:
        problems += [text for pair in pairs for text in read_pair(*pair)[1]]
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise DataError(
            bullet_list(f"{count} with the images in {images} and the masks in {masks}:", problems)
        )
    return [Sample(image.stem, image, mask, group_of[image.stem], "folder") for image, mask in pairs]


def _files(folder: Path, kind: str, problems: list[str]) -> list[Path]:
    if not folder.is_dir():
        state = "is a file, not a folder" if folder.exists() else "does not exist"
        problems.append(f"{folder} {state}. Expected the folder of {kind}: check the path.")
        return []
    files = list_images(folder)
    if not files:
        problems.append(f"{folder} holds no {kind}. Expected files ending in {', '.join(sorted(ENDINGS))}.")
    return files


def _without_suffix(stem: str, suffixes: Sequence[str] = MASK_SUFFIXES) -> str:
    """The stem of the image that a mask with a suffix belongs to; empty without a suffix."""
    return next((stem[: -len(end)] for end in suffixes if stem.lower().endswith(end.lower())), "")


def pair_files(
    image_files: Sequence[Path],
    mask_files: Sequence[Path],
    masks: Path,
    problems: list[str],
    suffixes: Sequence[str] = MASK_SUFFIXES,
) -> list[tuple[Path, Path]]:
    """Pairs that are certain, in the order of the images; the others become problems."""
    image_at: dict[str, list[Path]] = defaultdict(list)
    for path in image_files:
        image_at[path.stem.casefold()].append(path)
    mask_at: dict[str, list[Path]] = defaultdict(list)
    for path in mask_files:
        key = path.stem.casefold()
        stem = _without_suffix(path.stem, suffixes).casefold()
        mask_at[key if key in image_at else stem or key].append(path)
    for kind, at, what in (
        ("image", image_at, "have the same stem"),
        ("mask", mask_at, "belong to the same image"),
    ):
        problems += [
            f"{', '.join(map(str, paths))} {what}. Expected one {kind} per stem: rename or remove all but "
            "one."
            for paths in at.values()
            if len(paths) > 1
        ]
    suffixed = f", with or without one of the suffixes {', '.join(suffixes)}" if suffixes else ""
    problems += [
        f"{paths[0]} has no mask. Expected {paths[0].stem} in {masks}{suffixed}: add the mask or remove the "
        "image."
        for key, paths in image_at.items()
        if key not in mask_at
    ]
    problems += [
        f"{path} has no image. Expected an image with the same stem: add the image or remove the mask."
        for key, paths in mask_at.items()
        if key not in image_at
        for path in paths
    ]
    return [
        (paths[0], mask_at[key][0])
        for key, paths in image_at.items()
        if len(paths) == 1 and len(mask_at.get(key, ())) == 1
    ]


def _read_groups(table: Path, images: Sequence[Path], problems: list[str]) -> dict[str, str]:
    """Group of each image by stem; images without one become problems."""
    try:
        rows = read_rows(table)
    except DataError as error:
        problems.append(f"{error} It must be a CSV with the columns id and group.")
        return {}
    columns = list(rows[0].values)
    if not {"id", "group"} <= set(columns):
        problems.append(
            f"{table} has the columns: {', '.join(columns)}. Expected id and group in its first line: rename "
            "or add them."
        )
        return {}
    given: dict[str, str] = {}
    for row in rows:
        name, group = row.values["id"], row.values["group"]
        if not group:
            problems.append(f"{row.place}: {name} has an empty group. Fill it in.")
        elif given.setdefault(name, group) != group:
            problems.append(
                f"{row.place}: {name} is in group {group}, but an earlier line says {given[name]}. Keep one "
                "of them."
            )
    named = {row.values["id"] for row in rows}
    problems += [
        f"{image} is not in {table}. Expected a line with the id {image.stem}: add it with its group."
        for image in images
        if image.stem not in named and image.name not in named
    ]
    return {image.stem: given.get(image.stem, given.get(image.name, "")) for image in images}


# --- tables that accompany images --------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    table: Path
    line: int  # from 1
    values: Mapping[str, str]  # texts by the name of the column, lower case

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.table}, line {self.line}"

    def first(self, columns: Sequence[str]) -> str:
        """The value of the first of these columns that is there and not empty."""
        return next((self.values[name] for name in columns if self.values.get(name)), "")


def read_rows(table: Path) -> list[Row]:
    """All rows of a CSV (commas, semicolons or tabs) or JSONL file in UTF-8; there is at least one.

    Raises:
        DataError: the file is missing, is not text, or holds no table.
    """
    try:
        lines = table.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{table} does not exist. Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table} cannot be read: {error}. Expected UTF-8: export it again.") from error
    if table.suffix.lower() == ".jsonl":
        rows = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                content: Any = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{table}, line {number}: {error}. Expected a JSON object: correct it."
                ) from error
            if not isinstance(content, dict):
                raise DataError(f"{table}, line {number}: expected a JSON object, got {line[:40]}.")
            texts = {k.strip().lower(): "" if v is None else str(v) for k, v in content.items()}
            rows.append(Row(table, number, texts))
    else:
        header = lines[0] if lines else ""
        reader = csv.DictReader(lines, delimiter=next((mark for mark in ",;\t" if mark in header), ","))
        # Cells beyond the last column come under the name None, missing ones as the value None.
        rows = [
            Row(table, reader.line_num, {k.strip().lower(): (v or "").strip() for k, v in row.items() if k})
            for row in reader
        ]
    if not rows:
        raise DataError(f"{table} has no rows. Expected one for each image.")
    return rows


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with equal keys under a line of these keys."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
