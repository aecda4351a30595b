"""A bank of synthetic images on disk: its images, the sealed ledger of what was tried, and what people say.

A row of a ledger is sealed with the row before it: its `sha256` covers its own content and `previous`, the
seal of the row before; the first row continues the root. The root of a bank's ledger is the key of the stage,
and its last seal is in the manifest. A changed, removed, added or moved row is therefore detected and
located. A last line cut short by a kill is not damage: it was never finished, and the next writer replaces
it.

A finished bank is never written to again, so what people say has a ledger of its own, one for each bank:
`<run>/review/pairs-<digest>.jsonl`, whose first row continues the digest of the bank. A bank that is made
anew has another digest, and the judgements about the old one stay with the old one.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from filelock import FileLock
from PIL.PngImagePlugin import PngInfo

from mcpmix.core.errors import DataError, StorageError, bullet_list
from mcpmix.core.files import digest_once, parse_json, read_json, storage_errors
from mcpmix.core.pixels import Pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, digest_of, read_artifact

LEDGER = "ledger.jsonl"
"""Name of a bank's ledger in its folder."""

Row = dict[str, Any]

ACCEPT, REJECT, WITHDRAW = "accept", "reject", "withdraw"
VERDICTS = (ACCEPT, REJECT, WITHDRAW)
_SEAL, _PREVIOUS = "sha256", "previous"
_VERDICT, _BLIND = "verdict", "blind"  # kinds of rows of a review
_PATIENCE = 10  # seconds to wait for another writer
_MOST_NAMED = 10  # damaged files in a message


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


