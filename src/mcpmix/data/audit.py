"""The audit of a data set: what the files of each sample show, decoded once, and what is wrong with them.

The facts also serve the guess of groups and repaired copies.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.device import core_count
from mcpmix.core.pixels import Pixels, outline
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.features import USUAL_SHARE, feature_matches
from mcpmix.data.leakage import Floats, Match, closest, look_of, matches
from mcpmix.data.sample import Sample, pixel_digest, read_pair

Phi = Callable[[Pixels], Floats]
"""A feature network: from (N, 128, 128, 3) uint8 to (N, F) float32."""

_BATCH = 32  # images at a time
_THUMBNAIL = 96  # pixels, longer side
_YELLOW = (255, 220, 0)
_ORIENTATION = 0x0112
ENDINGS = {  # by format, the usual one first
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (".jpg", ".jpeg"),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._+-]+")
_CORNER = 0.14  # of the sides
_LEAST_SIDE = 32  # pixels, below which nothing can be read
_INK = 235  # grey level from which a pixel may be text
_STEP = 90  # levels by which text differs from what is next to it
_LEAST_STROKES, _MOST_INK = 0.05, 0.35  # shares of a corner
_TINY, _HUGE = 0.0005, 0.9  # shares of the image at which a lesion is worth a look
_PHI_SIDE = 128  # pixels of the squares that phi sees
_COLOURS = 16  # levels of each channel in a histogram of colours


@dataclass(frozen=True)
class Facts:
    """What the files of a sample show."""

    sample: Sample
    errors: tuple[str, ...] = ()  # why it cannot be used
    oddities: tuple[str, ...] = ()  # keys of `_ODDITIES`
    digest: str = ""  # `pixel_digest` of the image; if a file cannot be read, empty like all below
    mask_digest: str = ""  # the same of the mask
    width: int = 0
    height: int = 0
    levels: int = 0  # number of grey levels in the mask file
    area: float = 0.0  # share of the image that is lesion, 0..1
    shares: tuple[float, ...] = ()  # of the labels 1, 2, ... of several classes, which sum to `area`
    border: float = 0.0  # share of the pixels at the edge of the image that are lesion, 0..1
    centre: tuple[float, float] = (0.5, 0.5)  # of the lesion, right and down, 0..1
    look: str = ""  # `look_of` the image
    colours: npt.NDArray[np.float16] | None = None  # `colours_of` the image
    thumbnail: Pixels | None = None  # (h, w, 3) uint8, the lesion outlined
    features: npt.NDArray[np.float32] | None = None  # (F,), what phi says of the image; None without phi


def inspect_all(
    samples: Sequence[Sample], progress: Progress = SILENT, phi: Phi | None = None
) -> tuple[Facts, ...]:
    """Decode every file once, missing and damaged ones included; facts in the order of the ids.

    Args:
        phi: a feature network, to find copies that were mirrored, rotated or recoloured.
    """
    facts: list[Facts] = []
    ordered = sorted(samples, key=lambda sample: sample.id)
    with (
        progress.track("Auditing images", len(samples)) as advance,
        ThreadPoolExecutor(core_count()) as pool,  # decoding and resizing let other threads work
    ):
        for start in range(0, len(ordered), _BATCH):
            found = list(pool.map(inspect, ordered[start : start + _BATCH]))
            seen = [small for _, small in found if small is not None]
            vectors = iter(phi(np.stack(seen)) if phi is not None and seen else ())
            facts += [
                one if small is None else replace(one, features=next(vectors, None)) for one, small in found
            ]
            advance(len(found))
    return tuple(facts)


def inspect(sample: Sample) -> tuple[Facts, Pixels | None]:
    """The facts of a sample, and its image as `square` makes it, if both files could be read."""
    plain = _PLAIN_NAME.fullmatch(sample.image.name) and _PLAIN_NAME.fullmatch(sample.mask.name)
    oddities = [] if plain else ["name"]
    pair, errors = read_pair(sample.image, sample.mask, sample.labels)
    if pair is None:
        return Facts(sample, tuple(errors), tuple(oddities)), None
    image, classes, levels = pair
    mask = classes if sample.labels == 2 else (classes > 0).astype(np.uint8)
    numbers = range(1, sample.labels if sample.labels > 2 else 1)
    oddities += [*file_oddities(sample.image), *file_oddities(sample.mask, mask=True)]
    area, small = float(mask.mean()), square(image)
    seen = {
        "text": _looks_written(image),
        "empty": area == 0,
        "full": area == 1,
        "extreme": 0 < area < _TINY or _HUGE < area < 1,
        "levels": levels > 2 and sample.labels == 2,
    }
    oddities += [kind for kind, there in seen.items() if there]
    centre = (0.5, 0.5)
    if total := int(mask.sum(dtype=np.int64)):
        # By sums along the sides: the places of all pixels would fill the memory where an image is large.
        counts = [mask.sum(axis=axis, dtype=np.int64) for axis in (0, 1)]
        right, down = (float((side @ np.arange(len(side)) / total + 0.5) / len(side)) for side in counts)
        centre = (right, down)
    height, width = mask.shape
    scale = _THUMBNAIL / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    thumbnail = np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    thumbnail[outline(np.array(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST)))] = _YELLOW
    facts = Facts(
        sample,
        tuple(errors),
        tuple(dict.fromkeys(oddities)),
        digest=pixel_digest(image),
        mask_digest=pixel_digest(classes),
        width=image.shape[1],
        height=image.shape[0],
        levels=levels,
        area=area,
        shares=tuple(float((classes == label).mean()) for label in numbers),
        border=float(np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]]).mean()),
        centre=centre,
        look=look_of(image),
        colours=colours_of(small),
        thumbnail=thumbnail,
    )
    return facts, small


def file_oddities(path: Path, *, mask: bool = False) -> Iterator[str]:
    """What the reader has to correct, from the header of a readable file."""
    try:
        with path.open("rb") as file, Image.open(file) as image:
            known = ENDINGS.get(image.format or "", ())
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


def _looks_written(image: Pixels) -> bool:
    """Whether a corner contains text: thin bright strokes with steep sides on something darker."""
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


def square(image: Pixels) -> Pixels:
    """A picture of any shape, (H, W, 3) uint8, as phi sees it: (128, 128, 3)."""
    return np.asarray(Image.fromarray(image).resize((_PHI_SIDE, _PHI_SIDE), Image.Resampling.BOX))


def colours_of(image: Pixels) -> npt.NDArray[np.float16]:
    """The colours of an (H, W, 3) image: roots of the shares of 16 x 16 x 16 colours, (4096,), norm 1."""
    levels = square(image).reshape(-1, 3).astype(np.int64) * _COLOURS // 256
    counts = np.bincount(levels @ (_COLOURS**2, _COLOURS, 1), minlength=_COLOURS**3)
    return np.sqrt(counts / len(levels)).astype(np.float16)


# --- the audit --------------------------------------------------------------------------------------------


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
        "look at the pictures: more than 90 % is often an inverted mask, with the lesion black, and less "
        "than 0.05 % a mark of another kind",
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
        held, seen = ([self.readable[place] for place in side] for side in self._sides(self.readable))
        found = closest(matches([item.look for item in held], [item.look for item in seen]))
        return {held[place].sample.id: (seen[best.second].sample.id, best) for place, best in found.items()}

    @cached_property
    def alike(self) -> dict[str, tuple[str, Match]]:
        """By id of a held-out image, the training image with most nearly the same features, if one has."""
        known = [item for item in self.readable if item.features is not None]
        if not known:
            return {}
        features = np.stack([item.features for item in known if item.features is not None])
        groups = [item.sample.group for item in known]
        found = closest(feature_matches(features, groups, *self._sides(known)))
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

    def _sides(self, facts: Sequence[Facts]) -> tuple[list[int], list[int]]:
        """The places of images in other parts, which are held out, and of those in training."""
        held = [place for place, item in enumerate(facts) if self._part(item) not in ("", "train")]
        return held, [place for place, item in enumerate(facts) if self._part(item) == "train"]

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
