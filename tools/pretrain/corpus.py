"""A corpus of images for pretraining, decoded once to a memory map.

Either phantom frames of patients that no demo ever shows, with captions and exact depth, or a user's own
unlabelled images with captions.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mcpmix import phantom
from mcpmix.core.errors import DataError, StorageError, bullet_list
from mcpmix.core.pixels import ENDINGS, list_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of, file_digest, write_json
from mcpmix.data.dataset import PRETRAINING_SEED
from mcpmix.data.leakage import SEEN, SeenImage, read_seen
from mcpmix.data.likeness import look_of
from mcpmix.data.sample import pixel_digest, read_image, resize_image

_FRAMES_PER_PATIENT = 4
_CAPTIONS = "captions.json"  # of a phantom
_NOUNS = ("mucosa", "view", "light")  # what the first words of a phantom frame are about
_NAME_KEYS = ("file_name", "image", "path", "id")
_TEXT_KEYS = ("text", "caption")


@dataclass(frozen=True)
class Corpus:
    """Images for pretraining.

    Attributes:
        images: N,S,S,3 uint8 memory map.
        captions: N texts.
        digest: identity of the images.
        depth: N,S,S float16 in [0, 1], near = 1; None for own images.
        words: N tuples of appearance words; none for own images.
        seen: own images, as evaluation will look for test images among them; none for a phantom.
    """

    images: np.ndarray
    captions: list[str]
    digest: str
    depth: np.ndarray | None = None
    words: list[tuple[str, ...]] | None = None
    seen: tuple[SeenImage, ...] = ()

    def texts(self, prompt: str) -> list[list[str]]:
        """The texts that images are trained with, by kind: captions, and the prompt where there are words.

        The prompt of the method gets one and three appearance phrases behind it: a base that has only seen
        full captions would not know what to make of the prompt that fine-tuning and synthesis use.
        """
        if self.words is None:
            return [self.captions]
        phrases = [[f"{word} {noun}" for word, noun in zip(own, _NOUNS, strict=False)] for own in self.words]
        prompted = [
            [" ".join([prompt, ", ".join(parts[:count])]).strip() for parts in phrases] for count in (1, 3)
        ]
        return [self.captions, *prompted]


def phantom_corpus(folder: Path, count: int, size: int, progress: Progress = SILENT) -> Corpus:
    """Render `count` phantom frames into `folder`, or open what is there already.

    Raises:
        StorageError: the folder holds own images.
    """
    if (folder / SEEN).exists():
        raise StorageError(f"{folder} holds own images, not phantom frames. Choose another --out.")
    if not (folder / _CAPTIONS).exists():
        folder.mkdir(parents=True, exist_ok=True)
        images = _create(folder / "images.npy", (count, size, size, 3), np.uint8)
        depth = _create(folder / "depth.npy", (count, size, size), np.float16)
        rows = []
        with progress.track("phantom frames", count) as advance:
            for index in range(count):
                patient, frame = divmod(index, _FRAMES_PER_PATIENT)
                scene = phantom.render(PRETRAINING_SEED, patient, frame, size)
                images[index], depth[index] = scene.image, scene.depth
                rows.append({"caption": caption(scene), "words": scene.words})
                advance()
        images.flush()
        depth.flush()
        write_json(folder / _CAPTIONS, rows)
    rows = json.loads((folder / _CAPTIONS).read_text())
    return Corpus(
        np.load(folder / "images.npy", mmap_mode="r"),
        [row["caption"] for row in rows],
        digest_of(["phantom", PRETRAINING_SEED, len(rows)]),
        np.load(folder / "depth.npy", mmap_mode="r"),
        [tuple(row["words"]) for row in rows],
    )


def caption(frame: phantom.PhantomFrame) -> str:
    """Describe a frame in one lower-case sentence.

    Returns:
        For example "a clinical colon endoscopic image, pale mucosa, octagonal view, bright light, dense
        vessels, sharp focus, clean surface, showing a small reddish raised lesion".
    """
    mucosa, view, light, vessels, focus, surface, colour, elevation, size = frame.words
    return (
        f"a clinical colon endoscopic image, {mucosa} mucosa, {view} view, {light} light, {vessels} vessels, "
        f"{focus} focus, {surface} surface, showing a {size} {colour} {elevation} lesion"
    )


def image_corpus(
    paths: Sequence[Path], captions: Sequence[str], folder: Path, size: int, progress: Progress = SILENT
) -> Corpus:
    """Decode images into `folder`, resized as all stages do it, or open what is there already.

    Args:
        paths: image files of any size.
        captions: a text for each.
        folder: for the decoded images; those of other files are replaced.

    Raises:
        DataError: with every image that cannot be read.
        StorageError: the folder holds phantom frames.
    """
    marker = folder / SEEN
    if (folder / _CAPTIONS).exists():
        raise StorageError(f"{folder} holds phantom frames, not own images. Choose another --out.")
    identity = digest_of([size, *(file_digest(path) for path in paths)])
    if not marker.exists() or json.loads(marker.read_text(encoding="utf-8")).get("digest") != identity:
        folder.mkdir(parents=True, exist_ok=True)
        marker.unlink(missing_ok=True)
        images = _create(folder / "images.npy", (len(paths), size, size, 3), np.uint8)
        problems, seen = [], []
        with progress.track("images", len(paths)) as advance:
            for index, path in enumerate(paths):
                try:
                    image = read_image(path)
                except DataError as error:
                    problems.append(str(error))
                else:
                    images[index] = resize_image(image, size)
                    seen.append(SeenImage(path.name, pixel_digest(image), look_of(image)))
                advance()
        if problems:
            raise DataError(bullet_list(f"{len(problems)} images cannot be used:", problems))
        images.flush()
        write_json(marker, {"digest": identity, "size": size, "images": [asdict(image) for image in seen]})
    images = np.load(folder / "images.npy", mmap_mode="r")
    return Corpus(images, list(captions), identity, seen=tuple(read_seen(folder)))


def _create(path: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


# --- own images: which files, and what their captions are --------------------------------------------------


def find_images(folder: Path) -> list[Path]:
    """All images below a folder, sorted; hidden files are passed over.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist. Expected a folder of images: check the path.")
    paths = list_images(folder, deep=True)
    if not paths:
        raise DataError(f"No images below {folder}: looked for {', '.join(sorted(ENDINGS))}.")
    return paths


