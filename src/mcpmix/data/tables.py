"""Tables that accompany images: CSV and JSONL, and the groups of images in them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.errors import DataError
from mcpmix.core.reading import parse_json, read_text

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

    def first(self, columns: Sequence[str]) -> str:
        """The value of the first of these columns that is there and not empty."""
        return next((self.values[name] for name in columns if self.values.get(name)), "")


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


# --- groups -------------------------------------------------------------------------------------------------


def unknown_ids(table: Path, images: Sequence[Path]) -> list[str]:
    """The ids of a readable table of groups that no image has, in its order."""
    known = {name for image in images for name in (image.stem, image.name)}
    return [name for row in read_rows(table) if (name := row.values.get("id", "")) not in known]


def kind_of_groups(table: Path | None) -> str:
    """What a group is by a readable CSV of groups: `group`, or `guessed group`; empty without a table."""
    if table is None:
        return ""
    guessed = any(row.values.get(GUESSED, "").lower() in ("yes", "true", "1") for row in read_rows(table))
    return GUESSED_GROUP if guessed else "group"


def write_groups(path: Path, group_of: Mapping[str, str], *, guessed: bool) -> None:
    """Write the group of each id as a CSV, which says in a column of its own if groups were guessed."""
    more = {GUESSED: "yes"} if guessed else {}
    write_csv(path, [{"id": name, "group": group, **more} for name, group in group_of.items()])
