"""Makes the embedded weights from phantom frames: what is trained, on what, for how long."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tools.pretrain.control import train_control
from tools.pretrain.corpus import Corpus, phantom_corpus
from tools.pretrain.perception import train_depth, train_features, train_segmenter

from mcpmix.core.device import setup
from mcpmix.core.errors import ConfigError, StorageError, bullet_list
from mcpmix.core.files import storage_errors, write_json
from mcpmix.core.progress import SILENT, Progress
from mcpmix.generator.autoencoder import save_autoencoder, sharpen_decoder, train_autoencoder
from mcpmix.generator.base import BaseSettings, latent_cache, train_base
from mcpmix.networks.diffusion import Autoencoder, DiffusionBase, load_autoencoder, load_base, save_base
from mcpmix.networks.weight_files import folder_digest
from tools.pretrain import blueprints

FRAMES = 12_000
STEPS = {
    "autoencoder": 4500,
    "decoder": 800,
    "depth": 800,
    "features": 1000,
    "segmenter": 2500,
    "base": 12_000,
    "control": 3000,
}
"""Optimiser steps that made the published weights."""

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

_PARTS = ("autoencoder", "depth", "features", "segmenter", "base", "control")  # one needs those before it
_RESULTS = {part: part for part in _PARTS} | {"autoencoder": "vae", "base": "pipeline"}


def build_weights(
    part: str,
    folder: Path,
    *,
    steps: int | None = None,
    size: int = blueprints.IMAGE_SIZE,
    frames: int | None = None,
    progress: Progress = SILENT,
) -> list[Path]:
    """Train networks like the embedded ones; a stopped build resumes.

    Args:
        part: "autoencoder", "base" (with its autoencoder), "depth", "features", "segmenter", "control" (for
            the base in `folder`) or "all".
        folder: for the corpus, checkpoints and results.
        steps: of each network; None: those of the published weights.
        size: side of the frames in pixels.
        frames: number of phantom frames; None: that of the published weights.

    Returns:
        The folders of the results.

    Raises:
        ConfigError: the size does not fit, or a ControlNet has no base.
        StorageError: the folder holds another build, or cannot be written.
    """
    parts = {"all": _PARTS, "base": ("autoencoder", "base")}.get(part, (part,))
    pipeline = folder / _RESULTS["base"]
    if parts == ("control",) and not (pipeline / "model_index.json").exists():
        raise ConfigError(
            f"A ControlNet is made for a base: there is none in {pipeline}. Build it there first, or put a "
            "copy of one there."
        )
    if size % 32:
        raise ConfigError(f"--size {size}: sides must be a multiple of 32 for these networks.")
    counts = STEPS if steps is None else dict.fromkeys(STEPS, steps)
    with storage_errors(folder):
        corpus = phantom_corpus(folder / "corpus", frames or FRAMES, size, progress)
        if frames is not None and len(corpus.captions) != frames:
            raise StorageError(
                f"{folder / 'corpus'} holds a corpus of {len(corpus.captions)} frames, not of {frames}. "
                "Leave --corpus out to use it, or choose another folder."
            )
        # What a checkpoint depends on; its learning rate depends on the number of steps.
        identity: dict[str, object] = {"images": corpus.digest, "size": size}
        _claim(folder, identity | {f"{name} steps": counts[name] for name in parts})
        for name in parts:
            if name == "control":
                _claim(folder, {"base of control": folder_digest(pipeline)})
            train_part(name, corpus, folder, counts, progress)
    return [folder / _RESULTS[name] for name in parts]


def train_part(part: str, corpus: Corpus, folder: Path, steps: Mapping[str, int], progress: Progress) -> None:
    """Train one network into `folder`; resumes a killed build."""
    images, depth, count, texts = corpus.images, corpus.depth, steps[part], corpus.texts(PROMPTS[0])
    runtime = setup("cpu", "float32", 0, deterministic=True)
    if part == "autoencoder":
        torch.manual_seed(0)
        vae = train_autoencoder(
            images, blueprints.build_autoencoder(), folder, steps=count, progress=progress
        )
        sharpen_decoder(images, vae, folder, steps=steps["decoder"], progress=progress)
        save_autoencoder(vae, folder)
    elif part == "base":
        vae = load_autoencoder(folder / "vae")
        start = untrained_base(vae, texts, images.shape[1], folder)
        settings = BaseSettings(steps=count, learning_rate=7e-4, batch_size=16)
        latents = latent_cache(vae, images, folder, runtime, progress)
        checkpoint = folder / "base.checkpoint"
        base = train_base(latents, texts, start, settings, checkpoint, runtime, progress=progress)
        save_base(base, folder / _RESULTS["base"])
    elif part == "features":
        train_features(images, corpus.words, folder, steps=count, progress=progress)
    elif part == "control":
        base = load_base(folder / _RESULTS["base"])
        train_control(images, depth, texts, base, folder, steps=count, progress=progress)
    else:
        train = {"depth": train_depth, "segmenter": train_segmenter}[part]
        train(images, depth, folder, steps=count, progress=progress)


def untrained_base(
    vae: Autoencoder, texts: Sequence[Sequence[str]], size: int, folder: Path
) -> DiffusionBase:
    """Denoiser and text encoder from scratch, with a tokenizer for `texts` that is stored in `folder`."""
    torch.manual_seed(0)
    known = [*PROMPTS, *(text for kind in texts for text in kind)]
    tokenizer = blueprints.stored_tokenizer(known, folder / "tokenizer")
    unet, text_encoder = blueprints.build_unet(size), blueprints.build_text_encoder(tokenizer)
    return DiffusionBase(unet, vae, text_encoder, tokenizer, blueprints.build_scheduler())


def _claim(folder: Path, identity: Mapping[str, object]) -> None:
    """Record what is built here; refuse a folder whose checkpoints come from something else."""
    path = folder / "build.json"
    try:
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}). Choose another --out, or delete it.") from error
    differences = [
        f"{name}: {before[name]} there, {value} now"
        for name, value in identity.items()
        if before.get(name, value) != value
    ]
    if differences:
        raise StorageError(
            bullet_list(f"{folder} holds another build. Choose another --out, or delete it:", differences)
        )
    write_json(path, {**before, **identity})
