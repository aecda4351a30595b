"""Splits in which every part has lesions of every size, as far as whole groups allow."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError
from mcpmix.core.seeding import numpy_rng
from mcpmix.data.sample import Sample
from mcpmix.data.splits import Split

_CLASSES = 4  # quarters of the lesions by size

Floats = npt.NDArray[np.float64]


def stratified_split(
    samples: Sequence[Sample], areas: Mapping[str, float], validation: float, test: float, seed: int
) -> Split:
    """Deal whole groups to the three parts so that images and sizes of lesions are shared out evenly.

    Unlike `group_split`, the shares are shares of the images. The result depends on the ids, groups, areas
    and the arguments, not on the order of `samples`.

    Args:
        samples: the data set.
        areas: by id, the share of the image that is lesion, 0..1.
        validation: share of the images, 0..1.
        test: share of the images, 0..1.
        seed: root of the random stream.

    Raises:
        DataError: there are fewer groups than parts.
    """
    parts = _deal(samples, areas, (1 - validation - test, validation, test), ("stratified", seed))
    return Split(*(tuple(sorted(part)) for part in parts))


def fold_split(
    samples: Sequence[Sample], areas: Mapping[str, float], folds: int, fold: int, validation: float, seed: int
) -> Split:
    """One of `folds` splits whose test parts are disjoint and together are the data set.

    The same seed gives the same folds, whatever `fold` is. Groups stay whole; sizes of lesions are shared
    out evenly.

    Args:
        samples: the data set.
        areas: by id, the share of the image that is lesion, 0..1.
        folds: number of folds, at least 2.
        fold: which one is the test part, from 0.
        validation: share of the images of the other folds, 0..1.
        seed: root of the random stream.

    Raises:
        DataError: there are fewer groups than needed.
    """
    dealt = _deal(samples, areas, (1 / folds,) * folds, ("folds", folds, seed))
    tested = frozenset(dealt[fold])
    rest = [sample for sample in samples if sample.id not in tested]
    train, held = _deal(rest, areas, (1 - validation, validation), ("folds", folds, fold, seed))
    return Split(tuple(sorted(train)), tuple(sorted(held)), tuple(sorted(tested)))


def hold_out(samples: Sequence[Sample], share: float, seed: int) -> frozenset[str]:
    """Ids of a share of the groups, at least one and not all: a validation part for a published split.

    Args:
        samples: the training part.
        share: share of the groups, 0..1.
        seed: root of the random stream.

    Raises:
        DataError: there is one group only.
    """
    names = sorted({sample.group for sample in samples})
    if len(names) < 2:
        raise DataError(
            f"The training part has {len(names)} group(s). Expected at least 2, one of them for validation."
        )
    count = min(max(1, round(share * len(names))), len(names) - 1)
    order = numpy_rng("hold-out", seed).permutation(len(names))
    chosen = {names[index] for index in order[:count]}
    return frozenset(sample.id for sample in samples if sample.group in chosen)


def _deal(
    samples: Sequence[Sample],
    areas: Mapping[str, float],
    shares: Sequence[float],
    identity: tuple[str | int, ...],
) -> list[list[str]]:
    """Ids of each part: groups, the largest first, go where they are missed most."""
    members: dict[str, list[str]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.id):
        members[sample.group].append(sample.id)
    if len(members) < len(shares):
        raise DataError(
            f"The {len(samples)} samples belong to {len(members)} group(s). Expected at least {len(shares)}, "
            "one for each part, because groups are never cut: add patients, or ask for fewer parts."
        )
    counts = _counts(members, areas)
    order = numpy_rng(*identity).permutation(len(members))
    names = [sorted(members)[index] for index in order]
    names.sort(key=lambda name: -len(members[name]))  # keeps the drawn order among equals
    targets = np.maximum(np.outer(shares, sum(counts.values())), 1e-9)
    filled = np.zeros_like(targets)
    dealt: list[list[str]] = [[] for _ in shares]
    for number, name in enumerate(names):
        part = _most_missed(counts[name], filled, targets)
        empty = [index for index, groups in enumerate(dealt) if not groups]
        if len(empty) == len(names) - number:  # as many groups left as parts without any
            part = empty[0]
        filled[part] += counts[name]
        dealt[part].append(name)
    return [[name for group in groups for name in members[group]] for groups in dealt]


def _counts(members: Mapping[str, Sequence[str]], areas: Mapping[str, float]) -> dict[str, Floats]:
    """For each group, the number of its images in each quarter of the sizes, and in all."""
    ids = sorted(name for group in members.values() for name in group)
    # Ranks rather than quantiles of the values: equal numbers in each quarter, also where areas repeat.
    ranks = np.argsort(np.argsort([areas[name] for name in ids], kind="stable"), kind="stable")
    quarter = dict(zip(ids, (ranks * _CLASSES // len(ids)).tolist(), strict=True))
    return {
        group: np.array(
            [*np.bincount([quarter[name] for name in names], minlength=_CLASSES), len(names)],
            dtype=np.float64,
        )
        for group, names in members.items()
    }


def _most_missed(count: Floats, filled: Floats, targets: Floats) -> int:
    """The part in which the counts lower the squared relative distance from the targets most."""
    change = ((filled + count - targets) ** 2 - (filled - targets) ** 2) / targets
    return int(change.sum(axis=1).argmin())
