"""Ledgers: rows about images that were tried, or judged by people, each sealed with the row before it.

A row's `sha256` covers its own content and `previous`, the seal of the row before; the first row continues
the root. The root of a bank's ledger is the key of the stage, and its last seal is in the manifest. A
changed, removed, added or moved row is therefore detected and located. A last line cut short by a kill is not
damage: it was never finished, and the next writer replaces it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpmix.core.errors import StorageError
from mcpmix.core.reading import parse_json
from mcpmix.core.stage_folder import digest_of

LEDGER = "ledger.jsonl"
"""Name of a bank's ledger in its folder."""

Row = dict[str, Any]

_SEAL, _PREVIOUS = "sha256", "previous"


class Ledger:
    """The ledger of a bank under way, or of a review.

    Args:
        path: its file; need not exist.
        root: what the first row continues: the digest of the stage's key.
        redo: what to do about a changed one, for messages; by default, as for a bank.

    Raises:
        StorageError: a finished row was changed; the message names its line.
    """

    def __init__(self, path: Path, root: str, redo: str = "") -> None:
        self.path, self.root = path, root
        text = path.read_bytes() if path.exists() else b""
        self._finished = text.rfind(b"\n") + 1  # bytes; a kill may have cut the last line short
        self.rows = _parse(path, text, redo)
        previous = root
        for number, row in enumerate(self.rows, start=1):
            content = {name: value for name, value in row.items() if name != _SEAL}
            if digest_of(content) != row.get(_SEAL):
                raise _changed(path, number, "its content does not match its seal", redo)
            if row.get(_PREVIOUS) != previous:
                raise _changed(
                    path, number, "it does not follow the row before it: rows are missing or moved", redo
                )
            previous = str(row[_SEAL])

    @property
    def size(self) -> int:
        """Bytes of the finished rows."""
        return self._finished

    @property
    def head(self) -> str:
        """Seal of the last row; the root if there is none."""
        return str(self.rows[-1][_SEAL]) if self.rows else self.root

    def append(self, content: Mapping[str, Any]) -> None:
        """Seal one row and write it."""
        row: Row = json.loads(json.dumps({**content, _PREVIOUS: self.head}))  # as it will be read back
        row[_SEAL] = digest_of(row)
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        with self.path.open("ab") as file:
            file.truncate(self._finished)
            file.write(line)
        self._finished += len(line)
        self.rows.append(row)


def _parse(path: Path, text: bytes, redo: str = "") -> list[Row]:
    """The rows of a ledger's bytes; a last line that was not finished is left out."""
    rows = []
    # Bytes: splitlines() would also split at U+2028 inside a row.
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise _changed(path, number, "it is not a row", redo)
        rows.append(row)
    return rows


def read_verified(folder: Path, root: str, head: str) -> list[Row]:
    """All rows of a finished bank, from the one that continues `root` to the one whose seal is `head`."""
    path = folder / LEDGER
    if not path.exists():
        raise StorageError(f"{path} is missing. Delete the folder {folder} to redo its images.")
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
    return _parse(path, path.read_bytes()) if path.exists() else []


def admitted_replicas(rows: Iterable[Row], ids: Sequence[str]) -> list[tuple[int, ...]]:
    """The replica numbers that each sample has in the bank, in their order; none where all were rejected."""
    found: dict[str, list[int]] = {name: [] for name in ids}
    for row in rows:
        if row["parent"] in found and row["admitted"]:
            found[row["parent"]].append(int(row["replica"]))
    return [tuple(sorted(numbers)) for numbers in found.values()]


def _changed(path: Path, number: int, why: str, redo: str = "") -> StorageError:
    return StorageError(
        f"{path}, line {number}: {why}. The ledger was changed after it was written, so it proves nothing "
        f"any more. Restore the file, or {redo or f'delete the folder {path.parent} to redo its images'}."
    )


def kind_of(reason: str) -> str:
    """`alignment`, `copy`, `blank`, `too dark` ...: a reason without its figures."""
    return reason.split(":")[0]
