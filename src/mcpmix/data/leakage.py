"""Which images show the same, and which test images a network has seen.

By pixels, a pair counts as near-duplicates if two different looks agree: at most 48 of the 256 signs of
brightness differences differ, and small grey versions correlate by at least 0.975. On CVC-ClinicDB this rule
finds neighbouring frames of a video and no pair from two videos; either look alone does not. (By features:
data/features.py.)

A list of images travels in the folder of every network as `images.json`: the digest of the pixels of each,
and a print by which near-duplicates are found. So leaks can be found years later, without the images; names
and anything that can be looked at stay behind.
"""

import base64
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.files import read_json, write_json
from mcpmix.core.pixels import Pixels
from mcpmix.data import prints
from mcpmix.data.index import Record

Floats = npt.NDArray[np.float32]

SEEN = "images.json"
_SIGNS = 16  # rows and columns of signs
_PACKED = _SIGNS * _SIGNS // 8  # bytes of the signs
_MOST_DIFFERENT = 48
_LEAST_CORRELATION = 0.975
_BLOCK = 512  # rows compared at a time, which bounds memory
_AXES = 12  # along which near-duplicates are searched
_MOST_FOR_AXES = 256  # looks from which the axes are taken; any axes are right, good ones are fast
_FEW = 256  # looks, of which each is compared
_PAIRS = 2**14  # compared at a time
_ROUNDING = 1e-4  # of distances along the axes


@dataclass(frozen=True)
class Match:
    """Two pictures that are near-duplicates."""

    first: int  # place in the first list
    second: int  # place in the second list
    distance: float  # 0 for the same; comparable within one search only
    how: str  # the measured numbers in words


def closest(found: Iterable[Match]) -> dict[int, Match]:
    """The closest match of each picture of the first list that has one."""
    best: dict[int, Match] = {}
    for match in found:
        if match.first not in best or match.distance < best[match.first].distance:
            best[match.first] = match
    return best


# --- by pixels ---------------------------------------------------------------------------------------------


def look_of(image: Pixels) -> str:
    """Two looks at an (H, W, 3) image, as 1408 characters.

    256 signs, whether brightness rises from one cell to the next on its right, and 32 x 32 grey levels.
    """
    levels = Image.fromarray(image).convert("L")
    cells = np.asarray(levels.resize((_SIGNS + 1, _SIGNS), Image.Resampling.BOX))
    grey = np.asarray(levels.resize((prints.SIDE, prints.SIDE), Image.Resampling.BOX))
    signs = np.packbits((cells[:, 1:] > cells[:, :-1]).ravel())
    return base64.b64encode(signs.tobytes() + grey.tobytes()).decode()


def print_of(look: str) -> str:
    """What of a look may be passed on: hashes from which no picture can be read off."""
    if is_print(look):
        return look
    return prints.print_of(np.frombuffer(base64.b64decode(look)[_PACKED:], dtype=np.uint8))


def is_print(look: str) -> bool:
    """Whether a text that `require_look` accepts is a print."""
    return len(look) == 4 * math.ceil(prints.BYTES / 3)


def require_look(text: str) -> None:
    """Raise a ValueError for a text that is neither a look nor a print."""
    size = len(base64.b64decode(text, validate=True))
    if size not in (_PACKED + prints.SIDE**2, prints.BYTES):
        raise ValueError(f"a fingerprint of {size} bytes")


def matches(first: Sequence[str], second: Sequence[str]) -> Iterator[Match]:
    """All near-duplicate pairs of one look from each list; see `LookSearch.matches` for their order.

    The second list may hold prints in place of looks. Three equal hashes of 256 are enough then, which on
    CVC-ClinicDB and Kvasir-SEG finds nearly all pairs that looks find (benchmarks/fingerprints.py).
    """
    return LookSearch(second).matches(first)


