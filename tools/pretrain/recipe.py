"""How the embedded weights are made: what is trained, on what, for how long."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.pretrain.autoencoder import is_trainable, save_autoencoder, train_autoencoder
from tools.pretrain.base import train_base
from tools.pretrain.control import train_control
from tools.pretrain.corpus import Corpus
from tools.pretrain.depth import train_depth
from tools.pretrain.features import train_features
from tools.pretrain.segmenter import train_segmenter
from tools.pretrain.sharpening import sharpen_decoder

from mcpmix.core.progress import SILENT, Progress
from mcpmix.networks.blueprints import IMAGE_SIZE
from mcpmix.networks.diffusion import DiffusionBase, load_autoencoder, load_base

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
    decoder: int = 800
    base: int = 12_000
    depth: int = 800
    features: int = 1000
    segmenter: int = 2500
    control: int = 3000


@dataclass(frozen=True)
class BuildPlan:
    """How the networks are trained.

    Attributes:
        steps: optimiser steps.
        start: pipeline that autoencoder and base start from, and that a ControlNet steers; None: from
            scratch, and the base that was built.
        learning_rate: of the base; None: the published one.
        batch_size: images per step of the base; None: the published one.
    """

    steps: BuildSteps = BuildSteps()
    start: DiffusionBase | None = None
    learning_rate: float | None = None
    batch_size: int | None = None

    def base_settings(self) -> dict[str, Any]:
        """What `train_base` is told beside its steps; nothing stands for its defaults."""
        given = {"learning_rate": self.learning_rate, "batch_size": self.batch_size, "start": self.start}
        return {name: value for name, value in given.items() if value is not None}


def continued_steps(start: DiffusionBase) -> BuildSteps:
    """Steps for own images when training goes on from weights that are there.

    Only the kind of autoencoder that was trained here is trained further; an AutoencoderKL is kept.
    """
    trainable = is_trainable(start.vae)
    return BuildSteps(autoencoder=1500 if trainable else 0, decoder=700 if trainable else 0, base=4000)


def build(part: str, corpus: Corpus, folder: Path, plan: BuildPlan, progress: Progress = SILENT) -> None:
    """Train one of `PARTS` into `folder`; resumes a killed build."""
    steps = plan.steps
    parts: dict[str, Callable[[], object]] = {
        "autoencoder": lambda: _autoencoder(corpus, folder, plan, progress),
        "base": lambda: train_base(
            corpus,
            load_autoencoder(folder / "vae"),
            PROMPTS,
            folder,
            steps=steps.base,
            progress=progress,
            **plan.base_settings(),
        ),
        "depth": lambda: train_depth(corpus, folder, steps=steps.depth, progress=progress),
        "features": lambda: train_features(corpus, folder, steps=steps.features, progress=progress),
        "segmenter": lambda: train_segmenter(corpus, folder, steps=steps.segmenter, progress=progress),
        "control": lambda: train_control(
            corpus,
            plan.start or load_base(folder / "pipeline"),
            PROMPTS[0],
            folder,
            steps=steps.control,
            progress=progress,
        ),
    }
    parts[part]()


def _autoencoder(corpus: Corpus, folder: Path, plan: BuildPlan, progress: Progress) -> None:
    """Both networks of the autoencoder on errors of pixels, then its decoder against a critic."""
    start = plan.start.vae if plan.start else None
    model = train_autoencoder(
        corpus,
        folder,
        steps=plan.steps.autoencoder,
        learning_rate=1e-3 if start is None else 5e-4,
        start=start,
        progress=progress,
    )
    if plan.steps.decoder:
        sharpen_decoder(corpus, model, folder, steps=plan.steps.decoder, progress=progress)
        save_autoencoder(model, folder)


PARTS = ("autoencoder", "depth", "features", "segmenter", "base", "control")
PIXELS = IMAGE_SIZE
