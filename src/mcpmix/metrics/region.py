"""Region metrics from pixel counts: mIoU, precision, recall, pixel accuracy and DSC."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.metrics.contract import DEFAULT_RULE, EmptyRule
from mcpmix.metrics.masks import as_pair


@dataclass(frozen=True)
class Counts:
    """Pixel counts of one image, or of many added up.

    Attributes:
        tp: foreground in truth and prediction.
        fp: foreground in the prediction only.
        fn: foreground in the truth only.
        tn: background in both.
    """

    tp: int
    fp: int
    fn: int
    tn: int

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
    """Pixel counts of one pair of hard masks, both (H, W).

    Raises:
        DataError: the arrays are not two hard masks of one shape.
    """
    first, second = as_pair(truth, prediction)
    both = int(np.count_nonzero(first & second))
    return counts_of(int(np.count_nonzero(first)), int(np.count_nonzero(second)), both, first.size)


def counts_of(truth_ones: int, prediction_ones: int, common_ones: int, pixels: int) -> Counts:
    """Pixel counts from the sizes of the foregrounds, of their intersection and of the image."""
    return Counts(
        tp=common_ones,
        fp=prediction_ones - common_ones,
        fn=truth_ones - common_ones,
        tn=pixels - truth_ones - prediction_ones + common_ones,
    )


def region_scores(counts: Counts, rule: EmptyRule = DEFAULT_RULE) -> dict[str, float]:
    """The region metrics of some pixel counts, in percent.

    Given the counts of one image, the scores of that image; given the sum over a data set, the pooled scores.

    Args:
        counts: pixel counts; at least one pixel.
        rule: what 0/0 is.

    Returns:
        `miou`, `precision`, `recall`, `pixel_accuracy`, `dsc`.
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
