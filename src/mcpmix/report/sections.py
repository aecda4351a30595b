"""The bank of pairs on the page: what was tried and admitted, the contact sheet, the histogram."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.report.arms import Arm
from mcpmix.report.charts import Curve, Dots, Line, LogRow, curve_chart, curves_of, group_chart, mean_curve
from mcpmix.report.html import TRUTH_COLOUR, CaseView, Chart, Section, Strip
from mcpmix.report.pictures import Contour, Pixels, Tile, contour_path, make_tile, mixtures, shares
from mcpmix.report.scores import Case, Groups, group_gains, seed_means
from mcpmix.report.tables import Run

Logs = Mapping[Run, Sequence[LogRow]]

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


# --- test groups --------------------------------------------------------------------------------------------


def group_section(
    arms: Sequence[Arm], groups: Groups, reference: str | None, word: str, *, unseen: bool = True
) -> Section:
    """DSC of each test group, and its difference to the reference.

    Args:
        arms: to draw.
        groups: DSC by arm, group and seed.
        reference: arm whose DSC gives the order of the rows; None: the first arm's.
        word: plural of what a group is.
        unseen: whether no network has seen them; the title says so.
    """
    anchor = seed_means(groups[reference or arms[0].name])
    rows = sorted(anchor, key=lambda name: (-_or_lowest(anchor[name]), name))
    means = {arm.name: seed_means(groups[arm.name]) for arm in arms}
    charts = [
        Chart(
            group_chart("groups", rows, [_dots(arm, groups[arm.name], rows) for arm in arms], "DSC (%)"),
            f"DSC of each of the {len(rows)} test {word}: mean over seeds, with a line from the lowest seed "
            "to the highest.",
            f"Dot plot with a row for each of {len(rows)} test {word}. " + _ranges(arms, means),
        )
    ]
    if reference is not None:
        others = [arm for arm in arms if arm.name != reference]
        label = next(arm.label for arm in arms if arm.name == reference)
        gains = {arm.name: group_gains(groups, arm.name, reference) for arm in others}
        dots = [_dots(arm, gains[arm.name], rows) for arm in others]
        charts.append(
            Chart(
                group_chart("gains", rows, dots, f"DSC minus that of {label} (points)", zero=True),
                f"The same as a difference to {label} with the same seed; right of the line is ahead.",
                "Dot plot of differences. "
                + _ranges(others, {arm.name: seed_means(gains[arm.name]) for arm in others}),
            )
        )
    return Section(f"{'Unseen' if unseen else 'Test'} {word}, one by one", "", tuple(charts))


def _dots(arm: Arm, values: Mapping[str, Mapping[int, float]], rows: Sequence[str]) -> Dots:
    return Dots([_range(values.get(row, {}).values()) for row in rows], arm.colour, arm.marker)


def _range(values: Iterable[float]) -> tuple[float, float, float]:
    defined = [value for value in values if not math.isnan(value)]
    if not defined:
        return math.nan, math.nan, math.nan
    return min(defined), math.fsum(defined) / len(defined), max(defined)


def _ranges(arms: Sequence[Arm], means: Mapping[str, Mapping[str, float]]) -> str:
    texts = []
    for arm in arms:
        low, mean, high = _range(means[arm.name].values())
        texts.append(f"{arm.label}: lowest {low:.1f}, mean {mean:.1f}, highest {high:.1f}.")
    return " ".join(texts)


def _or_lowest(value: float) -> float:
    return -math.inf if math.isnan(value) else value


# --- curves -------------------------------------------------------------------------------------------------


def gate_section(arm: Arm, logs: Logs, tail_from: int | None) -> Section | None:
    """s, rho and D over epochs with their priors and margin; None if the arm has no learnable gates.

    Args:
        arm: the arm.
        logs: of all trainings.
        tail_from: last epoch of the schedules, if epochs follow it.
    """
    if not curves_of(logs, arm.name, "s_prior"):
        return None
    charts, texts = [], []
    for quantity, target, name, of_what, anchor in _GATES:
        found, given = curves_of(logs, arm.name, quantity), curves_of(logs, arm.name, target)
        if not found:
            continue
        lines = [*_lines(given, None, dashed=True), *_lines(found, arm.colour)]
        charts.append(
            Chart(
                curve_chart(f"{arm.name}-{quantity}", lines, name, mark=tail_from),
                f"{name[:1].upper()}{name[1:]} {of_what}; dashed: its {anchor}.",
                f"Curve over epochs: the {name} goes {_travel(found)}, its {anchor} {_travel(given)}.",
            )
        )
        texts.append(f"{name} {_travel(found)}")
    text = f"Mean over seeds, after the first and after the last epoch: {'; '.join(texts)}. {_SEEDS}"
    return Section(f"What {arm.label} learnt: share, weight, discrepancy", text, tuple(charts))


def training_section(arms: Sequence[Arm], logs: Logs, tail_from: int | None) -> Section:
    """Losses and validation DSC of all arms over epochs."""
    charts = []
    for quantity, caption, label, log in _TRAINING:
        found = {arm: curves for arm in arms if (curves := curves_of(logs, arm.name, quantity))}
        if not found:
            continue
        lines = [
            line for arm, curves in found.items() for line in _lines(curves, arm.colour, marker=arm.marker)
        ]
        positive = all(value > 0 for line in lines for value in line.y)
        charts.append(
            Chart(
                curve_chart(
                    f"training-{quantity.replace('.', '-')}",
                    lines,
                    label,
                    log=log and positive,
                    mark=tail_from,
                ),
                caption,
                "Curves over epochs. "
                + " ".join(f"{arm.label} goes {_travel(curves)}." for arm, curves in found.items()),
            )
        )
    return Section("Training", _SEEDS, tuple(charts))


def _lines(
    curves: Sequence[Curve], colour: str | None, *, dashed: bool = False, marker: str = ""
) -> list[Line]:
    """A thin line for each seed and a bold one for their mean; markers only where there is room for them."""
    thin = [Line(c.epochs, c.values, colour, dashed=dashed) for c in curves] if len(curves) > 1 else []
    if not curves:
        return []
    mean = mean_curve(curves)
    sparse = marker if len(mean.epochs) <= 24 else ""
    return [*thin, Line(mean.epochs, mean.values, colour, bold=True, dashed=dashed, marker=sparse)]


def _travel(curves: Sequence[Curve]) -> str:
    mean = mean_curve(curves)
    if not mean:
        return "unknown"
    return f"from {mean.values[0]:.3g} to {mean.values[-1]:.3g}"


# --- pictures -----------------------------------------------------------------------------------------------


def strip(title: str, real: Pixels, mask: Pixels, counterparts: Sequence[Pixels], largest: float) -> Strip:
    """The way from a real image to its first counterpart under one mask, and all counterparts.

    Args:
        title: of the sample.
        real: (S, S, 3) uint8.
        mask: (S, S) uint8 in {0, 1}.
        counterparts: one or more, like `real`.
        largest: largest share, in (0, 1].
    """
    contours = (Contour(contour_path(mask), TRUTH_COLOUR),)
    at = shares(largest)
    images = mixtures(real, counterparts[0], at)
    mixed = tuple(
        make_tile(
            image,
            contours,
            "real, s = 0" if share == 0 else f"s = {share:g}",
            f"{title}: share {share:g} of the synthetic image, with the contour of the mask",
        )
        for share, image in zip(at, images, strict=True)
    )
    made = tuple(
        make_tile(
            image,
            contours,
            f"synthetic {number}",
            f"{title}: synthetic counterpart {number} under the same mask",
        )
        for number, image in enumerate(counterparts, start=1)
    )
    return Strip(title, mixed, made)


def case_view(
    case: Case,
    image: Pixels,
    truth: npt.NDArray[np.uint8],
    predictions: Sequence[tuple[Arm, npt.NDArray[np.uint8], float]],
) -> CaseView:
    """A test image with the truth, then with the prediction of each arm over it.

    With several arms the title gives the case's value as a difference, with one as a DSC.

    Args:
        case: which image, and why.
        image: (H, W, 3) uint8.
        truth: (H, W) hard mask.
        predictions: arm, (H, W) hard mask and DSC in percent.
    """
    contour = Contour(contour_path(truth), TRUTH_COLOUR)
    tiles = [make_tile(image, [contour], "truth", f"Test image {case.id} with the contour of the truth")]
    tiles += [_prediction_tile(case.id, image, contour, *prediction) for prediction in predictions]
    value = f"{case.value:+.1f} points" if len(predictions) > 1 else f"DSC {case.value:.1f}"
    return CaseView(f"{case.kind}: {case.id}, {value.replace('-', '−')}", tuple(tiles))


def _prediction_tile(
    name: str, image: Pixels, truth: Contour, arm: Arm, mask: npt.NDArray[np.uint8], dsc: float
) -> Tile:
    figure = "DSC undefined" if math.isnan(dsc) else f"DSC {dsc:.1f}"
    found = "" if mask.any() else ", nothing found"
    return make_tile(
        image,
        [truth, Contour(contour_path(mask), arm.colour)],
        f"{arm.label}: {figure}{found}",
        f"Test image {name}: contours of the truth and of the prediction of {arm.label}, {figure}{found}",
    )


_PICTURES = (
    ("alignment.png", "How well the judge finds the lesion under its mask, in synthetic and in real images."),
    ("sheet.png", "Contact sheet of the bank."),
)


def bank_tiles(folder: Path) -> tuple[Tile, ...]:
    """The pictures that synthesis has drawn, as far as they are there, at their own size."""
    tiles = []
    for name, caption in _PICTURES:
        if (folder / name).exists():
            with Image.open(folder / name) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            tiles.append(make_tile(pixels, (), caption, caption, side=max(pixels.shape)))
    return tuple(tiles)


def bank_text(counts: Mapping[str, Any]) -> str:
    """What the manifest of the pairs says, in sentences.

    Args:
        counts: of the manifest.
    """
    images, parents = counts.get("images"), counts.get("parents")
    if "scores" not in counts:
        return f"{images} counterparts of {parents} masks; none was judged, all are used."
    scores, rejected = counts["scores"], counts["rejected"]
    reasons = ", ".join(f"{kind} {number}" for kind, number in rejected.items()) or "none"
    return (
        f"{images} counterparts of {parents} masks were admitted, of {counts['tries']} images tried. "
        f"Rejected, by reason: {reasons}. Mean alignment of the admitted {_figure(scores['alignment'])}, of "
        f"all tried {_figure(scores['alignment_tried'])}; the same judge reaches "
        f"{_figure(scores['alignment_real'])} on real images of groups it has not seen. Mean distance of the "
        "admitted in features, where 1 is as far as two groups are apart: to the source "
        f"{_figure(scores['distance_source'])}, to the nearest other training image "
        f"{_figure(scores['distance_train'])}, to the nearest held-out image "
        f"{_figure(scores['distance_held_out'])}; between counterparts of one mask "
        f"{_figure(scores['diversity'])}."
    )


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
