"""Several classes: each against all others with the metrics of one pair of masks, and their mean.

The mean of an image is over the classes that are in its truth, in its prediction or in both. A class that is
in neither is left out, whatever the rule for empty masks says: an image without a class tells nothing about
finding it. Where no class is left, the mean is over all of them, and so what two empty masks have.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.metrics.contract import DEFAULT_BAND, DEFAULT_RULE, DEFAULT_TOLERANCES, EmptyRule
from mcpmix.metrics.statistics import aggregate
from mcpmix.metrics.suite import Counts, count, region_scores, score_with_counts

Labels = npt.NDArray[np.integer[Any]]


class ClassScores(NamedTuple):
    """The scores of one image."""

    mean: dict[str, float]
    """Each metric of `score`, its mean over the classes."""
    classes: dict[str, dict[str, float]]
    """By class, what `score` gives for it against everything else."""
    counts: dict[str, Counts]
    """By class, the pixel counts from which pooled scores are made."""


def score_classes(
    truth: npt.ArrayLike,
    prediction: npt.ArrayLike,
    classes: Sequence[str],
    tolerances: Sequence[float] = DEFAULT_TOLERANCES,
    band: float = DEFAULT_BAND,
    rule: EmptyRule = DEFAULT_RULE,
) -> ClassScores:
    """Score one predicted label map against the true one; arguments beyond the maps are those of `score`.

    Args:
        truth: (H, W) whole numbers: 0 is background, 1 ... the classes.
        prediction: the same of the prediction.
        classes: names of the labels 1, 2, ...

    Raises:
        DataError: the arrays are not two label maps of one shape.
    """
    maps = as_labels(truth, prediction, len(classes) + 1)
    scored = {
        name: score_with_counts(maps[0] == label, maps[1] == label, tolerances, band, rule)
        for label, name in enumerate(classes, 1)
    }
    scores = {name: found for name, (found, _) in scored.items()}
    counts = {name: found for name, (_, found) in scored.items()}
    return ClassScores(mean_over_classes([*scores.values()], [*counts.values()]), scores, counts)


def class_regions(truth: npt.ArrayLike, prediction: npt.ArrayLike, labels: int) -> dict[str, float]:
    """The region metrics of `ClassScores.mean`, which are quick; so many labels, background included."""
    maps = as_labels(truth, prediction, labels)
    counts = [count(maps[0] == label, maps[1] == label) for label in range(1, labels)]
    return mean_over_classes([region_scores(item) for item in counts], counts)


def mean_over_classes(scores: Sequence[dict[str, float]], counts: Sequence[Counts]) -> dict[str, float]:
    """Each metric as its mean over classes, of an image or of pooled pixels; see the top of this module."""
    there = [row for row, item in zip(scores, counts, strict=True) if item.tp + item.fp + item.fn]
    return {key: aggregate([row[key] for row in there or scores]).mean for key in scores[0]}


def as_labels(truth: npt.ArrayLike, prediction: npt.ArrayLike, labels: int) -> tuple[Labels, Labels]:
    """Two label maps (H, W) of one image, of the values 0 to `labels` - 1."""
    maps = np.asarray(truth), np.asarray(prediction)
    problems = []
    for name, values in zip(("truth", "prediction"), maps, strict=True):
        if values.ndim != 2 or values.size == 0 or values.dtype.kind not in "ui":
            problems.append(f"{name} is {values.dtype} {values.shape}; expected whole numbers (H, W)")
        elif values.min() < 0 or values.max() >= labels:
            odd = [value for value in np.unique(values).tolist() if not 0 <= value < labels]
            problems.append(
                f"{name} holds {', '.join(map(str, odd[:6]))}; expected 0 (background) to {labels - 1}"
            )
    if not problems and maps[0].shape != maps[1].shape:
        problems.append(f"truth is {maps[0].shape} and prediction is {maps[1].shape}; expected one shape")
    if problems:
        raise DataError(bullet_list("These are not two label maps of one image:", problems))
    return maps
