"""Prints: what of a picture may be passed on, so that others find near-duplicates and see nothing.

A print has 256 hashes of 16 bits. Each is made of 48 signs, on which side a 32 x 32 grey version lies of 48
random directions, so alike pictures share some hashes and others none. docs/integrity.md: what a print tells.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

SIDE = 32  # of the grey version
HASHES = 256
BYTES = 2 * HASHES  # of a print
_DIRECTIONS, _HASHED = 1024, 48
_LEAST_EQUAL = 3  # hashes of near-duplicates


def print_of(grey: npt.NDArray[np.uint8]) -> str:
    """The print of grey levels (1024,) as text; empty for a single grey, which tells nothing."""
    levels = grey.astype(np.float64)
    if (levels == levels[0]).all():
        return ""
    directions, chosen = _directions()
    # Whole numbers, which float64 holds exactly: the sign of directions @ (levels - mean) on every machine.
    sides = levels.size * (directions @ levels) > directions.sum(axis=1) * levels.sum()
    parts = np.packbits(sides[chosen], axis=1)
    hashes = [
        hashlib.blake2b(part.tobytes(), digest_size=2, salt=number.to_bytes(16)).digest()
        for number, part in enumerate(parts)
    ]
    return base64.b64encode(b"".join(hashes)).decode()


@cache
def _directions() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Directions (1024, 1024) of +1 and -1, and the 48 of each hash (256, 48): the same everywhere."""
    size = _DIRECTIONS * SIDE * SIDE // 8
    drawn = hashlib.shake_256(b"mcpmix print 2").digest(size + 8 * HASHES * _DIRECTIONS)
    bits = np.unpackbits(np.frombuffer(drawn[:size], dtype=np.uint8)).reshape(_DIRECTIONS, -1)
    ranks = np.frombuffer(drawn[size:], dtype="<u8").reshape(HASHES, _DIRECTIONS)
    return bits.astype(np.float64) * 2 - 1, np.argsort(ranks, axis=1)[:, :_HASHED].astype(np.int64)


def hashes_of(prints: Sequence[str]) -> npt.NDArray[np.uint16]:
    """The hashes (N, 256) of N prints."""
    return np.stack([np.frombuffer(base64.b64decode(each), dtype="<u2") for each in prints])


def alike_prints(first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Pairs of prints that share at least three hashes: places in both lists and how many, in order.

    Hash by hash, equal ones meet by sorting, so that time does not grow with the product of the lengths.
    """
    if not first or not second:
        return
    mine, theirs, found = hashes_of(first), hashes_of(second), [np.empty(0, np.int64)]
    for asked, known in zip(mine.T, theirs.T, strict=True):
        order = np.argsort(known)
        low, high = (np.searchsorted(known[order], asked, side) for side in ("left", "right"))
        found += [row * len(second) + order[low[row] : high[row]] for row in np.flatnonzero(high > low)]
    pairs, shared = np.unique(np.concatenate(found), return_counts=True)
    for pair, count in zip(pairs.tolist(), shared.tolist(), strict=True):
        if count >= _LEAST_EQUAL:
            yield *divmod(pair, len(second)), count