class LookSearch:
    """Looks, or prints, among which near-duplicates of others are searched, as in `matches`.

    The grey versions of a pair, of length 1, are at most sqrt(2 - 2 * 0.975) apart; along a few of their axes
    they are no farther. So a tree of points on these axes finds all pairs that can be one, and few others:
    not every look is compared with every other.
    """

    def __init__(self, looks: Sequence[str]) -> None:
        self._whole = np.array([p for p, look in enumerate(looks) if look and not is_print(look)], int)
        self._printed = {place: look for place, look in enumerate(looks) if is_print(look)}
        if len(self._whole):
            self._signs, self._greys = fingerprints([looks[place] for place in self._whole])
            seen = np.linspace(0, len(self._greys) - 1, min(len(self._greys), _MOST_FOR_AXES)).astype(int)
            self._axes = np.linalg.svd(self._greys[seen], full_matrices=False)[2][:_AXES].T
            self._lit = np.flatnonzero(self._greys.any(axis=1))  # those of one grey are alike, but no pairs
            self._tree = None
            if len(self._lit) > _FEW:
                from scipy.spatial import cKDTree  # takes a while to load: not for a small run that is shown

                self._tree = cKDTree(self._greys[self._lit] @ self._axes)

    def matches(self, looks: Sequence[str]) -> Iterator[Match]:
        """All near-duplicate pairs of one of these looks and one that is searched.

        Those with looks come first, then those with prints, both in the order of these.
        """
        for start in range(0, len(looks), _BLOCK) if len(self._whole) else ():
            signs, greys = fingerprints(looks[start : start + _BLOCK])
            for row, column, different, alike in self._near(signs, greys):
                how = f"{int(different)} of 256 signs differ, correlation {alike:.3f}"
                yield Match(start + row, int(self._whole[column]), 1 - alike, how)
        if self._printed:
            asked = {place: text for place, look in enumerate(looks) if (text := print_of(look))}
            rows, columns = list(asked), list(self._printed)
            for row, column, count in prints.alike_prints(list(asked.values()), list(self._printed.values())):
                how = f"{count} of {prints.HASHES} hashes are equal"
                yield Match(rows[row], columns[column], 1 - count / prints.HASHES, how)

    def _near(self, signs: Floats, greys: Floats) -> Iterator[tuple[int, int, float, float]]:
        """Row, column, number of different signs and correlation of each pair of whole looks."""
        reach = math.sqrt(2 - 2 * _LEAST_CORRELATION) + _ROUNDING
        found = [range(len(self._lit))] * len(greys)
        if self._tree is not None:
            found = self._tree.query_ball_point(greys @ self._axes, reach, return_sorted=True)
        rows = np.repeat(np.arange(len(found)), [len(near) for near in found])
        columns = self._lit[np.concatenate(found).astype(int)]
        for start in range(0, len(rows), _PAIRS):
            part = slice(start, start + _PAIRS)
            row, column = rows[part], columns[part]
            different = (signs[row] != self._signs[column]).sum(axis=1)
            alike = np.einsum("nf,nf->n", greys[row], self._greys[column])
            kept = (different <= _MOST_DIFFERENT) & (alike >= _LEAST_CORRELATION)
            yield from zip(*(each[kept].tolist() for each in (row, column, different, alike)), strict=True)


def fingerprints(looks: Sequence[str]) -> tuple[Floats, Floats]:
    """(N, 256) signs, 0 or 1, and (N, 1024) grey levels, mean 0 and norm 1, or all 0 for one grey."""
    content = np.stack([np.frombuffer(base64.b64decode(look), dtype=np.uint8) for look in looks])
    greys = content[:, _PACKED:].astype(np.float32)
    greys = greys - greys.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(greys, axis=1, keepdims=True)
    signs = np.unpackbits(content[:, :_PACKED], axis=1).astype(np.float32)
    return signs, greys / np.where(norms > 0, norms, 1)


# --- what a network has seen -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenImage:
    """One image that a network has seen."""

    id: str  # what it was called
    sha256: str  # `pixel_digest` of the image
    look: str = ""  # as `look_of` or `print_of` gives it; empty if only the digest is known


def images_of(records: Iterable[Record]) -> list[SeenImage]:
    """The records of an index as a list of seen images."""
    return [SeenImage(record.id, record.image_sha256, record.look) for record in records]


def write_seen(folder: Path, images: Sequence[SeenImage], *, private: bool = False) -> None:
    """Put the list of images into a network's folder, for everybody who gets the network.

    Args:
        private: whether names and looks are kept, in a folder that is not passed on.
    """
    rows = [asdict(image) for image in images]
    if not private:
        prints = {image.sha256: print_of(image.look) if image.look else "" for image in images}
        rows = [{"sha256": digest, "print": prints[digest]} for digest in sorted(prints)]
    write_json(folder / SEEN, {"images": rows})


def read_seen(folder: Path) -> list[SeenImage]:
    """The list in a network's folder; empty if there is none, a DataError if it is damaged."""
    path = folder / SEEN
    if not path.is_file():
        return []
    try:
        images = []
        for row in read_json(path)["images"]:
            digest, look = str(row["sha256"]), str(row["print"] if "print" in row else row["look"])
            if look:
                require_look(look)
            images.append(SeenImage(str(row.get("id", f"image {digest[:12]}")), digest, look))
        return images
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not a list of seen images ({error!r}), so nobody can tell whether test images are "
            "among them. Restore the file, or train the network again."
        ) from error


def seen_by_generator(folder: Path, digests: Iterable[str], base: Path) -> dict[str, list[SeenImage]]:
    """What a generator and its base have seen, as far as their folders list it.

    Args:
        folder: of the fine-tuned generator.
        digests: of the images in its manifest; those that its list lacks are added.
        base: folder of the pipeline that it was fine-tuned from.
    """
    listed = read_seen(folder)
    named = {image.sha256 for image in listed}
    bare = [SeenImage(f"image {digest[:12]}", digest) for digest in digests if digest not in named]
    return {"the generator": [*listed, *bare], "the generator's base": read_seen(base)}


