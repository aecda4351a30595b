"""The bank of pairs under way: K counterparts for each training mask, drawn, judged and pictured."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mcpmix.core.errors import StorageError
from mcpmix.core.files import digest_once, file_digest
from mcpmix.core.pixels import Pixels, outline
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.index import Arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.admission import Verdict
from mcpmix.generator.counterparts import CounterpartMaker, make_filled
from mcpmix.generator.ledger import Ledger, Row, kind_of, place_of, write_synthetic
from mcpmix.generator.workers import Request

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
        verdicts: Sequence[Verdict] = [({}, [])] * len(images)
        if self.assess is not None:
            # As in `make_filled`: scores must not depend on how many images happen to be judged together.
            extra, sources = self.batch_size - len(images), [place.index for place in places]
            filled = np.concatenate([images, *[images[-1:]] * extra])
            verdicts = self.assess(filled, sources + sources[-1:] * extra)[: len(images)]
        for place, draw, pixels, (scores, reasons) in zip(places, draws, images, verdicts, strict=True):
            name, seed = self.maker.arrays.ids[place.index], self.maker.seed(draw)
            file = place_of(name, place.replica, attempt, admitted=not reasons)
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
                    "scores": scores,
                    "admitted": not reasons,
                    "reasons": reasons,
                }
            )
        return [not reasons for _, reasons in verdicts]

    def repair(self, rows: Sequence[Row], progress: Progress = SILENT) -> None:
        """Redraw damaged or missing images, given their rows of the ledger."""
        if not rows:
            return
        place_in = {name: place for place, name in enumerate(self.maker.arrays.ids)}
        with progress.track("repairing pairs", len(rows)) as advance:
            for start in range(0, len(rows), self.batch_size):
                chunk = rows[start : start + self.batch_size]
                draws = [
                    self._draw(Request(place_in[row["parent"]], row["replica"]), row["try"]) for row in chunk
                ]
                images = make_filled(self.maker, draws, self.batch_size)
                for row, pixels in zip(chunk, images, strict=True):
                    path = self.folder / row["file"]
                    write_synthetic(path, pixels, run=self.run, seed=row["seed"])
                    if digest_once(path) != row["image_sha256"]:
                        raise StorageError(
                            f"{path} was damaged, and its repair differs from what the ledger says: the "
                            "machine or the versions of its libraries have changed. Delete the folder "
                            f"{self.folder} to redo all pairs."
                        )
                advance(len(chunk))


# --- pictures of a bank ------------------------------------------------------------------------------------

_Cell = tuple[Pixels | None, str, bool]
"""A picture (None: an empty place), the text below it, and whether it is crossed out."""

_SIDE = 104  # pixels of a picture on the sheet
_GAP, _TEXT, _HEADER, _MARGIN = 6, 15, 64, 16  # pixels between pictures, below, above and around them
_MOST_ROWS = 40  # masks on the sheet; more are spread over the data set
_MOST_REJECTED = 6  # rejected images shown of one mask
_INK, _QUIET, _CROSS, _CONTOUR = (25, 25, 28), (120, 120, 126), (214, 39, 40), (255, 255, 255)


def contact_sheet(folder: Path, rows: Sequence[Row], arrays: Arrays) -> Image.Image:
    """A row for each mask: the real image, its counterparts, then rejected images, crossed out."""
    by_parent: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_parent[row["parent"]].append(row)
    replicas = 1 + max((int(row["replica"]) for row in rows), default=0)
    shown = min(len(arrays), _MOST_ROWS)
    places = np.linspace(0, len(arrays) - 1, shown).round().astype(int)
    lines = [
        [
            (arrays.images[place], arrays.ids[place], False),
            *_cells(folder, by_parent[arrays.ids[place]], replicas),
        ]
        for place in places
    ]
    rejected = sum(not row["admitted"] for row in rows)
    title = f"{len(rows) - rejected} counterparts of {len(arrays)} masks"
    title += f", {rejected} rejected images" if rejected else ""
    title += f"; {shown} masks are shown" if shown < len(arrays) else ""
    legend = "Left: the real image. The line is the contour of the mask, the label of the whole row."
    legend += " Red: rejected, with the reason." if rejected else ""

    step, height, extra = _SIDE + _GAP, _SIDE + _TEXT + _GAP, 2 * _GAP
    width = max(2 * _MARGIN + max(map(len, lines)) * step + 2 * extra, 620)
    sheet = Image.new("RGB", (width, _HEADER + len(lines) * height + _MARGIN), (255, 255, 255))
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, 12), title, _INK, ImageFont.load_default(17))
    draw.text((_MARGIN, 37), legend, _QUIET, ImageFont.load_default(12))
    font = ImageFont.load_default(11)
    for number, (cells, mask) in enumerate(zip(lines, arrays.masks[places], strict=True)):
        small = Image.fromarray((mask > 0) * np.uint8(255)).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
        contour = outline(np.asarray(small) >= 128)
        for column, (picture, caption, crossed) in enumerate(cells):
            x = _MARGIN + column * step + extra * ((column > 0) + (column > replicas))
            y, last = _HEADER + number * height, _SIDE - 1
            if picture is None:
                draw.rectangle((x, y, x + last, y + last), outline=_QUIET)
            else:
                pixels = np.array(Image.fromarray(picture).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS))
                pixels[contour] = (0.35 * pixels[contour] + 0.65 * np.array(_CONTOUR)).astype(np.uint8)
                sheet.paste(Image.fromarray(pixels), (x, y))
            if crossed:
                draw.line((x, y, x + last, y + last), _CROSS, 2)
                draw.line((x, y + last, x + last, y), _CROSS, 2)
            while font.getlength(caption) > _SIDE:  # a long id would run into the next picture
                caption = f"{caption.removesuffix('..')[:-1]}.."
            draw.text((x + 1, y + _SIDE + 1), caption, _CROSS if crossed else _INK, font)
    return sheet


def _cells(folder: Path, rows: Sequence[Row], replicas: int) -> list[_Cell]:
    """The cells to the right of a mask's real image; the same number of counterparts for all masks."""
    cells: list[_Cell] = [(None, "none admitted", False)] * replicas
    rejected: list[_Cell] = []
    for row in rows:
        score = row["scores"].get("alignment")
        dice = "" if score is None else f"Dice {score:.2f}"
        if row["admitted"]:
            replica = int(row["replica"])
            caption = f"{replica}: {dice}" if dice else f"{replica}"
            cells[replica] = read_image(folder / row["file"]), caption, False
        else:
            kind = kind_of(row["reasons"][0])  # short enough for a picture's width
            rejected.append((read_image(folder / row["file"]), dice if kind == "alignment" else kind, True))
    if more := len(rejected[_MOST_REJECTED:]):
        rejected[_MOST_REJECTED - 1] = rejected[_MOST_REJECTED - 1][0], f"+ {more} more", True
    return cells + rejected[:_MOST_REJECTED]


