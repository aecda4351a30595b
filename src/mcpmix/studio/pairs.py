"""The wall of pairs: the rows of a bank's ledger, filtered and in pages, also while the bank is being filled.

Of each row only what filters need is kept in memory; the rest is read from the ledger when it is asked for.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any

from mcpmix.core.errors import DataError
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.generator.ledger import LEDGER, Row, kind_of
from mcpmix.generator.review import ACCEPT, REJECT, ReviewBook, admits, verdicts_of
from mcpmix.studio.runs import RunView

MOST_ITEMS = 500
"""Items of one page."""
_AT_ONCE = 1000  # rows
_NUMBER = (int, float)
_SHOWN_PROMPTS = 100  # different prompts to choose from
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that starts with one
_EXPORTED = ("when", "who", "kind", "parent", "replica", "try", "file", "verdict", "word", "shown", "hits")


@dataclass(slots=True)
class Tried:
    """An image that was tried: what a tile and a filter need."""

    number: int
    start: int  # byte of the ledger at which its row starts
    parent: str
    group: str
    replica: int
    file: str
    digest: str
    prompt: str
    admitted: bool
    reasons: tuple[str, ...]
    scores: dict[str, float]


@dataclass(frozen=True)
class Filter:
    """Which images are shown; an empty text means all."""

    state: str = ""  # taken, left-out, unjudged, accepted or rejected (by people)
    reason: str = ""
    group: str = ""
    prompt: str = ""
    text: str = ""  # within the id
    score: str = ""
    low: float = float("-inf")
    high: float = float("inf")

    def takes(self, image: Tried, verdicts: set[str], taken: bool) -> bool:
        """Whether an image is shown, given what people say about it and whether training takes it."""
        states = {
            "": True,
            "taken": taken,
            "left-out": not taken,
            "unjudged": not verdicts,
            "accepted": ACCEPT in verdicts,
            "rejected": REJECT in verdicts,
        }
        return (
            states.get(self.state, False)
            and (not self.reason or any(kind_of(reason) == self.reason for reason in image.reasons))
            and self.group in ("", image.group)
            and self.prompt in ("", image.prompt)
            and self.text.lower() in image.parent.lower()
            and (not self.score or self.low <= image.scores.get(self.score, float("nan")) <= self.high)
        )


@dataclass
class BankView:
    """The bank of a run, kept up to date with its ledger."""

    run: RunView
    images: list[Tried] = field(default_factory=list)
    _read: int = 0  # bytes of the ledger that are in `images`
    _inode: int = 0
    _lock: Lock = field(default_factory=Lock)
    _book: ReviewBook | None = None
    _records: tuple[str, dict[str, Record]] | None = None  # with the digest of the data set

    @property
    def records(self) -> dict[str, Record]:
        """Samples of the data set by id; empty while it is being indexed."""
        dataset = self.run.artifact("dataset")
        if dataset is None:
            return {}
        if self._records is None or self._records[0] != dataset.digest:
            index = DatasetIndex.read(dataset).records
            self._records = dataset.digest, {record.id: record for record in index}
        return self._records[1]

    @property
    def book(self) -> ReviewBook:
        """The judgements about the bank; a DataError while it is not finished."""
        pairs = self.run.artifact("pairs")
        if pairs is None:
            raise DataError("The bank of this run is not finished. Judge it when it is: images may change.")
        if self._book is None or self._book.pairs.digest != pairs.digest:
            self._book = ReviewBook(pairs)
        return self._book

    def verdicts(self) -> dict[str, dict[str, Row]]:
        """File to person to their last word; empty while the bank is not finished."""
        return verdicts_of(self.book.rows()) if self.run.artifact("pairs") is not None else {}

    def refresh(self) -> None:
        """Read the rows that the ledger has gained; all of it if it is another one."""
        finished = self.run.folder / "pairs" / LEDGER
        path = finished if finished.exists() else self.run.folder / "pairs.partial" / LEDGER
        with self._lock:
            records = self.records
            try:
                with path.open("rb") as file:
                    about = os.fstat(file.fileno())
                    if about.st_ino != self._inode or about.st_size < self._read:
                        self.images, self._read, self._inode = [], 0, about.st_ino
                    file.seek(self._read)
                    while lines := list(islice(file, _AT_ONCE)):
                        if not lines[-1].endswith(b"\n"):
                            lines.pop()  # a row in the making
                        # One text for many rows: faster, and their equal keys become one object.
                        for line, row in zip(lines, json.loads(b"[" + b",".join(lines) + b"]"), strict=True):
                            self.images.append(self._tried(row, records))
                            self._read += len(line)
            except FileNotFoundError:  # none yet, or just being renamed
                return
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path} is damaged after {self._read} bytes ({error!r}). Restore it, or delete its "
                    "folder to make the images anew."
                ) from error

    def _tried(self, row: Row, records: Mapping[str, Record]) -> Tried:
        scores = {name: value for name, value in row.get("scores", {}).items() if isinstance(value, _NUMBER)}
        record = records.get(row["parent"])
        return Tried(
            number=len(self.images),
            start=self._read,
            parent=sys.intern(str(row["parent"])),
            group=sys.intern(record.group) if record else "",
            replica=int(row["replica"]),
            file=str(row["file"]),
            digest=str(row.get("image_sha256", ""))[:24],
            prompt=sys.intern(str(row.get("prompt", ""))),
            admitted=bool(row["admitted"]),
            reasons=tuple(sys.intern(str(reason)) for reason in row.get("reasons", ())),
            scores=scores,
        )

    def row(self, number: int) -> Row:
        """The whole row of an image."""
        image = self.images[number]
        for name in ("pairs", "pairs.partial"):
            path = self.run.folder / name / LEDGER
            if path.exists():
                with path.open("rb") as file:
                    file.seek(image.start)
                    found: Row = json.loads(file.readline())
                return found
        raise DataError("The bank is gone: another run has made it anew. Load the page again.")

    def page(self, wanted: Filter, offset: int, limit: int) -> dict[str, Any]:
        """A part of the wall: each real image, followed by those of its counterparts that are shown."""
        said = self.verdicts()
        tiles: list[dict[str, Any] | Tried] = []
        order: dict[str, list[Tried]] = {}
        for image in self.images:
            verdicts = said.get(image.file, {})
            found = {str(entry["verdict"]) for entry in verdicts.values()}
            if wanted.takes(image, found, admits(_as_row(image), verdicts)):
                order.setdefault(image.parent, []).append(image)
        for parent, images in order.items():
            tiles.append({"kind": "real", "parent": parent, "group": images[0].group})
            tiles.extend(images)
        chosen = tiles[max(0, offset) : max(0, offset) + min(max(1, limit), MOST_ITEMS)]
        return {
            "total": len(tiles),
            "images": sum(map(len, order.values())),
            "items": [tile if isinstance(tile, dict) else self.tile(tile, said) for tile in chosen],
            "numbers": [tile.number for tile in tiles if isinstance(tile, Tried)] if offset == 0 else None,
        }

    def tile(self, image: Tried, said: Mapping[str, Mapping[str, Row]]) -> dict[str, Any]:
        """What the wall shows of an image."""
        verdicts = said.get(image.file, {})
        return {
            "kind": "synthetic",
            "number": image.number,
            "parent": image.parent,
            "replica": image.replica,
            "digest": image.digest,
            "reasons": [kind_of(reason) for reason in image.reasons],
            "taken": admits(_as_row(image), verdicts),
            "people": sorted({str(entry["verdict"]) for entry in verdicts.values()}),
        }

    def detail(self, number: int) -> dict[str, Any]:
        """All that is known about an image."""
        row, said, image = self.row(number), self.verdicts(), self.images[number]
        records, scores = self.records, row.get("scores", {})
        record = records.get(image.parent)
        near = (scores.get(name) for name in ("nearest_train", "alike_train"))
        return {
            **self.tile(image, said),
            "group": image.group,
            "prompt": image.prompt,
            "seed": str(row.get("seed", "")),  # as text: JavaScript would round it
            "scores": scores,
            "reasons": row.get("reasons", []),
            "admitted": image.admitted,
            "nearest": [name for name in dict.fromkeys(near) if name in records],
            "size": [record.width, record.height] if record else None,
            "said": [
                {name: entry[name] for name in ("who", "when", "verdict", "word")}
                for entry in said.get(image.file, {}).values()
            ],
        }

    def choices(self) -> dict[str, Any]:
        """What filters can be set to."""
        prompts = list(dict.fromkeys(image.prompt for image in self.images))
        values: dict[str, list[float]] = {}
        for image in self.images:
            for name, value in image.scores.items():
                values.setdefault(name, []).append(value)
        return {
            "reasons": sorted({kind_of(reason) for image in self.images for reason in image.reasons}),
            "groups": sorted({image.group for image in self.images}),
            "prompts": prompts[:_SHOWN_PROMPTS],
            "scores": {name: [min(found), max(found)] for name, found in values.items()},
        }


def _as_row(image: Tried) -> Row:
    return {"admitted": image.admitted, "reasons": image.reasons}


def to_csv(rows: Sequence[Row]) -> str:
    """A review as a table; a cell that a spreadsheet would take for a formula gets an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(_EXPORTED)
    for row in rows:
        cells = [str(row.get(name, "")) for name in _EXPORTED]
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    return buffer.getvalue()
