"""All metrics of the paper for one pair of masks: from pixel counts, and from distances between boundaries.

The boundary of a mask is its foreground pixels with at least one of four neighbours outside; beyond the image
is outside.

The kernels are imported where they are called: numba, which compiles them, takes a while to load.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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

_NARROW_SIDE = 1 << 14  # below it `_FAR[uint16]` exceeds any distance and distances still fit 16 bits
_FAR = {np.dtype(np.uint16): 1 << 15, np.dtype(np.uint32): 1 << 30}
_KEPT_BYTES = 1 << 24  # larger workspaces are given back after the call

Distances = npt.NDArray[np.int64]
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

    Distances are exact and in pixels, everything else is in percent. What each metric is for empty masks is
    the table of `mcpmix.metrics.contract`: with the default rule a missed lesion and a false alarm are 0
    percent and the image diagonal, and NaN appears only when truth and prediction are both empty.

    Safe to call from several threads at once.

    Args:
        truth: (H, W) hard mask: booleans, or numbers that are only 0 and 1 or only 0 and 255.
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
) -> tuple[dict[str, float], "Counts"]:
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
    measured = compare(first, second, box, band)
    # HD95: of both directed sets in one list, interpolated linearly between distances, not their squares.
    union = np.concatenate([measured.truth, measured.prediction])
    position = 0.95 * (union.size - 1)
    low = math.floor(position)
    high = min(low + 1, union.size - 1)
    union.partition((low, high))
    lower, upper = math.sqrt(union[low]), math.sqrt(union[high])
    scores["hd95"] = lower + (upper - lower) * (position - low)
    means = measured.truth_total / measured.truth.size, measured.prediction_total / measured.prediction.size
    scores["assd"] = sum(means) / 2
    for tolerance in tolerances:
        limit = squared_limit(tolerance)
        precision, recall = (
            100.0 * int(np.count_nonzero(squared <= limit)) / squared.size
            for squared in (measured.prediction, measured.truth)
        )
        total = precision + recall
        f1 = 2 * precision * recall / total if total else 0.0
        scores |= zip(boundary_keys([tolerance]), (precision, recall, f1), strict=True)
    scores["biou"] = 100.0 * measured.band_both / measured.band_either
    return scores, counts


# --- regions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Pixel counts of one image, or of many added up: true and false positives and negatives."""

    tp: int
    fp: int
    fn: int
    tn: int

    @classmethod
    def of(cls, truth_ones: int, prediction_ones: int, common_ones: int, pixels: int) -> "Counts":
        """From the sizes of the foregrounds, of their intersection and of the image."""
        fp, fn = prediction_ones - common_ones, truth_ones - common_ones
        return cls(common_ones, fp, fn, pixels - truth_ones - fp)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.tp + other.tp, self.fp + other.fp, self.fn + other.fn, self.tn + other.tn)

    @property
    def truth_empty(self) -> bool:
        """Whether the truth has no foreground."""
        return self.tp + self.fn == 0

    @property
    def prediction_empty(self) -> bool:
        """Whether the prediction has no foreground."""
        return self.tp + self.fp == 0


def count(truth: npt.ArrayLike, prediction: npt.ArrayLike) -> Counts:
    """Pixel counts of one pair of hard masks, both (H, W)."""
    return survey(*as_pair(truth, prediction))[0]


def region_scores(counts: Counts, rule: EmptyRule = DEFAULT_RULE) -> dict[str, float]:
    """The region metrics of some pixel counts, in percent: `miou precision recall pixel_accuracy dsc`.

    Given the counts of one image, the scores of that image; given the sum over a data set, the pooled scores.
    """
    undefined = rule.share(counts.truth_empty, counts.prediction_empty)

    def percent(part: int, whole: int) -> float:
        return 100.0 * part / whole if whole else undefined

    wrong = counts.fp + counts.fn
    ious = [100.0 * hit / (hit + wrong) for hit in (counts.tp, counts.tn) if hit + wrong]
    return {
        "miou": sum(ious) / len(ious),
        "precision": percent(counts.tp, counts.tp + counts.fp),
        "recall": percent(counts.tp, counts.tp + counts.fn),
        "pixel_accuracy": 100.0 * (counts.tp + counts.tn) / (counts.tp + counts.tn + wrong),
        "dsc": percent(2 * counts.tp, 2 * counts.tp + wrong),
    }


