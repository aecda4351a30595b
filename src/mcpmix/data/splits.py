"""Which samples are for training, validation and test. Groups stay whole."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.files import parse_json, read_text, write_json
from mcpmix.core.seeds import numpy_rng
from mcpmix.data.sample import Sample

PARTS = ("train", "validation", "test")
KNOWN = "known"
"""A second test part that a data set may have: new images of groups that training has seen."""
ALL_PARTS = (*PARTS, KNOWN)

_DIGESTS = "image_sha256"  # the part of a split file that says which images it was made for
_QUARTERS = 4  # classes of lesions by size


@dataclass(frozen=True)
class Split:
    """Ids of the samples of each part."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    known: tuple[str, ...] = ()
    # Why figures on the test part are too good, for a published split that cuts groups; otherwise empty.
    leaks: str = field(default="", kw_only=True)

    def parts(self) -> dict[str, tuple[str, ...]]:
        """Ids by the name of the part, in the order of `ALL_PARTS`; `known` only if it has any."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test, KNOWN: self.known}
        return {part: ids for part, ids in parts.items() if ids or part in PARTS}


# --- dealing whole groups ----------------------------------------------------------------------------------


def group_split(samples: Sequence[Sample], validation: float, test: float, seed: int) -> Split:
    """Deal whole groups to the three parts at random, by shares of the groups; each part gets at least one.

    The result depends on the ids, their groups and the arguments, not on the order of `samples`.
    """
    names = sorted({sample.group for sample in samples})
    if len(names) < len(PARTS):
        raise DataError(
            f"The {len(samples)} samples belong to {len(names)} group(s): {', '.join(names) or 'none'}. "
            "Expected at least 3, one each for train, validation and test, because groups are never split: "
            "add patients, or give a split file."
        )
    held, tested = max(1, round(len(names) * validation)), max(1, round(len(names) * test))
    while held + tested >= len(names):  # at least one group is left for training
        held, tested = (held - 1, tested) if held > tested else (held, tested - 1)
    order = [names[index] for index in numpy_rng("split", seed).permutation(len(names))]
    part_of = dict.fromkeys(order, "train")
    part_of |= dict.fromkeys(order[:tested], "test")
    part_of |= dict.fromkeys(order[tested : tested + held], "validation")
    ids: dict[str, list[str]] = defaultdict(list)
    for sample in samples:
        ids[part_of[sample.group]].append(sample.id)
    return Split(*(tuple(sorted(ids[part])) for part in PARTS))


def stratified_split(
    samples: Sequence[Sample], areas: Mapping[str, float], validation: float, test: float, seed: int
) -> Split:
    """Deal whole groups to the three parts so that images and sizes of lesions are balanced.

    Unlike `group_split`, the shares are shares of the images. The order of `samples` does not matter.

    Args:
        areas: by id, the share of the image that is lesion, 0..1.
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
        areas: by id, the share of the image that is lesion, 0..1.
        fold: which one is the test part, from 0.
        validation: share of the images of the other folds, 0..1.
    """
    dealt = _deal(samples, areas, (1 / folds,) * folds, ("folds", folds, seed))
    tested = frozenset(dealt[fold])
    rest = [sample for sample in samples if sample.id not in tested]
    train, held = _deal(rest, areas, (1 - validation, validation), ("folds", folds, fold, seed))
    return Split(tuple(sorted(train)), tuple(sorted(held)), tuple(sorted(tested)))


def hold_out(samples: Sequence[Sample], share: float, seed: int) -> frozenset[str]:
    """Ids of a share of the groups, at least one and not all: a validation part for a published split."""
    names = sorted({sample.group for sample in samples})
    if len(names) < 2:
        raise DataError(
            f"The training part has {len(names)} group(s). Expected at least 2, one of them for validation."
        )
    count = min(max(1, round(share * len(names))), len(names) - 1)
    order = numpy_rng("hold-out", seed).permutation(len(names))
    chosen = {names[index] for index in order[:count]}
    return frozenset(sample.id for sample in samples if sample.group in chosen)


def keep_labels(split: Split, samples: Sequence[Sample], count: int, seed: int) -> Split:
    """The same split with at most `count` training images, whole groups at random.

    A smaller count gives a part of what a larger one gives. Known images of the other groups leave the split.

    Raises:
        DataError: there are fewer training images, or the first group alone has more.
    """
    if count > len(split.train):
        raise DataError(
            f"data.labelled: {count} images are to keep their masks, but the training part has "
            f"{len(split.train)}. Give a smaller number, or leave the setting out."
        )
    members, training = defaultdict(list), set(split.train)
    for sample in sorted(samples, key=lambda item: item.id):
        if sample.id in training:
            members[sample.group].append(sample.id)
    names = sorted(members)
    kept: list[str] = []
    for place in numpy_rng("labelled", seed).permutation(len(names)):
        group = members[names[place]]
        if len(kept) + len(group) > count:
            break
        kept += group
    if not kept:
        raise DataError(
            f"data.labelled: {count} is less than the {len(group)} images of the first group drawn "
            f"({names[place]}), and groups are never split. Give a larger number."
        )
    groups = {sample.id: sample.group for sample in samples}
    seen = {groups[name] for name in kept}
    known = tuple(name for name in split.known if groups[name] in seen)
    return replace(split, train=tuple(sorted(kept)), known=known)


def _deal(
    samples: Sequence[Sample],
    areas: Mapping[str, float],
    shares: Sequence[float],
    identity: tuple[str | int, ...],
) -> list[list[str]]:
    """Ids of each part: groups, the largest first, go where they are missed most.

    scikit-learn's StratifiedGroupKFold deals in the same way, but only to folds of equal size, may leave a
    fold empty, and draws another order, so that existing studies would change their splits.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.id):
        members[sample.group].append(sample.id)
    if len(members) < len(shares):
        raise DataError(
            f"The {len(samples)} samples belong to {len(members)} group(s). Expected at least {len(shares)}, "
            "one for each part, because groups are never split: add patients, or ask for fewer parts."
        )
    # Ranks rather than quantiles of the values: equal numbers in each quarter, also where areas repeat.
    ids = sorted(name for group in members.values() for name in group)
    ranks = np.argsort(np.argsort([areas[name] for name in ids], kind="stable"), kind="stable")
    quarter = dict(zip(ids, (ranks * _QUARTERS // len(ids)).tolist(), strict=True))
    counts = {  # of each group, the images in each quarter of the sizes, and all of them
        group: np.array(
            [*np.bincount([quarter[name] for name in names], minlength=_QUARTERS), len(names)], np.float64
        )
        for group, names in members.items()
    }
    order = numpy_rng(*identity).permutation(len(members))
    groups = [sorted(members)[index] for index in order]
    groups.sort(key=lambda name: -len(members[name]))  # keeps the drawn order among equals
    targets = np.maximum(np.outer(shares, sum(counts.values())), 1e-9)
    filled = np.zeros_like(targets)
    dealt: list[list[str]] = [[] for _ in shares]
    for number, name in enumerate(groups):
        # Where it lowers the squared relative distance from the targets most.
        change = ((filled + counts[name] - targets) ** 2 - (filled - targets) ** 2) / targets
        part = int(change.sum(axis=1).argmin())
        empty = [index for index, given in enumerate(dealt) if not given]
        if len(empty) == len(groups) - number:  # as many groups left as parts without any
            part = empty[0]
        filled[part] += counts[name]
        dealt[part].append(name)
    return [[name for group in given for name in members[group]] for given in dealt]


# --- split files -------------------------------------------------------------------------------------------


def write_split(path: Path, split: Split, digests: Mapping[str, str] | None = None) -> None:
    """Write a split as JSON that a person can edit: lists of ids under the names of the parts.

    Args:
        digests: pixel digest of each image by id, to notice later that an image was replaced.
    """
    content: dict[str, object] = {part: list(ids) for part, ids in split.parts().items()}
    write_json(path, content | ({_DIGESTS: dict(digests)} if digests else {}))


def read_split(path: Path, samples: Sequence[Sample]) -> Split:
    """Read a split file and check it against the samples. Samples that it does not name are left out.

    Raises:
        DataError: with every problem: unknown ids, ids named twice, groups in two parts, empty parts, known
            ids whose group training does not see.
    """
    content = read_lists(path)
    group_of = {sample.id: sample.group for sample in samples}
    problems = [f"{part} is empty. Name at least one id." for part, ids in content.items() if not ids]
    places: dict[str, list[str]] = defaultdict(list)
    for part, ids in content.items():
        for name in ids:
            places[name].append(part)
    for name, parts in places.items():
        if len(parts) > 1:
            problems.append(f"{name} is named {len(parts)} times ({', '.join(parts)}). Keep one of them.")
        if name not in group_of:
            problems.append(f"{name} ({parts[0]}) is not in the data set. Correct the id or remove it.")
    problems += cut_groups(content, group_of)
    if problems:
        raise DataError(bullet_list(f"The split file {path} does not fit the data set:", problems))
    return Split(*(tuple(content.get(part, ())) for part in ALL_PARTS))


def cut_groups(parts: Mapping[str, Iterable[str]], group_of: Mapping[str, str]) -> Iterator[str]:
    """A message for each group whose samples are in more than one part; unknown ids do not count.

    Known ids are in the part `known` because training has seen their group: others do not belong there.
    """
    members: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for part, ids in parts.items():
        for name in dict.fromkeys(ids):
            if name in group_of:
                members[group_of[name]][part].append(name)
    for group, found in members.items():
        known = found.pop(KNOWN, [])
        if len(found) > 1:
            where = "; ".join(f"{part}: {', '.join(ids)}" for part, ids in found.items())
            yield f"group {group} is split ({where}). Put all of its samples into one part."
        if known and "train" not in found:
            yield (
                f"group {group} has images in known ({', '.join(known)}) and none in train. Put them into "
                f"{' or '.join(found) or 'test'}."
            )


def read_lists(path: Path) -> dict[str, list[str]]:
    """The lists of ids in a split file by part, not compared with any data set."""
    content = _read(path)
    return {part: content[part] for part in ALL_PARTS if part in content}


def require_same_images(path: Path, digests: Mapping[str, str]) -> None:
    """Refuse images whose digests, by id, are not those in a split file; one without digests allows any."""
    noted: Mapping[str, str] = _read(path).get(_DIGESTS, {})
    changed = [name for name, digest in digests.items() if noted.get(name, digest) != digest]
    if changed:
        raise DataError(
            bullet_list(
                f"The split file {path} was made for other images. Restore them, or, if they were replaced "
                f"on purpose, remove their lines below {_DIGESTS} in the file:",
                changed,
            )
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content: Any = parse_json(read_text(path, "utf-8-sig"))
    except FileNotFoundError as error:
        raise DataError(f"The split file {path} does not exist. Check data.split.file.") from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"The split file {path} cannot be read: {error}. Expected JSON: correct it."
        ) from error
    fits = (
        isinstance(content, dict)
        and set(content) - {_DIGESTS, KNOWN} == set(PARTS)
        and all(isinstance(content.get(part, []), list) for part in ALL_PARTS)
        and all(isinstance(name, str) for part in ALL_PARTS for name in content.get(part, []))
        and isinstance(content.get(_DIGESTS, {}), dict)
    )
    if not fits:
        found = ", ".join(content) if isinstance(content, dict) else type(content).__name__
        raise DataError(
            f"The split file {path} has the wrong structure (found: {found or 'nothing'}). Expected "
            '{"train": [...], "validation": [...], "test": [...]}, if wanted "known": [...], with lists of '
            "ids in quotes."
        )
    return content


def require_classes(classes: Sequence[str], present: Iterable[int]) -> None:
    """Refuse classes that no sample of the training part has.

    Args:
        classes: names of the labels 1, 2, ...; none if masks are lesion or background.
        present: the labels that samples of the training part have.
    """
    there = set(present)
    missing = [f"{name} ({label})" for label, name in enumerate(classes, 1) if label not in there]
    if missing:
        raise DataError(
            f"No mask of the training part has {', nor '.join(missing)}, so no network can learn it: "
            "compare data.classes with the labels in the masks; or put a group with this class there: change "
            "the seed, or give a split file."
        )


def require_lesions(present: Iterable[bool]) -> None:
    """Refuse a validation part in which no sample has a lesion: no checkpoint can be chosen by it."""
    if not any(present):
        raise DataError(
            "No mask of the validation part has a lesion, so that no checkpoint can be chosen by it. Put a "
            "group with lesions there: raise data.split.validation, change the seed, or give a split file."
        )
