"""What an audit finds."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import outline
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.index import DatasetIndex, Record
from mcpmix.data.likeness import (
    BATCH,
    SHARE,
    Fingerprint,
    Likeness,
    Match,
    Phi,
    fingerprint_from,
    likenesses,
    look_of,
    matches,
    square,
)
from mcpmix.data.sample import Sample, examine_mask, pixel_digest, read_image, size_problems
from mcpmix.data.splits import PARTS


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0
    """Worth knowing."""
    WARNING = 1
    """Results may suffer."""
    ERROR = 2
    """The data set cannot be used, or its figures would be wrong."""


@dataclass(frozen=True)
class Finding:
    """One kind of problem, with all samples that have it.

    Attributes:
        severity: how bad it is.
        title: what is the matter, in a few words.
        remedy: what to do.
        items: the samples or files, each with what was found there.
        ids: ids of the samples in `items`, for pictures.
    """

    severity: Severity
    title: str
    remedy: str
    items: tuple[str, ...]
    ids: tuple[str, ...] = ()


# Descriptions, makers, times and people, and the folders of EXIF, GPS, XMP, IPTC and Photoshop.
_TIFF_TAGS = frozenset({269, 270, 271, 272, 285, 305, 306, 315, 316, 700, 33432, 33723, 34377, 34665, 34853})
_INFO = frozenset({"exif", "icc_profile", "comment", "xmp", "photoshop", "XML:com.adobe.xmp", "mp"})
_MARKER, _START_OF_SCAN, _START = 0xFF, 0xDA, b"\xff\xd8"
_JFIF, _ADOBE = 0xE0, 0xEE  # of the application segments, those that say how to decode
_APPLICATION = range(0xE0, 0xF0)
_COMMENT = 0xFE


def has_metadata(image: Image.Image) -> bool:
    """Whether an open file carries more than pixels."""
    if image.format == "TIFF":
        return any(tag in _TIFF_TAGS for tag in image.getexif())
    texts = getattr(image, "text", {})  # of PNG
    return bool(texts or _INFO & set(image.info) or len(image.getexif()))


def without_metadata(path: Path) -> bytes | None:
    """A JPEG file without its metadata, its pixels not encoded again; None if it is built otherwise."""
    return _kept_segments(path.read_bytes())


def _kept_segments(content: bytes) -> bytes | None:
    if not content.startswith(_START):
        return None
    kept = [_START]
    place = 2
    while place + 4 <= len(content) and content[place] == _MARKER:
        kind = content[place + 1]
        end = place + 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        if kind == _START_OF_SCAN:
            return b"".join([*kept, content[place:]])
        if kind not in (*_APPLICATION, _COMMENT) or kind in (_JFIF, _ADOBE):
            kept.append(content[place:end])
        place = end
    return None


Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

THUMBNAIL = 96  # pixels, longer side
_ORIENTATION = 0x0112
_ENDINGS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (".jpg", ".jpeg"),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._+-]+")
_CORNER = 0.14  # of the sides
_LEAST_SIDE = 32  # pixels, below which nothing can be read
_INK = 235  # grey level from which on a pixel may be writing
_STEP = 90  # levels by which writing differs from what is beside it
_LEAST_STROKES, _MOST_INK = 0.05, 0.35  # shares of a corner


@dataclass(frozen=True)
class Facts:
    """What the files of a sample are.

    Attributes:
        sample: whose files.
        errors: why it cannot be used.
        oddities: kinds of oddities that do no harm by themselves; `mcpmix.data.audit` says what
            each means.
        digest: `pixel_digest` of the image; empty if it cannot be read.
        mask_digest: the same of the mask.
        width: pixels; 0 if it cannot be read.
        height: pixels.
        levels: number of grey levels in the mask file.
        area: share of the image that is lesion, 0..1.
        centre: place of the lesion's centre, right and down, 0..1.
        fingerprint: of the image.
        thumbnail: (h, w, 3) uint8, the lesion outlined.
        look: from which the fingerprint comes back (`mcpmix.data.leakage`).
        features: (F,) float32, what a feature network says of the image; None if none was asked.
    """

    sample: Sample
    errors: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()
    digest: str = ""
    mask_digest: str = ""
    width: int = 0
    height: int = 0
    levels: int = 0
    area: float = 0.0
    centre: tuple[float, float] = (0.5, 0.5)
    fingerprint: Fingerprint | None = None
    thumbnail: Bytes | None = None
    look: str = ""
    features: Floats | None = None


def inspect(sample: Sample) -> Facts:
    """Look at image and mask of a sample."""
    return look_at(sample)[0]


def look_at(sample: Sample) -> tuple[Facts, Bytes | None]:
    """The same, and the image, (H, W, 3) uint8, if both files could be read."""
    errors: list[str] = []
    image = mask = None
    levels = 0
    try:
        image = read_image(sample.image)
    except DataError as error:
        errors.append(str(error))
    try:
        mask, levels = examine_mask(sample.mask)
    except DataError as error:
        errors.append(str(error))
    if image is None or mask is None:
        return Facts(sample, tuple(errors), tuple(_name_oddities(sample))), None
    errors += size_problems(sample.image, sample.mask, image, mask)
    oddities = [
        *_name_oddities(sample),
        *file_oddities(sample.image),
        *file_oddities(sample.mask, mask=True),
    ]
    if _looks_written(image):
        oddities.append("text")
    height, width = image.shape[:2]
    look = look_of(image)
    facts = Facts(
        sample,
        tuple(errors),
        tuple(dict.fromkeys(oddities)),
        pixel_digest(image),
        pixel_digest(mask),
        width,
        height,
        levels,
        float(mask.mean()),
        _centre(mask),
        fingerprint_from(look),
        _thumbnail(image, mask),
        look,
    )
    return facts, image


def _name_oddities(sample: Sample) -> Iterator[str]:
    if not _PLAIN_NAME.fullmatch(sample.image.name) or not _PLAIN_NAME.fullmatch(sample.mask.name):
        yield "name"


def file_oddities(path: Path, *, mask: bool = False) -> Iterator[str]:
    """What the reader has to put right, from the header alone.

    Args:
        path: a file that can be read.
        mask: whether it is a mask.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            known = _ENDINGS.get(image.format or "", ())
            if known and path.suffix.lower() not in known:
                yield "ending"
            if image.getexif().get(_ORIENTATION, 1) not in (0, 1):
                yield "turned"
            if image.mode in ("P", "PA"):
                yield "palette"
            if "A" in image.getbands():
                yield "alpha"
            if mask and image.format in ("JPEG", "MPO"):
                yield "lossy mask"
    except Exception:  # a header of a kind that only tifffile reads, or a damaged tag: the pixels were read
        return


