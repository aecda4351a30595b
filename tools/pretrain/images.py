"""Own unlabelled images: which files, and what their captions are."""

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS, list_images

_NAME_KEYS = ("file_name", "image", "path", "id")
_TEXT_KEYS = ("text", "caption")


def find_images(folder: Path) -> list[Path]:
    """All images below a folder, sorted; hidden files are passed over.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist. Expected a folder of images: check the path.")
    paths = list_images(folder, deep=True)
    if not paths:
        raise DataError(f"No images below {folder}: looked for {', '.join(sorted(ENDINGS))}.")
    return paths


def listed_images(listing: Path, folder: Path | None = None) -> list[Path]:
    """The images that a text file names, one per line; blank lines and lines with # are passed over.

    Args:
        listing: text file in UTF-8. A line is a path (absolute or relative to `folder`), or the name or stem
            of one file below `folder`.
        folder: where the images are; without it paths are relative to the list itself.

    Raises:
        DataError: with every line that names no image, or more than one.
    """
    lines = _numbered_lines(listing)
    base = folder or listing.parent
    by_name: Mapping[str, Sequence[Path]] = _by_name(find_images(folder)) if folder else {}
    found: dict[Path, None] = {}  # a set that keeps its order
    problems = []
    for number, text in lines:
        direct = base / Path(text).expanduser()
        candidates = [direct] if direct.is_file() else by_name.get(text, ())
        if len(candidates) == 1:
            found[candidates[0]] = None
        else:
            state = "no image" if not candidates else f"{len(candidates)} images"
            problems.append(f"line {number}: {text!r} names {state} in {base}. Give the path of one.")
    if not lines:
        problems.append("the list is empty. Expected one image per line.")
    if problems:
        raise DataError(bullet_list(f"{listing} cannot be used:", problems))
    return list(found)


def read_captions(table: Path, images: Sequence[Path]) -> list[str]:
    """The caption of each image from a CSV or JSONL table.

    Args:
        table: `.csv` with a header, or `.jsonl`; a column file_name, image, path or id (a path that ends like
            the image's, its name or its stem), and a column text or caption.
        images: the images, in the order of the result.

    Raises:
        DataError: with every image that has no caption, or two.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for name, text in _caption_rows(table):
        names[Path(name).as_posix()].add(text)
    texts: list[str] = []
    problems: list[str] = []
    for image in images:
        known = next((names[key] for key in _spellings(image) if key in names), set())
        if len(known) != 1:
            state = "two captions" if known else "no caption"
            problems.append(f"{image} has {state}. Give it one, under {image.name} or {image.stem}.")
        else:
            texts.extend(known)
    if problems:
        raise DataError(bullet_list(f"The captions in {table} do not fit the images:", problems))
    return texts


def _spellings(image: Path) -> list[str]:
    """What a table may call an image: its path from any folder above it, its name, its stem."""
    parts = image.absolute().parts
    return [image.as_posix(), *("/".join(parts[start:]) for start in range(1, len(parts))), image.stem]


def _by_name(images: Sequence[Path]) -> dict[str, list[Path]]:
    named: dict[str, list[Path]] = defaultdict(list)
    for path in images:
        named[path.name].append(path)
        if path.stem != path.name:
            named[path.stem].append(path)
    return named


def _numbered_lines(path: Path) -> list[tuple[int, str]]:
    lines = enumerate((line.strip() for line in _text(path).splitlines()), start=1)
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _caption_rows(table: Path) -> list[tuple[str, str]]:
    text = _text(table)
    try:
        if table.suffix.lower() == ".csv":
            rows = list(csv.DictReader(text.splitlines()))
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        return [(str(_first(row, _NAME_KEYS)), str(_first(row, _TEXT_KEYS)).strip()) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{table} is no table of captions ({error}). Expected CSV or JSONL with one of "
            f"{', '.join(_NAME_KEYS)} and one of {', '.join(_TEXT_KEYS)} in each row."
        ) from error


def _first(row: Mapping[str, object], keys: Sequence[str]) -> object:
    for key in keys:
        if row.get(key):
            return row[key]
    raise KeyError(f"a row has none of {', '.join(keys)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Expected a text file in UTF-8.") from error
