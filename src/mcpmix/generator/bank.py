"""One counterpart alone: whatever batch it came from, it can be made again to the last bit."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL.PngImagePlugin import PngInfo

from mcpmix.core.errors import StorageError, bullet_list
from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Advance, Progress
from mcpmix.core.stage_folder import Artifact, file_digest, read_artifact
from mcpmix.generator.admission import Verdict
from mcpmix.generator.counterparts import CounterpartMaker, Request
from mcpmix.generator.ledger import LEDGER, Ledger, Row, parse, read_verified, verify

if TYPE_CHECKING:
    from mcpmix.generator.counterparts import Request

Pixels = npt.NDArray[np.uint8]


class Maker(Protocol):
    """What makes counterparts; `CounterpartMaker` is one."""

    def make(self, requests: Sequence["Request"]) -> np.ndarray:
        """B,S,S,3 uint8 images, made as one batch."""
        ...


def make_filled(maker: Maker, requests: Sequence["Request"], batch_size: int) -> Pixels:
    """Make at most a batch, always computed at its full size: a short one is filled up with its last request.

    Networks round differently at different batch sizes, but at one size an image's bits do not depend on its
    place or its neighbours. So whatever is made here can be made again alone, bit for bit.

    Args:
        maker: makes the images.
        requests: 1 to `batch_size` counterparts.
        batch_size: images per call of the generator.

    Returns:
        B,S,S,3 uint8 for the B requests.
    """
    filled = [*requests, *[requests[-1]] * (batch_size - len(requests))]
    return np.asarray(maker.make(filled)[: len(requests)], dtype=np.uint8)


_Item = TypeVar("_Item")

Assess = Callable[[Pixels, Sequence[int]], Sequence[Verdict]]
"""Verdicts on B images under the masks at B places."""


@dataclass(frozen=True)
class Slot:
    """A place in the bank: replica number `replica` of the sample at `index`."""

    index: int
    replica: int


@dataclass(frozen=True)
class BankSize:
    """How large the bank is and how hard to try.

    Attributes:
        replicas: counterparts per mask (K).
        tries: images drawn for one place at most.
        batch_size: images per call of the generator.
    """

    replicas: int
    tries: int
    batch_size: int

    def request(self, slot: Slot, attempt: int) -> Request:
        """The counterpart that a try draws: the first try of replica k is draw k, the next is draw K + k."""
        return Request(slot.index, slot.replica + attempt * self.replicas)


class Bank:
    """A folder of counterparts under way.

    Args:
        folder: gets `images/<id>/<replica>.png`, `rejected/<id>/<replica>-<try>.png` and the ledger.
        ledger: opened.
        maker: makes images.
        size: how many images, and how hard to try.
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
        size: BankSize,
        *,
        run: str,
        facts: Mapping[str, Any],
        masks: Sequence[str],
        assess: Assess | None,
    ) -> None:
        self.folder, self.ledger, self.maker, self.size = folder, ledger, maker, size
        self.run, self.facts, self.masks, self.assess = run, dict(facts), tuple(masks), assess
        self.ids = maker.arrays.ids

    def fill(self, progress: Progress = SILENT) -> None:
        """Make what is missing: first every place once, then again those whose image was rejected."""
        outcome = {(row["parent"], row["replica"], row["try"]): row["admitted"] for row in self.ledger.rows}
        slots = [Slot(i, k) for i in range(len(self.ids)) for k in range(self.size.replicas)]
        settled = sum(outcome.values())
        with progress.track("synthesize", len(slots), settled) as advance:
            for attempt in range(self.size.tries):
                todo = [slot for slot in slots if (*self._name(slot), attempt) not in outcome]
                for chunk in _chunks(todo, self.size.batch_size):
                    outcome |= self._try(chunk, attempt, advance)
                slots = [slot for slot in slots if not outcome[(*self._name(slot), attempt)]]
            advance(len(slots))  # those that were given up

    def _name(self, slot: Slot) -> tuple[str, int]:
        return self.ids[slot.index], slot.replica

    def _try(self, slots: Sequence[Slot], attempt: int, advance: Advance) -> dict[tuple[str, int, int], bool]:
        """Make one batch, write its PNGs and its rows."""
        began = time.monotonic()
        requests = [self.size.request(slot, attempt) for slot in slots]
        images = make_filled(self.maker, requests, self.size.batch_size)
        verdicts = self._assess(images, [slot.index for slot in slots])
        outcome = {}
        for slot, request, pixels, verdict in zip(slots, requests, images, verdicts, strict=True):
            self.ledger.append(self._write(slot, attempt, request, pixels, verdict))
            outcome[(*self._name(slot), attempt)] = verdict.admitted
        rate = len(slots) / max(time.monotonic() - began, 1e-9)
        again = f", try {attempt + 1}" if attempt else ""
        advance(sum(outcome.values()), f"{rate:.1f} images/s{again}")
        return outcome

    def _assess(self, images: Pixels, sources: list[int]) -> Sequence[Verdict]:
        if self.assess is None:
            return [Verdict({})] * len(images)
        # As in `make_filled`: scores must not depend on how many images happen to be judged together.
        extra = self.size.batch_size - len(images)
        filled = np.concatenate([images, *[images[-1:]] * extra])
        return self.assess(filled, sources + sources[-1:] * extra)[: len(images)]

    def _write(
        self, slot: Slot, attempt: int, request: Request, pixels: Pixels, verdict: Verdict
    ) -> dict[str, Any]:
        name, seed = self.ids[slot.index], self.maker.seed(request)
        file = place_of(name, slot.replica, attempt, admitted=verdict.admitted)
        write_synthetic(self.folder / file, pixels, run=self.run, seed=seed)
        return {
            "parent": name,
            "replica": slot.replica,
            "try": attempt,
            "seed": seed,
            "prompt": self.maker.text(request),
            **self.facts,
            "mask_sha256": self.masks[slot.index],
            "image_sha256": file_digest(self.folder / file),
            "file": file.as_posix(),
            "scores": verdict.scores,
            "admitted": verdict.admitted,
            "reasons": list(verdict.reasons),
        }

    def mend(self, rows: Sequence[Row], progress: Progress = SILENT) -> None:
        """Make damaged or missing images again.

        Args:
            rows: the ledger rows of the images, from `damaged`.
            progress: where to report.

        Raises:
            StorageError: an image does not come out as it was.
        """
        if not rows:
            return
        with progress.track("mending pairs", len(rows)) as advance:
            for chunk in _chunks(list(rows), self.size.batch_size):
                slots = [Slot(self.ids.index(row["parent"]), row["replica"]) for row in chunk]
                requests = [
                    self.size.request(slot, row["try"]) for slot, row in zip(slots, chunk, strict=True)
                ]
                images = make_filled(self.maker, requests, self.size.batch_size)
                for row, pixels in zip(chunk, images, strict=True):
                    self._rewrite(row, pixels)
                advance(len(chunk))

    def _rewrite(self, row: Row, pixels: Pixels) -> None:
        path = self.folder / row["file"]
        write_synthetic(path, pixels, run=self.run, seed=row["seed"])
        if file_digest(path) != row["image_sha256"]:
            raise StorageError(
                f"{path} was damaged, and made again it differs from what the ledger says: the machine or "
                f"the versions of its libraries are others. Delete the folder {self.folder} to make all "
                "pairs again."
            )


