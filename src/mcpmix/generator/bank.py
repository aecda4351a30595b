"""The bank of pairs: K stored counterparts for each training mask, and what was rejected."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.PngImagePlugin import PngInfo

from mcpmix.core.errors import StorageError, bullet_list
from mcpmix.core.pixels import Pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import file_digest, read_artifact
from mcpmix.generator.admission import Verdict
from mcpmix.generator.counterparts import CounterpartMaker
from mcpmix.generator.ledger import LEDGER, Ledger, Row, read_rows, read_verified, verify
from mcpmix.generator.workers import Request, make_filled

Assess = Callable[[Pixels, Sequence[int]], Sequence[Verdict]]
"""Verdicts on B images under the masks at B places."""

_MOST_NAMED = 10  # damaged files in a message


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
    paths = [folder / row["file"] for row in rows]
    return [
        row
        for row, path in zip(rows, paths, strict=True)
        if not path.is_file() or file_digest(path) != row["image_sha256"]
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
