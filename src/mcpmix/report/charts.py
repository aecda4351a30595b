"""Charts of the page: SVG drawn by matplotlib that takes its size and colour of text from the page."""

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter

from mcpmix.report.arms import Arm
from mcpmix.report.tables import Groups, GroupValues, Run, group_gains, seed_means

Logs = Mapping[Run, Sequence[Mapping[str, Any]]]
"""Arm and seed to the rows of a log.jsonl."""
Curve = Mapping[int, float]
"""Epoch, counted from 1 and rising, to a finite value."""

_SEEDS = "Thin lines are single seeds, bold ones their mean."
_GATES = (
    ("s", "s_prior", "share s", "of the synthetic image", "prior"),
    ("rho", "rho_prior", "weight ρ", "of the loss on mixed images", "prior"),
    ("discrepancy", "tau", "discrepancy D", "between mixed and real images", "margin τ"),
)
_TRAINING = (
    ("loss_real", "Loss on real images (binary cross-entropy).", "loss, real images", True),
    ("loss_mixed", "Loss on mixed images, of the arms that have them.", "loss, mixed images", True),
    ("validation.dsc", "DSC on the validation images, on which the checkpoint is chosen.", "DSC (%)", False),
)
_INK = "#010203"  # stands for the colour of text, which only the page knows
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mcpmix",  # without it two equal charts would differ in their ids
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **{"axes.grid": True, "grid.color": _INK, "grid.alpha": 0.13, "grid.linewidth": 0.5},
    "axes.axisbelow": True,
}
_WIDTH = 4.1  # inches
_MARKED_EPOCHS = 24  # there is no room for more markers on a line
_LABELLED_GROUPS = 40  # more names than this cannot be read
_LONGEST_NAME = 18  # characters; longer ones leave no room for the chart
_SPREAD = 0.5  # of a row, taken by the markers of all arms together


@dataclass(frozen=True)
class Chart:
    """A chart as an `<svg>` element, its caption, and a text alternative."""

    svg: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """Charts under a title with a text."""

    title: str
    text: str
    charts: Sequence[Chart]


# --- test groups --------------------------------------------------------------------------------------------


def group_section(
    arms: Sequence[Arm], groups: Groups, reference: str | None, word: str, unseen: bool
) -> Section:
    """DSC of each test group, and its difference from the reference, whose DSC gives the order of the rows.

    `word` is the plural of what a group is; `unseen`: no network has seen the groups.
    """
    anchor = seed_means(groups[reference or arms[0].name])
    rows = sorted(anchor, key=lambda name: (math.isnan(anchor[name]), -anchor[name], name))
    drawn: list[tuple[Arm, GroupValues]] = [(arm, groups[arm.name]) for arm in arms]
    charts = [
        Chart(
            group_chart("groups", rows, drawn, "DSC (%)"),
            f"DSC of each of the {len(rows)} test {word}: mean over seeds, with a line from the lowest seed "
            "to the highest.",
            f"Dot plot with a row for each of {len(rows)} test {word}. {_ranges(drawn)}",
        )
    ]
    if reference is not None:
        label = next(arm.label for arm in arms if arm.name == reference)
        drawn = [(arm, group_gains(groups, arm.name, reference)) for arm in arms if arm.name != reference]
        charts.append(
            Chart(
                group_chart("gains", rows, drawn, f"DSC minus that of {label} (points)", zero=True),
                f"The same as a difference from {label} with the same seed; right of the line is ahead.",
                f"Dot plot of differences. {_ranges(drawn)}",
            )
        )
    return Section(f"{'Unseen' if unseen else 'Test'} {word}, one by one", "", charts)


def _ranges(drawn: Sequence[tuple[Arm, GroupValues]]) -> str:
    ranges = [(arm.label, *range_of(seed_means(groups).values())) for arm, groups in drawn]
    return " ".join(f"{arm}: lowest {a:.1f}, mean {b:.1f}, highest {c:.1f}." for arm, a, b, c in ranges)


# --- training -----------------------------------------------------------------------------------------------


def gate_section(arm: Arm, logs: Logs, tail_from: int | None) -> Section | None:
    """s, rho and D over epochs with their priors and margin; None if the arm has no learnable gates.

    `tail_from` is the last epoch of the schedules, if epochs follow it.
    """
    if not curves_of(logs, arm.name, "s_prior"):
        return None
    charts, texts = [], []
    for quantity, target, name, of_what, anchor in _GATES:
        found, given = curves_of(logs, arm.name, quantity), curves_of(logs, arm.name, target)
        if not found:
            continue
        charts.append(
            Chart(
                curve_chart(f"{arm.name}-{quantity}", [(None, given), (arm, found)], name, mark=tail_from),
                f"{name[:1].upper()}{name[1:]} {of_what}; dashed: its {anchor}.",
                f"Curve over epochs: the {name} goes {_travel(found)}, its {anchor} {_travel(given)}.",
            )
        )
        texts.append(f"{name} {_travel(found)}")
    text = f"Mean over seeds, in the first and in the last epoch: {'; '.join(texts)}. "
    for quantity, name in (
        ("tau0", "The margin starts at τ₀"),
        ("mu", "D above the margin is weighted by μ"),
    ):
        if found := curves_of(logs, arm.name, quantity):
            low, _, high = range_of([value for curve in found for value in curve.values()])
            text += f"{name} = {low:.3g}{'' if low == high else f' to {high:.3g}'}. "
    return Section(f"What {arm.label} learnt: share, weight, discrepancy", text + _SEEDS, charts)


