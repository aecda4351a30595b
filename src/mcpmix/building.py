"""Makes the embedded weights anew, or a generator from own images.

Layer 4, beside the pipeline.
"""

from pathlib import Path

from mcpmix.core.errors import ConfigError, ModelError, StorageError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.pretraining.corpus import Corpus, folder_corpus, phantom_corpus
from mcpmix.pretraining.recipe import CORPUS_IMAGES, PARTS, PIXELS, PROMPTS, BuildSteps, build

_WITHOUT_LABELS = ("autoencoder", "base")  # what can be trained on images that have neither depth nor words
_RESULTS = {"autoencoder": "vae", "base": "pipeline", "depth": "depth", "features": "features"}


def build_weights(
    part: str,
    folder: Path,
    *,
    images: Path | None = None,
    caption: str | None = None,
    steps: int | None = None,
    frames: int | None = None,
    progress: Progress = SILENT,
) -> list[Path]:
    """Train embedded networks; a stopped build goes on where it was.

    Args:
        part: "autoencoder", "base", "depth", "features" or "all".
        folder: for the corpus, checkpoints and results.
        images: folder of own unlabelled images in place of the phantom; autoencoder and base only.
        caption: text of all these images; by default a prompt for colon and polyp.
        steps: optimiser steps of each network; by default those of the published weights.
        frames: number of phantom frames; by default that of the published weights.
        progress: where to report.

    Returns:
        The folders of the results.

    Raises:
        ConfigError: the arguments do not go together.
        DataError: own images are missing or cannot be read.
        ModelError: the base is to be trained before its autoencoder.
        StorageError: the folder holds the corpus of another build.
    """
    parts = _parts(part, images)
    if "base" in parts and "autoencoder" not in parts and not (folder / "vae").is_dir():
        raise ModelError(
            f"The base is trained on the latents of an autoencoder, and {folder / 'vae'} does not exist. "
            f"Run `mcpmix models build autoencoder --out {folder}` first, or build all."
        )
    if images is not None:
        if frames is not None:
            raise ConfigError("--corpus is the number of phantom frames; it has no meaning with --images.")
        corpus = folder_corpus(images, folder / "corpus", caption or PROMPTS[0], PIXELS)
    else:
        corpus = _phantoms(folder / "corpus", frames, progress)
    counts = BuildSteps() if steps is None else BuildSteps(**dict.fromkeys(parts, steps))
    for name in parts:
        build(name, corpus, folder, counts, progress)
    return [folder / _RESULTS[name] for name in parts]


def _parts(part: str, images: Path | None) -> tuple[str, ...]:
    """What to build, in the order in which one needs the other."""
    chosen = PARTS if part == "all" else (part,)
    if images is None:
        return chosen
    if part != "all" and part not in _WITHOUT_LABELS:
        raise ConfigError(
            f"{part} cannot be built from --images: it needs depth or words, which only the phantom has. "
            f"From own images: {', '.join(_WITHOUT_LABELS)}."
        )
    return tuple(name for name in chosen if name in _WITHOUT_LABELS)


def _phantoms(folder: Path, frames: int | None, progress: Progress) -> Corpus:
    corpus = phantom_corpus(folder, frames or CORPUS_IMAGES, PIXELS, progress)
    if frames is not None and len(corpus) != frames:
        raise StorageError(
            f"{folder} holds a corpus of {len(corpus)} frames, not of {frames}. Leave --corpus out to use "
            "it, or choose another folder."
        )
    return corpus
