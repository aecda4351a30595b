"""Training logs as JSON lines: one row per event, appended; a resumed run drops rows it is about to redo."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mcpmix.core.errors import StorageError
from mcpmix.core.stage_folder import write_text


class JsonLines:
    """An append-only file of JSON rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **row: object) -> None:
        """Add one row and flush it to the file."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a last line cut short by a kill is left out.

        Raises:
            StorageError: another line than the last one is damaged.
        """
        if not self.path.exists():
            return []
        # Bytes: a kill may cut a character in two, and splitlines() would also split at U+2028 inside a row.
        *lines, last = self.path.read_bytes().split(b"\n")
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise StorageError(
                    f"{self.path}, line {number}, is not JSON ({error}); a kill cuts only the last line. "
                    "Restore the file, or delete its folder to redo all of it."
                ) from error
        try:
            return [*rows, json.loads(last)]
        except ValueError:
            return rows

    def rewrite(self, rows: Iterable[dict[str, Any]]) -> None:
        """Replace the file's rows, whole or not at all."""
        write_text(self.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
