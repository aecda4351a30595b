"""Fingerprints of pictures, and pairs that show nearly the same.

A pair counts as nearly the same if two different looks agree: at most 48 of the 256 signs of brightness
differences differ, and small grey versions correlate by at least 0.975. On CVC-ClinicDB this rule finds
neighbouring frames of a video and no pair from two videos; either look alone does not.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
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


Phi = Callable[[Bytes], Floats]
"""From (N, 128, 128, 3) uint8 to (N, F) float32."""

PHI_SIDE = 128  # pixels of the squares that phi sees
BATCH = 32
USUAL = 90  # percentile
LEAST_IMAGES = 40  # with fewer, what is usual cannot be told
SHARE = 0.05  # of the usual distance
_IMAGES_PER_AXIS = 4  # whitening along more axes than that would tear copies apart
_LEAST_SPREAD = 1e-3  # of the widest axis, below which an axis is noise
_ROWS = 512  # rows compared at a time, which bounds memory


@dataclass(frozen=True)
class Likeness:
    """Two pictures whose features nearly agree.

    Attributes:
        first: place in the list.
        second: place in the list.
        distance: 1 - cosine of the whitened features, 0..2.
        usual: the 90th percentile of the distances between nearest neighbours of different groups.
    """

    first: int
    second: int
    distance: float
    usual: float


def square(image: Bytes) -> Bytes:
    """A picture of any shape, (H, W, 3) uint8, as phi sees it: (128, 128, 3)."""
    return np.asarray(Image.fromarray(image).resize((PHI_SIDE, PHI_SIDE), Image.Resampling.BOX))


def likenesses(
    features: Floats, groups: Sequence[str], first: Sequence[int], second: Sequence[int]
) -> Iterator[Likeness]:
    """Pairs of one picture from `first` and one from `second` that are alike.

    Args:
        features: (N, F), of the whole data set.
        groups: N names; neighbours within a group say nothing about what is usual.
        first: places in `features`.
        second: places in `features`.

    Yields:
        Pairs in the order of `first`; none if there are fewer than 40 pictures.
    """
    if len(features) < LEAST_IMAGES or not first or not second:
        return
    units = whitened(features)
    usual = _usual_distance(units, groups)
    columns = units[list(second)].T
    for start in range(0, len(first), _ROWS):
        rows = list(first[start : start + _ROWS])
        distances = 1 - units[rows] @ columns
        for row, column in np.argwhere(distances < SHARE * usual).tolist():
            if rows[row] != second[column]:
                distance = max(0.0, float(distances[row, column]))
                yield Likeness(rows[row], second[column], distance, usual)


def whitened(features: Floats) -> Floats:
    """Features, (N, F), with mean 0 and equal spread along at most N / 4 axes, scaled to norm 1: (N, K)."""
    centred = features.astype(np.float64) - features.mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    wide = int((spread > _LEAST_SPREAD * spread[0]).sum()) if spread[0] > 0 else 0
    count = max(1, min(wide, len(features) // _IMAGES_PER_AXIS))
    scores = centred @ (axes[:count] / np.maximum(spread[:count, None], 1e-12)).T
    norms = np.linalg.norm(scores, axis=1, keepdims=True)
    return (scores / np.maximum(norms, 1e-12)).astype(np.float32)


def _usual_distance(units: Floats, groups: Sequence[str]) -> float:
    _, number = np.unique(np.asarray(groups), return_inverse=True)
    nearest = np.full(len(units), np.inf)
    for start in range(0, len(units), _ROWS):
        rows = slice(start, start + _ROWS)
        distances = 1 - units[rows] @ units.T
        distances[number[rows, None] == number[None]] = np.inf
        nearest[rows] = distances.min(axis=1)
    known = nearest[np.isfinite(nearest)]  # all in one group: nothing is usual
    return float(np.percentile(known, USUAL)) if len(known) else 0.0


def look_of(image: Bytes) -> str:
    """The two looks of the audit's fingerprint, as 1408 characters.

    Args:
        image: (H, W, 3) uint8.
    """
    signs, levels = two_looks(image)
    return base64.b64encode(np.packbits(signs).tobytes() + levels.tobytes()).decode()


def fingerprint_from(look: str) -> Fingerprint:
    """The fingerprint that the audit would take of the image itself."""
    content = np.frombuffer(base64.b64decode(look), dtype=np.uint8)
    packed = SIGNS * SIGNS // 8
    return assemble(np.unpackbits(content[:packed]), content[packed:])
