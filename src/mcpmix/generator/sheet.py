"""Pictures of a bank: a contact sheet of masks with their counterparts, and the histogram of alignment."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mcpmix.core.pixels import Pixels, outline
from mcpmix.data.cache import Arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.admission import kind_of
from mcpmix.generator.bank import Row

Cell = tuple[Pixels | None, str, bool]
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
    for number, (cells, mask) in enumerate(zip(lines, arrays.masks[places], strict=True)):
        small = Image.fromarray(mask * 255).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
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
            colour = _CROSS if crossed else _INK
            draw.text((x + 1, y + _SIDE + 1), caption, colour, ImageFont.load_default(11))
    return sheet


def _cells(folder: Path, rows: Sequence[Row], replicas: int) -> list[Cell]:
    """The cells to the right of a mask's real image; the same number of counterparts for all masks."""
    cells: list[Cell] = [(None, "none admitted", False)] * replicas
    rejected: list[Cell] = []
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
