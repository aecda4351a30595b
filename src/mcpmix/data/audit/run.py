"""The audit: one look at every file, then all findings."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.audit.features import BATCH, SHARE, Likeness, Phi, likenesses, square
from mcpmix.data.audit.findings import Finding, Severity
from mcpmix.data.audit.hashing import Match, matches
from mcpmix.data.audit.inspection import Bytes, Facts, look_at
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS

_TINY, _HUGE = 0.0005, 0.9  # shares of the image at which a lesion is worth a look
_KINDS = {
    "turned": (
        Severity.NOTE,
        "the camera's turn is applied when the file is read",
        "nothing, unless another tool made the masks without it",
    ),
    "alpha": (Severity.NOTE, "transparency is laid over black", "save without an alpha channel"),
    "palette": (Severity.NOTE, "palettes are replaced by their colours", "save as RGB or grey"),
    "ending": (Severity.WARNING, "the ending names another format than the file has", "rename the file"),
    "lossy mask": (
        Severity.NOTE,
        "masks are JPEG: levels from 128 on are lesion",
        "save masks as PNG if the originals are at hand",
    ),
    "name": (
        Severity.NOTE,
        "names hold spaces or letters that are not ASCII",
        "rename before using other tools; this one reads them",
    ),
    "text": (
        Severity.WARNING,
        "a corner seems to hold writing, which may name a patient and which networks learn",
        "look at the pictures; crop or blacken the writing",
    ),
}


@dataclass(frozen=True)
class Audit:
    """All that was found.

    Attributes:
        facts: of each sample, in the order of their ids.
        part_of: train, validation or test by id; empty without a split.
    """

    facts: tuple[Facts, ...]
    part_of: Mapping[str, str]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The gravest first."""
        found = [*_file_findings(self.facts), *_mask_findings(self.facts), *self._copies()]
        return tuple(sorted(found, key=lambda finding: -finding.severity))

    @property
    def warned(self) -> bool:
        """Whether there is a finding that is worse than a note."""
        return any(finding.severity >= Severity.WARNING for finding in self.findings)

    @cached_property
    def near(self) -> tuple[tuple[str, str, Match], ...]:
        """Pairs (test or validation id, training id, how alike) that show nearly or exactly the same."""
        seen = [facts for facts in self._readable() if self.part_of.get(facts.sample.id) == "train"]
        held = [
            facts for facts in self._readable() if self.part_of.get(facts.sample.id) in ("validation", "test")
        ]
        prints = [[facts.fingerprint for facts in side if facts.fingerprint] for side in (held, seen)]
        return tuple(
            (held[match.first].sample.id, seen[match.second].sample.id, match)
            for match in matches(prints[0], prints[1])
        )

    @cached_property
    def alike(self) -> tuple[tuple[str, str, Likeness], ...]:
        """Pairs (test or validation id, training id, how alike) with nearly the same features."""
        known = [facts for facts in self._readable() if facts.features is not None]
        if not known:
            return ()
        parts = [self.part_of.get(facts.sample.id) for facts in known]
        held = [place for place, part in enumerate(parts) if part in ("validation", "test")]
        seen = [place for place, part in enumerate(parts) if part == "train"]
        features = np.stack([facts.features for facts in known if facts.features is not None])
        groups = [facts.sample.group for facts in known]
        return tuple(
            (known[pair.first].sample.id, known[pair.second].sample.id, pair)
            for pair in likenesses(features, groups, held, seen)
        )

    def leaking_share(self, part: str = "test") -> float:
        """Share of the images of a part that have a copy or a near-copy in training, 0..1."""
        ids = [name for name, where in self.part_of.items() if where == part]
        copied = {name for name, _, _ in self.near}
        return sum(name in copied for name in ids) / len(ids) if ids else 0.0

    def statistics(self) -> dict[str, str]:
        """Sizes of images, sizes and places of lesions, in words."""
        good = self._readable()
        if not good:
            return {}
        sizes = sorted({(facts.width, facts.height) for facts in good})
        shown = ", ".join(f"{width} x {height}" for width, height in sizes[:3])
        more = f" and {len(sizes) - 3} other sizes" if len(sizes) > 3 else ""
        areas = np.array([facts.area for facts in good]) * 100
        low, median, high = np.percentile(areas, [5, 50, 95])
        right, down = np.mean([facts.centre for facts in good], axis=0) * 100
        return {
            "images": f"{len(good)} readable of {len(self.facts)}; {shown}{more} pixels",
            "lesion area": f"median {median:.1f} % of the image, 90 % lie in {low:.1f} .. {high:.1f} %",
            "lesion place": f"on average {right:.0f} % from the left, {down:.0f} % from the top",
        }

    def index(self) -> DatasetIndex:
        """The index of the split, as `build_index` makes it, without decoding anything again."""
        records = [
            Record(
                **{field.name: getattr(facts.sample, field.name) for field in fields(Sample)},
                split=self.part_of[facts.sample.id],
                image_sha256=facts.digest,
                mask_sha256=facts.mask_digest,
                width=facts.width,
                height=facts.height,
                look=facts.look,
            )
            for facts in self._readable()
            if facts.sample.id in self.part_of
        ]
        return DatasetIndex(tuple(sorted(records, key=lambda record: (PARTS.index(record.split), record.id))))

    def _readable(self) -> list[Facts]:
        return [facts for facts in self.facts if facts.digest]

    def _copies(self) -> Iterator[Finding]:
        same: dict[str, list[Facts]] = defaultdict(list)
        for facts in self._readable():
            if not self.part_of or facts.sample.id in self.part_of:  # what a split leaves out harms nobody
                same[facts.digest].append(facts)
        copies = [group for group in same.values() if len(group) > 1]
        across = [group for group in copies if len({self._part(facts) for facts in group}) > 1]
        within = [group for group in copies if len({self._part(facts) for facts in group}) == 1]
        if across:
            yield _copy_finding(
                Severity.ERROR,
                "images with identical pixels are in different parts of the split",
                "remove the copies, or put them into one part (one group)",
                [[self._label(facts) for facts in group] for group in across],
                across,
            )
        if within:
            yield _copy_finding(
                Severity.WARNING,
                "images with identical pixels are in the same part",
                "remove the copies; they count twice",
                [[self._label(facts) for facts in group] for group in within],
                within,
            )
        yield from self._near_copies()
        yield from self._alike_copies()

    def _near_copies(self) -> Iterator[Finding]:
        digest = {facts.sample.id: facts.digest for facts in self.facts}
        near = [pair for pair in self.near if digest[pair[0]] != digest[pair[1]]]
        if not near:
            return
        best: dict[str, tuple[str, Match]] = {}
        for name, other, match in near:
            if name not in best or match.alike > best[name][1].alike:
                best[name] = (other, match)
        shares = " and ".join(
            f"{self.leaking_share(part):.1%} of the {part} images"
            for part in ("test", "validation")
            if any(self.part_of[name] == part for name in best)
        )
        yield Finding(
            Severity.WARNING,
            f"the split leaks: {shares} show nearly the same as a training image",
            "split by patient or video: give data.groups, or put such images into one group",
            tuple(
                f"{self.part_of[name]} {name} ~ train {other} ({match.different} of 256 signs differ, "
                f"correlation {match.alike:.3f})"
                for name, (other, match) in sorted(best.items())
            ),
            tuple(item for name, (other, _) in sorted(best.items()) for item in (name, other)),
        )

    def _alike_copies(self) -> Iterator[Finding]:
        """What features find beyond the pairs that are found by their pixels."""
        digest = {facts.sample.id: facts.digest for facts in self.facts}
        known = {name for name, _, _ in self.near}
        best: dict[str, tuple[str, Likeness]] = {}
        for name, other, pair in self.alike:
            if name in known or digest[name] == digest[other]:
                continue
            if name not in best or pair.distance < best[name][1].distance:
                best[name] = (other, pair)
        if best:
            yield Finding(
                Severity.WARNING,
                "images have nearly the features of a training image: perhaps mirrored, turned or recoloured "
                f"copies (closer than {SHARE:.0%} of what is usual between neighbours)",
                "look at the pictures; put such images into one group",
                tuple(
                    f"{self.part_of[name]} {name} ~ train {other} (distance {pair.distance:.4f}, usual "
                    f"{pair.usual:.4f})"
                    for name, (other, pair) in sorted(best.items())
                ),
                tuple(item for name, (other, _) in sorted(best.items()) for item in (name, other)),
            )

    def _part(self, facts: Facts) -> str:
        return self.part_of.get(facts.sample.id, "")

    def _label(self, facts: Facts) -> str:
        return f"{self._part(facts)} {facts.sample.id} ({facts.sample.image})".strip()


