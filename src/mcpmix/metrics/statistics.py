"""Metrics over many images: means with counts, intervals, paired tests, KID, and streams while training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError
from mcpmix.core.seeds import numpy_rng
from mcpmix.metrics.contract import DEFAULT_RULE, REGION_KEYS, EmptyRule, higher_is_better
from mcpmix.metrics.suite import Counts, region_scores

if TYPE_CHECKING:
    import torch

_CHUNK = 256  # resamples at a time, so that memory does not grow with their number


@dataclass(frozen=True)
class Aggregate:
    """One metric over many images."""

    mean: float  # of the defined values; NaN if there is none
    sd: float  # sample standard deviation (n - 1) of the defined values; NaN for fewer than two
    n: int  # images with a defined value
    undefined: int  # images whose value is NaN; they are in neither mean nor sd

    def __str__(self) -> str:
        note = f", {self.undefined} undefined" if self.undefined else ""
        return f"{self.mean:.2f} ± {self.sd:.2f} (n={self.n}{note})"


@dataclass(frozen=True)
class Difference:
    """One metric of two methods on the same images: first minus second."""

    n: int  # images on which both are defined
    mean: float
    low: float  # ends of the bootstrap interval over images
    high: float
    p: float  # two-sided Wilcoxon signed-rank test over images; 1 if none differs
    effect: float  # matched-pairs rank-biserial correlation in [-1, 1]; positive if the first is larger
    group_low: float = math.nan  # ends of the interval over groups, if there are any
    group_high: float = math.nan


@dataclass(frozen=True)
class PairedTest:
    """One metric of two methods on the same images."""

    metric: str
    n: int  # images on which both methods have a defined value
    excluded: int  # images left out because a method is undefined there
    difference: float  # mean of first minus second, in the unit of the metric
    low: float  # ends of the bootstrap interval of the difference
    high: float
    p: float  # two-sided Wilcoxon signed-rank test; 1 if no image differs
    p_holm: float  # the same after Holm's correction over all metrics tested together
    # Matched-pairs rank-biserial correlation in [-1, 1]; positive if the first method is better, whichever
    # direction is better for the metric.
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
    values: npt.ArrayLike,
    *,
    groups: Sequence[str] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> npt.NDArray[np.float64]:
    """Percentile bootstrap intervals of means over images, with the same resampled images for all metrics.

    Images are drawn one by one: where several come from one patient they are not independent, and the
    interval is too narrow. With `groups`, whole groups are drawn.

    Args:
        values: (n, K) values of K metrics on n images. NaN is left out of the mean of each resample.
        groups: n names, of the patient or sequence that each image comes from.
        confidence: in (0, 1).
        resamples: how often n images, or all groups, are drawn with replacement.

    Returns:
        (K, 2) lower and upper ends; NaN where fewer than two values, or values of fewer than two groups, are
        defined, or one is infinite.
    """
    table = np.asarray(values, np.float64)
    defined = ~np.isnan(table)
    present = defined.astype(np.float64)
    infinite = np.isinf(table).any(0)
    filled = np.where(defined & ~infinite, table, 0.0)
    if groups is not None:  # a group counts as the sum of its images
        names, member = np.unique(np.asarray(groups), return_inverse=True)
        belongs = (member == np.arange(len(names))[:, None]).astype(np.float64)
        filled, present = belongs @ filled, belongs @ present
    n = len(filled)
    usable = ((present > 0).sum(0) > 1) & ~infinite
    intervals = np.full((table.shape[1], 2), np.nan)
    if not usable.any():
        return intervals
    filled, present = filled[:, usable], present[:, usable]
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
    first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]
) -> list[PairedTest]:
    """Test for each metric whether two methods differ on the same images, given in the same order."""
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
    found = paired_differences(differences)
    corrected = holm([item.p for item in found])
    return [
        PairedTest(
            metric=key,
            n=item.n,
            excluded=len(first) - item.n,
            difference=item.mean,
            low=item.low,
            high=item.high,
            p=item.p,
            p_holm=p_holm,
            effect=item.effect if higher_is_better(key) else 0.0 - item.effect,
        )
        for key, item, p_holm in zip(keys, found, corrected, strict=True)
    ]


def paired_differences(
    differences: npt.NDArray[np.float64], groups: Sequence[str] | None = None
) -> list[Difference]:
    """What (n, K) differences on n images say about each of K comparisons; NaN is left out.

    Args:
        groups: n names, for intervals over groups beside those over images.
    """
    from scipy import stats

    intervals = bootstrap_intervals(differences)
    grouped = np.full_like(intervals, np.nan)
    if groups is not None:
        grouped = bootstrap_intervals(differences, groups=groups)
    found = []
    rows = zip(differences.T, intervals.tolist(), grouped.tolist(), strict=True)
    for values, (low, high), (group_low, group_high) in rows:
        column = values[~np.isnan(values)]
        p, effect = (1.0, 0.0) if column.size else (math.nan, math.nan)
        moved = column[column != 0]  # images without difference have no rank
        if moved.size:
            ranks = stats.rankdata(np.abs(moved))
            effect = float(np.sum(ranks * np.sign(moved)) / np.sum(ranks))
            p = float(stats.wilcoxon(moved).pvalue)
        mean = aggregate(column.tolist()).mean
        found.append(Difference(column.size, mean, low, high, p, effect, group_low, group_high))
    return found


class KID(NamedTuple):
    """A kernel distance, and its standard error by leaving out one synthetic image at a time.

    The estimate is unbiased: 0 in the mean for two samples of one distribution, so it may be negative.
    """

    value: float
    error: float


def kid(synthetic: npt.ArrayLike, real: npt.ArrayLike) -> KID:
    """Kernel distance between two sets of features: squared MMD, unbiased, kernel `(a.b / F + 1)^3`.

    All pairs are used at once, without the random subsets that large sets are usually cut into: it is exact
    and does not depend on draws. Values compare only under the same phi and the same real images.

    Args:
        synthetic: n,F features, n of 3 or more.
        real: m,F features, m of 2 or more.

    Raises:
        DataError: the shapes do not fit or there are too few images.
    """
    x, y = np.asarray(synthetic, np.float64), np.asarray(real, np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or len(x) < 3 or len(y) < 2:
        raise DataError(
            "kid expects features (n, F) of 3 or more synthetic and (m, F) of 2 or more real images; "
            f"got {x.shape} and {y.shape}."
        )
    n, m = len(x), len(y)
    within, across, apart = ((a @ b.T / x.shape[1] + 1) ** 3 for a, b in ((x, x), (x, y), (y, y)))
    np.fill_diagonal(within, 0.0)
    of_real = (apart.sum() - apart.trace()) / (m * (m - 1))
    value = within.sum() / (n * (n - 1)) + of_real - 2 * across.sum() / (n * m)
    # The same without image i: its row and its column leave the sum within, its row the sum across.
    left = (within.sum() - 2 * within.sum(axis=1)) / ((n - 1) * (n - 2))
    left += of_real - 2 * (across.sum() - across.sum(axis=1)) / ((n - 1) * m)
    error = np.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())
    return KID(float(value), float(error))


class RegionAccumulator:
    """Collects pixel counts of images and reports region metrics over all of them.

    Per image four integers are kept. Counting happens on the device of the tensors and does not wait for it;
    numbers come to the CPU when they are asked for. Merging the accumulators of several processes, in any
    order, gives bit for bit the numbers of one process that saw all images.

    >>> accumulator = RegionAccumulator()
    >>> for images, masks in loader:                        # doctest: +SKIP
    ...     accumulator.update(network(images) > 0, masks)  # logits > 0 is probability > 0.5
    >>> accumulator.compute()["dsc"]                        # doctest: +SKIP
    """

    def __init__(self, rule: EmptyRule = DEFAULT_RULE) -> None:
        self.rule = rule
        self._counts: list[Counts] = []
        self._names: list[str | None] = []
        self._pending: list[tuple[torch.Tensor, int]] = []

    def update(
        self, prediction: "torch.Tensor", truth: "torch.Tensor", names: Sequence[str] | None = None
    ) -> None:
        """Add a batch.

        Args:
            prediction: (B, 1, H, W) or (B, H, W) boolean mask, for example `logits > 0`.
            truth: hard masks of the same shape on the same device: boolean, or numbers 0 and 1.
            names: (B,) one name per image. Images with names are counted once, however often they come:
                samplers of several processes repeat images to make their shares equal.

        Raises:
            DataError: wrong type or shape. That a truth is not 0 or 1 is found when results are asked for, so
                that no step waits for the device.
        """
        import torch

        if prediction.dtype != torch.bool:
            raise DataError(
                f"prediction must be a boolean mask, but its type is {prediction.dtype}. Threshold it first, "
                "for example `logits > 0`."
            )
        if prediction.shape != truth.shape or prediction.ndim not in (3, 4) or prediction.numel() == 0:
            raise DataError(
                f"prediction and truth must both be (B, 1, H, W) or (B, H, W) and not empty, but are "
                f"{tuple(prediction.shape)} and {tuple(truth.shape)}."
            )
        if prediction.ndim == 4 and prediction.shape[1] != 1:
            raise DataError(f"masks must have one channel, but their shape is {tuple(prediction.shape)}.")
        if names is not None and len(names) != len(prediction):
            raise DataError(
                f"names must have one entry per image, but {len(names)} came for {len(prediction)}."
            )
        ones = truth if truth.dtype == torch.bool else truth == 1
        sums = [mask.flatten(1).sum(1) for mask in (ones, prediction, ones & prediction)]
        odd = torch.zeros_like(sums[0]) if ones is truth else (truth != 0).flatten(1).sum(1) - sums[0]
        self._pending.append((torch.stack([*sums, odd], 1), prediction[0].numel()))
        self._names += names if names is not None else [None] * len(prediction)

    def compute(self) -> dict[str, float]:
        """The metrics over all images so far, in percent.

        Returns:
            `miou precision recall pixel_accuracy dsc`: mean over images; the same with `pooled_` in front: of
            the pixel counts of all images together; `images`: how many; `undefined`: on how many the DSC is
            undefined and left out of its mean. NaN where there is no image.

        Raises:
            DataError: a truth was not a hard mask, or one name came with two results.
        """
        self._settle()
        images: dict[str | int, Counts] = {}  # by name; an image without one is known by its place
        for place, (name, item) in enumerate(zip(self._names, self._counts, strict=True)):
            key = place if name is None else name
            if images.setdefault(key, item) != item:
                raise DataError(f"image {name!r} came twice with different results: {images[key]}, {item}.")
        counts = list(images.values())
        scores = [region_scores(item, self.rule) for item in counts]
        means = {key: aggregate([row[key] for row in scores]) for key in REGION_KEYS}
        pooled = dict.fromkeys(REGION_KEYS, math.nan)
        if counts:
            pooled = region_scores(sum(counts, Counts(0, 0, 0, 0)), self.rule)
        return {
            **{key: item.mean for key, item in means.items()},
            **{f"pooled_{key}": value for key, value in pooled.items()},
            "images": float(len(counts)),
            "undefined": float(means["dsc"].undefined),
        }

    def merge(self, other: "RegionAccumulator") -> None:
        """Add all images of another accumulator."""
        self._settle()
        other._settle()
        self._counts += other._counts
        self._names += other._names

    def reset(self) -> None:
        """Forget all images."""
        self._counts, self._names, self._pending = [], [], []

    def state_dict(self) -> dict[str, Any]:
        """All counts as plain lists, to send to another process or to store as JSON."""
        self._settle()
        rows = [[item.tp, item.fp, item.fn, item.tn] for item in self._counts]
        return {"counts": rows, "names": list(self._names)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all counts by those of a `state_dict`."""
        self.reset()
        self._counts = [Counts(*row) for row in state["counts"]]
        self._names = list(state["names"])

    def _settle(self) -> None:
        """Bring the counts of all batches to the CPU and check them."""
        odd = 0
        for sums, pixels in self._pending:
            for truth, prediction, both, wrong in sums.tolist():
                odd += wrong
                self._counts.append(Counts.of(truth, prediction, both, pixels))
        self._pending = []
        if odd:
            self.reset()
            raise DataError(
                f"truth must be a hard mask of 0 and 1, but {odd} pixels had other values. Resize masks by "
                f"nearest neighbour and divide 0/255 masks by 255."
            )
