"""The bank of a run: the wall of its pairs, also while it is being filled, and the blind test.

Of each row of the ledger only what filters need is kept in memory; the rest is read when it is asked for.

The blind test shows real and synthetic images in random order: "which is real?", hit rate and its interval.
The answers stay on this side: a page gets pictures by their place in the test, all of one size and encoded in
one way, so neither a name nor a file tells what they are.
"""

import csv
import io
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import SystemRandom
from threading import Lock
from typing import Any

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import Pixels
from mcpmix.core.stage_folder import digest_of
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.sample import read_image, resize_image
from mcpmix.generator.ledger import ACCEPT, LEDGER, REJECT, ReviewBook, Row, admits, kind_of, verdicts_of
from mcpmix.studio.pictures import read_sample, small_sample
from mcpmix.studio.reading import AbsentError, inside, look_up
from mcpmix.studio.runs import RunView

MOST_ITEMS = 500
"""Items of one page."""
_AT_ONCE = 1000  # rows
_NUMBER = (int, float)
_SHOWN_PROMPTS = 100  # different prompts to choose from
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that starts with one
MOST_SHOWN = 200
"""Pictures of a blind test."""
_MOST_TESTS = 100  # under way at once; the oldest are forgotten
_CONFIDENCE = 0.95
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

    @property
    def folder(self) -> Path:
        """Where the bank is by now: under its own name, or still being filled."""
        finished = self.run.folder / "pairs"
        return finished if (finished / LEDGER).exists() else self.run.folder / "pairs.partial"

    def refresh(self) -> None:
        """Read the rows that the ledger has gained; all of it if it is another one."""
        path = self.folder / LEDGER
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

    def image(self, number: int) -> Tried:
        """The image with a number; an AbsentError if there is none."""
        if not 0 <= number < len(self.images):
            raise AbsentError
        return self.images[number]

    def row(self, number: int) -> Row:
        """The whole row of an image."""
        image = self.image(number)
        try:
            with (self.folder / LEDGER).open("rb") as file:
                file.seek(image.start)
                found: Row = json.loads(file.readline())
        except FileNotFoundError as error:
            raise DataError("The bank is gone: another run has made it anew. Load the page again.") from error
        return found

    def picture(self, number: int) -> Pixels:
        """A counterpart."""
        return read_image(inside(self.folder, self.image(number).file))

    def thumbnail(self, number: int) -> tuple[str, Callable[[], Pixels]]:
        """Key of a counterpart's thumbnail, and what reads its pixels."""
        image = self.image(number)
        return digest_of([image.digest, image.file, self.run.name]), lambda: self.picture(number)

    def real_thumbnail(self, name: str) -> tuple[str, Callable[[], Pixels]]:
        """The same for a real image."""
        record = look_up(self.records, name)
        return digest_of([record.image_sha256]), lambda: read_sample(record, "image")

    def thumbnails(self) -> Iterator[tuple[str, Callable[[], Pixels]]]:
        """All of them in the order of the wall."""
        records, last = self.records, ""
        for image in list(self.images):
            if image.parent != last and image.parent in records:
                yield self.real_thumbnail(image.parent)
            last = image.parent
            yield self.thumbnail(image.number)

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
        row, said, image = self.row(number), self.verdicts(), self.image(number)
        records, scores = self.records, row.get("scores", {})
        near = (scores.get(name) for name in ("nearest_train", "alike_train"))
        return {
            **self.tile(image, said),
            "group": image.group,
            "prompt": image.prompt,
            "seed": str(row.get("seed", "")),  # as text: JavaScript would round it
            "scores": scores,
            "reasons": row.get("reasons", []),
            "nearest": [name for name in dict.fromkeys(near) if name in records],
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


# --- the blind test -----------------------------------------------------------------------------------------


@dataclass
class BlindTest:
    """One test under way."""

    bank: BankView
    book: ReviewBook
    who: str
    shown: list[tuple[bool, str]]  # whether it is real, and its id or file
    answers: list[bool] = field(default_factory=list)  # whether the reviewer took it for real

    def picture(self, place: int) -> Pixels:
        """The picture at a place, at training size."""
        real, name = self.shown[place]
        size = self.bank.run.size
        if real:
            return small_sample(self.bank.records[name], "image", size)
        return resize_image(read_image(inside(self.bank.folder, name)), size)

    def answer(self, place: int, real: bool) -> dict[str, Any]:
        """Take the answer to the next picture; with the last one, the result, which is written down."""
        if place != len(self.answers) or place >= len(self.shown):
            raise DataError(
                f"The answer is about picture {place + 1}; expected picture {len(self.answers) + 1}."
            )
        self.answers.append(real)
        if len(self.answers) < len(self.shown):
            return {"done": False, "next": len(self.answers)}
        result = self.result()
        self.book.note_blind(self.who, result)
        return {"done": True, **result}

    def result(self) -> dict[str, Any]:
        """Pictures shown, hits, the rate with its interval (Wilson, 95 percent), and both kinds apart."""
        from scipy.stats import binomtest  # here, because it takes a while to load and few tests come to it

        pairs = list(zip(self.answers, self.shown, strict=True))
        hits = sum(said == real for said, (real, _) in pairs)
        interval = binomtest(hits, len(pairs)).proportion_ci(_CONFIDENCE, method="wilson")
        return {
            "shown": len(pairs),
            "hits": hits,
            "rate": hits / len(pairs),
            "interval": [float(interval.low), float(interval.high)],
            "real_shown": sum(real for _, (real, _) in pairs),
            "real_found": sum(said and real for said, (real, _) in pairs),
            "answers": [{"image": name, "real": real, "said_real": said} for said, (real, name) in pairs],
        }


class BlindTests:
    """All tests under way, by secret names."""

    def __init__(self) -> None:
        self._tests: dict[str, BlindTest] = {}
        self._lock = Lock()

    def start(self, bank: BankView, who: str, count: int) -> str:
        """Draw a test: about half real images, half admitted counterparts, none twice; returns its name."""
        if not who.strip():
            raise DataError("Nobody is named. Expected the reviewer's name or initials: fill in `Reviewer`.")
        if not 2 <= count <= MOST_SHOWN:
            raise DataError(f"A test of {count} pictures; expected 2 to {MOST_SHOWN}.")
        book, chance = bank.book, SystemRandom()
        real = [(True, name) for name in dict.fromkeys(image.parent for image in bank.images)]
        synthetic = [(False, image.file) for image in bank.images if image.admitted]
        half = min(count // 2, len(real), len(synthetic))
        if half == 0:
            raise DataError("The bank has no admitted counterpart, so there is nothing to tell apart.")
        # How many are real is drawn too: who knows that half of them are could count.
        more = min(len(real), half + chance.randint(-(half // 4), half // 4))
        shown = chance.sample(real, more) + chance.sample(synthetic, min(len(synthetic), 2 * half - more))
        chance.shuffle(shown)
        name = secrets.token_hex(16)
        with self._lock:
            self._tests[name] = BlindTest(bank, book, who, shown)
            while len(self._tests) > _MOST_TESTS:
                self._tests.pop(next(iter(self._tests)))
        return name

    def get(self, name: str) -> BlindTest:
        """A test under way; an AbsentError if there is none."""
        return look_up(self._tests, name)
