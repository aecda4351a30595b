"""Pictures of a bank: a contact sheet of masks with their counterparts, and the histogram of alignment."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from mcpmix.core.pixels import outline
from mcpmix.data.cache import Arrays
from mcpmix.generator.admission import kind_of
from mcpmix.generator.ledger import Row

Pixels = npt.NDArray[np.uint8]

SHEET, HISTOGRAM = "sheet.png", "alignment.png"

_SIDE = 104  # pixels of a picture on the sheet
_GAP = 6
_TEXT = 15  # height of a line below a picture
_HEADER = 64
_MARGIN = 16
_MOST_ROWS = 40  # masks on the sheet; more are spread over the data set
_MOST_REJECTED = 6  # rejected images shown of one mask
_PAPER, _INK, _QUIET, _CROSS = (255, 255, 255), (25, 25, 28), (120, 120, 126), (214, 39, 40)
_CONTOUR = (255, 255, 255)
_REAL_COLOUR, _ADMITTED_COLOUR, _REJECTED_COLOUR = "#4d4d4d", "#1f77b4", "#d62728"


@dataclass(frozen=True)
class Cell:
    """A picture of the sheet.

    Attributes:
        pixels: S,S,3 uint8; None: an empty place.
        caption: text below.
        crossed: whether it was rejected.
    """

    pixels: Pixels | None
    caption: str
    crossed: bool = False


def draw_pictures(
    folder: Path, rows: Sequence[Row], arrays: Arrays, alignment: tuple[Sequence[float], float] | None
) -> None:
    """Write `sheet.png`, and `alignment.png` where images were judged.

    Args:
        folder: of the bank.
        rows: its ledger.
        arrays: real training images and masks.
        alignment: the judge's Dice on real images, and the threshold; None: nothing was judged.
    """
    contact_sheet(folder, rows, arrays).save(folder / SHEET, optimize=True)
    if alignment is not None:
        scores = [(row["scores"]["alignment"], bool(row["admitted"])) for row in rows]
        draw_histogram(folder / HISTOGRAM, scores, *alignment)


def contact_sheet(folder: Path, rows: Sequence[Row], arrays: Arrays) -> Image.Image:
    """A row for each mask: the real image, its counterparts, then rejected images, crossed out.

    Args:
        folder: of the bank.
        rows: its ledger.
        arrays: real training images and masks.
    """
    by_parent: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_parent[row["parent"]].append(row)
    replicas = 1 + max((int(row["replica"]) for row in rows), default=0)
    count = min(len(arrays), _MOST_ROWS)
    places = np.linspace(0, len(arrays) - 1, count).round().astype(int)
    lines = [_cells(folder, by_parent[arrays.ids[place]], arrays, int(place), replicas) for place in places]
    return _compose(lines, list(arrays.masks[places]), _title(rows, len(arrays), count), replicas)


def _cells(folder: Path, rows: Sequence[Row], arrays: Arrays, place: int, replicas: int) -> list[Cell]:
    """The cells of one mask; the same number of counterparts for all."""
    cells = [Cell(arrays.images[place], arrays.ids[place])]
    admitted = {int(row["replica"]): row for row in rows if row["admitted"]}
    for replica in range(replicas):
        row = admitted.get(replica)
        cells.append(
            Cell(None, "none admitted") if row is None else Cell(_read(folder, row), _caption(row, replica))
        )
    rejected = [row for row in rows if not row["admitted"]]
    cells += [Cell(_read(folder, row), _why(row), crossed=True) for row in rejected[:_MOST_REJECTED]]
    if len(rejected) > _MOST_REJECTED:
        last = cells[-1]
        cells[-1] = Cell(last.pixels, f"+ {len(rejected) - _MOST_REJECTED} more", crossed=True)
    return cells


def _caption(row: Row, replica: int) -> str:
    score = row["scores"].get("alignment")
    return f"{replica}" if score is None else f"{replica}: Dice {score:.2f}"


def _why(row: Row) -> str:
    """The first reason, short enough for a picture's width."""
    kind = kind_of(row["reasons"][0])
    return f"Dice {row['scores']['alignment']:.2f}" if kind == "alignment" else kind


