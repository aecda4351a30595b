"""The corpus of pretraining, drawn once to a memory map.

Phantom frames of patients that no demo ever shows, with captions and exact depth.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcpmix import phantom
from mcpmix.core.files import write_json
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of
from mcpmix.data.phantom_set import PRETRAINING_SEED

_FRAMES_PER_PATIENT = 4
_CAPTIONS = "captions.json"  # of a phantom
_NOUNS = ("mucosa", "view", "light")  # what the first words of a phantom frame are about


@dataclass(frozen=True)
class Corpus:
    """Images for pretraining.

    Attributes:
        images: N,S,S,3 uint8 memory map.
        captions: N texts.
        digest: identity of the images.
        depth: N,S,S float16 in [0, 1], near = 1.
        words: N tuples of appearance words.
    """

    images: np.ndarray
    captions: list[str]
    digest: str
    depth: np.ndarray
    words: list[tuple[str, ...]]

    def texts(self, prompt: str) -> list[list[str]]:
        """The texts that images are trained with, by kind: captions, and the prompt.

        The prompt of the method gets one and three appearance phrases behind it: a base that has only seen
        full captions would not know what to make of the prompt that fine-tuning and synthesis use.
        """
        phrases = [[f"{word} {noun}" for word, noun in zip(own, _NOUNS, strict=False)] for own in self.words]
        prompted = [
            [" ".join([prompt, ", ".join(parts[:count])]).strip() for parts in phrases] for count in (1, 3)
        ]
        return [self.captions, *prompted]


def phantom_corpus(folder: Path, count: int, size: int, progress: Progress = SILENT) -> Corpus:
    """Render `count` phantom frames into `folder`, or open what is there already."""
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


def _create(path: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
