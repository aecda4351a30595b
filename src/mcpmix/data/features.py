"""Which images show the same, by the features of a network.

A pair is alike if it is far closer than neighbours of different groups usually are; that also finds mirrored,
rotated and recoloured copies.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from mcpmix.data.leakage import Floats, Match

USUAL_SHARE = 0.05  # of the usual distance, below which features are alike
_USUAL = 90  # percentile
LEAST_IMAGES = 40  # with fewer, nobody knows what distance is usual
_IMAGES_PER_AXIS = 4  # whitening along more axes would separate copies
_LEAST_SPREAD = 1e-3  # of the widest axis, below which an axis is noise
_MOST_USUAL = 4096  # pictures whose nearest neighbours say what is usual; more are sampled evenly
_BLOCK = 512  # rows compared at a time, which bounds memory


def feature_matches(
    features: Floats, groups: Sequence[str], first: Sequence[int], second: Sequence[int]
) -> Iterator[Match]:
    """Pairs of one picture from `first` and one from `second` whose features nearly agree.

    The distance is 1 - cosine of the whitened features. Usual is the 90th percentile of the distances between
    nearest neighbours of different groups; of more than 4096 pictures, so many are asked for theirs.

    Args:
        features: (N, F), of the whole data set.
        groups: N names; neighbours within a group say nothing about what is usual.
        first: places in `features`, as is `second`.

    Yields:
        Matches by places in `features`, in the order of `first`; none for fewer than 40 pictures.
    """
    if len(features) < LEAST_IMAGES or not first or not second:
        return
    units = whitened(features)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    asked, own = units, group
    if len(units) > _MOST_USUAL:
        chosen = np.linspace(0, len(units) - 1, _MOST_USUAL).astype(int)
        asked, own = units[chosen], group[chosen]
    nearest = np.full(len(asked), np.inf)
    for start in range(0, len(asked), _BLOCK):
        block = slice(start, start + _BLOCK)
        distances = 1 - asked[block] @ units.T
        distances[own[block, None] == group[None]] = np.inf
        nearest[block] = distances.min(axis=1)
    known = nearest[np.isfinite(nearest)]
    usual = float(np.percentile(known, _USUAL)) if len(known) else 0.0  # all in one group: nothing is usual
    columns = units[list(second)].T
    for start in range(0, len(first), _BLOCK):
        rows = list(first[start : start + _BLOCK])
        distances = 1 - units[rows] @ columns
        for row, column in np.argwhere(distances < USUAL_SHARE * usual).tolist():
            if rows[row] != second[column]:
                distance = max(0.0, float(distances[row, column]))
                how = f"distance {distance:.4f}, usual {usual:.4f}"
                yield Match(rows[row], second[column], distance, how)


def whitened(features: Floats) -> Floats:
    """Features, (N, F), with mean 0 and equal spread along at most N / 4 axes, scaled to norm 1: (N, K)."""
    centred = features.astype(np.float64) - features.mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    wide = int((spread > _LEAST_SPREAD * spread[0]).sum()) if spread[0] > 0 else 0
    count = max(1, min(wide, len(features) // _IMAGES_PER_AXIS))
    scores = centred @ (axes[:count] / np.maximum(spread[:count, None], 1e-12)).T
    norms = np.linalg.norm(scores, axis=1, keepdims=True)
    return (scores / np.maximum(norms, 1e-12)).astype(np.float32)