def refuse_copies(records: Sequence[Record]) -> None:
    """Refuse an image that is in two parts or has two masks, whatever its files are called."""
    alike: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        alike[record.image_sha256].append(record)
    leaks = [
        " = ".join(f"{record.split} {record.id} ({record.image})" for record in same)
        for same in alike.values()
        if len({record.split for record in same}) > 1
    ]
    if leaks:
        raise DataError(
            bullet_list(
                "Images with identical pixels are in different parts of the split, so test figures would be "
                "too good. Remove the copies, or put them into one part (one group):",
                leaks,
            )
        )
    disputed = [
        " = ".join(f"{record.id} ({record.mask})" for record in same)
        for same in alike.values()
        if len({record.mask_sha256 for record in same}) > 1
    ]
    if disputed:
        raise DataError(
            bullet_list(
                "Images with identical pixels have different masks, and only one can be right. Remove the "
                "others with their images; `mcpmix check CONFIG --fix DIR --drop-copies` keeps the first:",
                disputed,
            )
        )


class LeakSearch:
    """Finds held-out images among those that networks have seen.

    Each seen image is compared once, however many networks have seen it.

    Args:
        held: images that no network may have seen.
    """

    def __init__(self, held: Sequence[SeenImage]) -> None:
        self.held = held
        self._ids: dict[str, list[str]] = defaultdict(list)  # of held-out images, by digest
        for image in held:
            self._ids[image.sha256].append(image.id)
        # By digest of a seen image and id of a held-out one: their distance, in numbers and in words.
        self._hits: dict[str, dict[str, tuple[float, str]]] = {}

    def copies(self, seen: Sequence[SeenImage]) -> dict[str, str]:
        """Held-out images that were seen, or that are near-duplicates of one that was.

        Returns:
            By id, the most alike of the seen ones in words: `= train-7`, or `~ train-7 (12 of 256 signs
            differ, correlation 0.991)`. The rule is that of the audit.
        """
        new = [image for image in seen if image.sha256 not in self._hits]
        for image in new:
            same = (-math.inf, f"= {image.id}")
            self._hits[image.sha256] = dict.fromkeys(self._ids.get(image.sha256, ()), same)
        asked, known = ([image for image in side if image.look] for side in (self.held, new))
        for match in matches([image.look for image in asked], [image.look for image in known]):
            image = known[match.second]
            hit = (match.distance, f"~ {image.id} ({match.how})")
            self._hits[image.sha256].setdefault(asked[match.first].id, hit)
        best: dict[str, tuple[float, str]] = {}
        for image in seen:
            for name, hit in self._hits[image.sha256].items():
                best[name] = min(hit, best.get(name, hit))
        return {name: how for name, (_, how) in best.items()}


def leak_text(
    search: LeakSearch, seen_by: Mapping[str, Sequence[SeenImage]], *, refuse: bool, remedy: str = ""
) -> str:
    """Say which test images somebody has seen.

    Args:
        seen_by: images by who has seen them, as "the segmenter".
        refuse: whether that is an error.
        remedy: what else a user can do, for the message.

    Returns:
        Why figures on these images are too good; empty if none was seen.

    Raises:
        DataError: with the names of all of them, if `refuse`.
    """
    told: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for who, seen in seen_by.items():
        for name, what in search.copies(seen).items():
            told[name][what].append(who)
    if not told:
        return ""
    share = f"{len(told)} of {len(search.held)} test images"
    if refuse:
        lines = [
            f"{name} {what}, seen by {' and '.join(who)}"
            for name, ways in sorted(told.items())
            for what, who in ways.items()
        ]
        raise DataError(
            bullet_list(
                f"{share} were seen in training, or are near-duplicates of an image that was (=: same "
                "pixels, ~: near-duplicate), so the figures would be too good. Split by patient or video "
                f"(data.groups; `mcpmix data groups` proposes some), or remove them from a part.{remedy}",
                lines,
            )
        )
    everyone = dict.fromkeys(who for ways in told.values() for names in ways.values() for who in names)
    return f"{share} were seen by {' and '.join(everyone)}, or are near-duplicates of an image that was"


def require_parents(
    parents: Sequence[Record], others: Sequence[Record], seen: Mapping[str, Sequence[SeenImage]]
) -> None:
    """Refuse to make counterparts that would carry held-out images into training.

    Args:
        parents: the images whose counterparts are wanted; all must be of the training part.
        others: the images of the data set outside the training part.
        seen: the images of the generator and of its base, by who has seen them.

    Raises:
        DataError: with every parent outside the training part, and every held-out image that was trained on.
    """
    problems = [
        f"{parent.id} is of the {parent.split} part: only training images may be parents."
        for parent in parents
        if parent.split != "train"
    ]
    held = {other.image_sha256: other for other in others}
    for who, images in seen.items():
        trained = [held[image.sha256] for image in images if image.sha256 in held]
        problems += [f"{other.split} {other.id} was used to train {who}." for other in trained]
    if problems:
        raise DataError(
            bullet_list(
                "Counterparts are made of training images only, by a generator that saw no others. Correct "
                "the split, or train the generator again:",
                problems,
            )
        )
