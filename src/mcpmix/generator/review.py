"""What people say about the counterparts of a bank: a sealed ledger beside it, and what training makes of it.

A finished bank is never written to again, so judgements have a ledger of their own, one for each bank:
`<run>/review/pairs-<digest>.jsonl`, whose first row continues the digest of the bank. A bank that is made
anew has another digest, and the judgements about the old one stay with the old one.

Of each person the last word on an image counts. An image that somebody rejects is left out of training; one
that somebody accepts, and nobody rejects, is taken although the machine rejected it. Copies of training
images are the exception: whether an image repeats a patient is not a matter of looks, so nobody can accept
one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from filelock import FileLock

from mcpmix.core.errors import DataError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, digest_of, storage_errors
from mcpmix.generator.ledger import Ledger, Row, kind_of, read_rows

ACCEPT, REJECT, WITHDRAW = "accept", "reject", "withdraw"
VERDICTS = (ACCEPT, REJECT, WITHDRAW)
_VERDICT, _BLIND = "verdict", "blind"  # kinds of rows
_PATIENCE = 10  # seconds to wait for another writer


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
