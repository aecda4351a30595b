"""Blank, black or burnt-out images, measured against the real ones."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mcpmix.data.cache import Arrays
from mcpmix.generator.copies import CopyCheck, CopyLimits, Distances
from mcpmix.generator.judge import Judge
from mcpmix.generator.ledger import Row

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

_LUMA = np.array([0.299, 0.587, 0.114])
_WHITE = 250 / 255  # brighter counts as burnt out
_MORE_CLIPPED = 0.2  # share of pixels that may be burnt out beyond what real images have, at tolerance 1


@dataclass(frozen=True)
class Exposure:
    """How an image is exposed.

    Attributes:
        mean: mean grey, 0 to 1.
        spread: standard deviation of grey; 0 is a blank image.
        clipped: share of burnt-out pixels.
    """

    mean: float
    spread: float
    clipped: float


def expose(images: Pixels) -> list[Exposure]:
    """Exposure of each of B,S,S,3 uint8 images."""
    grey = images.astype(np.float64) @ _LUMA / 255
    flat = grey.reshape(len(images), -1)
    return [Exposure(float(row.mean()), float(row.std()), float((row >= _WHITE).mean())) for row in flat]


@dataclass(frozen=True)
class ExposureLimits:
    """What an image may look like.

    Attributes:
        darkest: lowest mean grey.
        brightest: highest mean grey.
        flattest: lowest spread.
        clipped: highest share of burnt-out pixels.
    """

    darkest: float
    brightest: float
    flattest: float
    clipped: float

    @classmethod
    def of(cls, images: Pixels, tolerance: float) -> Self:
        """Limits around real images, B,S,S,3 uint8.

        Args:
            images: real ones, at least one.
            tolerance: how far beyond the extremes of the real images, 0 to 1. 0: no further than they go; 1:
                everything. At 0.5 half the mean or spread of the darkest or flattest real image is allowed.
        """
        real = expose(images)
        low = min(item.mean for item in real)
        high = max(item.mean for item in real)
        return cls(
            darkest=low * (1 - tolerance),
            brightest=1 - (1 - high) * (1 - tolerance),
            flattest=min(item.spread for item in real) * (1 - tolerance),
            clipped=max(item.clipped for item in real) + _MORE_CLIPPED * tolerance,
        )

    def problem(self, exposure: Exposure) -> str:
        """Why an image is refused; empty if it is not."""
        if exposure.spread < self.flattest:
            return "blank"
        if exposure.mean < self.darkest:
            return "too dark"
        if exposure.mean > self.brightest:
            return "too bright"
        return "burnt out" if exposure.clipped > self.clipped else ""

    def as_json(self) -> dict[str, float]:
        """The limits by name."""
        return asdict(self)


_DIGITS = 6  # of scores in the ledger


@dataclass(frozen=True)
class Thresholds:
    """What an image has to reach.

    Attributes:
        alignment: lowest Dice of the judge's mask against the true one.
        copy: lowest distances to any training image (see CopyCheck).
        exposure: limits of brightness and contrast.
    """

    alignment: float
    copy: CopyLimits
    exposure: ExposureLimits


@dataclass(frozen=True)
class Verdict:
    """What was measured on one image, and why it is rejected.

    Attributes:
        scores: by name, as they go to the ledger.
        reasons: empty: admitted.
    """

    scores: dict[str, float | str | None]
    reasons: tuple[str, ...] = ()

    @property
    def admitted(self) -> bool:
        """Whether the image comes into the bank."""
        return not self.reasons


class Admission:
    """Judge, copy check and exposure together.

    Args:
        judge: says whether the lesion is under its mask.
        copies: distances in phi.
        arrays: the training images and masks that requests refer to.
        groups: the group of each.
        thresholds: what an image has to reach.
    """

    def __init__(
        self, judge: Judge, copies: CopyCheck, arrays: Arrays, groups: Sequence[str], thresholds: Thresholds
    ) -> None:
        self.judge, self.copies, self.arrays = judge, copies, arrays
        self.groups = tuple(groups)
        self.thresholds = thresholds

    def thresholds_as_json(self) -> dict[str, Any]:
        """The thresholds by name, with what those of copies mean."""
        limits = self.thresholds
        return {
            "alignment": limits.alignment,
            "copy": self.copies.as_json(limits.copy),
            "exposure": limits.exposure.as_json(),
        }

    def unjudgeable(self) -> list[str]:
        """Ids of real training images in which the judge itself does not reach the threshold."""
        real = self.judge.real
        return [name for name in self.arrays.ids if real.get(name, 1.0) < self.thresholds.alignment]

    def assess(self, images: Pixels, sources: Sequence[int]) -> list[Verdict]:
        """A verdict on each image.

        Args:
            images: B,S,S,3 uint8.
            sources: the place of each image's source (and mask) in the training images.
        """
        masks = self.arrays.masks[list(sources)]
        groups = [self.groups[place] for place in sources]
        alignment, contrast = self.judge.scores(images, masks, groups)
        distances = self.copies.measure(self.copies.features(images), images, sources)
        measured = zip(alignment, contrast, distances, expose(images), strict=True)
        return [self._verdict(float(a), float(c), d, e) for a, c, d, e in measured]

    def _verdict(
        self, alignment: float, contrast: float, distances: Distances, exposure: Exposure
    ) -> Verdict:
        reasons = [self.thresholds.exposure.problem(exposure)]
        if alignment < self.thresholds.alignment:
            reasons.append(f"alignment: {alignment:.2f} < {self.thresholds.alignment:.2f}")
        reasons += self.thresholds.copy.problems(distances)
        scores: dict[str, float | str | None] = {
            "alignment": _rounded(alignment),
            "contrast": _rounded(contrast),
            "distance_source": _rounded(distances.source),
            "distance_train": _rounded(distances.train),
            "nearest_train": distances.nearest,
            "distance_held_out": _rounded(distances.held_out),
            "picture_source": _rounded(distances.picture_source),
            "picture_train": _rounded(distances.picture_train),
            "alike_train": distances.alike,
            "mean": _rounded(exposure.mean),
            "spread": _rounded(exposure.spread),
            "clipped": _rounded(exposure.clipped),
        }
        return Verdict(scores, tuple(reason for reason in reasons if reason))


def kind_of(reason: str) -> str:
    """`alignment`, `copy`, `blank`, `too dark` ...: a reason without its figures."""
    return reason.split(":")[0]


def tally(rows: Iterable[Row]) -> dict[str, int]:
    """How many images each kind of reason has rejected; one image may have several."""
    kinds = Counter(kind for row in rows for kind in {kind_of(reason) for reason in row["reasons"]})
    return dict(sorted(kinds.items()))


def _rounded(value: float) -> float | None:
    """For JSON, which has no NaN."""
    return round(value, _DIGITS) if math.isfinite(value) else None
