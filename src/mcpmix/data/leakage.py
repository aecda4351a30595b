"""Which images a network has seen, and which test images are among them or near-duplicates of them.

A list of images travels in the folder of every network as `images.json`: the digest of the pixels of each,
and a print by which near-duplicates are found. So leaks can be found years later, without the images; names
and anything that can be looked at stay behind.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.reading import read_json
from mcpmix.core.stage_folder import write_json
from mcpmix.data.index import Record
from mcpmix.data.likeness import matches, print_of, require_look

SEEN = "images.json"


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
