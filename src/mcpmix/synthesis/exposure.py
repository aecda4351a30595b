"""Blank, black or burnt-out images, measured against the real ones."""

from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

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
