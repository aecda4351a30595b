"""Tables that accompany images: CSV and JSONL."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpmix.core.errors import DataError


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
        rows = [_parse_json(table, n, line) for n, line in enumerate(lines, start=1) if line.strip()]
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


def write_csv(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows with equal keys under a line of these keys."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _parse_json(table: Path, number: int, line: str) -> Row:
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{table}, line {number}: {error}. Expected a JSON object: correct it.") from error
    if not isinstance(content, dict):
        raise DataError(f"{table}, line {number}: expected a JSON object, got {line[:40]}.")
    values = {name.strip().lower(): "" if value is None else str(value) for name, value in content.items()}
    return Row(table, number, values)