def training_section(arms: Sequence[Arm], logs: Logs, tail_from: int | None) -> Section:
    """Losses and validation DSC of all arms over epochs."""
    charts = []
    for quantity, caption, label, log in _TRAINING:
        found = [(arm, curves) for arm in arms if (curves := curves_of(logs, arm.name, quantity))]
        if not found:
            continue
        name = f"training-{quantity.replace('.', '-')}"
        travels = " ".join(f"{arm.label} goes {_travel(curves)}." for arm, curves in found)
        svg = curve_chart(name, found, label, log=log, mark=tail_from)
        charts.append(Chart(svg, caption, f"Curves over epochs. {travels}"))
    return Section("Training", _SEEDS, charts)


def _travel(curves: Sequence[Curve]) -> str:
    values = list(mean_curve(curves).values())
    return f"from {values[0]:.3g} to {values[-1]:.3g}" if values else "unknown"


# --- numbers ------------------------------------------------------------------------------------------------


def curves_of(logs: Logs, arm: str, quantity: str) -> list[Curve]:
    """The curves of an arm, one for each seed that has the quantity, in the order of the seeds.

    Epochs without a finite value are left out. `section.key` is a quantity within a section of a row.
    """
    curves: list[Curve] = []
    for run in sorted(run for run in logs if run[0] == arm):
        curve = {}
        for row in logs[run]:
            value: Any = row
            for part in quantity.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None and math.isfinite(value):
                curve[int(row["epoch"])] = float(value)
        if curve:
            curves.append(curve)
    return curves


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, at the epochs that all of them have."""
    common = set(curves[0]).intersection(*curves[1:]) if curves else set()
    return {epoch: math.fsum(curve[epoch] for curve in curves) / len(curves) for epoch in sorted(common)}


def range_of(values: Iterable[float]) -> tuple[float, float, float]:
    """Lowest, mean and highest of the defined values; NaN if there are none."""
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        return math.nan, math.nan, math.nan
    return min(defined), math.fsum(defined) / len(defined), max(defined)


# --- drawing: each chart is an <svg> element that fills its container ---------------------------------------


def curve_chart(
    name: str,
    curves: Sequence[tuple[Arm | None, Sequence[Curve]]],
    ylabel: str,
    *,
    log: bool = False,
    mark: float | None = None,
) -> str:
    """Curves over epochs: a thin line for each seed and a bold one for their mean.

    Args:
        curves: one for each seed, measured for an arm; or given for all (a prior, a margin): None, dashed.
        log: whether the vertical axis is logarithmic, if all values allow it.
        mark: an epoch to mark by a vertical line.
    """
    with new_figure(_WIDTH, 2.7) as figure:
        axes = figure.subplots()
        for arm, seeds in curves:
            style: dict[str, Any] = (
                {"color": arm.colour} if arm else {"color": _INK, "linestyle": (0, (4, 2))}
            )
            for curve in seeds if len(seeds) > 1 else ():
                axes.plot(list(curve), list(curve.values()), linewidth=0.8, alpha=0.45, **style)
            mean = mean_curve(seeds)
            marker = arm.marker if arm and len(mean) <= _MARKED_EPOCHS else ""
            axes.plot(list(mean), list(mean.values()), linewidth=1.9, marker=marker, markersize=3.5, **style)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(ylabel)
        if log and all(value > 0 for _, seeds in curves for curve in seeds for value in curve.values()):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if mark is not None:
            axes.axvline(mark, color=_INK, linewidth=0.6, linestyle=":")
        return svg_of(figure, name)


def group_chart(
    name: str,
    groups: Sequence[str],
    arms: Sequence[tuple[Arm, GroupValues]],
    xlabel: str,
    *,
    zero: bool = False,
) -> str:
    """A row for each group, a marker for each arm: mean over seeds, with a line from lowest to highest."""
    with new_figure(_WIDTH, min(7.0, 0.9 + 0.23 * len(groups))) as figure:
        axes = figure.subplots()
        for place, (arm, values) in enumerate(arms):
            shift = _SPREAD * ((place + 0.5) / len(arms) - 0.5)
            rows = [row + shift for row in range(len(groups))]
            ranges = [range_of(values.get(group, {}).values()) for group in groups]
            lows, means, highs = zip(*ranges, strict=True)
            axes.hlines(rows, lows, highs, color=arm.colour, linewidth=1.0, alpha=0.55)
            axes.plot(means, rows, arm.marker, color=arm.colour, markersize=4.2, markeredgewidth=0)
        labelled = len(groups) <= _LABELLED_GROUPS
        labels = [
            group if len(group) <= _LONGEST_NAME else group[: _LONGEST_NAME - 1] + "…" for group in groups
        ]
        axes.set_yticks(range(len(groups)), labels=labels if labelled else None)
        axes.tick_params(axis="y", length=0, labelleft=labelled)
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_xlabel(xlabel)
        if zero:
            axes.axvline(0, color=_INK, linewidth=0.8)
        return svg_of(figure, name)


@contextmanager
def new_figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, to be drawn and saved in the style of the pages."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def svg_of(figure: Figure, name: str) -> str:
    """A chart as part of a page: no own size, no style that leaks out, ids that begin with its name."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # The reader's browser has glyphs that the font of this machine lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = svg.replace(_INK, "currentColor")
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1).strip()