def inspect_all(
    samples: Sequence[Sample], progress: Progress = SILENT, phi: Phi | None = None
) -> tuple[Facts, ...]:
    """Decode every file once.

    Args:
        samples: the data set; files may be missing or damaged.
        progress: where to report.
        phi: a feature network, to find copies that were mirrored, turned or recoloured.

    Returns:
        Facts in the order of the ids.
    """
    facts: list[Facts] = []
    waiting: dict[int, Bytes] = {}
    with progress.track("Auditing images", len(samples)) as advance:
        for sample in sorted(samples, key=lambda sample: sample.id):
            found, image = look_at(sample)
            if phi is not None and image is not None:
                waiting[len(facts)] = square(image)
            facts.append(found)
            if phi is not None and len(waiting) == BATCH:
                _add_features(facts, waiting, phi)
            advance()
    if phi is not None and waiting:
        _add_features(facts, waiting, phi)
    return tuple(facts)


def _add_features(facts: list[Facts], waiting: dict[int, Bytes], phi: Phi) -> None:
    vectors = phi(np.stack(list(waiting.values())))
    for place, vector in zip(waiting, vectors, strict=True):
        facts[place] = replace(facts[place], features=vector)
    waiting.clear()


def _file_findings(facts: Sequence[Facts]) -> Iterator[Finding]:
    broken = [item for item in facts if item.errors]
    if broken:
        yield Finding(
            Severity.ERROR,
            "files cannot be used",
            "mend or remove them, image and mask together",
            tuple(error for item in broken for error in item.errors),
            tuple(item.sample.id for item in broken),
        )
    for kind, (severity, title, remedy) in _KINDS.items():
        having = [item.sample for item in facts if kind in item.oddities]
        if having:
            yield Finding(
                severity,
                title,
                remedy,
                tuple(f"{sample.id} ({sample.image})" for sample in having),
                tuple(sample.id for sample in having),
            )