def _title(rows: Sequence[Row], parents: int, shown: int) -> tuple[str, str]:
    admitted = sum(bool(row["admitted"]) for row in rows)
    rejected = len(rows) - admitted
    first = f"{admitted} counterparts of {parents} masks"
    if rejected:
        first += f", {rejected} rejected images"
    if shown < parents:
        first += f"; {shown} masks are shown"
    second = "Left: the real image. The line is the contour of the mask, the label of the whole row."
    return first, second + (" Red: rejected, with the reason." if rejected else "")


def _compose(
    lines: Sequence[Sequence[Cell]], masks: Sequence[Pixels], title: tuple[str, str], replicas: int
) -> Image.Image:
    columns = max(len(cells) for cells in lines)
    step, line_height = _SIDE + _GAP, _SIDE + _TEXT + _GAP
    extra = 2 * _GAP  # between the real image, its counterparts and the rejected ones
    width = max(2 * _MARGIN + columns * step + 2 * extra, 620)
    sheet = Image.new("RGB", (width, _HEADER + len(lines) * line_height + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, 12), title[0], _INK, ImageFont.load_default(17))
    draw.text((_MARGIN, 37), title[1], _QUIET, ImageFont.load_default(12))
    for number, (cells, mask) in enumerate(zip(lines, masks, strict=True)):
        small = Image.fromarray(mask * 255).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
        edge = outline(np.asarray(small) >= 128)
        for column, cell in enumerate(cells):
            x = _MARGIN + column * step + extra * ((column > 0) + (column > replicas))
            _paste(sheet, draw, cell, edge, (x, _HEADER + number * line_height))
    return sheet


def _paste(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    cell: Cell,
    edge: npt.NDArray[np.bool_],
    corner: tuple[int, int],
) -> None:
    x, y = corner
    if cell.pixels is None:
        draw.rectangle((x, y, x + _SIDE - 1, y + _SIDE - 1), outline=_QUIET)
    else:
        small = Image.fromarray(cell.pixels).resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
        pixels = np.asarray(small).copy()
        pixels[edge] = (0.35 * pixels[edge] + 0.65 * np.array(_CONTOUR)).astype(np.uint8)
        sheet.paste(Image.fromarray(pixels), (x, y))
    if cell.crossed:
        last = _SIDE - 1
        draw.line((x, y, x + last, y + last), _CROSS, 2)
        draw.line((x, y + last, x + last, y), _CROSS, 2)
    draw.text((x + 1, y + _SIDE + 1), cell.caption, _CROSS if cell.crossed else _INK, _small_font())


def _small_font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(11)


def _read(folder: Path, row: Row) -> Pixels:
    with Image.open(folder / row["file"]) as image:
        return np.asarray(image.convert("RGB"))


def draw_histogram(
    path: Path, scores: Sequence[tuple[float, bool]], real: Sequence[float], threshold: float
) -> None:
    """Alignment of all tried images against that of real ones.

    Args:
        path: PNG to write.
        scores: Dice of each tried image, and whether it was admitted.
        real: cross-validated Dice of the real training images.
        threshold: lowest admitted Dice.
    """
    from matplotlib.figure import Figure

    edges = np.linspace(0, 1, 21)
    admitted = [score for score, fine in scores if fine]
    rejected = [score for score, fine in scores if not fine]
    figure = Figure(figsize=(6.4, 3.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.hist(
        [admitted, rejected],
        bins=edges.tolist(),
        stacked=True,
        color=[_ADMITTED_COLOUR, _REJECTED_COLOUR],
        label=[f"admitted ({len(admitted)})", f"rejected ({len(rejected)})"],
        edgecolor="white",
        linewidth=0.5,
    )
    # Real images are few: drawn as a share of the tried ones, so that both shapes can be compared.
    weights = [len(scores) / len(real)] * len(real) if real else []
    label = f"real images of unseen groups ({len(real)}, scaled)"
    axes.hist(
        list(real), edges.tolist(), weights=weights, histtype="step", color=_REAL_COLOUR, lw=1.6, label=label
    )
    axes.axvline(threshold, color="black", linewidth=1, linestyle="--")
    place = axes.get_xaxis_transform()  # across in Dice, upwards in shares of the height
    axes.text(threshold + 0.008, 0.98, f"threshold {threshold:.2f}", transform=place, va="top", fontsize=8)
    axes.set(xlim=(0, 1), xlabel="alignment: Dice of the judge's mask against the true one", ylabel="images")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})
