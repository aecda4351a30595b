"""A corpus of unlabelled images for pretraining, decoded once to a memory map.

Either phantom frames of patients that no demo ever shows, with captions and exact depth, or a user's own
images with captions.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mcpmix import phantom
from mcpmix.core.errors import DataError, StorageError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of, file_digest, write_json
from mcpmix.data.leakage import SEEN, SeenImage, read_seen
from mcpmix.data.likeness import look_of
from mcpmix.data.phantom_set import PRETRAINING_SEED
from mcpmix.data.sample import pixel_digest, read_image, resize_image

FRAMES_PER_PATIENT = 4
_CAPTIONS = "captions.json"  # of a phantom


@dataclass(frozen=True)
class Corpus:
    """Images for pretraining.

    Attributes:
        images: N,S,S,3 uint8 memory map.
        depth: N,S,S float16 in [0, 1], near = 1; None for own images.
        captions: N texts.
        words: N tuples of appearance words; empty tuples for own images.
        digest: identity of the images.
        seen: own images, as evaluation will look for test images among them; none for a phantom.
    """

    images: np.ndarray
    depth: np.ndarray | None
    captions: list[str]
    words: list[tuple[str, ...]]
    digest: str
    seen: tuple[SeenImage, ...] = ()

    def __len__(self) -> int:
        return len(self.captions)


def phantom_corpus(folder: Path, count: int, size: int, progress: Progress = SILENT) -> Corpus:
    """Render `count` phantom frames into `folder`, or open them if they are there already.

    Raises:
        StorageError: the folder holds own images.
    """
    texts = folder / _CAPTIONS
    if (folder / SEEN).exists():
        raise StorageError(f"{folder} holds own images, not phantom frames. Choose another --out.")
    if not texts.exists():
        folder.mkdir(parents=True, exist_ok=True)
        images = _create(folder / "images.npy", (count, size, size, 3), np.uint8)
        depth = _create(folder / "depth.npy", (count, size, size), np.float16)
        rows = []
        with progress.track("phantom frames", count) as advance:
            for index in range(count):
                patient, frame = divmod(index, FRAMES_PER_PATIENT)
                scene = phantom.render(PRETRAINING_SEED, patient, frame, size)
                images[index], depth[index] = scene.image, scene.depth
                rows.append({"caption": phantom.caption(scene), "words": scene.words})
                advance()
        images.flush()
        depth.flush()
        write_json(texts, rows)
    rows = json.loads(texts.read_text())
    return Corpus(
        images=np.load(folder / "images.npy", mmap_mode="r"),
        depth=np.load(folder / "depth.npy", mmap_mode="r"),
        captions=[row["caption"] for row in rows],
        words=[tuple(row["words"]) for row in rows],
        digest=digest_of(["phantom", PRETRAINING_SEED, len(rows)]),
    )


def image_corpus(
    paths: Sequence[Path], captions: Sequence[str], folder: Path, size: int, progress: Progress = SILENT
) -> Corpus:
    """Decode images into `folder`, resized as all stages do it, or open what is there already.

    Args:
        paths: image files of any size.
        captions: a text for each.
        folder: for the decoded images; those of other files are replaced.
        size: side in pixels.
        progress: where decoding reports to.

    Raises:
        DataError: with every image that cannot be read.
        StorageError: the folder holds phantom frames.
    """
    marker = folder / SEEN
    if (folder / _CAPTIONS).exists():
        raise StorageError(f"{folder} holds phantom frames, not own images. Choose another --out.")
    identity = digest_of([size, *(file_digest(path) for path in paths)])
    before = json.loads(marker.read_text(encoding="utf-8")) if marker.exists() else {}
    if before.get("digest") != identity or "images" not in before:
        folder.mkdir(parents=True, exist_ok=True)
        marker.unlink(missing_ok=True)
        seen = _decode(paths, _create(folder / "images.npy", (len(paths), size, size, 3), np.uint8), progress)
        write_json(marker, {"digest": identity, "size": size, "images": [asdict(image) for image in seen]})
    images = np.load(folder / "images.npy", mmap_mode="r")
    return Corpus(images, None, list(captions), [()] * len(paths), identity, tuple(read_seen(folder)))


def _decode(paths: Sequence[Path], images: np.memmap, progress: Progress) -> list[SeenImage]:
    problems, seen = [], []
    with progress.track("images", len(paths)) as advance:
        for index, path in enumerate(paths):
            try:
                image = read_image(path)
            except DataError as error:
                problems.append(str(error))
            else:
                images[index] = resize_image(image, images.shape[1])
                seen.append(SeenImage(path.name, pixel_digest(image), look_of(image)))
            advance()
    if problems:
        raise DataError(bullet_list(f"{len(problems)} images cannot be used:", problems))
    images.flush()
    return seen


def _create(path: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