def _mask_findings(facts: Sequence[Facts]) -> Iterator[Finding]:
    good = [item for item in facts if item.digest]
    kinds = (
        (Severity.WARNING, "masks are empty", "keep them if there is no lesion", [
            item for item in good if item.area == 0
        ]),
        (Severity.WARNING, "masks cover the whole image", "check how they were exported", [
            item for item in good if item.area == 1
        ]),
        (Severity.WARNING, "lesions cover less than 0.05 % or more than 90 % of the image",
         "look at the pictures: these are often marks of another kind", [
            item for item in good if 0 < item.area < _TINY or _HUGE < item.area < 1
        ]),
        (Severity.NOTE, "masks hold more than two levels; 128 or more is lesion",
         "nothing, unless the lesion is drawn darker than that", [
            item for item in good if item.levels > 2
        ]),
    )  # fmt: skip
    for severity, title, remedy, having in kinds:
        if having:
            items = tuple(
                f"{item.sample.id}: {item.area:.2%} lesion, {item.levels} levels" for item in having
            )
            yield Finding(severity, title, remedy, items, tuple(item.sample.id for item in having))


def _copy_finding(
    severity: Severity,
    title: str,
    remedy: str,
    labels: Sequence[Sequence[str]],
    groups: Sequence[Sequence[Facts]],
) -> Finding:
    return Finding(
        severity,
        title,
        remedy,
        tuple(" = ".join(names) for names in labels),
        tuple(facts.sample.id for group in groups for facts in group),
    )
