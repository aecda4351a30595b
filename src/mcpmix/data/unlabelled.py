"""Stage 0b: images without masks, from `data.unlabelled` and from training images beyond `data.labelled`.

Each file is decoded once: its digest and its look go to the list of images, its pixels, at training size, to
one file. Whatever shows a validation or test image is refused, for a generator that has seen it would carry
it into training.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcpmix.config import Config
from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import ENDINGS, Pixels, list_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.data.archives import folder_of
from mcpmix.data.dataset import listing, load_collection, make_split, notes_of
from mcpmix.data.index import DatasetIndex, whole_digest
from mcpmix.data.leakage import LookSearch, SeenImage, images_of, look_of, matches, read_seen, write_seen
from mcpmix.data.sample import pixel_digest, read_image, resize_image, shows_mask

TRAINING_PART = "training part"
_PIXELS = "pixels.u8"
_CHUNK = 256  # images that are in memory at once
_MOST_NAMED = 5


@dataclass(frozen=True)
class Found:
    """One file of an image without a mask."""

    id: str
    path: Path
    place: str  # the folder or archive that was named, or the training part


@dataclass(frozen=True)
class Unlabelled:
    """Images without masks at training size."""

    seen: tuple[SeenImage, ...]
    places: tuple[str, ...]  # of each image, as in `Found`
    images: Pixels  # N,S,S,3 uint8, a read-only map

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the images, in their order."""
        return tuple(image.id for image in self.seen)

    @classmethod
    def read(cls, artifact: Artifact) -> "Unlabelled":
        """Map what `run` has written."""
        counts, seen = artifact.manifest["counts"], read_seen(artifact.folder)
        shape = (len(seen), counts["size"], counts["size"], 3)
        pixels = np.memmap(artifact / _PIXELS, np.uint8, "r", shape=shape)
        places = tuple(counts["place_names"][number] for number in counts["place_of"])
        return cls(tuple(seen), places, np.asarray(pixels))


def key(config: Config, dataset: Artifact) -> StageKey:
    """What the list depends on."""
    inputs, notes = {"dataset": whole_digest(dataset)}, notes_of(config)
    if config.data.labelled is not None:  # the index does not name the images that lose their masks
        inputs |= dataset.manifest["key"]["inputs"]
    inputs |= {str(number): listing(place, notes) for number, place in enumerate(config.data.unlabelled)}
    return StageKey("unlabelled", {"size": config.data.size}, inputs, config.seed)


def run(config: Config, dataset: Artifact, out: Path, progress: Progress = SILENT) -> Artifact:
    """Find, examine and decode the images.

    Raises:
        DataError: with every place without images, every file that cannot be read or is a mask, and every
            image that shows a validation or test image; or if none is left.
    """
    stage_key = key(config, dataset)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    index = DatasetIndex.read(dataset)
    with workspace(out, stage_key) as space:
        labelled = {record.id for record in index.part("train")}
        found = [*find(config, progress), *rest_of_training(config, labelled, progress)]
        held = [record for record in index.records if record.split != "train"]
        with (space.folder / _PIXELS).open("wb") as file:
            kept, seen, notes = examine(
                found,
                [(record.split, image) for record, image in zip(held, images_of(held), strict=True)],
                {record.image_sha256: record.id for record in index.part("train")},
                lambda image: file.write(resize_image(image, config.data.size).data),
                progress,
            )
        for note in notes:
            progress.say(f"unlabelled: {note}")
        write_seen(space.folder, seen, private=True)
        names = list(dict.fromkeys(item.place for item in kept))
        return space.finish(
            images=len(seen),
            size=config.data.size,
            place_names=names,
            place_of=[names.index(item.place) for item in kept],
            notes=notes,
        )


def find(config: Config, progress: Progress = SILENT) -> list[Found]:
    """The files below all named places.

    Raises:
        DataError: with every place that does not exist or holds no image.
    """
    found, problems = [], []
    names = [place.name for place in config.data.unlabelled]
    for number, place in enumerate(config.data.unlabelled):
        folder = folder_of(place, progress)
        paths = list_images(folder, deep=True) if folder.is_dir() else []
        if not paths:
            state = "holds no image" if folder.is_dir() else "does not exist"
            problems.append(f"{place} {state}; looked for {', '.join(sorted(ENDINGS))} in it and below.")
        name = place.name if names.count(place.name) == 1 else f"{place.parent.name}/{place.name}"
        found += [
            Found(f"unlabelled/{number}/{path.relative_to(folder).as_posix()}", path, name) for path in paths
        ]
    if problems:
        raise DataError(bullet_list("data.unlabelled: expected folders or archives of images:", problems))
    return found


