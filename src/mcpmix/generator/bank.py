"""The bank of pairs: K stored counterparts for each training mask, what was rejected, and their ledger.

The ledger has a row for every image that was tried, each sealed with the row before it. A row's `sha256`
covers its own content and `previous`, the seal of the row before; the first row continues the key of the
stage, and the last seal is in the manifest. A changed, removed, added or moved row is therefore detected and
located. A last line cut short by a kill is not damage: it was never finished, and the next run rewrites it.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL.PngImagePlugin import PngInfo

from mcpmix.core.errors import StorageError, bullet_list
from mcpmix.core.pixels import Pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of, file_digest, read_artifact, written
from mcpmix.generator.counterparts import CounterpartMaker
from mcpmix.generator.workers import Request, make_filled

LEDGER = "ledger.jsonl"

Row = dict[str, Any]

_SEAL, _PREVIOUS = "sha256", "previous"
_MOST_NAMED = 10  # damaged files in a message


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


@dataclass(frozen=True)
class Verdict:
    """What was measured on one image, as it goes to the ledger, and why it is rejected, if it is."""

    scores: dict[str, float | str | None]
    reasons: tuple[str, ...] = ()

    @property
    def admitted(self) -> bool:
        """Whether the bank admits the image."""
        return not self.reasons


Assess = Callable[[Pixels, Sequence[int]], Sequence[Verdict]]
"""Verdicts on B images under the masks at B places."""


class Bank:
    """A folder of counterparts under way.

    Args:
        folder: gets `images/<id>/<replica>.png`, `rejected/<id>/<replica>-<try>.png` and the ledger.
        tries: most images drawn for one place.
        run: name of the run, for the PNGs.
        facts: what all rows share.
        masks: digest of each sample's mask.
        assess: says which images are admitted; None: all are.
    """

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        maker: CounterpartMaker,
        *,
        replicas: int,
        tries: int,
        batch_size: int,
        run: str,
        facts: Mapping[str, Any],
        masks: Sequence[str],
        assess: Assess | None,
    ) -> None:
        self.folder, self.ledger, self.maker = folder, ledger, maker
        self.replicas, self.tries, self.batch_size = replicas, tries, batch_size
        self.run, self.facts, self.masks, self.assess = run, dict(facts), tuple(masks), assess

    def fill(self, progress: Progress = SILENT) -> None:
        """Generate what is missing: first every place once, then those whose image was rejected once more."""
        ids = self.maker.arrays.ids
        places = [Request(index, replica) for index in range(len(ids)) for replica in range(self.replicas)]
        outcome = {(row["parent"], row["replica"], row["try"]): row["admitted"] for row in self.ledger.rows}
        with progress.track("synthesize", len(places), sum(outcome.values())) as advance:
            for attempt in range(self.tries):
                names = {place: (ids[place.index], place.replica, attempt) for place in places}
                todo = [place for place in places if names[place] not in outcome]
                for start in range(0, len(todo), self.batch_size):
                    chunk, began = todo[start : start + self.batch_size], time.monotonic()
                    admitted = self._try(chunk, attempt)
                    outcome |= zip((names[place] for place in chunk), admitted, strict=True)
                    pace = f"{len(chunk) / max(time.monotonic() - began, 1e-9):.1f} images/s"
                    advance(sum(admitted), f"{pace}, try {attempt + 1}" if attempt else pace)
                places = [place for place in places if not outcome[names[place]]]
            advance(len(places))  # those that were given up

    def _draw(self, place: Request, attempt: int) -> Request:
        """The counterpart that a try draws: the first try of replica k is draw k, the next is draw K + k."""
        return Request(place.index, place.replica + attempt * self.replicas)

    def _try(self, places: Sequence[Request], attempt: int) -> list[bool]:
        """Make one batch, write its PNGs and its rows; returns which images are admitted."""
        draws = [self._draw(place, attempt) for place in places]
        images = make_filled(self.maker, draws, self.batch_size)
        verdicts: Sequence[Verdict] = [Verdict({})] * len(images)
        if self.assess is not None:
            # As in `make_filled`: scores must not depend on how many images happen to be judged together.
            extra, sources = self.batch_size - len(images), [place.index for place in places]
            filled = np.concatenate([images, *[images[-1:]] * extra])
            verdicts = self.assess(filled, sources + sources[-1:] * extra)[: len(images)]
        for place, draw, pixels, verdict in zip(places, draws, images, verdicts, strict=True):
            name, seed = self.maker.arrays.ids[place.index], self.maker.seed(draw)
            file = place_of(name, place.replica, attempt, admitted=verdict.admitted)
            write_synthetic(self.folder / file, pixels, run=self.run, seed=seed)
            self.ledger.append(
                {
                    "parent": name,
                    "replica": place.replica,
                    "try": attempt,
                    "seed": seed,
                    "prompt": self.maker.text(draw),
                    **self.facts,
                    "mask_sha256": self.masks[place.index],
                    "image_sha256": file_digest(self.folder / file),
                    "file": file.as_posix(),
                    "scores": verdict.scores,
                    "admitted": verdict.admitted,
                    "reasons": list(verdict.reasons),
                }
            )
        return [verdict.admitted for verdict in verdicts]

    def repair(self, rows: Sequence[Row], progress: Progress = SILENT) -> None:
        """Redraw damaged or missing images, given their rows of the ledger.

        Raises:
            StorageError: a redrawn image differs from its digest.
        """
        if not rows:
            return
        ids = self.maker.arrays.ids
        with progress.track("repairing pairs", len(rows)) as advance:
            for start in range(0, len(rows), self.batch_size):
                chunk = rows[start : start + self.batch_size]
                draws = [
                    self._draw(Request(ids.index(row["parent"]), row["replica"]), row["try"]) for row in chunk
                ]
                images = make_filled(self.maker, draws, self.batch_size)
                for row, pixels in zip(chunk, images, strict=True):
                    path = self.folder / row["file"]
                    write_synthetic(path, pixels, run=self.run, seed=row["seed"])
                    if file_digest(path) != row["image_sha256"]:
                        raise StorageError(
                            f"{path} was damaged, and its repair differs from what the ledger says: the "
                            "machine or the versions of its libraries have changed. Delete the folder "
                            f"{self.folder} to redo all pairs."
                        )
                advance(len(chunk))


def damaged(folder: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows whose images are missing or damaged."""
    return [
        row
        for row in rows
        if not (path := folder / row["file"]).is_file() or file_digest(path) != row["image_sha256"]
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
    """Describe a finished bank, or the unfinished one, in a few words.

    Raises:
        StorageError: a ledger row was changed, or images are damaged or missing.
    """
    artifact = read_artifact(folder)
    if artifact is not None:
        rows = read_verified(folder, artifact.digest, artifact.manifest["counts"]["ledger"])
        admitted = sum(bool(row["admitted"]) for row in rows)
        found = f"{admitted} admitted of {len(rows)} images tried; ledger and images are whole"
    else:
        folder = folder.with_name(folder.name + ".partial")
        try:
            key = json.loads((folder / "key.json").read_text(encoding="utf-8"))["digest"]
        except (OSError, ValueError, KeyError, TypeError):  # absent or foreign: the next run starts over
            return "none yet"
        rows = read_rows(folder)
        verify(folder / LEDGER, rows, str(key))
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