def listed_images(listing: Path, folder: Path | None = None) -> list[Path]:
    """The images that a text file names, one per line; blank lines and lines with # are passed over.

    Args:
        listing: text file in UTF-8. A line is a path (absolute or relative to `folder`), or the name or stem
            of one file below `folder`.
        folder: where the images are; without it paths are relative to the list itself.

    Raises:
        DataError: with every line that names no image, or more than one.
    """
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in find_images(folder) if folder else []:
        for name in {path.name, path.stem}:
            by_name[name].append(path)
    base = folder or listing.parent
    found: dict[Path, None] = {}  # a set that keeps its order
    problems = []
    lines = [line.strip() for line in _text(listing).splitlines()]
    for number, text in enumerate(lines, start=1):
        if not text or text.startswith("#"):
            continue
        direct = base / Path(text).expanduser()
        candidates = [direct] if direct.is_file() else by_name.get(text, [])
        if len(candidates) == 1:
            found[candidates[0]] = None
        else:
            state = "no image" if not candidates else f"{len(candidates)} images"
            problems.append(f"line {number}: {text!r} names {state} in {base}. Give the path of one.")
    if not found and not problems:
        problems.append("the list is empty. Expected one image per line.")
    if problems:
        raise DataError(bullet_list(f"{listing} cannot be used:", problems))
    return list(found)


def read_captions(table: Path, images: Sequence[Path]) -> list[str]:
    """The caption of each image from a CSV or JSONL table.

    Args:
        table: `.csv` with a header, or `.jsonl`; a column file_name, image, path or id (a path that ends like
            the image's, its name or its stem), and a column text or caption.

    Raises:
        DataError: with every image that has no caption, or two.
    """
    text = _text(table)
    known: dict[str, set[str]] = defaultdict(set)
    try:
        if table.suffix.lower() == ".csv":
            rows: list[Mapping[str, object]] = list(csv.DictReader(text.splitlines()))
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        for row in rows:
            known[Path(_first(row, _NAME_KEYS)).as_posix()].add(_first(row, _TEXT_KEYS).strip())
    except (ValueError, KeyError, AttributeError) as error:
        raise DataError(
            f"{table} is not a table of captions ({error}). Expected CSV or JSONL with one of "
            f"{', '.join(_NAME_KEYS)} and one of {', '.join(_TEXT_KEYS)} in each row."
        ) from error
    texts: list[str] = []
    problems: list[str] = []
    for image in images:
        parts = image.absolute().parts  # a table may give the path from any folder above it, or the stem
        names = [image.as_posix(), *("/".join(parts[start:]) for start in range(1, len(parts))), image.stem]
        captions = next((known[name] for name in names if name in known), set())
        if len(captions) == 1:
            texts.extend(captions)
        else:
            state = "two captions" if captions else "no caption"
            problems.append(f"{image} has {state}. Give it one, under {image.name} or {image.stem}.")
    if problems:
        raise DataError(bullet_list(f"The captions in {table} do not fit the images:", problems))
    return texts


def _first(row: Mapping[str, object], keys: Sequence[str]) -> str:
    for key in keys:
        if row.get(key):
            return str(row[key])
    raise KeyError(f"a row has none of {', '.join(keys)}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Expected a text file in UTF-8.") from error
