"""What `synthesis.py swap` compares: partners for masks, and where two images differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mcpmix.core.seeds import numpy_rng
from mcpmix.generator.judge import dice_of

LITTLE = 0.1  # Dice of two masks that hardly overlap


def draw_partners(masks: np.ndarray, folds: Sequence[int], ids: Sequence[str], seed: int) -> np.ndarray:
    """For each frame another one whose mask hardly overlaps its own, drawn by identity.

    Of the same fold of the judge, so that the network which judges both images has seen neither patient.

    Args:
        masks: N,S,S in {0, 1}.
        folds: of each frame.
        ids: of each frame.
        seed: of the draws.
    """
    return np.array([_partner(masks, np.asarray(folds), ids, place, seed) for place in range(len(masks))])


def _partner(masks: np.ndarray, folds: np.ndarray, ids: Sequence[str], place: int, seed: int) -> int:
    others = np.flatnonzero((folds == folds[place]) & (np.arange(len(folds)) != place))
    if not len(others):
        raise SystemExit("swap needs two training frames or more in each fold of the judge.")
    own = np.repeat(masks[place][None].astype(bool), len(others), axis=0)
    overlap = dice_of(own, masks[others])
    free = others[overlap < LITTLE]
    if not len(free):
        return int(others[overlap.argmin()])
    return int(numpy_rng("swap", seed, ids[place]).choice(free))


def where_changed(one: np.ndarray, two: np.ndarray, mask: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Where images differ, relative to the union of their masks.

    Args:
        one: B,S,S,3 uint8.
        two: likewise.
        mask: B,S,S in {0, 1} of `one`.
        other: likewise of `two`.

    Returns:
        `share` of the absolute change that lies inside and `area` of the union as a share of the image, means
        over the images; and `concentration`: how many times as much a pixel inside changes as one outside.
    """
    change = np.abs(one.astype(np.float64) - two).mean(axis=3)
    inside = (mask | other).astype(bool)
    total, area = change.sum(axis=(1, 2)), inside.mean(axis=(1, 2))
    within = (change * inside).sum(axis=(1, 2))
    share = np.where(total > 0, within / np.maximum(total, 1e-12), area)  # nothing changed: spread evenly
    changes = bool(change.any() and inside.any() and not inside.all())
    return {
        "share": float(share.mean()),
        "area": float(area.mean()),
        "concentration": float(change[inside].mean() / max(change[~inside].mean(), 1e-12))
        if changes
        else 1.0,
    }