def damaged(folder: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows whose images are missing or not what they were."""
    return [row for row in rows if not _is_whole(folder / row["file"], row["image_sha256"])]


def place_of(name: str, replica: int, attempt: int, *, admitted: bool) -> Path:
    """Where an image is, relative to the bank's folder."""
    if admitted:
        return Path("images") / name / f"{replica}.png"
    return Path("rejected") / name / f"{replica}-{attempt}.png"


def write_synthetic(path: Path, pixels: Pixels, *, run: str, seed: int) -> None:
    """A PNG that says that it is synthetic, and from which run and seed; whole or not at all.

    It is made from pixels alone: nothing that the source's file says about patient or device can be in it.
    """
    note = PngInfo()
    note.add_text("Synthetic", f"generated by mcpmix; run {run}; seed {seed}")
    write_png(path, pixels, note)


def _is_whole(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest


def _chunks(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


_MOST_NAMED = 10  # damaged files in a message


def inspect_bank(folder: Path) -> str:
    """What there is, in a few words.

    Args:
        folder: of the pairs; it or its unfinished `.partial` may exist, both or none.

    Raises:
        StorageError: a ledger row was changed, or images are damaged or missing.
    """
    artifact = read_artifact(folder)
    if artifact is not None:
        return _finished(artifact)
    partial = folder.with_name(folder.name + ".partial")
    if not (partial / LEDGER).exists():
        return "none yet"
    rows = _unfinished_rows(partial)
    _refuse_damage(partial, rows)
    return f"unfinished, {len(rows)} images tried so far; the ledger is whole"


def _finished(artifact: Artifact) -> str:
    head = artifact.manifest["counts"].get("ledger")
    if head is None:
        return "made by an earlier version, without seals; they will be made again"
    rows = read_verified(artifact.folder, artifact.digest, str(head))
    _refuse_damage(artifact.folder, rows)
    admitted = sum(bool(row["admitted"]) for row in rows)
    return f"{admitted} admitted of {len(rows)} images tried; ledger and images are whole"


def _unfinished_rows(folder: Path) -> list[Row]:
    """Finished rows, verified; a line that a kill cut short is left out."""
    path = folder / LEDGER
    text = path.read_bytes()
    rows = parse(path, text[: text.rfind(b"\n") + 1])
    try:
        root = str(json.loads((folder / "key.json").read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # without its key the folder is foreign: the next run starts anew
    verify(path, rows, root)
    return rows


def _refuse_damage(folder: Path, rows: list[Row]) -> None:
    bad = damaged(folder, rows)
    if not bad:
        return
    named = [str(row["file"]) for row in bad[:_MOST_NAMED]]
    if len(bad) > _MOST_NAMED:
        named.append(f"and {len(bad) - _MOST_NAMED} more")
    headline = (
        f"Images in {folder} are damaged or missing. `mcpmix synthesize` or any later stage makes them "
        "again, to the same bits:"
    )
    raise StorageError(bullet_list(headline, named))
