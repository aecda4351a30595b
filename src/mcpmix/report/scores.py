"""Scores of single images: per group, and which images to show."""

import csv
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mcpmix.core.errors import DataError
from mcpmix.metrics.statistics import aggregate
from mcpmix.report.tables import Run

K = TypeVar("K", bound=Hashable)

Groups = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Arm to test group to seed to a value."""


@dataclass(frozen=True)
class Case:
    """A test image to show, and why.

    Attributes:
        kind: "best", "median" or "worst".
        id: of the image.
        value: by which it was chosen.
    """

    kind: str
    id: str
    value: float


def read_scores(path: Path, metric: str, ids: Collection[str]) -> dict[str, float]:
    """Read one metric of a scores.csv: image id to value, NaN where undefined.

    Args:
        path: the file.
        metric: a column of it.
        ids: images that it must have, and no others.

    Raises:
        DataError: the file is missing or damaged, or is about other images.
    """
    advice = "Delete its folder to evaluate again."
    try:
        with path.open(newline="", encoding="utf-8") as file:
            scores = {row["id"]: float(row[metric]) for row in csv.DictReader(file)}
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as error:
        raise DataError(
            f"{path} is not a table of scores with the columns id and {metric} ({error!r}). {advice}"
        ) from error
    if scores.keys() != set(ids):
        odd = sorted(scores.keys() ^ set(ids))
        raise DataError(
            f"{path} has scores of {len(scores)} images, expected those of the {len(ids)} test images; "
            f"{len(odd)} differ, {odd[0]} among them. {advice}"
        )
    return scores


def group_means(scores: Mapping[str, float], group_of: Mapping[str, str]) -> dict[str, float]:
    """Mean over the images of each group, of the defined values; NaN if there is none.

    Args:
        scores: image id to value.
        group_of: image id to group; images it does not name are left out.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for name, value in scores.items():
        if name in group_of:
            values[group_of[name]].append(value)
    return {group: aggregate(found).mean for group, found in values.items()}


def by_group(scores: Mapping[Run, Mapping[str, float]], group_of: Mapping[str, str]) -> Groups:
    """Arm to group to seed to the mean over the group's images."""
    result: dict[str, dict[str, dict[int, float]]] = {}
    for (arm, seed), values in sorted(scores.items()):
        for group, mean in group_means(values, group_of).items():
            result.setdefault(arm, {}).setdefault(group, {})[seed] = mean
    return result


def seed_means(groups: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Group to the mean over its seeds; NaN if none is defined."""
    return {group: aggregate(list(values.values())).mean for group, values in groups.items()}


def group_gains(groups: Groups, arm: str, reference: str) -> dict[str, dict[int, float]]:
    """Group to seed to the difference between an arm and the reference, for the seeds that both have."""
    anchor = groups[reference]
    return {name: differences(values, anchor[name]) for name, values in groups[arm].items() if name in anchor}


def differences(first: Mapping[K, float], second: Mapping[K, float]) -> dict[K, float]:
    """First minus second, for the keys that both have."""
    return {name: value - second[name] for name, value in first.items() if name in second}


def pick_cases(values: Mapping[str, float], each: int) -> list[Case]:
    """Choose images to show: those with the highest, the middle and the lowest values; none twice.

    Args:
        values: image id to value; NaN is left out. Ties go by id.
        each: how many of each kind.

    Returns:
        The best in falling order, then the median ones, then the worst, the very worst last.
    """
    order = sorted((name for name in values if not math.isnan(values[name])), key=lambda n: (-values[n], n))
    each = min(each, math.ceil(len(order) / 3))
    best, rest = order[:each], order[each:]
    worst = rest[max(len(rest) - each, 0) :]
    middle = [name for name in rest if name not in worst]
    # The median of all images, as near as the ones left allow.
    start = max(0, min(len(order) // 2 - each // 2 - each, len(middle) - each))
    chosen = (("best", best), ("median", middle[start : start + each]), ("worst", worst))
    return [Case(kind, name, values[name]) for kind, names in chosen for name in names]


def spread_over_groups(group_of: Mapping[str, str], count: int) -> list[str]:
    """Ids that show as many groups as possible: the first of each group, then the second of each, ...

    Args:
        group_of: id to group; the order is kept.
        count: how many to choose at most.
    """
    seen: dict[str, int] = defaultdict(int)
    turns = []
    for name, group in group_of.items():
        turns.append((seen[group], name))
        seen[group] += 1
    return [name for _, name in sorted(turns, key=lambda turn: turn[0])[:count]]
