"""Curves over epochs from the rows of training logs."""

import io
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from mcpmix.report.tables import Run

_INK = "#010203"  # stands for the colour of text, which only the page knows
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mcpmix",  # without it two equal charts would differ in their ids
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_WIDTH = 4.1  # inches
_LABELLED_GROUPS = 40  # more names than this cannot be read
_LONGEST_NAME = 18  # characters; longer ones leave no room for the chart
_SPREAD = 0.5  # of a row, taken by the markers of all arms together


@dataclass(frozen=True)
class Line:
    """A curve in a chart.

    Attributes:
        x: epochs.
        y: values.
        colour: `#rrggbb`; None for the colour of text.
        bold: a mean (bold) or a single seed (thin).
        dashed: something given (prior, margin), not something measured.
        marker: a matplotlib marker at each point, or "".
    """

    x: Sequence[float]
    y: Sequence[float]
    colour: str | None
    bold: bool = False
    dashed: bool = False
    marker: str = ""


@dataclass(frozen=True)
class Dots:
    """Values of one arm in a chart with a row for each group.

    Attributes:
        values: (lowest, mean, highest) over seeds for each row; NaN where undefined.
        colour: `#rrggbb`.
        marker: a matplotlib marker.
    """

    values: Sequence[tuple[float, float, float]]
    colour: str
    marker: str


def curve_chart(
    name: str, lines: Sequence[Line], ylabel: str, *, log: bool = False, mark: float | None = None
) -> str:
    """Curves over epochs.

    Args:
        name: unique in the page; prefix of all ids.
        lines: in the order in which they are drawn.
        ylabel: quantity and unit.
        log: whether the vertical axis is logarithmic.
        mark: an epoch to mark by a vertical line.

    Returns:
        An `<svg>` element that fills its container.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 2.7), layout="constrained")
        axes = figure.subplots()
        for line in lines:
            axes.plot(
                line.x,
                line.y,
                color=line.colour or _INK,
                linewidth=1.9 if line.bold else 0.8,
                alpha=1.0 if line.bold else 0.45,
                linestyle=(0, (4, 2)) if line.dashed else "-",
                marker=line.marker if line.bold else "",
                markersize=3.5,
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel(ylabel)
        if log:
            _log_scale(axes)
        if mark is not None:
            axes.axvline(mark, color=_INK, linewidth=0.6, linestyle=":")
        _grid(axes)
        return _svg(figure, name)


def group_chart(
    name: str, groups: Sequence[str], arms: Sequence[Dots], xlabel: str, *, zero: bool = False
) -> str:
    """A row for each group, a marker for each arm: mean over seeds, with a line from lowest to highest.

    Args:
        name: unique in the page; prefix of all ids.
        groups: names of the rows, from the top.
        arms: each with a value for each row.
        xlabel: quantity and unit.
        zero: whether to mark 0, for differences.

    Returns:
        An `<svg>` element that fills its container.
    """
    height = min(7.0, 0.9 + 0.23 * len(groups))
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        for place, dots in enumerate(arms):
            shift = _SPREAD * ((place + 0.5) / len(arms) - 0.5)
            rows = [row + shift for row in range(len(groups))]
            lows, means, highs = zip(*dots.values, strict=True)
            axes.hlines(rows, lows, highs, color=dots.colour, linewidth=1.0, alpha=0.55)
            axes.plot(means, rows, dots.marker, color=dots.colour, markersize=4.2, markeredgewidth=0)
        labelled = len(groups) <= _LABELLED_GROUPS
        axes.set_yticks(range(len(groups)), labels=[_short(name) for name in groups] if labelled else None)
        axes.tick_params(axis="y", length=0, labelleft=labelled)
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_xlabel(xlabel)
        if zero:
            axes.axvline(0, color=_INK, linewidth=0.8)
        _grid(axes)
        return _svg(figure, name)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _log_scale(axes: Axes) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _grid(axes: Axes) -> None:
    axes.grid(visible=True, color=_INK, alpha=0.13, linewidth=0.5)
    axes.set_axisbelow(True)


def _svg(figure: Figure, name: str) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The reader's browser has glyphs that the font of this machine lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return _for_page(buffer.getvalue(), name)


def _for_page(svg: str, name: str) -> str:
    """Make a stand-alone SVG part of a page: no own size, ids that are unique, no style that leaks out."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = svg.replace(_INK, "currentColor")
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1).strip()


LogRow = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """A quantity over epochs.

    Attributes:
        epochs: counted from 1, rising.
        values: one for each epoch; all finite.
    """

    epochs: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.epochs)


def curve(rows: Sequence[LogRow], quantity: str) -> Curve:
    """The curve of a quantity in one log; epochs without a finite value are left out.

    Args:
        rows: of a log.jsonl.
        quantity: a key, or `section.key` for a nested one.
    """
    points = [(int(row["epoch"]), _value(row, quantity)) for row in rows]
    kept = [(epoch, value) for epoch, value in points if math.isfinite(value)]
    return Curve(tuple(epoch for epoch, _ in kept), tuple(value for _, value in kept))


def curves_of(logs: Mapping[Run, Sequence[LogRow]], arm: str, quantity: str) -> list[Curve]:
    """The curves of an arm, one for each seed that has the quantity, in the order of the seeds."""
    runs = sorted(run for run in logs if run[0] == arm)
    return [found for run in runs if (found := curve(logs[run], quantity))]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, at the epochs that all of them have."""
    values: dict[int, list[float]] = defaultdict(list)
    for item in curves:
        for epoch, value in zip(item.epochs, item.values, strict=True):
            values[epoch].append(value)
    common = sorted(epoch for epoch, found in values.items() if len(found) == len(curves))
    return Curve(tuple(common), tuple(math.fsum(values[epoch]) / len(curves) for epoch in common))


def _value(row: LogRow, quantity: str) -> float:
    value: Any = row
    for part in quantity.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return math.nan if value is None else float(value)
