"""All metrics of the paper for one pair of masks, and the exact distances between their boundaries.

The boundary of a mask is its foreground pixels with at least one of four neighbours outside; beyond the image
is outside.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mcpmix.metrics import kernels
from mcpmix.metrics.contract import (
    DEFAULT_BAND,
    DEFAULT_RULE,
    DEFAULT_TOLERANCES,
    EmptyRule,
    Mask,
    as_pair,
    boundary_keys,
    check_lengths,
    squared_limit,
)
from mcpmix.metrics.region import Counts, counts_of, region_scores

_NARROW_SIDE = 1 << 14  # below it `_FAR[uint16]` exceeds any distance and distances still fit 16 bits
_FAR = {np.dtype(np.uint16): 1 << 15, np.dtype(np.uint32): 1 << 30}
_KEPT_BYTES = 1 << 24  # larger workspaces are given back after the call

Frame = tuple[int, int, int, int]
"""First row, row after the last, first column, column after the last."""


def score(
    truth: npt.ArrayLike,
    prediction: npt.ArrayLike,
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    band: float = DEFAULT_BAND,
    rule: EmptyRule = DEFAULT_RULE,
) -> dict[str, float]:
    """Score one predicted mask against the true one, with every metric of the paper.

    Masks are hard: booleans, or numbers that are only 0 and 1 or only 0 and 255. The boundary of a mask is
    its foreground pixels with one of four neighbours outside, where beyond the image is outside. Distances
    are exact and in pixels, everything else is in percent. What each metric is for empty masks is the table
    of `mcpmix.metrics.contract`: with the default rule a missed lesion and a false alarm are 0 percent and
    the image diagonal, and NaN appears only when truth and prediction are both empty.

    Safe to call from several threads at once.

    Args:
        truth: (H, W) hard mask.
        prediction: (H, W) hard mask of the same size.
        tolerances: lengths in pixels for boundary precision, recall and F1.
        band: radius in pixels of the bands that boundary IoU compares.
        rule: what the metrics are when masks are empty.

    Returns:
        `miou precision recall pixel_accuracy dsc hd95 assd`, then `bp_t br_t bf1_t` for each tolerance `t`,
        then `biou`.

    Raises:
        DataError: the arrays are not two hard masks of one shape.
        ConfigError: a tolerance or the band is not a length.
    """
    return score_with_counts(truth, prediction, tolerances, band, rule)[0]


def score_with_counts(
    truth: npt.ArrayLike,
    prediction: npt.ArrayLike,
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    band: float = DEFAULT_BAND,
    rule: EmptyRule = DEFAULT_RULE,
) -> tuple[dict[str, float], Counts]:
    """The scores of `score`, and the pixel counts from which pooled scores are made."""
    check_lengths(tolerances, band)
    first, second = as_pair(truth, prediction)
    counts, box = survey(first, second)
    scores = region_scores(counts, rule)
    if counts.truth_empty or counts.prediction_empty:
        # With one boundary missing, its band and the pixels near it are none: F1 and boundary IoU are 0 by
        # their formulas, and of precision and recall one is 0 and the other 0/0.
        undefined = rule.share(counts.truth_empty, counts.prediction_empty)
        overlap = undefined if counts.truth_empty and counts.prediction_empty else 0.0
        precision = undefined if counts.prediction_empty else 0.0
        recall = undefined if counts.truth_empty else 0.0
        shares = zip(boundary_keys(tolerances), (precision, recall, overlap) * len(tolerances), strict=True)
        distance = rule.distance(counts.truth_empty, counts.prediction_empty, *first.shape)
        return scores | {"hd95": distance, "assd": distance, **dict(shares), "biou": overlap}, counts
    measured = compare(first, second, box, tolerances, band)
    scores["hd95"] = percentile_of_union(measured)
    scores["assd"] = (measured.truth.mean + measured.prediction.mean) / 2
    for tolerance, near_prediction, near_truth in zip(
        tolerances, measured.prediction.within, measured.truth.within, strict=True
    ):
        precision = 100.0 * near_prediction / measured.prediction.size
        recall = 100.0 * near_truth / measured.truth.size
        total = precision + recall
        f1 = 2 * precision * recall / total if total else 0.0
        scores |= zip(boundary_keys([tolerance]), (precision, recall, f1), strict=True)
    scores["biou"] = 100.0 * measured.band_both / measured.band_either
    return scores, counts


def percentile_of_union(measured: "Boundaries", fraction: float = 0.95) -> float:
    """A percentile of both directed sets of distances in one list, with linear interpolation, in pixels."""
    squared = np.concatenate([measured.truth.squared, measured.prediction.squared])
    position = fraction * (squared.size - 1)
    low = math.floor(position)
    high = min(low + 1, squared.size - 1)
    squared.partition((low, high))
    lower, upper = math.sqrt(squared[low]), math.sqrt(squared[high])
    return lower + (upper - lower) * (position - low)


@dataclass(frozen=True)
class Directed:
    """Distances from the boundary of one mask to that of another.

    Attributes:
        squared: (n,) squared distances in pixels^2, one per boundary pixel of the first mask.
        total: sum of the distances in pixels.
        within: how many distances are at most each tolerance.
    """

    squared: npt.NDArray[np.int64]
    total: float
    within: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of boundary pixels."""
        return int(self.squared.size)

    @property
    def mean(self) -> float:
        """Mean distance in pixels."""
        return self.total / self.size