def damaged(folder: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows whose images are missing or damaged."""
    return [
        row
        for row in rows
        if not (path := folder / row["file"]).is_file() or digest_once(path) != row["image_sha256"]
    ]


def place_of(name: str, replica: int, attempt: int, *, admitted: bool) -> Path:
    """Where an image is, relative to the bank's folder."""
    if admitted:
        return Path("images") / name / f"{replica}.png"
    return Path("rejected") / name / f"{replica}-{attempt}.png"


def write_synthetic(path: Path, pixels: Pixels, *, run: str, seed: int) -> None:
    """Write a PNG marked as synthetic, with its run and seed; whole or not at all.

    It is written from pixels alone, so it cannot carry what the source file says about patient or device.
    """
    note = PngInfo()
    note.add_text("Synthetic", f"generated by mcpmix; run {run}; seed {seed}")
    write_png(path, pixels, note)


def inspect_bank(folder: Path) -> str:
    """Describe a finished or unfinished bank in a few words; a StorageError if it was changed or damaged."""
    artifact = read_artifact(folder)
    if artifact is not None:
        rows = read_verified(folder, artifact.digest, artifact.manifest["counts"]["ledger"])
        admitted = sum(bool(row["admitted"]) for row in rows)
        found = f"{admitted} admitted of {len(rows)} images tried; ledger and images are whole"
        if judged := open_review(artifact).rows:
            found += f"; {len(judged)} judgements by people, whose ledger is whole too"
    else:
        folder = folder.with_name(folder.name + ".partial")
        try:
            key = read_json(folder / "key.json")["digest"]
        except (OSError, ValueError, KeyError, TypeError):  # absent or foreign: the next run starts over
            return "none yet"
        rows = Ledger(folder / LEDGER, str(key)).rows
        found = f"unfinished, {len(rows)} images tried so far; the ledger is whole"
    if bad := damaged(folder, rows):
        named = [str(row["file"]) for row in bad[:_MOST_NAMED]]
        named += [f"and {len(bad) - _MOST_NAMED} more"] if len(bad) > _MOST_NAMED else []
        headline = (
            f"Images in {folder} are damaged or missing. `mcpmix synthesize` or any later stage repairs "
            "them, to the same bits:"
        )
        raise StorageError(bullet_list(headline, named))
    return found


# --- what people say ---------------------------------------------------------------------------------------
#
# Of each person the last word on an image counts. An image that somebody rejects is left out of training; one
# that somebody accepts, and nobody rejects, is taken although the machine rejected it. Copies of training
# images are the exception: whether an image repeats a patient is not a matter of looks, so nobody can accept
# one.


@dataclass(frozen=True)
class Review:
    """What people say about a bank. Training takes the changes into account; the rest is for readers."""

    changes: tuple[tuple[str, bool], ...]  # where they differ from it: files and whether training takes them
    reviewers: int = 0
    accepted: int = 0  # counterparts that somebody accepts and nobody rejects
    rejected: int = 0

    @property
    def digest(self) -> str:
        """Identity of the changes, for the keys of trainings."""
        return digest_of(self.changes)

    @property
    def sentence(self) -> str:
        """How many were judged by how many people, and what training made of it."""
        taken, judged = sum(admitted for _, admitted in self.changes), self.accepted + self.rejected
        left, plural = len(self.changes) - taken, "s" if self.reviewers > 1 else ""
        return (
            f"{judged} counterparts were judged by {self.reviewers} reviewer{plural}: {self.accepted} "
            f"accepted, {self.rejected} rejected. Training used this: {left} of the admitted were left out, "
            f"{taken} that admission had rejected were taken."
        )

    def apply(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of the bank with `admitted` as people say.

        An image that only people admit gets a replica number of its own: another try may have its place.
        """
        said, count = dict(self.changes), 1 + max((int(row["replica"]) for row in rows), default=0)
        changed = []
        for row in rows:
            admitted = said.get(row["file"], row["admitted"])
            extra = (int(row.get("try", 0)) + 1) * count if admitted and not row["admitted"] else 0
            changed.append({**row, "admitted": admitted, "replica": int(row["replica"]) + extra})
        return changed


def read_review(pairs: Artifact, progress: Progress = SILENT) -> Review | None:
    """What people say about a bank; None if nobody has judged any of it.

    Raises:
        StorageError: the ledger of the review was changed after it was written.
    """
    said = verdicts_of(open_review(pairs).rows)
    changes = []
    for row in read_rows(pairs.folder) if said else ():
        admitted = admits(row, said.get(row["file"], {}))
        if admitted != row["admitted"]:
            changes.append((str(row["file"]), admitted))
    if not any(said.values()):
        return None
    found = [{entry["verdict"] for entry in people.values()} for people in said.values() if people]
    rejected = sum(REJECT in verdicts for verdicts in found)
    reviewers = {who for people in said.values() for who in people}
    review = Review(tuple(sorted(changes)), len(reviewers), len(found) - rejected, rejected)
    progress.say(f"pairs: {review.sentence}")
    return review


def open_review(pairs: Artifact) -> Ledger:
    """The ledger of the judgements about a bank, verified; it need not exist yet."""
    path = pairs.folder.parent / "review" / f"pairs-{pairs.digest[:8]}.jsonl"
    return Ledger(path, pairs.digest, f"delete {path} to review again")


def verdicts_of(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """File to person to the row of their last word on it; what was withdrawn is left out."""
    last: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["kind"] == _VERDICT:
            said = last.setdefault(str(row["file"]), {})
            said[str(row["who"])] = row
            if row["verdict"] == WITHDRAW:
                del said[str(row["who"])]
    return last


def admits(row: Row, said: Mapping[str, Row]) -> bool:
    """Whether training takes an image, given its row in the bank and the last word of each person."""
    found = {entry["verdict"] for entry in said.values()}
    if REJECT in found:
        return False
    return bool(row["admitted"]) or (ACCEPT in found and not is_copy(row))


def is_copy(row: Row) -> bool:
    """Whether the machine rejected an image as the copy of a training image."""
    return any(kind_of(reason) == "copy" for reason in row.get("reasons", ()))


class ReviewBook:
    """A review that several threads, and several processes, may write to."""

    def __init__(self, pairs: Artifact) -> None:
        self.pairs, self._lock, self._ledger = pairs, Lock(), open_review(pairs)

    def rows(self) -> list[Row]:
        """All rows, also those that another process has added."""
        with self._lock:
            return list(self._current().rows)

    def judge(self, image: Row, who: str, verdict: str, word: str = "") -> Row:
        """Write what a person says about an image, given its row in the bank; returns the new row."""
        if verdict not in VERDICTS:
            raise DataError(f"The verdict is {verdict!r}; expected one of {', '.join(VERDICTS)}.")
        if verdict == ACCEPT and is_copy(image):
            raise DataError(
                f"{image['file']} was rejected as the copy of a training image. That is not a matter of "
                "looks, so it cannot be accepted."
            )
        seen = {name: image[name] for name in ("file", "parent", "replica", "try", "image_sha256")}
        return self._add({"kind": _VERDICT, **seen, "verdict": verdict, "word": word.strip()}, who)

    def note_blind(self, who: str, result: Mapping[str, object]) -> Row:
        """Write the result of a blind test."""
        return self._add({"kind": _BLIND, **result}, who)

    def _add(self, content: Mapping[str, object], who: str) -> Row:
        if not who.strip():
            raise DataError("Nobody is named. Expected the reviewer's name or initials: fill in `Reviewer`.")
        path = self._ledger.path
        with self._lock, storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE):
                ledger = self._current()
                when = datetime.now(UTC).isoformat(timespec="seconds")
                ledger.append({**content, "who": who.strip(), "when": when})
                return ledger.rows[-1]

    def _current(self) -> Ledger:
        """The ledger as it is on disk, read again only if somebody else has written."""
        path: Path = self._ledger.path
        if (path.stat().st_size if path.exists() else 0) != self._ledger.size:
            self._ledger = open_review(self.pairs)
        return self._ledger
