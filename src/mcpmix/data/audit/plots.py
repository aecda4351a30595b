"""Drawings of an audit's statistics, as SVG that needs nothing but itself."""

import html
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mcpmix.data.audit.inspection import Facts

_COLOUR = "#5d8aa8"
_CELLS = 16  # rows and columns of the map of places
_MOST_SIZES = 400  # circles; more hide each other


def area_plot(facts: Sequence[Facts]) -> str:
    """How much of the images is lesion, as bars; empty without readable images."""
    areas = [item.area for item in facts if item.digest]
    if not areas:
        return ""
    counts, edges = np.histogram(areas, bins=20, range=(0, max(areas) or 1))
    bars = "".join(
        f'<rect x="{place * 24}" y="{100 - 90 * count / counts.max():.1f}" width="22" '
        f'height="{90 * count / counts.max():.1f}" fill="{_COLOUR}"><title>{left:.1%} to {right:.1%}: {count}'
        "</title></rect>"
        for place, (count, left, right) in enumerate(zip(counts, edges, edges[1:], strict=False))
    )
    body = f"{bars}{_text(0, 118, '0 %')}{_text(480, 118, f'{edges[-1]:.0%} of the image is lesion', 'end')}"
    return _drawing("How much of the images is lesion", 480, 125, body)


def place_plot(facts: Sequence[Facts]) -> str:
    """Where the centres of lesions lie in the image, as a map; empty without lesions."""
    centres = [item.centre for item in facts if item.digest and item.area > 0]
    if not centres:
        return ""
    across, down = (np.array([centre[axis] for centre in centres]) for axis in (0, 1))
    counts, _, _ = np.histogram2d(down, across, bins=_CELLS, range=((0, 1), (0, 1)))
    cells = "".join(
        f'<rect x="{column * 12}" y="{row * 12}" width="12" height="12" fill="{_COLOUR}" '
        f'fill-opacity="{count / counts.max():.3f}"><title>{count:.0f}</title></rect>'
        for (row, column), count in np.ndenumerate(counts)
        if count
    )
    side = _CELLS * 12
    frame = f'<rect width="{side}" height="{side}" fill="none" stroke="currentColor"/>'
    return _drawing(
        "Where the centres of lesions lie in the image",
        side,
        side + 24,
        cells + frame + _text(0, side + 18, "where lesions lie"),
    )


def size_plot(facts: Sequence[Facts]) -> str:
    """Widths and heights of the images, a circle for each size; empty without readable images."""
    sizes = Counter((item.width, item.height) for item in facts if item.digest)
    if not sizes:
        return ""
    widest, highest = (max(size[axis] for size in sizes) for axis in (0, 1))
    most = max(sizes.values())
    circles = "".join(
        f'<circle cx="{10 + 180 * width / widest:.1f}" cy="{190 - 180 * height / highest:.1f}" '
        f'r="{2 + 6 * (count / most) ** 0.5:.1f}" fill="{_COLOUR}" fill-opacity="0.7">'
        f"<title>{width} x {height}: {count}</title></circle>"
        for (width, height), count in sizes.most_common(_MOST_SIZES)
    )
    frame = '<path d="M10 10V190H190" fill="none" stroke="currentColor"/>'
    label = _text(10, 210, f"sizes, up to {widest} x {highest} pixels")
    return _drawing("Widths and heights of the images", 200, 216, frame + circles + label)


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}" fill="currentColor">'
        f"{html.escape(text)}</text>"
    )


def _drawing(title: str, width: int, height: int, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(title)}">'
        f"{body}</svg>\n"
    )
