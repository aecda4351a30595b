"""Near-duplicates among real images: by fingerprints of their pixels, and by features of a network.

By pixels, a pair counts as near-duplicates if two different looks agree: at most 48 of the 256 signs of
brightness differences differ, and small grey versions correlate by at least 0.975. On CVC-ClinicDB this rule
finds neighbouring frames of a video and no pair from two videos; either look alone does not. By features, a
pair is alike if it is far closer than neighbours of different groups usually are; that also finds mirrored,
rotated and recoloured copies.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.pixels import Pixels

Floats = npt.NDArray[np.float32]
Phi = Callable[[Pixels], Floats]
"""A feature network: from (N, 128, 128, 3) uint8 to (N, F) float32."""

USUAL_SHARE = 0.05  # of the usual distance, below which features are alike
_SIGNS = 16  # rows and columns of signs
_SIDE = 32  # of the grey version
_MOST_DIFFERENT = 48
_LEAST_CORRELATION = 0.975
_PHI_SIDE = 128  # pixels of the squares that phi sees
_USUAL = 90  # percentile
_LEAST_IMAGES = 40  # with fewer, the usual distance is not known
_IMAGES_PER_AXIS = 4  # whitening along more axes would separate copies
_LEAST_SPREAD = 1e-3  # of the widest axis, below which an axis is noise
_BLOCK = 512  # rows compared at a time, which bounds memory


@dataclass(frozen=True)
class Match:
    """Two pictures that are near-duplicates."""

    first: int  # place in the first list
    second: int  # place in the second list
    distance: float  # 0 for the same; comparable within one search only
    how: str  # the measured numbers in words


def closest(found: Iterable[Match]) -> dict[int, Match]:
    """The closest match of each picture of the first list that has one."""
    best: dict[int, Match] = {}
    for match in found:
        if match.first not in best or match.distance < best[match.first].distance:
            best[match.first] = match
    return best


# --- by pixels ---------------------------------------------------------------------------------------------


def look_of(image: Pixels) -> str:
    """Two looks at an (H, W, 3) image, as 1408 characters.

    256 signs, whether brightness rises from one cell to the next on its right, and 32 x 32 grey levels.
    """
    levels = Image.fromarray(image).convert("L")
    cells = np.asarray(levels.resize((_SIGNS + 1, _SIGNS), Image.Resampling.BOX))
    grey = np.asarray(levels.resize((_SIDE, _SIDE), Image.Resampling.BOX))
    signs = np.packbits((cells[:, 1:] > cells[:, :-1]).ravel())
    return base64.b64encode(signs.tobytes() + grey.tobytes()).decode()


def matches(first: Sequence[str], second: Sequence[str]) -> Iterator[Match]:
    """All near-duplicate pairs of one look from each list, in the order of the lists."""
    if not first or not second:
        return
    signs, greys = _fingerprints(second)
    for start in range(0, len(first), _BLOCK):
        mine, levels = _fingerprints(first[start : start + _BLOCK])
        # Signs that are 1 in one and 0 in the other, counted both ways.
        different = mine @ (1 - signs).T + (1 - mine) @ signs.T
        alike = levels @ greys.T
        for row, column in np.argwhere(
            (different <= _MOST_DIFFERENT) & (alike >= _LEAST_CORRELATION)
        ).tolist():
            correlation = float(alike[row, column])
            how = f"{int(different[row, column])} of 256 signs differ, correlation {correlation:.3f}"
            yield Match(start + row, column, 1 - correlation, how)


def _fingerprints(looks: Sequence[str]) -> tuple[Floats, Floats]:
    """(N, 256) signs, 0 or 1, and (N, 1024) grey levels, mean 0 and norm 1, or all 0 for one grey."""
    content = np.stack([np.frombuffer(base64.b64decode(look), dtype=np.uint8) for look in looks])
    packed = _SIGNS * _SIGNS // 8
    greys = content[:, packed:].astype(np.float32)
    greys = greys - greys.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(greys, axis=1, keepdims=True)
    signs = np.unpackbits(content[:, :packed], axis=1).astype(np.float32)
    return signs, greys / np.where(norms > 0, norms, 1)


# --- by features -------------------------------------------------------------------------------------------


def square(image: Pixels) -> Pixels:
    """A picture of any shape, (H, W, 3) uint8, as phi sees it: (128, 128, 3)."""
    return np.asarray(Image.fromarray(image).resize((_PHI_SIDE, _PHI_SIDE), Image.Resampling.BOX))


def feature_matches(
    features: Floats, groups: Sequence[str], first: Sequence[int], second: Sequence[int]
) -> Iterator[Match]:
    """Pairs of one picture from `first` and one from `second` whose features nearly agree.

    The distance is 1 - cosine of the whitened features. Usual is the 90th percentile of the distances between
    nearest neighbours of different groups.

    Args:
        features: (N, F), of the whole data set.
        groups: N names; neighbours within a group say nothing about what is usual.
        first: places in `features`, as is `second`.

    Yields:
        Matches by places in `features`, in the order of `first`; none for fewer than 40 pictures.
    """
    if len(features) < _LEAST_IMAGES or not first or not second:
        return
    units = whitened(features)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    nearest = np.full(len(units), np.inf)
    for start in range(0, len(units), _BLOCK):
        block = slice(start, start + _BLOCK)
        distances = 1 - units[block] @ units.T
        distances[group[block, None] == group[None]] = np.inf
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