def draw_histogram(path: Path, rows: Sequence[Row], real: Sequence[float], threshold: float) -> None:
    """Alignment of all tried images against the cross-validated Dice of `real` ones."""
    from matplotlib.figure import Figure

    bins = np.linspace(0, 1, 21).tolist()
    admitted = [row["scores"]["alignment"] for row in rows if row["admitted"]]
    rejected = [row["scores"]["alignment"] for row in rows if not row["admitted"]]
    figure = Figure(figsize=(6.4, 3.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    labels = [f"admitted ({len(admitted)})", f"rejected ({len(rejected)})"]
    axes.hist(
        [admitted, rejected],
        bins,
        stacked=True,
        color=["#1f77b4", "#d62728"],
        label=labels,
        ec="white",
        lw=0.5,
    )
    # Real images are few: drawn as a share of the tried ones, so that both shapes can be compared.
    weights = [len(rows) / len(real)] * len(real)
    label = f"real images of unseen groups ({len(real)}, scaled)"
    axes.hist(list(real), bins, weights=weights, histtype="step", color="#4d4d4d", lw=1.6, label=label)
    axes.axvline(threshold, color="black", linewidth=1, linestyle="--")
    place = axes.get_xaxis_transform()  # across in Dice, upwards in shares of the height
    axes.text(threshold + 0.008, 0.98, f"threshold {threshold:.2f}", transform=place, va="top", fontsize=8)
    axes.set(xlim=(0, 1), xlabel="alignment: Dice of the judge's mask against the true one", ylabel="images")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})
