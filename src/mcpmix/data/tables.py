"""Tables as spreadsheets and scripts write them: rows with the place of each, and groups of images."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.errors import DataError
from mcpmix.core.files import parse_json, read_text

GUESSED = "guessed"  # column of a table of groups, `yes` where pictures and names alone say so
GUESSED_GROUP = "guessed group"  # what a group is then


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


def read_rows(table: Path) -> list[Row]:
    """All rows of a CSV (commas, semicolons or tabs) or JSONL file in UTF-8; there is at least one."""
    try:
        lines = read_text(table, "utf-8-sig").splitlines()
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
                content: Any = parse_json(line)
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
        rows = []
        try:
            for row in reader:  # cells beyond the last column come under None, missing ones as None
                texts = {k.strip().lower(): (v or "").strip() for k, v in row.items() if k}
                rows.append(Row(table, reader.line_num, texts))
        except csv.Error as error:
            raise DataError(
                f"{table}, line {reader.line_num}: {error}. Expected a CSV: correct it."
            ) from error
    if not rows:
        raise DataError(f"{table} has no rows. Expected one for each image.")
    return rows


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with equal keys under a line of these keys."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


# --- groups of images ---------------------------------------------------------------------------------------


def read_groups(
    table: Path, images: Sequence[Path], problems: list[str], mended: list[str] | None
) -> dict[str, str]:
    """Group of each image by stem; images without one become problems.

    With `mended`, ids that have lost their leading zeros get them back where only one image can be meant.
    """
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
    missing = [image for image in images if image.stem not in named and image.name not in named]
    bare = {name.lstrip("0") for name in named}
    cut = [image for image in missing if image.stem.lstrip("0") in bare]
    if 2 * len(cut) > len(missing):
        short = cut[0].stem.lstrip("0")
        lost = f"{table} has lost the leading zeros of {len(cut)} ids ({short} in place of {cut[0].stem})"
        if mended is None:
            problems.append(
                f"{lost}, as spreadsheets do. `mcpmix check CONFIG --fix DIR` writes a table that has them "
                "again; in a spreadsheet give the column id the format text before you fill it."
            )
        else:
            mended.append(f"{lost}: put back")
            cut = _put_zeros_back(given, images, cut)
        missing = [image for image in missing if image not in cut]
    problems += [
        f"{image} is not in {table}. Expected a line with the id {image.stem}: add it with its group."
        for image in missing
    ]
    if odd := unknown_ids(table, images):
        if mended is not None:
            mended.append(f"{odd}: left out")
        elif problems:  # alone it is no error, and a warning of `mcpmix check`
            problems.append(f"{odd}. Mistyped?")
    return {image.stem: given.get(image.stem, given.get(image.name, "")) for image in images}


def _put_zeros_back(given: dict[str, str], images: Sequence[Path], cut: Sequence[Path]) -> list[Path]:
    """Give each of `cut` the group of the id that is its stem without zeros; returns those that got one.

    One whose id may mean another image too, as 1 means 01 and 001, gets none.
    """
    meant = Counter(image.stem.lstrip("0") for image in images)
    groups_of: dict[str, set[str]] = {}
    for name, group in given.items():
        groups_of.setdefault(name.lstrip("0"), set()).add(group)
    certain = []
    for image in cut:
        groups = groups_of.get(image.stem.lstrip("0"), set())
        if meant[image.stem.lstrip("0")] == 1 and len(groups) == 1:
            given[image.stem] = next(iter(groups))
            certain.append(image)
    return certain


def unknown_ids(table: Path, images: Sequence[Path]) -> str:
    """Which ids of a readable table of groups no image has, as a sentence; empty if there is none.

    Ids that have lost their leading zeros are another matter, and not counted.
    """
    known = {name for image in images for name in (image.name, image.stem, image.stem.lstrip("0"))}
    ids = [row.values.get("id", "") for row in read_rows(table)]
    odd = [name for name in ids if name not in known and name.lstrip("0") not in known]
    if not odd:
        return ""
    few = ", ".join(odd[:5]) + (", ..." if len(odd) > 5 else "")
    words = "ids in {} belong" if len(odd) > 1 else "id in {} belongs"
    return f"{len(odd)} {words.format(table)} to no image: {few}"


def kind_of_groups(table: Path | None) -> str:
    """What a group is by a readable CSV of groups: `group`, or `guessed group`; empty without a table."""
    if table is None:
        return ""
    guessed = any(row.values.get(GUESSED, "").lower() in ("yes", "true", "1") for row in read_rows(table))
    return GUESSED_GROUP if guessed else "group"
