"""Fingerprints of pictures, and pairs that show nearly the same.

A pair counts as nearly the same if two different looks agree: at most 48 of the 256 signs of brightness
differences differ, and small grey versions correlate by at least 0.975. On CVC-ClinicDB this rule finds
neighbouring frames of a video and no pair from two videos; either look alone does not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SIGNS = 16  # rows and columns of signs
SIDE = 32  # of the grey version
MOST_DIFFERENT = 48
LEAST_ALIKE = 0.975
_BLOCK = 512  # rows compared at a time, which bounds memory


@dataclass(frozen=True)
class Fingerprint:
    """Two looks at a picture.

    Attributes:
        signs: (256,) float32 of 0 and 1: whether brightness rises from one cell to the next on its right.
        grey: (1024,) float32 grey levels, mean 0 and norm 1; all 0 for a picture of one grey.
    """

    signs: Floats
    grey: Floats


def fingerprint(image: Bytes) -> Fingerprint:
    """The fingerprint of a picture.

    Args:
        image: (H, W, 3) uint8.
    """
    return assemble(*two_looks(image))


def two_looks(image: Bytes) -> tuple[Bytes, Bytes]:
    """What a fingerprint is made from, in few bytes.

    Args:
        image: (H, W, 3) uint8.

    Returns:
        (256,) uint8 of 0 and 1, the signs, and (1024,) uint8, the grey levels.
    """
    levels = Image.fromarray(image).convert("L")
    cells = np.asarray(levels.resize((SIGNS + 1, SIGNS), Image.Resampling.BOX))
    grey = np.asarray(levels.resize((SIDE, SIDE), Image.Resampling.BOX))
    return (cells[:, 1:] > cells[:, :-1]).ravel().astype(np.uint8), grey.ravel()


def assemble(signs: Bytes, levels: Bytes) -> Fingerprint:
    """The fingerprint of what `two_looks` gave."""
    grey = levels.astype(np.float32)
    grey = grey - grey.mean()
    norm = float(np.linalg.norm(grey))
    return Fingerprint(signs=signs.astype(np.float32), grey=grey / norm if norm > 0 else grey)


@dataclass(frozen=True)
class Match:
    """Two pictures that show nearly the same.

    Attributes:
        first: place in the first list.
        second: place in the second list.
        different: number of signs that differ, 0..256.
        alike: correlation of the grey versions, -1..1.
    """

    first: int
    second: int
    different: int
    alike: float


def matches(first: Sequence[Fingerprint], second: Sequence[Fingerprint]) -> Iterator[Match]:
    """All pairs of one picture from each list that show nearly the same, in the order of the lists."""
    if not first or not second:
        return
    signs = np.stack([item.signs for item in second])
    greys = np.stack([item.grey for item in second])
    for start in range(0, len(first), _BLOCK):
        block = first[start : start + _BLOCK]
        mine = np.stack([item.signs for item in block])
        # Signs that are 1 in one and 0 in the other, counted both ways.
        different = mine @ (1 - signs).T + (1 - mine) @ signs.T
        alike = np.stack([item.grey for item in block]) @ greys.T
        close = (different <= MOST_DIFFERENT) & (alike >= LEAST_ALIKE)
        for row, column in np.argwhere(close).tolist():
            yield Match(start + row, column, int(different[row, column]), float(alike[row, column]))
