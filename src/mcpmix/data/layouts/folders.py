"""A user's own data: a folder of images, a folder of masks, and perhaps a table of groups."""

import csv
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.layouts.tables import GIVEN, Collection, Step, copy_files, given_parts, write_csv
from mcpmix.data.sample import Sample, read_image, read_mask, size_problems
from mcpmix.data.splits import PARTS, Split, read_lists, write_split

MASK_SUFFIXES = ("_segmentation", "_mask", "-mask", "_gt")
_SUFFIX_TEXT = ", ".join(MASK_SUFFIXES)
_ENDING_TEXT = ", ".join(sorted(ENDINGS))


def scan_folder(
    images: Path,
    masks: Path,
    groups: Path | None = None,
    source: str = "folder",
    progress: Progress = SILENT,
    *,
    decode: bool = True,
    left_out: list[str] | None = None,
) -> list[Sample]:
    """Pair images with masks and check all of them by decoding.

    A mask belongs to the image with the same stem, or with the same stem and one of `MASK_SUFFIXES`; case
    does not matter. Both may lie in one folder if the masks have such a suffix. Hidden files and files with
    other endings are passed over.

    Args:
        images: folder of images.
        masks: folder of masks.
        groups: CSV with the columns id (stem or name of the image file) and group; without it each image is
            its own group.
        source: name of the data set, kept in the samples.
        progress: where decoding reports to.
        decode: whether to read the files; without it only names are checked.
        left_out: takes the problems of single files, which are then left out; without it they are errors.

    Returns:
        Samples in the order of their ids.

    Raises:
        DataError: with every problem of the folders, each with its file and remedy.
    """
    problems: list[str] = []
    image_files, mask_files = _list_files(images, masks, problems)
    # Without one of the folders, naming every file of the other as single would only hide the cause.
    pairs = [] if problems else _pair(image_files, mask_files, masks, problems)
    if decode:
        _check_pairs(pairs, progress, problems)
    group_of = {image.stem: image.stem for image in image_files}
    if groups is not None:
        group_of = _read_groups(groups, image_files, problems)
    if problems and left_out is not None and pairs:
        left_out += problems
        pairs = [(image, mask) for image, mask in pairs if group_of.get(image.stem)]
        problems = []
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise DataError(
            bullet_list(f"{count} with the images in {images} and the masks in {masks}:", problems)
        )
    return [Sample(image.stem, image, mask, group_of[image.stem], source) for image, mask in pairs]


def _list_files(images: Path, masks: Path, problems: list[str]) -> tuple[list[Path], list[Path]]:
    image_files = _files(images, "images", problems)
    if os.path.realpath(images) != os.path.realpath(masks):  # unlike `resolve`, at ease with circles of links
        return image_files, _files(masks, "masks", problems)
    stripped = {path: _strip_suffix(path.stem) for path in image_files}
    return (
        [path for path, stem in stripped.items() if stem is None],
        [path for path, stem in stripped.items() if stem is not None],
    )


def _files(folder: Path, kind: str, problems: list[str]) -> list[Path]:
    if not folder.is_dir():
        state = "is a file, not a folder" if folder.exists() else "does not exist"
        problems.append(f"{folder} {state}. Expected the folder of {kind}: check the path.")
        return []
    files = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()
    )
    if not files:
        problems.append(f"{folder} holds no {kind}. Expected files ending in {_ENDING_TEXT}.")
    return files


def _strip_suffix(stem: str) -> str | None:
    """The stem of the image that a mask with a suffix belongs to; None without a suffix."""
    for suffix in MASK_SUFFIXES:
        if stem.lower().endswith(suffix) and len(stem) > len(suffix):
            return stem[: -len(suffix)]
    return None


