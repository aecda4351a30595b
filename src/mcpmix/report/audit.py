"""Drawings of an audit's statistics, as SVG that needs nothing but itself."""

import base64
import html
import io
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.data.audit import Audit, Facts, Finding, Severity

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


_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_MOST_LINES = 5  # of a finding, as text
_MOST_ITEMS, _MOST_PICTURES = 200, 24  # of a finding, on the page
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 0; }
.error { border-left: 0.4rem solid #c0392b; } .warning { border-left: 0.4rem solid #d68910; }
.note { border-left: 0.4rem solid #5d8aa8; } section { padding-left: 1rem; }
figure { display: inline-block; margin: 0.3rem; font-size: 0.75rem; max-width: 6.5rem; }
figcaption, li { overflow-wrap: anywhere; } dt { font-weight: 600; }
svg { max-width: 100%; height: auto; margin: 0 1.5rem 1rem 0; }
"""


def as_lines(audit: Audit, *, errors: bool = True) -> Iterator[str]:
    """Statistics and findings, the gravest first, with the first samples of each.

    Args:
        audit: what was found.
        errors: whether to include findings that stop a check by themselves.
    """
    for name, text in audit.statistics().items():
        yield f"{name}: {text}"
    for finding in audit.findings:
        if finding.severity == Severity.ERROR and not errors:
            continue
        yield f"{_WORDS[finding.severity]}: {len(finding.items)} x {finding.title}; {finding.remedy}"
        yield from (f"  - {item}" for item in finding.items[:_MOST_LINES])
        if len(finding.items) > _MOST_LINES:
            yield f"  - and {len(finding.items) - _MOST_LINES} more"


def as_page(audit: Audit, name: str) -> str:
    """A self-contained HTML page with thumbnails; lesions are outlined.

    Args:
        audit: what was found.
        name: of the run or the data set.
    """
    facts = {item.sample.id: item for item in audit.facts}
    counts = {
        word: sum(_WORDS[finding.severity] == word for finding in audit.findings) for word in _WORDS.values()
    }
    summary = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items())
    entries = "".join(
        f"<dt>{html.escape(title)}</dt><dd>{html.escape(text)}</dd>"
        for title, text in audit.statistics().items()
    )
    title = html.escape(f"Audit of {name}")
    sections = "".join(_section(finding, facts) for finding in audit.findings)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1><p>{len(audit.facts)} samples; {summary}.</p><dl>{entries}</dl>\n"
        f"{size_plot(audit.facts)}{area_plot(audit.facts)}{place_plot(audit.facts)}\n"
        f"{sections or '<p>Nothing was found.</p>'}</body></html>\n"
    )


def _section(finding: Finding, facts: dict[str, Facts]) -> str:
    word = _WORDS[finding.severity]
    items = "".join(f"<li>{html.escape(item)}</li>" for item in finding.items[:_MOST_ITEMS])
    rest = len(finding.items) - _MOST_ITEMS
    more = f"<p>and {rest} more</p>" if rest > 0 else ""
    thumbnails = {name: facts[name].thumbnail for name in finding.ids}
    shown = [(name, pixels) for name, pixels in thumbnails.items() if pixels is not None]
    pictures = "".join(_figure(name, pixels) for name, pixels in shown[:_MOST_PICTURES])
    return (
        f'<section class="{word}"><h2>{word}: {len(finding.items)} x {html.escape(finding.title)}</h2>'
        f"<p>{html.escape(finding.remedy)}</p>{pictures}"
        f"<details><summary>all of them</summary><ul>{items}</ul>{more}</details></section>\n"
    )


def _figure(sample: str, pixels: npt.NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=80)
    source = base64.b64encode(buffer.getvalue()).decode()
    name = html.escape(sample, quote=True)
    return (
        f'<figure><img src="data:image/jpeg;base64,{source}" alt="{name} with its lesion outlined">'
        f"<figcaption>{name}</figcaption></figure>"
    )