def _looks_written(image: Bytes) -> bool:
    """Whether a corner holds writing: thin bright strokes with steep sides on something darker."""
    height, width = image.shape[:2]
    if min(height, width) < _LEAST_SIDE:
        return False
    rows, columns = max(8, round(height * _CORNER)), max(8, round(width * _CORNER))
    for vertical in (slice(0, rows), slice(height - rows, height)):
        for across in (slice(0, columns), slice(width - columns, width)):
            corner = image[vertical, across].mean(axis=2)
            ink = corner >= _INK
            strokes = (np.abs(np.diff(corner, axis=1)) >= _STEP) & (ink[:, 1:] | ink[:, :-1])
            if strokes.mean() >= _LEAST_STROKES and ink.mean() <= _MOST_INK:
                return True
    return False


def _centre(mask: Bytes) -> tuple[float, float]:
    total = int(mask.sum(dtype=np.int64))
    if not total:
        return 0.5, 0.5
    # By sums along the sides: the places of all pixels would fill the memory where an image is large.
    centres = []
    for axis in (0, 1):
        counts = mask.sum(axis=axis, dtype=np.int64)
        centres.append(float((counts @ np.arange(len(counts)) / total + 0.5) / len(counts)))
    return centres[0], centres[1]


def _thumbnail(image: Bytes, mask: Bytes) -> Bytes:
    height, width = image.shape[:2]
    scale = THUMBNAIL / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    small[outline(np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST)))] = (255, 220, 0)
    return small


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


def clusters(facts: Sequence[Facts]) -> dict[str, str]:
    """Put images that show nearly the same into one group, besides those that are in one group already.

    Nearness is passed on: if a is near b and b near c, all three are one group. That keeps neighbouring
    frames of a video together as far as they look alike; it does not know patients.

    Args:
        facts: of a data set; files that cannot be read stay alone.

    Returns:
        By id, the name of the group: the first id in it.
    """
    readable = [item for item in facts if item.fingerprint]
    prints = [item.fingerprint for item in readable if item.fingerprint]
    parent = {item.sample.id: item.sample.id for item in facts}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def join(one: str, other: str) -> None:
        first, second = sorted((root(one), root(other)))
        parent[second] = first

    known: dict[str, str] = {}
    for item in facts:
        join(known.setdefault(item.sample.group, item.sample.id), item.sample.id)
    for match in matches(prints, prints):
        join(readable[match.first].sample.id, readable[match.second].sample.id)
    return {name: root(name) for name in parent}
