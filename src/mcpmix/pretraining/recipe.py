"""How the embedded weights are made: what is trained, on what, for how long."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mcpmix.core.progress import SILENT, Progress
from mcpmix.models.blueprints import IMAGE_SIZE
from mcpmix.models.diffusion import load_autoencoder
from mcpmix.pretraining.autoencoder import train_autoencoder
from mcpmix.pretraining.base import train_base
from mcpmix.pretraining.corpus import Corpus
from mcpmix.pretraining.depth import train_depth
from mcpmix.pretraining.features import train_features

CORPUS_IMAGES = 12_000

# Words a user's prompt may have beside those of the phantom's captions: the tokenizer learns them whole.
PROMPTS = [
    f"A clinical {position} endoscopic image showing a {target} lesion, realistic texture and clear boundary."
    for position, target in (
        ("colon", "polyp"),
        ("gastric", "tumour"),
        ("nasal", "nasopharyngeal carcinoma"),
        ("oesophageal", "neoplastic"),
        ("dermoscopic skin", "melanoma"),
    )
]


@dataclass(frozen=True)
class BuildSteps:
    """Optimiser steps per network; the defaults made the published weights."""

    autoencoder: int = 4500
    base: int = 3500
    depth: int = 800
    features: int = 1000


def build(part: str, corpus: Corpus, folder: Path, steps: BuildSteps, progress: Progress = SILENT) -> None:
    """Train one part ("autoencoder", "base", "depth" or "features") into `folder`; resumes a killed build."""
    parts: dict[str, Callable[[], object]] = {
        "autoencoder": lambda: train_autoencoder(corpus, folder, steps=steps.autoencoder, progress=progress),
        "base": lambda: train_base(
            corpus, load_autoencoder(folder / "vae"), PROMPTS, folder, steps=steps.base, progress=progress
        ),
        "depth": lambda: train_depth(corpus, folder, steps=steps.depth, progress=progress),
        "features": lambda: train_features(corpus, folder, steps=steps.features, progress=progress),
    }
    parts[part]()


PARTS = ("autoencoder", "depth", "features", "base")
PIXELS = IMAGE_SIZE
