"""The blind test: real and synthetic images in random order, "which is real?", hit rate and its interval.

The answers stay on this side: a page gets pictures by their place in the test, all of one size and encoded
in one way, so neither a name nor a file tells what they are.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from threading import Lock
from typing import Any

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import Pixels
from mcpmix.data.sample import read_image, resize_image
from mcpmix.generator.review import ReviewBook
from mcpmix.studio.pairs import BankView
from mcpmix.studio.pictures import small_sample
from mcpmix.studio.reading import AbsentError, inside, look_up

MOST_SHOWN = 200
_MOST_TESTS = 100  # under way at once; the oldest are forgotten
_CONFIDENCE = 0.95


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
        return resize_image(read_image(inside(self.bank.run.folder / "pairs", name)), size)

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
        self._tests: OrderedDict[str, BlindTest] = OrderedDict()
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
                self._tests.popitem(last=False)
        return name

    def get(self, name: str) -> BlindTest:
        """A test under way; an AbsentError if there is none."""
        return look_up(self._tests, name)


def place_of_picture(text: str) -> int:
    """The number in `12.png`; an AbsentError for anything else."""
    stem = Path(text).stem
    if not stem.isdecimal() or text != f"{stem}.png":
        raise AbsentError
    return int(stem)
