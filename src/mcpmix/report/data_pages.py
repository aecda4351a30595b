"""A data set for its owner: an audit as text and as a page, guessed groups as a page of contact sheets."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from mcpmix.data.audit import Audit, Facts, Finding, Severity
from mcpmix.data.groups import Guess, file_order
from mcpmix.report import render_page

_MOST_LINES = 5  # of a finding, as text
_MOST_ITEMS, _MOST_PICTURES = 200, 24  # of a finding, on the page
_COLOUR = "#5d8aa8"  # can be seen on white and on black
_CELLS = 16  # rows and columns of the map of places


def audit_lines(audit: Audit, *, errors: bool = True) -> Iterator[str]:
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


def _heading(finding: Finding) -> str:
    return f"{finding.severity.name.lower()}: {len(finding.items)} x {finding.title}"


def audit_page(audit: Audit, name: str) -> str:
    """A self-contained HTML page with charts and thumbnails of a run or data set; lesions are outlined."""
    from mcpmix.report.pictures import jpeg_uri  # here, because the text needs no pictures

    thumbnails = {item.sample.id: item.thumbnail for item in audit.facts}
    counts = Counter(finding.severity for finding in audit.findings)
    findings = []
    for finding in audit.findings:
        shown = [(item, pixels) for item in finding.ids if (pixels := thumbnails[item]) is not None]
        pictures = [(item, jpeg_uri(Image.fromarray(pixels))) for item, pixels in shown[:_MOST_PICTURES]]
        findings.append((finding, _heading(finding), pictures))
    return render_page(
        "audit.html.j2",
        name=name,
        audit=audit,
        summary=", ".join(
            f"{counts[kind]} {kind.name.lower()}{'' if counts[kind] == 1 else 's'}"
            for kind in reversed(Severity)
        ),
        chart=_audit_chart(audit) if audit.readable else "",
        findings=findings,
        most=_MOST_ITEMS,
    )


def _audit_chart(audit: Audit) -> str:
    """Sizes of the images, sizes and places of the lesions, as one SVG."""
    from matplotlib.colors import ListedColormap

    from mcpmix.report.charts import new_figure, svg_of

    with new_figure(9, 2.8) as figure:
        sizes, areas, places = figure.subplots(1, 3)
        counted = Counter((item.width, item.height) for item in audit.readable)
        largest = 60 / max(counted.values())
        widths, heights = zip(*counted, strict=True)
        sizes.scatter(
            widths, heights, [8 + largest * count for count in counted.values()], _COLOUR, alpha=0.7
        )
        sizes.set(xlabel="width, pixels", ylabel="height, pixels")
        sizes.set(xlim=(0, 1.1 * max(widths)), ylim=(0, 1.1 * max(heights)))
        areas.hist([100 * item.area for item in audit.readable], bins=20, color=_COLOUR)
        areas.set(xlabel="lesion, % of the image", ylabel="images")
        centres = np.array([item.centre for item in audit.readable if item.area > 0]).reshape(-1, 2)
        counts, _, _ = np.histogram2d(centres[:, 1], centres[:, 0], bins=_CELLS, range=((0, 1), (0, 1)))
        shade, colour = counts / max(1, counts.max()), ListedColormap([_COLOUR])
        places.imshow(0 * shade, colour, alpha=shade, extent=(0, 100, 100, 0), interpolation="nearest")
        places.grid(visible=False)
        places.set(xlabel="centre of the lesion, % from the left", ylabel="% from the top")
        return svg_of(figure, "audit")


def groups_page(facts: Sequence[Facts], guess: Guess, table: str) -> str:
    """A self-contained HTML page with a sheet for each guessed group, its images in the order of files.

    `table` is the name of the CSV that a reader corrects.
    """
    from mcpmix.report.pictures import jpeg_uri

    sheets: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for place in file_order(facts, guess.order or "name"):
        item = facts[place]
        picture = "" if item.thumbnail is None else jpeg_uri(Image.fromarray(item.thumbnail))
        sheets[guess.group_of[item.sample.id]].append((item.sample.id, picture))
    return render_page("groups.html.j2", sheets=sheets, lines=list(guess.lines()), table=table)