# --- boundaries ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boundaries:
    """What boundary metrics are made of, for two masks that both have foreground."""

    truth: Distances  # squared, from each boundary pixel of the truth to the nearest of the prediction
    prediction: Distances  # the other way round
    truth_total: float  # sum of the distances, in pixels
    prediction_total: float
    band_both: int  # pixels in the bands around both boundaries
    band_either: int  # pixels in at least one of them


def boundary_distances(
    truth: npt.ArrayLike, prediction: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Distances in pixels between the boundaries of two (H, W) hard masks.

    Returns:
        From each boundary pixel of the truth to the nearest one of the prediction, and the other way round.
        If a mask has no foreground, distances to it are infinite and those from it an empty array.
    """
    first, second = as_pair(truth, prediction)
    counts, box = survey(first, second)
    if not (counts.truth_empty or counts.prediction_empty):
        result = compare(first, second, box)
        return np.sqrt(result.truth), np.sqrt(result.prediction)
    sizes = [
        0 if empty else compare(mask, mask, box).truth.size
        for mask, empty in ((first, counts.truth_empty), (second, counts.prediction_empty))
    ]
    return np.full(sizes[0], np.inf), np.full(sizes[1], np.inf)


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
    from mcpmix.metrics import kernels

    columns = _workspace.take("columns", (truth.shape[1],), np.uint8)
    ones_truth, ones_prediction, ones_both, *box = kernels.survey(truth, prediction, columns)
    top, bottom, left, right = box
    return Counts.of(ones_truth, ones_prediction, ones_both, truth.size), (top, bottom, left, right)


def compare(truth: Mask, prediction: Mask, box: Frame, band: float = 0.0) -> Boundaries:
    """Measure two masks that both have foreground, as `survey` takes them, in the box that it found.

    The radius of the band is in pixels.
    """
    from mcpmix.metrics import kernels

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
    from_truth, truth_total = _measure(truth_border, prediction_gaps)
    from_prediction, prediction_total = _measure(prediction_border, truth_gaps)
    # The boundaries are measured: their memory now takes the bands.
    # How far a disc of this radius goes up and down at each horizontal offset 0, 1, ...
    limit = squared_limit(band)
    offsets = range(min(math.isqrt(limit), width) + 1)
    reach = np.array([min(math.isqrt(limit - x * x), _FAR[gap_type] - 1) for x in offsets], gap_type)
    kernels.mark_band(truth_gaps, reach, truth_border)
    kernels.mark_band(prediction_gaps, reach, prediction_border)
    sizes = np.count_nonzero(truth_border) + np.count_nonzero(prediction_border)
    both = np.count_nonzero(np.bitwise_and(truth_border, prediction_border, out=truth_border))
    return Boundaries(
        from_truth, from_prediction, truth_total, prediction_total, int(both), int(sizes - both)
    )


def _measure(border: Mask, gaps: npt.NDArray[Any]) -> tuple[Distances, float]:
    """Squared distances from the pixels of a border to another boundary, and the sum of their roots."""
    from mcpmix.metrics import kernels

    pixels = np.flatnonzero(border.view(np.bool_))
    squared = np.empty(pixels.size, np.int64)
    total = kernels.measure(pixels, gaps, squared)
    if total < 0:
        total = kernels.measure_rows(pixels, gaps, squared, np.empty((3, gaps.shape[1]), np.int64))
    return squared, total
