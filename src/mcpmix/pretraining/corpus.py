"""A corpus of unlabelled images for pretraining, decoded once to a memory map.

Either phantom frames of patients that no demo ever shows, with captions and exact depth, or a folder of a
user's own images, with one caption for all.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data import phantom
from mcpmix.data.phantom_set import PRETRAINING_SEED

FRAMES_PER_PATIENT = 4

_IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"}


@dataclass(frozen=True)
class Corpus:
    """Images for pretraining.

    Attributes:
        images: N,S,S,3 uint8 memory map.
        depth: N,S,S float16 in [0, 1], near = 1; None for a folder of images.
        captions: N texts.
        words: N tuples of appearance words; empty tuples for a folder.
    """

    images: np.ndarray
    depth: np.ndarray | None
    captions: list[str]
    words: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.captions)


def phantom_corpus(folder: Path, count: int, size: int, progress: Progress = SILENT) -> Corpus:
    """Render `count` phantom frames into `folder`, or open them if they are there already."""
    texts = folder / "captions.json"
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
        texts.write_text(json.dumps(rows))
    rows = json.loads(texts.read_text())
    return Corpus(
        images=np.load(folder / "images.npy", mmap_mode="r"),
        depth=np.load(folder / "depth.npy", mmap_mode="r"),
        captions=[row["caption"] for row in rows],
        words=[tuple(row["words"]) for row in rows],
    )


def folder_corpus(images_folder: Path, folder: Path, caption: str, size: int) -> Corpus:
    """Decode all images below `images_folder`, resized to `size` squared.

    Raises:
        DataError: there are no images, or some cannot be read (all are named).
    """
    paths = sorted(p for p in images_folder.rglob("*") if p.suffix.lower() in _IMAGE_ENDINGS)
    if not paths:
        raise DataError(f"No images below {images_folder}: looked for {', '.join(sorted(_IMAGE_ENDINGS))}.")
    folder.mkdir(parents=True, exist_ok=True)
    images = _create(folder / "images.npy", (len(paths), size, size, 3), np.uint8)
    unreadable = []
    for index, path in enumerate(paths):
        try:
            with Image.open(path) as image:
                images[index] = np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BOX))
        except (OSError, UnidentifiedImageError) as error:
            unreadable.append(f"{path}: {error}")
    if unreadable:
        raise DataError(
            bullet_list(f"{len(unreadable)} images cannot be read; remove or repair:", unreadable)
        )
    images.flush()
    return Corpus(images, None, [caption] * len(paths), [()] * len(paths))


def _create(path: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
