"""Groups for images whose patients or videos were not recorded: near-duplicates, and runs of frames."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcpmix.data.facts import Facts
from mcpmix.data.likeness import Runs, matches, runs
from mcpmix.data.sample import Sample


@dataclass(frozen=True)
class Guess:
    """Groups that were guessed from pictures and the order of their files."""

    group_of: Mapping[str, str]  # by id; a group is called after its first image
    order: str  # `name` or `time` of the files if neighbours by it look alike; otherwise empty
    close: float  # share of neighbours, by that order or by name, that look alike; 0.05 by chance

    def lines(self) -> Iterator[str]:
        """What a user must know about the guess."""
        sizes = Counter(self.group_of.values())
        alone = sum(size == 1 for size in sizes.values())
        yield f"{len(self.group_of)} images in {len(sizes)} groups; {alone} hold one image"
        neighbours = f"{self.close:.0%} of neighbours by {self.order or 'name'} look alike (5% by chance)"
        if self.order:
            yield f"{neighbours}: these are frames of videos, and each run of frames became a group"
        else:
            yield (
                f"warning: {neighbours}: the order of names and times says nothing, so only near-duplicates "
                "were grouped. If these are frames of videos, most groups are incomplete and a split by them "
                "leaks: find out which image is of which video or patient"
            )
        if 1 < len(prefixes := name_prefixes(list(self.group_of))) <= len(self.group_of) // 2:
            few = ", ".join(sorted(prefixes)[:3])
            yield (
                f"names have {len(prefixes)} beginnings ({few}, ...): if each is a patient or a video, "
                "these are better groups"
            )


def guess_groups(facts: Sequence[Facts]) -> Guess:
    """Put near-duplicates and runs of frames into one group, in addition to the groups that are known.

    Nearness is transitive: if a is near b and b near c, all three are one group. Files that cannot be read
    stay alone. No patient is known: one with two videos gets two groups, and two alike may share one.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first_of: dict[str, int] = {}  # of each known group
    edges = [(first_of.setdefault(item.sample.group, place), place) for place, item in enumerate(facts)]
    readable = [place for place, item in enumerate(facts) if item.look]
    looks = [facts[place].look for place in readable]
    edges += [(readable[match.first], readable[match.second]) for match in matches(looks, looks)]
    order, sequence, found = in_order(facts)
    if found.ordered:
        same = np.flatnonzero(np.diff(found.run_of) == 0).tolist()
        edges += [(sequence[place], sequence[place + 1]) for place in same]
    graph = coo_array((np.ones(len(edges)), np.array(edges).reshape(-1, 2).T), (len(facts), len(facts)))
    _, cluster_of = connected_components(graph, directed=False)
    name_of: dict[int, str] = {}
    group_of = {
        item.sample.id: name_of.setdefault(cluster, item.sample.id)
        for item, cluster in zip(facts, cluster_of.tolist(), strict=True)
    }
    return Guess(group_of, order if found.ordered else "", found.close)


def in_order(facts: Sequence[Facts]) -> tuple[str, list[int], Runs]:
    """The order, by `name` or by `time` of the files, in which neighbours look most alike; and its runs.

    Returns:
        What it is the order of, the places of readable facts in it, and where they were cut.
    """
    found = []
    for order in _ORDERS:
        sequence = [place for place in file_order(facts, order) if facts[place].colours is not None]
        colours = [vector for place in sequence if (vector := facts[place].colours) is not None]
        found.append((order, sequence, runs([facts[place].look for place in sequence], colours)))
    return max(found, key=lambda one: one[2].close)


def file_order(facts: Sequence[Facts], order: str) -> list[int]:
    """The places of facts by `name`, numbers in it by their value, or by `time` of the image files."""
    return sorted(range(len(facts)), key=lambda place: _ORDERS[order](facts[place].sample))


def _natural(sample: Sample) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", sample.id.casefold())
    return [(int(part) if part.isdecimal() else 0, part) for part in parts]


def _written(sample: Sample) -> int:
    return sample.image.stat().st_mtime_ns if sample.image.exists() else 0


_ORDERS: dict[str, Callable[[Sample], Any]] = {"name": _natural, "time": _written}


def name_prefixes(ids: Sequence[str]) -> Counter[str]:
    """What names begin with, before their last number: `video03_` of `video03_0012`."""
    return Counter(re.sub(r"\d+\D*$", "", name) for name in ids)
