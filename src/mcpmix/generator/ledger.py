"""The ledger of a bank: a row for every image that was tried, each sealed with the row before it.

A row's `sha256` covers its own content and `previous`, the seal of the row before; the first row continues
the key of the stage, and the last seal is in the manifest. A changed, removed, added or moved row
is therefore detected and located. A last line cut short by a kill is not damage: it was never finished, and
the next run rewrites it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpmix.core.errors import StorageError
from mcpmix.core.stage_folder import digest_of, written

LEDGER = "ledger.jsonl"

Row = dict[str, Any]

_SEAL, _PREVIOUS = "sha256", "previous"


class Ledger:
    """The ledger of a bank under way.

    Args:
        path: its file; need not exist.
        root: what the first row continues: the digest of the stage's key.

    Raises:
        StorageError: a finished row was changed; the message names its line.
    """

    def __init__(self, path: Path, root: str) -> None:
        self.path, self.root = path, root
        text = path.read_bytes() if path.exists() else b""
        self.rows = parse(path, text)
        verify(path, self.rows, root)
        if text and not text.endswith(b"\n"):  # cut off what a kill left unfinished
            with written(path) as place:
                place.write_bytes(text[: text.rfind(b"\n") + 1])

    @property
    def head(self) -> str:
        """Seal of the last row; the root if there is none."""
        return str(self.rows[-1][_SEAL]) if self.rows else self.root

    def append(self, content: Mapping[str, Any]) -> None:
        """Seal one row and write it."""
        row: Row = json.loads(json.dumps({**content, _PREVIOUS: self.head}))  # as it will be read back
        row[_SEAL] = digest_of(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.rows.append(row)


def parse(path: Path, text: bytes) -> list[Row]:
    """The rows of a ledger's bytes; a last line that was not finished is left out.

    Raises:
        StorageError: a line is not a JSON object.
    """
    rows = []
    # Bytes: splitlines() would also split at U+2028 inside a row.
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise _changed(path, number, "it is not a row")
        rows.append(row)
    return rows


def verify(path: Path, rows: Sequence[Row], root: str) -> None:
    """Check the seals of all rows, of which the first must continue `root`; `path` is for messages.

    Raises:
        StorageError: the first line that does not fit.
    """
    previous = root
    for number, row in enumerate(rows, start=1):
        content = {name: value for name, value in row.items() if name != _SEAL}
        if digest_of(content) != row.get(_SEAL):
            raise _changed(path, number, "its content does not match its seal")
        if row.get(_PREVIOUS) != previous:
            raise _changed(path, number, "it does not follow the row before it: rows are missing or moved")
        previous = str(row[_SEAL])


def read_verified(folder: Path, root: str, head: str) -> list[Row]:
    """All rows of a finished bank, from the one that continues `root` to the one whose seal is `head`.

    Raises:
        StorageError: the ledger is missing or was changed.
    """
    path = folder / LEDGER
    if not path.exists():
        raise StorageError(f"{path} is missing. Delete the folder {folder} to redo the pairs.")
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        raise _changed(path, text.count(b"\n") + 1, "it is cut short")
    ledger = Ledger(path, root)
    if ledger.head != head:
        raise _changed(path, len(ledger.rows) + 1, "rows at the end are missing or were added")
    return ledger.rows


def read_rows(folder: Path) -> list[Row]:
    """All rows of a bank, not verified: the run does that before anything is trained."""
    path = folder / LEDGER
    return parse(path, path.read_bytes()) if path.exists() else []


def admitted_replicas(rows: Iterable[Row], ids: Sequence[str]) -> list[tuple[int, ...]]:
    """The replica numbers that each sample has in the bank, in their order; none where all were rejected."""
    found: dict[str, list[int]] = {name: [] for name in ids}
    for row in rows:
        if row["parent"] in found and row["admitted"]:
            found[row["parent"]].append(int(row["replica"]))
    return [tuple(sorted(numbers)) for numbers in found.values()]


def _changed(path: Path, number: int, why: str) -> StorageError:
    return StorageError(
        f"{path}, line {number}: {why}. The ledger was changed after it was written, so it proves "
        f"nothing any more. Restore the file, or delete the folder {path.parent} to redo the pairs."
    )
