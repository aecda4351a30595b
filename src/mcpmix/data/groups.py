"""Groups for images whose patients or videos were not recorded: near-duplicates, and runs of frames.

Frames of one video are found by their order although they differ: images next to each other are one run while
they are closer than 95 percent of images far apart.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from mcpmix.data.audit import Facts
from mcpmix.data.features import LEAST_IMAGES
from mcpmix.data.leakage import Floats, fingerprints, matches

_CLOSE = 0.05  # share of pairs far apart that are as close as two frames of one video
_REACH = 5  # places between two frames that may be linked
_LEAST_RUN = 5  # frames; fewer are the blurred part of a video more often than a video of their own
_OFFSETS = 64  # for pairs far apart
_ORDERED = 0.5  # share of close neighbours from which an order is one of videos; by chance it is `_CLOSE`


@dataclass(frozen=True)
class Runs:
    """A list of pictures cut where one video seems to end and another to begin."""

    run_of: npt.NDArray[np.int64]  # (N,), the number of the run, from 0
    close: float  # share of neighbours that are closer than 95 % of pictures far apart

    @property
    def ordered(self) -> bool:
        """Whether the order is that of videos; otherwise the runs mean nothing."""
        return self.close >= _ORDERED


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
    for order in ("name", "time"):
        sequence = [place for place in file_order(facts, order) if facts[place].colours is not None]
        colours = [vector for place in sequence if (vector := facts[place].colours) is not None]
        found.append((order, sequence, runs([facts[place].look for place in sequence], colours)))
    return max(found, key=lambda one: one[2].close)


def file_order(facts: Sequence[Facts], order: str) -> list[int]:
    """The places of facts by `name`, numbers in it by their value, or by `time` of the image files."""

    def rank(place: int) -> Any:  # noqa: ANN401
        sample = facts[place].sample
        if order == "time":
            return sample.image.stat().st_mtime_ns if sample.image.exists() else 0
        parts = re.split(r"(\d+)", sample.id.casefold())
        return [(int(part) if part.isdecimal() else 0, part) for part in parts]

    return sorted(range(len(facts)), key=rank)


def name_prefixes(ids: Sequence[str]) -> Counter[str]:
    """What names begin with, before their last number: `video03_` of `video03_0012`."""
    return Counter(re.sub(r"\d+\D*$", "", name) for name in ids)


# --- runs of frames ----------------------------------------------------------------------------------------


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
    if count < LEAST_IMAGES:
        return Runs(np.arange(count), 0.0)
    vectors = (np.stack(colours).astype(np.float32), fingerprints(looks)[1])

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
    starts = [0, *(np.flatnonzero(np.diff(run_of)) + 1).tolist()]
    end = dict(zip(starts, [*starts[1:], len(run_of)], strict=True))  # of each run, by its start
    before = dict(zip(starts[1:], starts, strict=False))  # start of the run before
    queue = [(end[start] - start, start) for start in starts]
    heapify(queue)
    while len(end) > 1 and queue[0][0] < _LEAST_RUN:
        size, start = heappop(queue)
        if end.get(start, start) - start != size:
            continue  # it has been joined meanwhile
        to_left = start > 0 and gaps[start] <= gaps[end[start]]
        first, second = (before[start], start) if to_left else (start, end[start])
        end[first] = end.pop(second)
        before[end[first]] = first
        heappush(queue, (end[first] - first, first))
    return np.repeat(np.arange(len(end)), [end[start] - start for start in sorted(end)])
