"""Rows of CSV and JSONL files, and samples made of them."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.data.collection import Collection
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS

GROUP_COLUMNS = ("group", "patient", "patient_id", "lesion", "video", "sequence")
GIVEN = "official"  # name of the split that comes with the data
_PART_NAMES = {"val": "validation", "valid": "validation", "dev": "validation", "training": "train"}


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
        table: the file.
        line: its number, from 1.
        values: texts by the name of the column, lower case.
    """

    table: Path
    line: int
    values: Mapping[str, str]

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.table}, line {self.line}"

    def first(self, columns: Sequence[str]) -> str:
        """The value of the first of these columns that is there and not empty."""
        return next((self.values[name] for name in columns if self.values.get(name)), "")


def part_name(text: str) -> str:
    """`val` and the like under the name that this package uses; other texts as they are, lower case."""
    return _PART_NAMES.get(text.strip().lower(), text.strip().lower())


def read_rows(table: Path) -> list[Row]:
    """All rows of a CSV (commas, semicolons or tabs) or JSONL file in UTF-8.

    Raises:
        DataError: the file is missing, no text, or no table.
    """
    try:
        lines = table.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{table} does not exist. Check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{table} cannot be read: {error}. Expected text in UTF-8: export it again."
        ) from error
    rows = _parse_json(table, lines) if table.suffix.lower() == ".jsonl" else _parse_csv(table, lines)
    if not rows:
        raise DataError(f"{table} has no rows. Expected one for each image.")
    return rows


def _parse_csv(table: Path, lines: Sequence[str]) -> list[Row]:
    header = lines[0] if lines else ""
    reader = csv.DictReader(lines, delimiter=next((mark for mark in ",;\t" if mark in header), ","))
    return [
        Row(
            table,
            reader.line_num,
            {
                name.strip().lower(): (value or "").strip()
                for name, value in row.items()
                if isinstance(name, str)
            },
        )
        for row in reader
    ]


def _parse_json(table: Path, lines: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
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
        values = {
            str(name).strip().lower(): "" if value is None else str(value) for name, value in content.items()
        }
        rows.append(Row(table, number, values))
    return rows


def collect(
    rows: Sequence[Row], image_columns: Sequence[str], mask_columns: Sequence[str], source: str
) -> Collection:
    """Samples of rows that name files relative to their table.

    Besides the files, a row may give an `id` (otherwise the stem of the image), a group in one of
    `GROUP_COLUMNS` (otherwise each image is its own), and a `split`.

    Args:
        rows: one for each image.
        image_columns: names under which the image may stand.
        mask_columns: names under which the mask may stand.
        source: name of the data set.

    Raises:
        DataError: with every problem.
    """
    problems = _column_problems(rows, image_columns, mask_columns)
    samples: dict[str, Sample] = {}
    parts: dict[str, str] = {}
    grouped = next((name for name in GROUP_COLUMNS if any(row.values.get(name) for row in rows)), "")
    for row in [] if problems else rows:
        image, mask = (row.table.parent / row.first(names) for names in (image_columns, mask_columns))
        name = row.values.get("id") or image.stem
        found = [
            *_row_problems(row, image_columns, mask_columns, grouped),
            *_name_problems(row, name, samples),
        ]
        problems += found
        if not found:
            samples[name] = Sample(name, image, mask, row.values.get(grouped) or name, source)
            if row.values.get("split"):
                parts[name] = part_name(row.values["split"])
    if problems:
        raise DataError(bullet_list(f"{len(problems)} problem(s) with the data set:", problems))
    ordered = tuple(samples[name] for name in sorted(samples))
    return Collection(ordered, splits={GIVEN: parts} if parts else {}, grouped=grouped)


def _column_problems(rows: Sequence[Row], *kinds: Sequence[str]) -> list[str]:
    tables = {row.table: set(row.values) for row in rows}
    return [
        f"{table} has the columns: {', '.join(sorted(columns)) or 'none'}. Expected {' or '.join(names)}: "
        "rename or add it."
        for table, columns in tables.items()
        for names in kinds
        if not columns & set(names)
    ]


def _row_problems(
    row: Row, image_columns: Sequence[str], mask_columns: Sequence[str], grouped: str
) -> list[str]:
    problems = []
    for kind, names in (("image", image_columns), ("mask", mask_columns)):
        path = row.first(names)
        if not path:
            problems.append(f"{row.place}: no {kind}. Fill it in, or remove the line.")
        elif not (row.table.parent / path).is_file():
            problems.append(f"{row.place}: {row.table.parent / path} does not exist. Check the path.")
    if grouped and not row.values.get(grouped):
        problems.append(f"{row.place}: {grouped} is empty. Fill it in.")
    part = part_name(row.values.get("split", ""))
    if part and part not in PARTS:
        problems.append(f"{row.place}: split is {part!r}. Expected {', '.join(PARTS)}, or nothing.")
    return problems


def _name_problems(row: Row, name: str, taken: Mapping[str, Sample]) -> list[str]:
    if name in taken:
        return [f"{row.place}: the id {name} stands on two lines. Add a column id with different names."]
    if any(mark in name for mark in "/\\\0") or name in (".", ".."):
        return [f"{row.place}: the id {name!r} cannot be a file name. Choose another."]
    return []
