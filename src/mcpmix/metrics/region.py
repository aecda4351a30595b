"""Region metrics from pixel counts: mIoU, precision, recall, pixel accuracy and DSC.

`count` and `region_scores` work on one pair of masks; `RegionAccumulator` collects the counts of a validation
set while a network trains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError
from mcpmix.metrics.contract import DEFAULT_RULE, REGION_KEYS, EmptyRule, as_pair
from mcpmix.metrics.statistics import summarise

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Counts:
    """Pixel counts of one image, or of many added up: true and false positives and negatives."""

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

    Returns:
        `miou`, `precision`, `recall`, `pixel_accuracy`, `dsc`; `rule` says what 0/0 is.
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
                f"for example `logits > 0`."
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
        named: dict[str, Counts] = {}
        counts: list[Counts] = []
        for name, item in zip(self._names, self._counts, strict=True):
            if name is None or name not in named:
                counts.append(item)
            if name is not None and named.setdefault(name, item) != item:
                raise DataError(f"image {name!r} came twice with different results: {named[name]}, {item}.")
        result = dict.fromkeys([*REGION_KEYS, *(f"pooled_{key}" for key in REGION_KEYS)], math.nan)
        undefined = 0
        if counts:
            means = summarise([region_scores(item, self.rule) for item in counts])
            pooled = region_scores(sum(counts, Counts(0, 0, 0, 0)), self.rule)
            result |= {key: means[key].mean for key in REGION_KEYS}
            result |= {f"pooled_{key}": pooled[key] for key in REGION_KEYS}
            undefined = means["dsc"].undefined
        return result | {"images": float(len(counts)), "undefined": float(undefined)}

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
                self._counts.append(counts_of(truth, prediction, both, pixels))
        self._pending = []
        if odd:
            self.reset()
            raise DataError(
                f"truth must be a hard mask of 0 and 1, but {odd} pixels had other values. Resize masks by "
                f"nearest neighbour and divide 0/255 masks by 255."
            )
