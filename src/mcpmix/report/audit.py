"""An audit as text, and as a self-contained HTML page."""

import base64
import html
import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from mcpmix.data.audit import Audit, Facts, Finding, Severity

_MOST_LINES = 5  # of a finding, as text
_MOST_ITEMS, _MOST_PICTURES = 200, 24  # of a finding, on the page
_COLOUR, _INK = "#5d8aa8", "#808080"  # both can be seen on white and on black
_CELLS = 16  # rows and columns of the map of places
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 0; }
.error { border-left: 0.4rem solid #c0392b; } .warning { border-left: 0.4rem solid #d68910; }
.note { border-left: 0.4rem solid #5d8aa8; } section { padding-left: 1rem; }
figure { display: inline-block; margin: 0.3rem; font-size: 0.75rem; max-width: 6.5rem; }
figcaption, li { overflow-wrap: anywhere; } dt { font-weight: 600; }
svg { max-width: 100%; height: auto; }
"""


def as_lines(audit: Audit, *, errors: bool = True) -> Iterator[str]:
    """Statistics and findings, the most severe first, with the first samples of each.

    Without `errors`, findings that stop a check by themselves are left out.
    """
    for name, text in audit.statistics().items():
        yield f"{name}: {text}"
    for finding in audit.findings:
        if finding.severity == Severity.ERROR and not errors:
            continue
        yield f"{_heading(finding)}; {finding.remedy}"
        yield from (f"  - {item}" for item in finding.items[:_MOST_LINES])
        if len(finding.items) > _MOST_LINES:
            yield f"  - and {len(finding.items) - _MOST_LINES} more"


def as_page(audit: Audit, name: str) -> str:
    """A self-contained HTML page with charts and thumbnails of a run or data set; lesions are outlined."""
    facts = {item.sample.id: item for item in audit.facts}
    counts = Counter(finding.severity for finding in audit.findings)
    summary = ", ".join(
        f"{counts[kind]} {kind.name.lower()}{'' if counts[kind] == 1 else 's'}" for kind in reversed(Severity)
    )
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
        f"{_charts(audit)}\n{sections or '<p>Nothing was found.</p>'}</body></html>\n"
    )


def _heading(finding: Finding) -> str:
    return f"{finding.severity.name.lower()}: {len(finding.items)} x {finding.title}"


def _section(finding: Finding, facts: dict[str, Facts]) -> str:
    items = "".join(f"<li>{html.escape(item)}</li>" for item in finding.items[:_MOST_ITEMS])
    rest = len(finding.items) - _MOST_ITEMS
    more = f"<p>and {rest} more</p>" if rest > 0 else ""
    thumbnails = {name: facts[name].thumbnail for name in finding.ids}
    shown = [(html.escape(name), pixels) for name, pixels in thumbnails.items() if pixels is not None]
    pictures = []
    for name, pixels in shown[:_MOST_PICTURES]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="JPEG", quality=80)
        source = base64.b64encode(buffer.getvalue()).decode()
        pictures.append(
            f'<figure><img src="data:image/jpeg;base64,{source}" alt="{name} with its lesion outlined">'
            f"<figcaption>{name}</figcaption></figure>"
        )
    return (
        f'<section class="{finding.severity.name.lower()}"><h2>{html.escape(_heading(finding))}</h2>'
        f"<p>{html.escape(finding.remedy)}</p>{''.join(pictures)}"
        f"<details><summary>all of them</summary><ul>{items}</ul>{more}</details></section>\n"
    )


def _charts(audit: Audit) -> str:
    """Sizes of the images, sizes and places of the lesions, as one SVG; empty without readable images."""
    if not audit.readable:
        return ""
    import matplotlib as mpl  # here, because the text needs no charts
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "mcpmix",
        "font.size": 9,
        **dict.fromkeys(ink, _INK),
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 2.8), layout="constrained")
        sizes, areas, places = figure.subplots(1, 3)
        counted = Counter((item.width, item.height) for item in audit.readable)
        largest = 60 / max(counted.values())
        widths, heights = zip(*counted, strict=True)
        sizes.scatter(
            widths, heights, [8 + largest * count for count in counted.values()], _COLOUR, alpha=0.7
        )
        sizes.set(
            xlabel="width, pixels",
            ylabel="height, pixels",
            xlim=(0, 1.1 * max(widths)),
            ylim=(0, 1.1 * max(heights)),
        )
        areas.hist([100 * item.area for item in audit.readable], bins=20, color=_COLOUR)
        areas.set(xlabel="lesion, % of the image", ylabel="images")
        centres = np.array([item.centre for item in audit.readable if item.area > 0]).reshape(-1, 2)
        counts, _, _ = np.histogram2d(centres[:, 1], centres[:, 0], bins=_CELLS, range=((0, 1), (0, 1)))
        shade = counts / max(1, counts.max())
        pixels = np.dstack([np.full_like(shade, int(_COLOUR[at : at + 2], 16) / 255) for at in (1, 3, 5)])
        places.imshow(np.dstack([pixels, shade]), extent=(0, 100, 100, 0), interpolation="nearest")
        places.set(xlabel="centre of the lesion, % from the left", ylabel="% from the top")
        buffer = io.StringIO()
        unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=unsaid)
    drawing = buffer.getvalue()
    label = "Sizes of the images, sizes of the lesions, and where their centres lie"
    return f'<div role="img" aria-label="{label}">{drawing[drawing.index("<svg") :]}</div>'