@dataclass(frozen=True)
class Boundaries:
    """What boundary metrics are made of, for two masks that both have foreground.

    Attributes:
        truth: distances from the boundary of the truth to that of the prediction.
        prediction: distances from the boundary of the prediction to that of the truth.
        band_both: pixels in the bands around both boundaries.
        band_either: pixels in at least one of the two bands.
    """

    truth: Directed
    prediction: Directed
    band_both: int
    band_either: int


class _Workspace(threading.local):
    """Memory that one thread uses again from call to call, so that no page is faulted in twice."""

    def __init__(self) -> None:
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array with unspecified content, valid until the same name is taken again in this thread."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = np.empty(size, np.uint8)
            if size <= _KEPT_BYTES:
                self._buffers[name] = buffer
        return buffer[:size].view(dtype).reshape(shape)


_workspace = _Workspace()


def survey(truth: Mask, prediction: Mask) -> tuple[Counts, Frame]:
    """Count two masks and find the box of their foregrounds. Both are (H, W), of 0 and 1, C-contiguous."""
    columns = _workspace.take("columns", (truth.shape[1],), np.uint8)
    ones_truth, ones_prediction, ones_both, *box = kernels.survey(truth, prediction, columns)
    top, bottom, left, right = box
    return counts_of(ones_truth, ones_prediction, ones_both, truth.size), (top, bottom, left, right)


def compare(
    truth: Mask, prediction: Mask, box: Frame, tolerances: Sequence[float], band: float
) -> Boundaries:
    """Measure two masks that both have foreground, as `survey` takes them, in the box that it found.

    Tolerances of boundary precision and recall, and the radius of the band, are in pixels.
    """
    margin = math.floor(band)
    top, left = max(box[0] - margin, 0), max(box[2] - margin, 0)
    height = min(box[1] + margin, truth.shape[0]) - top
    width = min(box[3] + margin, truth.shape[1]) - left
    gap_type = np.dtype(np.uint16 if max(height, width) < _NARROW_SIDE else np.uint32)
    traced = []
    for name, mask in (("truth", truth), ("prediction", prediction)):
        border = _workspace.take(f"border {name}", (height, width), np.uint8)
        gaps = _workspace.take(f"gaps {name}", (height, width), gap_type)
        padded = _workspace.take("padded", (height + 2, width + 2), np.uint8)
        kernels.outline(mask, top, left, padded, border)
        kernels.measure_columns(border, _FAR[gap_type], gaps)
        traced.append((border, gaps))
    (truth_border, truth_gaps), (prediction_border, prediction_gaps) = traced
    from_truth = _measure(truth_border, prediction_gaps, tolerances)
    from_prediction = _measure(prediction_border, truth_gaps, tolerances)
    # The boundaries are measured: their memory now takes the bands.
    # How far a disc of this radius goes up and down at each horizontal offset 0, 1, ...
    limit = squared_limit(band)
    offsets = range(min(math.isqrt(limit), width) + 1)
    reach = np.array([min(math.isqrt(limit - x * x), _FAR[gap_type] - 1) for x in offsets], gap_type)
    kernels.mark_band(truth_gaps, reach, truth_border)
    kernels.mark_band(prediction_gaps, reach, prediction_border)
    sizes = np.count_nonzero(truth_border) + np.count_nonzero(prediction_border)
    both = np.count_nonzero(np.bitwise_and(truth_border, prediction_border, out=truth_border))
    return Boundaries(from_truth, from_prediction, int(both), int(sizes - both))


def boundary_distances(
    truth: npt.ArrayLike, prediction: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Distances in pixels between the boundaries of two (H, W) hard masks.

    Returns:
        From each boundary pixel of the truth to the nearest one of the prediction, and the other way round.
        If a mask has no foreground, distances to it are infinite and those from it an empty array.

    Raises:
        DataError: the arrays are not two hard masks of one shape.
    """
    first, second = as_pair(truth, prediction)
    counts, box = survey(first, second)
    if not (counts.truth_empty or counts.prediction_empty):
        result = compare(first, second, box, (), 0.0)
        return np.sqrt(result.truth.squared), np.sqrt(result.prediction.squared)
    sizes = [
        0 if empty else compare(mask, mask, box, (), 0.0).truth.squared.size
        for mask, empty in ((first, counts.truth_empty), (second, counts.prediction_empty))
    ]
    return np.full(sizes[0], np.inf), np.full(sizes[1], np.inf)


def _measure(border: Mask, gaps: npt.NDArray[Any], tolerances: Sequence[float]) -> Directed:
    pixels = np.flatnonzero(border.view(np.bool_))
    squared = np.empty(pixels.size, np.int64)
    total = kernels.measure(pixels, gaps, squared)
    if total < 0:
        total = kernels.measure_rows(pixels, gaps, squared, np.empty((3, gaps.shape[1]), np.int64))
    within = (int(np.count_nonzero(squared <= squared_limit(tolerance))) for tolerance in tolerances)
    return Directed(squared, total, tuple(within))
