"""Aggregates over images with their counts, intervals, and paired tests between two methods."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError
from mcpmix.core.seeds import numpy_rng
from mcpmix.metrics.contract import higher_is_better

_CHUNK = 256  # resamples at a time, so that memory does not grow with their number


@dataclass(frozen=True)
class Aggregate:
    """One metric over many images.

    Attributes:
        mean: mean of the defined values; NaN if there is none.
        sd: sample standard deviation (n - 1) of the defined values; NaN for fewer than two.
        n: number of images with a defined value.
        undefined: number of images whose value is NaN. They are in neither mean nor sd.
    """

    mean: float
    sd: float
    n: int
    undefined: int

    def __str__(self) -> str:
        note = f", {self.undefined} undefined" if self.undefined else ""
        return f"{self.mean:.2f} ± {self.sd:.2f} (n={self.n}{note})"


@dataclass(frozen=True)
class PairedTest:
    """One metric of two methods on the same images.

    Attributes:
        metric: its key.
        n: images on which both methods have a defined value.
        excluded: images left out because a method is undefined there.
        difference: mean of first minus second, in the unit of the metric.
        low: lower end of the bootstrap interval of the difference.
        high: upper end.
        p: two-sided Wilcoxon signed-rank test; 1 if no image differs.
        p_holm: the same after Holm's correction over all metrics tested together.
        effect: matched-pairs rank-biserial correlation in [-1, 1]; positive if the first method is better,
            whichever direction is better for the metric.
    """

    metric: str
    n: int
    excluded: int
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    effect: float


def aggregate(values: Sequence[float]) -> Aggregate:
    """Mean and spread of one metric over images; NaN values are counted, not averaged.

    Sums are exactly rounded, so the result does not depend on the order of the images.
    """
    defined = [value for value in values if not math.isnan(value)]
    n = len(defined)
    mean = math.fsum(defined) / n if n else math.nan
    sd = math.nan
    if n > 1 and math.isfinite(mean):
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in defined) / (n - 1))
    return Aggregate(mean, sd, n, len(values) - n)


def summarise(rows: Sequence[Mapping[str, float]]) -> dict[str, Aggregate]:
    """Aggregate the results of `score` on many images, metric by metric.

    Returns:
        One aggregate per key, in the order of the first row; empty if there are no rows.

    Raises:
        DataError: rows have different keys.
    """
    if not rows:
        return {}
    keys = list(rows[0])
    for number, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise DataError(
                f"all rows must have the same metrics, but row 0 has {sorted(keys)} and row {number} has "
                f"{sorted(row)}. Score all images with the same tolerances."
            )
    return {key: aggregate([row[key] for row in rows]) for key in keys}


def bootstrap_intervals(
    values: npt.ArrayLike, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> npt.NDArray[np.float64]:
    """Percentile bootstrap intervals of means over images, with the same resampled images for all metrics.

    Images are drawn one by one: where several come from one patient they are not independent, and the
    interval is too narrow.

    Args:
        values: (n, K) values of K metrics on n images. NaN is left out of the mean of each resample.
        confidence: in (0, 1).
        resamples: how often n images are drawn with replacement.

    Returns:
        (K, 2) lower and upper ends; NaN where fewer than two values are defined or one is infinite.
    """
    table = np.asarray(values, np.float64)
    n = table.shape[0]
    defined = ~np.isnan(table)
    usable = (defined.sum(0) > 1) & ~np.isinf(table).any(0)
    intervals = np.full((table.shape[1], 2), np.nan)
    if not usable.any():
        return intervals
    filled = np.where(defined, table, 0.0)[:, usable]
    present = defined[:, usable].astype(np.float64)
    rng = numpy_rng("bootstrap", seed)
    means = []
    for start in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - start)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)
        with np.errstate(invalid="ignore"):  # a resample may hold undefined images only
            means.append((weights @ filled) / (weights @ present))
    tail = (1 - confidence) / 2
    intervals[usable] = np.nanquantile(np.concatenate(means), [tail, 1 - tail], axis=0).T
    return intervals


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: adjusted p-values in the order given; NaN stays NaN and is not counted."""
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    adjusted = list(p_values)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(order) - rank)))
        adjusted[i] = highest
    return adjusted


def compare_methods(
    first: Sequence[Mapping[str, float]],
    second: Sequence[Mapping[str, float]],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[PairedTest]:
    """Test for each metric whether two methods differ on the same images.

    Both have one row of scores per image, in the same order; the other arguments are those of
    `bootstrap_intervals`.

    Raises:
        DataError: the methods do not have the same images or metrics.
    """
    if len(first) != len(second) or not first or first[0].keys() != second[0].keys():
        raise DataError(
            f"a paired test needs the same metrics on the same images, but the first method has {len(first)} "
            f"images and the second {len(second)}, with metrics {[*map(sorted, [*first[:1], *second[:1]])]}."
        )
    keys = list(first[0])
    a = np.array([[row[key] for key in keys] for row in first])
    b = np.array([[row[key] for key in keys] for row in second])
    with np.errstate(invalid="ignore"):  # infinite minus infinite: undefined, and excluded below
        differences = a - b
    intervals = bootstrap_intervals(differences, confidence=confidence, resamples=resamples, seed=seed)
    columns = [column[~np.isnan(column)] for column in differences.T]
    ranked = [_signed_rank(column) for column in columns]
    corrected = holm([p for p, _ in ranked])
    return [
        PairedTest(
            metric=key,
            n=column.size,
            excluded=len(first) - column.size,
            difference=aggregate(column.tolist()).mean,
            low=float(low),
            high=float(high),
            p=p,
            p_holm=p_holm,
            effect=effect if higher_is_better(key) else 0.0 - effect,
        )
        for key, column, (low, high), (p, effect), p_holm in zip(
            keys, columns, intervals, ranked, corrected, strict=True
        )
    ]


def _signed_rank(differences: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Two-sided p-value and rank-biserial correlation; images without difference are left out."""
    if differences.size == 0:
        return math.nan, math.nan
    moved = differences[differences != 0]
    if moved.size == 0:
        return 1.0, 0.0
    from scipy import stats

    ranks = stats.rankdata(np.abs(moved))
    effect = float(np.sum(ranks * np.sign(moved)) / np.sum(ranks))
    return float(stats.wilcoxon(moved).pvalue), effect
