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
from mcpmix.metrics.boundary import boundary_distances
from mcpmix.metrics.contract import DEFAULT_RULE
from mcpmix.metrics.masks import Mask, as_mask
from mcpmix.metrics.region import Counts, counts_of
from mcpmix.metrics.statistics import aggregate

_LEVELS = 256  # thresholds 0, 1/255, ..., 1
_LEVEL_SLACK = 1e-6  # a stored level k/255 reaches the threshold k/255 in spite of rounding

Image = tuple[npt.ArrayLike, npt.ArrayLike]


@dataclass(frozen=True)
class ConventionRow:
    """One metric under one convention.

    Attributes:
        convention: whose.
        metric: `dice` or `iou` in percent, `hd95` or `assd` in pixels.
        value: over all images that the convention counts.
        n: how many images it counts.
        dropped: how many it leaves out.
        rule: what it does, in a few words.
    """

    convention: str
    metric: str
    value: float
    n: int
    dropped: int
    rule: str


class Conventions:
    """Collects images one at a time and reports every convention over all of them.

    Args:
        threshold: probability from which a pixel is foreground, for the conventions on hard masks.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold
        self._counts: list[Counts] = []
        self._curves: list[npt.NDArray[np.float64]] = []
        self._soft: list[float] = []
        self._distances: list[tuple[float, float, float, float]] = []

    def add(self, truth: npt.ArrayLike, probability: npt.ArrayLike) -> None:
        """Add one image.

        Args:
            truth: (H, W) hard mask.
            probability: (H, W) map in [0, 1]; a hard mask of 0 and 1 is one.

        Raises:
            DataError: the truth is not a hard mask, or the map is not of its shape and in [0, 1].
        """
        mask = as_mask(truth, "truth")
        soft = np.asarray(probability, np.float64)
        if soft.shape != mask.shape or not (soft.min() >= 0 and soft.max() <= 1):
            raise DataError(
                f"the probability map must be {mask.shape} with values in [0, 1], but is {soft.shape} with "
                f"values from {soft.min() if soft.size else math.nan:.6g} to "
                f"{soft.max() if soft.size else math.nan:.6g}."
            )
        hard = as_mask(soft >= self.threshold)
        ones = int(np.count_nonzero(mask & hard))
        self._counts.append(
            counts_of(int(np.count_nonzero(mask)), int(np.count_nonzero(hard)), ones, mask.size)
        )
        stretched = _stretched(soft)
        self._curves.append(_threshold_curves(mask, stretched))
        overlap = 2 * float(stretched[mask != 0].sum()) + 1
        self._soft.append(100 * overlap / (float(stretched.sum()) + int(mask.sum()) + 1))
        self._distances.append(_distances(mask, hard))

    def rows(self) -> list[ConventionRow]:
        """All conventions over the images so far; ours first.

        Raises:
            DataError: there are no images.
        """
        if not self._counts:
            raise DataError("conventions need at least one image.")
        hard = [
            row
            for metric, twice in (("dice", 2), ("iou", 1))
            for row in (*self._image_rows(metric, twice), *self._pooled_rows(metric, twice))
        ]
        return [*hard, *self._soft_rows(), *self._distance_rows()]

    def _image_rows(self, metric: str, twice: int) -> list[ConventionRow]:
        front = [_overlap(item.tp, item, twice) for item in self._counts]
        lesions = [not item.truth_empty for item in self._counts]
        lesion = [value if kept else math.nan for value, kept in zip(front, lesions, strict=True)]
        lenient = [100.0 if math.isnan(value) else value for value in front]
        return [
            _mean_row("mcpmix", metric, front, "foreground per image; both empty is undefined"),
            _mean_row("smp, micro-imagewise", metric, lenient, "foreground per image; both empty is 100"),
            _mean_row("MONAI", metric, lesion, "foreground per image; images without lesion dropped"),
            self._torchmetrics_row(metric, twice),
        ]

    def _torchmetrics_row(self, metric: str, twice: int) -> ConventionRow:
        name = "torchmetrics, 2 classes"
        if metric == "dice":
            both = [_both_classes(item, twice) for item in self._counts]
            return _mean_row(
                name, metric, both, "mean of foreground and background per image, then of images"
            )
        single = [_overlap(hit, item, twice) for item in self._counts for hit in (item.tp, item.tn)]
        rule = "mean over every foreground and background that occurs, all images together"
        return self._row(name, metric, aggregate(single).mean, rule)

    def _pooled_rows(self, metric: str, twice: int) -> list[ConventionRow]:
        pooled = sum(self._counts, Counts(0, 0, 0, 0))
        front, both = _overlap(pooled.tp, pooled, twice), _both_classes(pooled, twice)
        front_rule = "foreground pixels of all images together"
        both_rule = "mean of foreground and background, pixels of all images together"
        return [
            self._row("pooled (smp micro, torchmetrics F1 and Jaccard)", metric, front, front_rule),
            self._row("pooled, 2 classes (mmseg)", metric, both, both_rule),
        ]

    def _soft_rows(self) -> list[ConventionRow]:
        curves = np.mean(self._curves, axis=0)
        n = len(self._curves)
        mean_rule = "mean over 256 thresholds of the map stretched to [0, 1]; no overlap is 0"
        max_rule = "best of 256 thresholds, chosen on the test images; map stretched to [0, 1]"
        rows = [
            row
            for k, metric in enumerate(("dice", "iou"))
            for row in (
                ConventionRow("PraNet, mean", metric, float(curves[k].mean()), n, 0, mean_rule),
                ConventionRow("PraNet, max", metric, float(curves[k].max()), n, 0, max_rule),
            )
        ]
        rule = "soft Dice of the map stretched to [0, 1], smoothing 1, no threshold"
        return [*rows, _mean_row("Polyp-PVT training script", "dice", self._soft, rule)]

    def _distance_rows(self) -> list[ConventionRow]:
        ours_hd, monai_hd, ours_assd, pooled = (list(column) for column in zip(*self._distances, strict=True))
        return [
            _mean_row(
                "mcpmix", "hd95", ours_hd, "percentile of both directions in one list; missed is diagonal"
            ),
            _mean_row(
                "MONAI", "hd95", monai_hd, "larger of two directed percentiles; missed lesions dropped"
            ),
            _mean_row("mcpmix", "assd", ours_assd, "mean of two directed means; missed is diagonal"),
            _mean_row(
                "MONAI, medpy", "assd", pooled, "mean over both boundaries together; missed is infinite"
            ),
        ]

    def _row(self, name: str, metric: str, value: float, rule: str) -> ConventionRow:
        return ConventionRow(name, metric, value, len(self._counts), 0, rule)


def conventions_table(images: Iterable[Image], threshold: float = 0.5) -> list[ConventionRow]:
    """The same predictions under the conventions of PraNet, MONAI, torchmetrics, smp and pooling.

    Args:
        images: (truth, probability) per image: a (H, W) hard mask, and a (H, W) map in [0, 1] or a hard mask
            of 0 and 1.
        threshold: probability from which a pixel is foreground, for the conventions on hard masks.

    Returns:
        One row per convention and metric; ours first.

    Raises:
        DataError: there are no images, or one is not as described.
    """
    collected = Conventions(threshold)
    for truth, probability in images:
        collected.add(truth, probability)
    return collected.rows()


def _mean_row(convention: str, metric: str, values: Sequence[float], rule: str) -> ConventionRow:
    total = aggregate(values)
    return ConventionRow(convention, metric, total.mean, total.n, total.undefined, rule)


def _overlap(hit: int, counts: Counts, twice: int) -> float:
    """Dice (`twice` = 2) or IoU (`twice` = 1) in percent of the class with `hit` correct pixels."""
    wrong = counts.fp + counts.fn
    return 100.0 * twice * hit / (twice * hit + wrong) if hit + wrong else math.nan


def _both_classes(counts: Counts, twice: int) -> float:
    return aggregate([_overlap(counts.tp, counts, twice), _overlap(counts.tn, counts, twice)]).mean


def _stretched(soft: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    low, high = soft.min(), soft.max()
    return soft if low == high else (soft - low) / (high - low)


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
