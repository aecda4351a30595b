"""What a data set on disk gives: its samples, and the splits that come with it."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.stage_folder import write_text
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS


@dataclass(frozen=True)
class Collection:
    """Samples and the splits that were published or stored with them.

    Attributes:
        samples: in the order of their ids; files are named, not decoded.
        splits: by the name of the split (`official`, `pranet`), the part of each id: train, validation or
            test. Ids without a part are left out of that split.
        leaks: by the name of a split that puts a group into two parts, why it is offered nevertheless and
            what that means. Other splits may not cut a group.
        grouped: what a group is (`patient`, `video sequence`); empty if each image is its own.
    """

    samples: tuple[Sample, ...]
    splits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    leaks: Mapping[str, str] = field(default_factory=dict)
    grouped: str = ""


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


Step = Callable[[], object]


def given_parts(collection: Collection) -> Mapping[str, str]:
    """The part of each id in the split that comes with the data; empty without one."""
    return collection.splits.get(GIVEN, {})


def known_group(collection: Collection, sample: Sample) -> str:
    """The group of a sample; empty if the data set has none, so that this survives as well."""
    return sample.group if collection.grouped else ""


def copy_files(sample: Sample, folder: Path) -> tuple[str, str]:
    """Copy image and mask, byte for byte, to `images/` and `masks/` below a folder.

    Returns:
        The two paths, relative to `folder`, with slashes.
    """
    paths = []
    for kind, source in (("images", sample.image), ("masks", sample.mask)):
        target = folder / kind / f"{sample.id}{source.suffix.lower()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        paths.append(target.relative_to(folder).as_posix())
    return paths[0], paths[1]


def write_csv(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Rows with equal keys, under a line of these keys."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """One JSON object per line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
