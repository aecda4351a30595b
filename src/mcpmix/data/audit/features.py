"""Pictures that a feature network takes for nearly the same: mirrored, turned or recoloured copies too.

The features of a network lie close together wherever a data set is uniform, so no fixed distance means the
same everywhere. They are whitened on the data set itself, and a pair counts as alike if its distance is
below a twentieth of what is usual between an image and its nearest neighbour from another group. Usual is
the 90th percentile, not the median: where nobody noted groups, most images may have a copy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

Phi = Callable[[Bytes], Floats]
"""From (N, 128, 128, 3) uint8 to (N, F) float32."""

SIDE = 128  # pixels of the squares that phi sees
BATCH = 32
USUAL = 90  # percentile
LEAST_IMAGES = 40  # with fewer, what is usual cannot be told
SHARE = 0.05  # of the usual distance
_IMAGES_PER_AXIS = 4  # whitening along more axes than that would tear copies apart
_LEAST_SPREAD = 1e-3  # of the widest axis, below which an axis is noise
_BLOCK = 512  # rows compared at a time, which bounds memory


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
    return np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BOX))


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
    for start in range(0, len(first), _BLOCK):
        rows = list(first[start : start + _BLOCK])
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
    for start in range(0, len(units), _BLOCK):
        rows = slice(start, start + _BLOCK)
        distances = 1 - units[rows] @ units.T
        distances[number[rows, None] == number[None]] = np.inf
        nearest[rows] = distances.min(axis=1)
    known = nearest[np.isfinite(nearest)]  # all in one group: nothing is usual
    return float(np.percentile(known, USUAL)) if len(known) else 0.0
