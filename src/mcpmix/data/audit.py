"""The audit of a data set: what is wrong with it, from what its files show."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from mcpmix.data.facts import Facts
from mcpmix.data.likeness import USUAL_SHARE, Match, closest, feature_matches, matches


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0  # worth knowing
    WARNING = 1  # results may suffer
    ERROR = 2  # the data set cannot be used, or its figures would be wrong


@dataclass(frozen=True)
class Finding:
    """One kind of problem, with all samples that have it."""

    severity: Severity
    title: str  # what is the matter, in a few words
    remedy: str  # what to do
    items: tuple[str, ...]  # the samples or files, each with what was found there
    ids: tuple[str, ...]  # of the samples in `items`, for pictures


_ODDITIES = {
    "turned": (
        Severity.NOTE,
        "the EXIF orientation is applied when the file is read",
        "nothing, unless another tool made the masks without it",
    ),
    "alpha": (Severity.NOTE, "transparency is composited over black", "save without an alpha channel"),
    "palette": (Severity.NOTE, "palettes are replaced by their colours", "save as RGB or grey"),
    "ending": (Severity.WARNING, "the file extension does not match the format", "rename the file"),
    "lossy mask": (
        Severity.NOTE,
        "masks are JPEG: levels from 128 on are lesion",
        "save masks as PNG if the originals are at hand",
    ),
    "name": (
        Severity.NOTE,
        "names contain spaces or non-ASCII letters",
        "rename before using other tools; this one reads them",
    ),
    "text": (
        Severity.WARNING,
        "a corner seems to contain text, which may name a patient and which networks learn",
        "look at the pictures; crop or blacken the text",
    ),
    "empty": (Severity.WARNING, "masks are empty", "keep them if there is no lesion"),
    "full": (Severity.WARNING, "masks cover the whole image", "check how they were exported"),
    "extreme": (
        Severity.WARNING,
        "lesions cover less than 0.05 % or more than 90 % of the image",
        "look at the pictures: these are often marks of another kind",
    ),
    "levels": (
        Severity.NOTE,
        "masks hold more than two levels; 128 or more is lesion",
        "nothing, unless the lesion is drawn darker than that",
    ),
}
_EDGE = 0.9  # share of the edge of an image that is lesion only where a mask is inverted
_OF_MASKS = ("empty", "full", "extreme", "levels")


@dataclass(frozen=True)
class Audit:
    """All that was found."""

    facts: tuple[Facts, ...]  # in the order of the ids
    part_of: Mapping[str, str]  # one of `ALL_PARTS` by id; empty without a split

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The most severe first."""
        found = [*_single_findings(self.facts), *self._copies(), *self._leaks()]
        return tuple(sorted(found, key=lambda finding: -finding.severity))

    @property
    def warned(self) -> int:
        """How many findings are worse than a note."""
        return sum(finding.severity >= Severity.WARNING for finding in self.findings)

    @cached_property
    def near(self) -> dict[str, tuple[str, Match]]:
        """By id of a held-out image, the training image that shows most nearly the same, if one does."""
        held, seen = self._sides(self.readable)
        found = closest(matches([item.look for item in held], [item.look for item in seen]))
        return {held[place].sample.id: (seen[best.second].sample.id, best) for place, best in found.items()}

    @cached_property
    def alike(self) -> dict[str, tuple[str, Match]]:
        """By id of a held-out image, the training image with most nearly the same features, if one has."""
        known = [item for item in self.readable if item.features is not None]
        held, seen = self._sides(known)
        if not held or not seen:
            return {}
        features = np.stack([item.features for item in known if item.features is not None])
        place_of = {item.sample.id: place for place, item in enumerate(known)}
        sides = ([place_of[item.sample.id] for item in side] for side in (held, seen))
        found = closest(feature_matches(features, [item.sample.group for item in known], *sides))
        return {known[place].sample.id: (known[best.second].sample.id, best) for place, best in found.items()}

    @cached_property
    def readable(self) -> tuple[Facts, ...]:
        """Those whose two files can be read."""
        return tuple(item for item in self.facts if item.digest)

    def leaking_share(self, part: str = "test") -> float:
        """Share of the images of a part that have a copy or a near-duplicate in training, 0..1."""
        ids = [name for name, where in self.part_of.items() if where == part]
        return sum(name in self.near for name in ids) / len(ids) if ids else 0.0

    def statistics(self) -> dict[str, str]:
        """Sizes of images, sizes and places of lesions, in words."""
        good = self.readable
        if not good:
            return {}
        sizes = sorted({(item.width, item.height) for item in good})
        shown = ", ".join(f"{width} x {height}" for width, height in sizes[:3])
        more = f" and {len(sizes) - 3} other sizes" if len(sizes) > 3 else ""
        areas = np.array([item.area for item in good]) * 100
        low, median, high = np.percentile(areas, [5, 50, 95])
        right, down = np.mean([item.centre for item in good], axis=0) * 100
        return {
            "images": f"{len(good)} readable of {len(self.facts)}; {shown}{more} pixels",
            "lesion area": f"median {median:.1f} % of the image, 90 % lie in {low:.1f} .. {high:.1f} %",
            "lesion place": f"on average {right:.0f} % from the left, {down:.0f} % from the top",
        }

    def _part(self, item: Facts) -> str:
        return self.part_of.get(item.sample.id, "")

    def _sides(self, facts: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        """Those of the other parts, which are held out, and those of training."""
        held = [item for item in facts if self._part(item) not in ("", "train")]
        return held, [item for item in facts if self._part(item) == "train"]

    def _copies(self) -> Iterator[Finding]:
        same: dict[str, list[Facts]] = defaultdict(list)
        for item in self.readable:
            if not self.part_of or item.sample.id in self.part_of:  # what a split leaves out does no harm
                same[item.digest].append(item)
        copies = [group for group in same.values() if len(group) > 1]
        parting = "remove the copies, or put them into one part (one group)"
        for severity, where, remedy, across in (
            (Severity.ERROR, "different parts of the split", parting, True),
            (Severity.WARNING, "the same part", "remove the copies; they count twice", False),
        ):
            groups = [g for g in copies if (len({self._part(item) for item in g}) > 1) == across]
            if groups:
                items = tuple(
                    " = ".join(
                        f"{self._part(item)} {item.sample.id} ({item.sample.image})".strip() for item in group
                    )
                    for group in groups
                )
                ids = tuple(item.sample.id for group in groups for item in group)
                yield Finding(severity, f"images with identical pixels are in {where}", remedy, items, ids)
        disputed = [group for group in copies if len({item.mask_digest for item in group}) > 1]
        if disputed:
            yield Finding(
                Severity.ERROR,
                "images with identical pixels have different masks",
                "decide which mask is right and remove the others with their images; `--fix DIR "
                "--drop-copies` keeps the first",
                tuple(" = ".join(item.sample.id for item in group) for group in disputed),
                tuple(item.sample.id for group in disputed for item in group),
            )

    def _leaks(self) -> Iterator[Finding]:
        shares = " and ".join(
            f"{self.leaking_share(part):.1%} of the {part} images"
            for part in ("test", "known", "validation")
            if self.leaking_share(part)
        )
        # Features are for what the pixels do not give away.
        alike = {name: found for name, found in self.alike.items() if name not in self.near}
        digest = {item.sample.id: item.digest for item in self.facts}
        for pairs, title, remedy in (
            (
                self.near,
                f"the split leaks: {shares} are near-duplicates of a training image",
                "split by patient or video: give data.groups, or put such images into one group",
            ),
            (
                alike,
                "images have nearly the features of a training image: perhaps mirrored, rotated or tinted "
                f"copies (closer than {USUAL_SHARE:.0%} of what is usual between neighbours)",
                "look at the pictures; put such images into one group",
            ),
        ):
            # Equal pixels are a finding of their own.
            found = [
                (name, other, match)
                for name, (other, match) in sorted(pairs.items())
                if digest[name] != digest[other]
            ]
            if found:
                items = (f"{self.part_of[name]} {name} ~ train {other} ({m.how})" for name, other, m in found)
                ids = (item for name, other, _ in found for item in (name, other))
                yield Finding(Severity.WARNING, title, remedy, tuple(items), tuple(ids))


def _single_findings(facts: Sequence[Facts]) -> Iterator[Finding]:
    """What is wrong with single files."""
    broken = [item for item in facts if item.errors]
    if broken:
        yield Finding(
            Severity.ERROR,
            "files cannot be used",
            "repair or remove them, image and mask together",
            tuple(error for item in broken for error in item.errors),
            tuple(item.sample.id for item in broken),
        )
    readable = [item for item in facts if item.digest]
    inverted = [item for item in readable if item.area > 0.5 and item.border > _EDGE]
    if 2 * len(inverted) > len(readable):
        yield Finding(
            Severity.ERROR,
            "masks seem to be inverted: most of the image and nearly all of its edge is lesion",
            "save them with the lesion white and all else black",
            tuple(f"{item.sample.id}: {item.area:.0%} of the image is lesion" for item in inverted),
            tuple(item.sample.id for item in inverted),
        )
    for kind, (severity, title, remedy) in _ODDITIES.items():
        having = [item for item in facts if kind in item.oddities]
        if having:
            items = tuple(
                f"{item.sample.id}: {item.area:.2%} lesion, {item.levels} levels"
                if kind in _OF_MASKS
                else f"{item.sample.id} ({item.sample.image})"
                for item in having
            )
            yield Finding(severity, title, remedy, items, tuple(item.sample.id for item in having))