def rest_of_training(config: Config, labelled: Set[str], progress: Progress = SILENT) -> list[Found]:
    """The training images that `data.labelled` leaves without a mask; those with one are given by id."""
    data = config.data
    if data.labelled is None or data.source == "phantom":
        return []
    places = data.model_dump(include={"root", "images", "masks", "groups"})
    collection = load_collection(data.source, **places, classes=data.classes, progress=progress)
    rest = set(make_split(collection, data.split, config.seed).train)
    rest -= labelled
    return [Found(item.id, item.image, TRAINING_PART) for item in collection.samples if item.id in rest]


def examine(
    found: Sequence[Found],
    held: Sequence[tuple[str, SeenImage]],
    labelled: Mapping[str, str],
    keep: Callable[[Pixels], object],
    progress: Progress = SILENT,
) -> tuple[list[Found], list[SeenImage], list[str]]:
    """Decode all images and hand those that can be used to `keep`, each once.

    Copies of each other or of labelled training images are used once. An image of the training part that
    shows a held-out one is left out, for nobody put it here on purpose.

    Args:
        held: the part, as `test`, and the image of each held-out one.
        labelled: ids of the labelled training images, by the digest of their pixels.
        keep: takes an (H, W, 3) image.

    Returns:
        The files that were kept, what they show, and what is worth knowing about the others.

    Raises:
        DataError: with every image that cannot be used, or if none is left.
    """
    known = dict(labelled)
    problems: list[str] = []
    copies: list[str] = []
    left_out: list[str] = []
    kept: list[Found] = []
    seen: list[SeenImage] = []
    shown_by = ShownSearch(held)
    with progress.track("unlabelled images", len(found)) as advance:
        for start in range(0, len(found), _CHUNK):
            chunk = found[start : start + _CHUNK]
            read = [(item, *one) for item in chunk if (one := _decode(item, problems)) is not None]
            shown = shown_by.find([looked for _, _, looked in read])
            for item, image, looked in read:
                if looked.id in shown and item.place == TRAINING_PART:
                    left_out.append(f"{item.id} {shown[looked.id]}")
                elif looked.id in shown:
                    problems.append(f"{item.path} {shown[looked.id]}. Remove it.")
                elif looked.sha256 in known:
                    copies.append(f"{item.id} = {known[looked.sha256]}")
                else:
                    known[looked.sha256] = item.id
                    kept.append(item)
                    seen.append(looked)
                    keep(image)
            advance(len(chunk))
    if problems:
        raise DataError(bullet_list(f"{len(problems)} images without masks cannot be used:", problems))
    notes = []
    if copies:
        notes.append(f"{len(copies)} copies are used once: {_first_of(copies)}")
    if left_out:
        notes.append(
            f"{len(left_out)} images of the training part show held-out ones and are left out: "
            f"{_first_of(left_out)}"
        )
    if not kept:
        raise DataError(
            f"No image without a mask is left of {len(found)} found{'; '.join(['', *notes])}. Name folders "
            "of other images in data.unlabelled, or keep fewer masks (data.labelled)."
        )
    looks = [image.look for image in seen]
    if near := {match.first for match in matches(looks, looks) if match.first > match.second}:
        notes.append(f"{len(near)} are near-duplicates of others, as frames of a video are; all are used")
    return kept, seen, notes


class ShownSearch:
    """Finds images that are held-out ones or near-duplicates of them.

    Args:
        held: as for `examine`.
    """

    def __init__(self, held: Sequence[tuple[str, SeenImage]]) -> None:
        self._names = [f"{part} image {image.id}" for part, image in held]
        self._by_digest = {image.sha256: name for name, (_, image) in zip(self._names, held, strict=True)}
        self._looks = LookSearch([image.look for _, image in held])

    def find(self, images: Sequence[SeenImage]) -> dict[str, str]:
        """Which of some images show a held-out one, by id, in words."""
        known = self._by_digest
        shown = {image.id: f"is the {known[image.sha256]}" for image in images if image.sha256 in known}
        for match in self._looks.matches([image.look for image in images]):
            text = f"is a near-duplicate of the {self._names[match.second]} ({match.how})"
            shown.setdefault(images[match.first].id, text)
        return shown


def _decode(item: Found, problems: list[str]) -> tuple[Pixels, SeenImage] | None:
    """The image of a file and what it shows; None and a line in `problems` if it cannot be used."""
    try:
        image = read_image(item.path)
    except DataError as error:
        problems.append(str(error))
        return None
    if shows_mask(image):
        problems.append(
            f"{item.path} is a mask or an empty picture: it is black and white only. Expected photographs; "
            "name the folder of the images alone."
        )
        return None
    return image, SeenImage(item.id, pixel_digest(image), look_of(image))


def _first_of(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_MOST_NAMED]) + (", ..." if len(texts) > _MOST_NAMED else "")