def _pair(
    image_files: Sequence[Path], mask_files: Sequence[Path], masks: Path, problems: list[str]
) -> list[tuple[Path, Path]]:
    """Pairs that are certain; the others become problems."""
    image_at: dict[str, list[Path]] = defaultdict(list)
    for path in image_files:
        image_at[path.stem.casefold()].append(path)
    mask_at: dict[str, list[Path]] = defaultdict(list)
    for path in mask_files:
        key = path.stem.casefold()
        if key not in image_at:
            key = (_strip_suffix(path.stem) or path.stem).casefold()
        mask_at[key].append(path)
    for kind, files in (("image", image_at), ("mask", mask_at)):
        problems.extend(_repeated(kind, paths) for paths in files.values() if len(paths) > 1)
    problems.extend(
        f"{paths[0]} has no mask. Expected {paths[0].stem} in {masks}, with or without one of the suffixes "
        f"{_SUFFIX_TEXT}: add the mask or remove the image."
        for key, paths in image_at.items()
        if key not in mask_at
    )
    problems.extend(
        f"{path} has no image. Expected an image with the same stem: add the image or remove the mask."
        for key, paths in mask_at.items()
        if key not in image_at
        for path in paths
    )
    return [
        (paths[0], mask_at[key][0])
        for key, paths in image_at.items()
        if len(paths) == 1 and len(mask_at.get(key, ())) == 1
    ]


def _repeated(kind: str, paths: Sequence[Path]) -> str:
    names = ", ".join(str(path) for path in paths)
    what = "have the same stem" if kind == "image" else "belong to the same image"
    return f"{names} {what}. Expected one {kind} per stem: rename or remove all but one."


def _check_pairs(pairs: Sequence[tuple[Path, Path]], progress: Progress, problems: list[str]) -> None:
    """Decode every pair; sizes are those of the upright pictures."""
    with progress.track("Checking images", len(pairs)) as advance:
        for image, mask in pairs:
            pixels: list[npt.NDArray[np.uint8]] = []
            for read, path in ((read_image, image), (read_mask, mask)):
                try:
                    pixels.append(read(path))
                except DataError as error:
                    problems.append(str(error))
            if len(pixels) == 2:
                problems.extend(size_problems(image, mask, *pixels))
            advance()


def _read_groups(table: Path, images: Sequence[Path], problems: list[str]) -> dict[str, str]:
    """Group of each image by stem; images without one become problems."""
    rows = _read_table(table, problems)
    if rows is None:
        return {}
    given: dict[str, str] = {}
    for line, name, group in rows:
        if not group:
            problems.append(f"{table}, line {line}: {name} has an empty group. Fill it in.")
        elif given.setdefault(name, group) != group:
            problems.append(
                f"{table}, line {line}: {name} is in group {group}, but an earlier line says "
                f"{given[name]}. Keep one of them."
            )
    named = {name for _, name, _ in rows}
    problems.extend(
        f"{image} is not in {table}. Expected a line with the id {image.stem}: add it with its group."
        for image in images
        if image.stem not in named and image.name not in named
    )
    return {image.stem: given.get(image.stem, given.get(image.name, "")) for image in images}


def _read_table(table: Path, problems: list[str]) -> list[tuple[int, str, str]] | None:
    """Rows (line, id, group) of a CSV with commas, semicolons or tabs; None if it is no such table."""
    try:
        lines = table.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        problems.append(
            f"{table} does not exist. Expected a CSV with the columns id and group: check the path."
        )
        return None
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{table} cannot be read: {error}. Expected a CSV in UTF-8: export it again.")
        return None
    header = lines[0] if lines else ""
    reader = csv.DictReader(lines, delimiter=next((mark for mark in ",;\t" if mark in header), ","))
    columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
    if not {"id", "group"} <= set(columns):
        found = ", ".join(columns) or "none"
        problems.append(
            f"{table} has the columns: {found}. Expected id and group in its first line: rename or add them."
        )
        return None
    return [
        (reader.line_num, (row[columns["id"]] or "").strip(), (row[columns["group"]] or "").strip())
        for row in reader
    ]


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
