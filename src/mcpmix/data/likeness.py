"""What shows the same among real images: by fingerprints of pixels, by features of a network, by their order.

By pixels, a pair counts as near-duplicates if two different looks agree: at most 48 of the 256 signs of
brightness differences differ, and small grey versions correlate by at least 0.975. On CVC-ClinicDB this rule
finds neighbouring frames of a video and no pair from two videos; either look alone does not. By features, a
pair is alike if it is far closer than neighbours of different groups usually are; that also finds mirrored,
rotated and recoloured copies. By their order, frames of one video are found although they differ: images
next to each other are one run while they are closer than 95 percent of images far apart.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

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
_PACKED = _SIGNS * _SIGNS // 8  # bytes of the signs
_DIRECTIONS = 512  # along which a print knows the side that the grey version lies on
_PRINT = 128  # characters of a print
_MOST_DIFFERENT = 48
_LEAST_CORRELATION = 0.975
_LEAST_ESTIMATE = 0.96  # of the correlation, where only a print is known
_PHI_SIDE = 128  # pixels of the squares that phi sees
_USUAL = 90  # percentile
_LEAST_IMAGES = 40  # with fewer, the usual distance is not known
_IMAGES_PER_AXIS = 4  # whitening along more axes would separate copies
_LEAST_SPREAD = 1e-3  # of the widest axis, below which an axis is noise
_BLOCK = 512  # rows compared at a time, which bounds memory
_COLOURS = 16  # levels of each channel in a histogram of colours
_CLOSE = 0.05  # share of pairs far apart that are as close as two frames of one video
_REACH = 5  # places between two frames that may be linked
_LEAST_RUN = 5  # frames; fewer are the blurred part of a video more often than a video of their own
_OFFSETS = 64  # for pairs far apart
_ORDERED = 0.5  # share of close neighbours from which an order is one of videos; by chance it is `_CLOSE`


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


def print_of(look: str) -> str:
    """What of a look may be passed on: 768 bits as 128 characters, from which no picture can be read off.

    The 256 signs stay; of the grey version only the side is left on which it lies of 512 random directions,
    enough to estimate its correlation with that of another image (what it tells: docs/integrity.md).
    """
    content = base64.b64decode(look)
    if len(content) != _PACKED + _SIDE * _SIDE:
        return look  # is one already
    grey = np.frombuffer(content[_PACKED:], dtype=np.uint8).astype(np.int64)
    # Whole numbers, so that all machines get the same bits: the sign of directions @ (grey - mean).
    sides = grey.size * (_directions() @ grey) > _directions().sum(axis=1) * grey.sum()
    return base64.b64encode(content[:_PACKED] + np.packbits(sides).tobytes()).decode()


def require_look(text: str) -> None:
    """Raise a ValueError for a text that is neither a look nor a print."""
    size = len(base64.b64decode(text, validate=True))
    if size not in (_PACKED + _SIDE * _SIDE, _PACKED + _DIRECTIONS // 8):
        raise ValueError(f"a fingerprint of {size} bytes")


@cache
def _directions() -> npt.NDArray[np.int64]:
    """512 directions of +1 and -1 in the 1024 grey levels, the same in every version and on every machine."""
    drawn = hashlib.shake_256(b"mcpmix fingerprint 1").digest(_DIRECTIONS * _SIDE * _SIDE // 8)
    bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8))
    return 2 * bits.reshape(_DIRECTIONS, -1).astype(np.int64) - 1


def matches(first: Sequence[str], second: Sequence[str]) -> Iterator[Match]:
    """All near-duplicate pairs of one look from each list, in the order of the first.

    The second list may hold prints in place of looks. Correlations are then estimates, and 0.96 is enough: on
    CVC-ClinicDB and Kvasir-SEG that finds all pairs that looks find (benchmarks/fingerprints.py).
    """
    whole = [place for place, look in enumerate(second) if len(look) > _PRINT]
    prints = [place for place, look in enumerate(second) if 0 < len(look) <= _PRINT]
    parts: list[tuple[list[int], Floats, Callable[[Floats], Floats], float]] = []
    if whole:
        signs, greys = _fingerprints([second[place] for place in whole])
        parts.append((whole, signs, lambda levels: np.asarray(levels @ greys.T), _LEAST_CORRELATION))
    if prints:
        content = _contents([second[place] for place in prints])
        codes = 2 * np.unpackbits(content, axis=1).astype(np.float32)[:, _SIGNS * _SIGNS :] - 1

        def estimated(levels: Floats) -> Floats:
            along = levels @ _directions().T.astype(np.float32)
            length = np.abs(along).sum(axis=1, keepdims=True)
            return np.asarray((along @ codes.T) / np.where(length > 0, length, 1))

        print_signs = np.unpackbits(content[:, :_PACKED], axis=1).astype(np.float32)
        parts.append((prints, print_signs, estimated, _LEAST_ESTIMATE))
    for start in range(0, len(first), _BLOCK) if parts else ():
        mine, levels = _fingerprints(first[start : start + _BLOCK])
        for places, signs, correlate, least in parts:
            # Signs that are 1 in one and 0 in the other, counted both ways.
            different = mine @ (1 - signs).T + (1 - mine) @ signs.T
            alike = correlate(levels)
            for row, column in np.argwhere((different <= _MOST_DIFFERENT) & (alike >= least)).tolist():
                correlation = float(alike[row, column])
                how = f"{int(different[row, column])} of 256 signs differ, correlation {correlation:.3f}"
                yield Match(start + row, places[column], 1 - correlation, how)


def _contents(looks: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.stack([np.frombuffer(base64.b64decode(look), dtype=np.uint8) for look in looks])


def _fingerprints(looks: Sequence[str]) -> tuple[Floats, Floats]:
    """(N, 256) signs, 0 or 1, and (N, 1024) grey levels, mean 0 and norm 1, or all 0 for one grey."""
    content = _contents(looks)
    greys = content[:, _PACKED:].astype(np.float32)
    greys = greys - greys.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(greys, axis=1, keepdims=True)
    signs = np.unpackbits(content[:, :_PACKED], axis=1).astype(np.float32)
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


# --- by order ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """A list of pictures cut where one video seems to end and another to begin."""

    run_of: npt.NDArray[np.int64]  # (N,), the number of the run, from 0
    close: float  # share of neighbours that are closer than 95 % of pictures far apart

    @property
    def ordered(self) -> bool:
        """Whether the order is that of videos; otherwise the runs mean nothing."""
        return self.close >= _ORDERED


def colours_of(image: Pixels) -> npt.NDArray[np.float16]:
    """The colours of an (H, W, 3) image: roots of the shares of 16 x 16 x 16 colours, (4096,), norm 1."""
    levels = square(image).reshape(-1, 3).astype(np.int64) * _COLOURS // 256
    counts = np.bincount(levels @ (_COLOURS**2, _COLOURS, 1), minlength=_COLOURS**3)
    return np.sqrt(counts / len(levels)).astype(np.float16)


def runs(looks: Sequence[str], colours: Sequence[npt.NDArray[np.float16]]) -> Runs:
    """Cut a list of pictures, in an order that may be that of videos, into runs.

    Two pictures are as far apart as their colours and their grey versions say, each as its rank among pairs
    that stand at least a quarter of the list apart and so are rarely of one video. Pictures at most five
    places apart are of one run, with all between them, if they are closer than 95 percent of such pairs. Runs
    of fewer than five pictures join the closer of their neighbours.

    Args:
        looks: N texts of `look_of`, as are `colours` of `colours_of`.

    Returns:
        The runs; fewer than 40 pictures are one run each, in no order.
    """
    count = len(looks)
    if count < _LEAST_IMAGES:
        return Runs(np.arange(count), 0.0)
    vectors = (np.stack(colours).astype(np.float32), _fingerprints(looks)[1])

    def apart(offset: int) -> Floats:
        """(2, N) distances of each picture to the one `offset` places on, past the end from the start."""
        cuts = (slice(None, -offset), slice(offset, None)), (slice(-offset, None), slice(None, offset))
        parts = [[np.einsum("nf,nf->n", rows[a], rows[b]) for a, b in cuts] for rows in vectors]
        return np.stack([1 - np.concatenate(part) for part in parts])

    offsets = np.unique(np.linspace(count / 4, 3 * count / 4, _OFFSETS).astype(int))
    far = np.sort(np.concatenate([apart(offset) for offset in offsets], axis=1))

    def rank(distances: Floats) -> npt.NDArray[np.float64]:
        return sum(np.log(_share_below(*pair)) for pair in zip(distances, far, strict=True))  # type: ignore[return-value]

    usual = np.sort(np.concatenate([rank(apart(offset)) for offset in offsets]))
    between = np.full(count - 1, np.inf)  # the closest pair across each gap, as a share of pairs far apart
    for offset in range(1, _REACH + 1):
        shares = _share_below(rank(apart(offset)[:, :-offset]), usual)
        if offset == 1:
            close = float((shares <= _CLOSE).mean())
        for step in range(offset):
            here = slice(step, step + len(shares))
            between[here] = np.minimum(between[here], shares)
    return Runs(_joined(np.concatenate([[0], np.cumsum(between > _CLOSE)]), between), close)


def _share_below(values: npt.NDArray[Any], reference: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Share of a sorted reference that is at most each value; never 0."""
    return (np.searchsorted(reference, values, side="right") + 1) / (len(reference) + 1)


def _joined(run_of: npt.NDArray[np.int64], between: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Join runs that are too short, the shortest first, to the side where the gap is smaller."""
    gaps = np.concatenate([[np.inf], between, [np.inf]])  # before each picture, and after the last
    starts = [0, *(np.flatnonzero(np.diff(run_of)) + 1).tolist(), len(run_of)]
    while len(starts) > 2 and min(sizes := np.diff(starts)) < _LEAST_RUN:
        place = int(np.argmin(sizes))
        before, after = gaps[starts[place]], gaps[starts[place + 1]]
        del starts[
            place if before <= after and place > 0 else place + 1 if place + 2 < len(starts) else place
        ]
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))
