"""The same predictions under the conventions of other evaluations, to compare a number with theirs.

Each convention is written from its definition; none of the libraries is needed. What differs is which images
count, what an empty mask is worth, whether pixels or images are averaged, whether background is a class, and
whether soft maps are thresholded.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError
from mcpmix.metrics.contract import DEFAULT_RULE, Mask, as_mask
from mcpmix.metrics.statistics import aggregate
from mcpmix.metrics.suite import Counts, boundary_distances, count

_LEVELS = 256  # thresholds 0, 1/255, ..., 1
_LEVEL_SLACK = 1e-6  # a stored level k/255 reaches the threshold k/255 in spite of rounding


@dataclass(frozen=True)
class ConventionRow:
    """One metric (`dice` or `iou` in percent, `hd95` or `assd` in pixels) under one convention.

    `n` images count and `dropped` do not; `rule` says in a few words what the convention does.
    """

    convention: str
    metric: str
    value: float
    n: int
    dropped: int
    rule: str


def conventions_table(
    images: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]], threshold: float = 0.5
) -> list[ConventionRow]:
    """The same predictions under the conventions of PraNet, MONAI, torchmetrics, smp and pooling; ours first.

    Args:
        images: (truth, probability) per image: a (H, W) hard mask, and a (H, W) map in [0, 1] or a hard mask
            of 0 and 1.
        threshold: probability from which a pixel is foreground, for the conventions on hard masks.
    """
    counts: list[Counts] = []
    curves: list[npt.NDArray[np.float64]] = []
    overlaps: list[float] = []
    distances: list[tuple[float, float, float, float]] = []
    for truth, probability in images:
        mask = as_mask(truth, "truth")
        soft = np.asarray(probability, np.float64)
        if soft.shape != mask.shape or not (soft.min() >= 0 and soft.max() <= 1):
            raise DataError(
                f"the probability map must be {mask.shape} with values in [0, 1], but is {soft.shape} with "
                f"values from {soft.min() if soft.size else math.nan:.6g} to "
                f"{soft.max() if soft.size else math.nan:.6g}."
            )
        hard = as_mask(soft >= threshold)
        counts.append(count(mask, hard))
        low, high = soft.min(), soft.max()
        stretched = soft if low == high else (soft - low) / (high - low)
        curves.append(_threshold_curves(mask, stretched))
        overlap = 2 * float(stretched[mask != 0].sum()) + 1
        overlaps.append(100 * overlap / (float(stretched.sum()) + int(mask.sum()) + 1))
        distances.append(_distances(mask, hard))
    if not counts:
        raise DataError("conventions need at least one image.")
    mean_rule = "mean over 256 thresholds of the map stretched to [0, 1]; no overlap is 0"
    max_rule = "best of 256 thresholds, chosen on the test images; map stretched to [0, 1]"
    rows = [*_overlap_rows(counts, "dice", 2), *_overlap_rows(counts, "iou", 1)]
    for curve, metric in zip(np.mean(curves, axis=0), ("dice", "iou"), strict=True):
        rows.append(ConventionRow("PraNet, mean", metric, float(curve.mean()), len(counts), 0, mean_rule))
        rows.append(ConventionRow("PraNet, max", metric, float(curve.max()), len(counts), 0, max_rule))
    soft_rule = "soft Dice of the map stretched to [0, 1], smoothing 1, no threshold"
    assd_rule = "mean over both boundaries together; missed is infinite"
    hd95, hd95_monai, assd, assd_monai = zip(*distances, strict=True)
    return [
        *rows,
        _mean_row("Polyp-PVT training script", "dice", overlaps, soft_rule),
        _mean_row("mcpmix", "hd95", hd95, "percentile of both directions in one list; missed is diagonal"),
        _mean_row("MONAI", "hd95", hd95_monai, "larger of two directed percentiles; missed lesions dropped"),
        _mean_row("mcpmix", "assd", assd, "mean of two directed means; missed is diagonal"),
        _mean_row("MONAI, medpy", "assd", assd_monai, assd_rule),
    ]


def _overlap_rows(images: Sequence[Counts], metric: str, twice: int) -> list[ConventionRow]:
    """Dice (`twice` = 2) or IoU (`twice` = 1) of hard masks."""

    def overlap(hit: int, counts: Counts) -> float:
        """In percent, of the class with `hit` correct pixels."""
        wrong = counts.fp + counts.fn
        return 100.0 * twice * hit / (twice * hit + wrong) if hit + wrong else math.nan

    def both_classes(counts: Counts) -> float:
        return aggregate([overlap(counts.tp, counts), overlap(counts.tn, counts)]).mean

    n = len(images)
    front = [overlap(item.tp, item) for item in images]
    lenient = [100.0 if math.isnan(value) else value for value in front]
    lesion = [math.nan if item.truth_empty else value for item, value in zip(images, front, strict=True)]
    if metric == "dice":
        rule = "mean of foreground and background per image, then of images"
        torchmetrics = _mean_row("torchmetrics, 2 classes", metric, map(both_classes, images), rule)
    else:
        every = aggregate([overlap(hit, item) for item in images for hit in (item.tp, item.tn)]).mean
        rule = "mean over every foreground and background that occurs, all images together"
        torchmetrics = ConventionRow("torchmetrics, 2 classes", metric, every, n, 0, rule)
    pooled = sum(images, Counts(0, 0, 0, 0))
    single, libraries = overlap(pooled.tp, pooled), "pooled (smp micro, torchmetrics F1 and Jaccard)"
    classes = "mean of foreground and background, pixels of all images together"
    return [
        _mean_row("mcpmix", metric, front, "foreground per image; both empty is undefined"),
        _mean_row("smp, micro-imagewise", metric, lenient, "foreground per image; both empty is 100"),
        _mean_row("MONAI", metric, lesion, "foreground per image; images without lesion dropped"),
        torchmetrics,
        ConventionRow(libraries, metric, single, n, 0, "foreground pixels of all images together"),
        ConventionRow("pooled, 2 classes (mmseg)", metric, both_classes(pooled), n, 0, classes),
    ]


def _mean_row(convention: str, metric: str, values: Iterable[float], rule: str) -> ConventionRow:
    total = aggregate(list(values))
    return ConventionRow(convention, metric, total.mean, total.n, total.undefined, rule)


def _threshold_curves(truth: Mask, soft: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(2, 256) Dice and IoU in percent of `soft >= k / 255` for all k; 0 where nothing overlaps."""
    levels = np.floor(soft * (_LEVELS - 1) + _LEVEL_SLACK).astype(np.intp)
    predicted = np.bincount(levels.ravel(), minlength=_LEVELS)[::-1].cumsum()[::-1]
    hit = np.bincount(levels[truth != 0], minlength=_LEVELS)[::-1].cumsum()[::-1]
    total = predicted + np.count_nonzero(truth)
    with np.errstate(invalid="ignore"):  # 0/0 where both are empty, replaced just below
        curves = np.stack([200.0 * hit / total, 100.0 * hit / (total - hit)])
    return np.where(hit > 0, curves, 0.0)


def _distances(truth: Mask, prediction: Mask) -> tuple[float, float, float, float]:
    """HD95 as here and as in MONAI, ASSD as here and as in MONAI."""
    a, b = boundary_distances(truth, prediction)
    if a.size and b.size:
        union = np.concatenate([a, b])
        larger = float(max(np.percentile(a, 95), np.percentile(b, 95)))
        return float(np.percentile(union, 95)), larger, float(a.mean() + b.mean()) / 2, float(union.mean())
    worst = DEFAULT_RULE.distance(a.size == 0, b.size == 0, *truth.shape)
    return worst, math.nan, worst, math.inf if a.size or b.size else math.nan
