"""All metrics of the paper for one pair of masks."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcpmix.metrics import boundary
from mcpmix.metrics.boundary import Boundaries
from mcpmix.metrics.contract import (
    DEFAULT_BAND,
    DEFAULT_RULE,
    DEFAULT_TOLERANCES,
    EmptyRule,
    boundary_keys,
    check_lengths,
)
from mcpmix.metrics.masks import as_pair
from mcpmix.metrics.region import Counts, region_scores


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
    counts, box = boundary.survey(first, second)
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
    measured = boundary.compare(first, second, box, tolerances, band)
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


def percentile_of_union(measured: Boundaries, fraction: float = 0.95) -> float:
    """A percentile of both directed sets of distances in one list, with linear interpolation, in pixels."""
    squared = np.concatenate([measured.truth.squared, measured.prediction.squared])
    position = fraction * (squared.size - 1)
    low = math.floor(position)
    high = min(low + 1, squared.size - 1)
    squared.partition((low, high))
    lower, upper = math.sqrt(squared[low]), math.sqrt(squared[high])
    return lower + (upper - lower) * (position - low)
