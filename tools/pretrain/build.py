"""Makes the embedded weights, or a generator from own images: what is trained, on what, for how long."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tools.pretrain.control import train_control
from tools.pretrain.corpus import (
    Corpus,
    find_images,
    image_corpus,
    listed_images,
    phantom_corpus,
    read_captions,
)
from tools.pretrain.perception import train_depth, train_features, train_segmenter

from mcpmix.config import Config
from mcpmix.core.errors import ConfigError, StorageError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of, storage_errors, write_json
from mcpmix.data.dataset import load_collection, make_split
from mcpmix.data.leakage import read_seen, write_seen
from mcpmix.generator.autoencoder import is_trainable, save_autoencoder, sharpen_decoder, train_autoencoder
from mcpmix.generator.base import train_base
from mcpmix.networks.diffusion import Autoencoder, DiffusionBase, load_autoencoder, load_base
from mcpmix.networks.weight_files import folder_digest, resolve
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
_WITHOUT_LABELS = ("autoencoder", "base")  # what can be trained on images that have neither depth nor words
_WITH_START = ("autoencoder", "base", "control")  # what needs or takes a pipeline
_RESULTS = {part: part for part in _PARTS} | {"autoencoder": "vae", "base": "pipeline"}


@dataclass(frozen=True)
class OwnImages:
    """Unlabelled images to train on in place of the phantom; `--help` explains each option."""

    folder: Path | None = None
    listing: Path | None = None
    split_of: Config | None = None
    caption: str | None = None
    captions: Path | None = None

    @property
    def given(self) -> bool:
        """Whether any images are named."""
        return any(place is not None for place in (self.folder, self.listing, self.split_of))

    def paths(self) -> list[Path]:
        """The files; none for the phantom."""
        if self.listing is not None:
            return listed_images(self.listing, self.folder)
        if self.folder is not None:
            return find_images(self.folder)
        if self.split_of is None:
            return []
        data = self.split_of.data
        if data.source == "phantom":
            raise ConfigError("--split-of: this configuration draws a phantom; it has no images of its own.")
        collection = load_collection(
            data.source, root=data.root, images=data.images, masks=data.masks, groups=data.groups
        )
        wanted = set(make_split(collection, data.split, self.split_of.seed).train)
        return [sample.image for sample in collection.samples if sample.id in wanted]


@dataclass(frozen=True)
class Training:
    """How to train; None stands for what the published weights were made with, `start` for from scratch."""

    steps: int | None = None
    autoencoder_steps: int | None = None
    decoder_steps: int | None = None
    start: str | None = None
    size: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None


def build_weights(
    part: str,
    folder: Path,
    *,
    own: OwnImages,
    training: Training,
    frames: int | None = None,
    progress: Progress = SILENT,
) -> list[Path]:
    """Train networks like the embedded ones; a stopped build resumes.

    Args:
        part: "autoencoder", "base" (with its autoencoder), "depth", "features", "segmenter", "control" (for
            the base of `training.start`, or the one in `folder`) or "all".
        folder: for the corpus, checkpoints and results.
        own: own unlabelled images in place of the phantom; autoencoder and base only.
        frames: number of phantom frames; by default that of the published weights.

    Returns:
        The folders of the results.

    Raises:
        ConfigError: the arguments do not go together.
        DataError: own images are missing or cannot be read.
        ModelError: the start cannot be loaded or trained.
        StorageError: the folder holds another build, or cannot be written.
    """
    parts = {"all": _PARTS, "base": ("autoencoder", "base")}.get(part, (part,))
    if own.given and part == "all":
        parts = _WITHOUT_LABELS
    _refuse_contradictions(parts, own, training, frames)
    pipeline = resolve(training.start, "pipeline") if training.start else folder / _RESULTS["base"]
    needs_base = "control" in parts and "base" not in parts and training.start is None
    if needs_base and not (pipeline / "model_index.json").exists():
        raise ConfigError(
            f"A ControlNet is made for a base: there is none in {pipeline}. Build it there first, or name "
            "one with --start, for example --start embedded."
        )
    paths = own.paths()
    start = load_base(pipeline) if training.start else None
    steps = _steps(parts, training, start)
    size = training.size or (own.split_of.data.size if own.split_of else blueprints.IMAGE_SIZE)
    if size % (multiple := start.image_multiple if start else 32):
        raise ConfigError(f"--size {size}: sides must be a multiple of {multiple} for these networks.")
    prompt = own.split_of.generator.prompt.text if own.split_of else PROMPTS[0]
    with storage_errors(folder):
        if paths:
            captions = [own.caption or prompt] * len(paths)
            captions = read_captions(own.captions, paths) if own.captions else captions
            corpus = image_corpus(paths, captions, folder / "corpus", size, progress)
        else:
            corpus = phantom_corpus(folder / "corpus", frames or FRAMES, size, progress)
            if frames is not None and len(corpus.captions) != frames:
                raise StorageError(
                    f"{folder / 'corpus'} holds a corpus of {len(corpus.captions)} frames, not of {frames}. "
                    "Leave --corpus out to use it, or choose another folder."
                )
        _claim(folder, _identity(parts, corpus, training, steps, size))
        if "base" in parts:
            list_images(folder / _RESULTS["base"], corpus, pipeline if training.start else None)
        for name in parts:
            if name == "control":
                _claim(folder, {"base of control": folder_digest(pipeline)})
            train_part(name, corpus, folder, steps, training, start, progress)
    return [folder / _RESULTS[name] for name in parts]


def train_part(
    part: str,
    corpus: Corpus,
    folder: Path,
    steps: Mapping[str, int],
    training: Training,
    start: DiffusionBase | None,
    progress: Progress,
) -> None:
    """Train one network into `folder`; resumes a killed build."""
    images, depth, count, texts = corpus.images, corpus.depth, steps[part], corpus.texts(PROMPTS[0])
    if part == "autoencoder":
        torch.manual_seed(0)
        first: Autoencoder = start.vae if start else blueprints.build_autoencoder()
        rate = 5e-4 if start else 1e-3
        vae = train_autoencoder(images, first, folder, steps=count, learning_rate=rate, progress=progress)
        if steps["decoder"]:
            sharpen_decoder(images, vae, folder, steps=steps["decoder"], progress=progress)
            save_autoencoder(vae, folder)
    elif part == "base":
        vae = load_autoencoder(folder / "vae")
        base = (
            replace(start, vae=vae) if start else untrained_base(vae, texts, corpus.images.shape[1], folder)
        )
        rate, size = training.learning_rate or 7e-4, training.batch_size or 16
        train_base(
            images,
            texts,
            base,
            folder,
            steps=count,
            learning_rate=rate,
            batch_size=size,
            progress=progress,
        )
    elif part == "features":
        assert corpus.words is not None  # refused for own images
        train_features(images, corpus.words, folder, steps=count, progress=progress)
    else:
        assert depth is not None  # refused for own images
        if part == "control":
            base = start or load_base(folder / _RESULTS["base"])
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


def _refuse_contradictions(
    parts: Sequence[str], own: OwnImages, training: Training, frames: int | None
) -> None:
    problems = []
    if own.given and (foreign := [part for part in parts if part not in _WITHOUT_LABELS]):
        problems.append(
            f"{', '.join(foreign)} cannot be built from --images: it needs depth or words, which only the "
            f"phantom has. From own images: {', '.join(_WITHOUT_LABELS)}."
        )
    if own.given and frames is not None:
        problems.append("--corpus is the number of phantom frames; it has no meaning with --images.")
    if not own.given and (own.caption or own.captions):
        problems.append("--caption and --captions belong to --images: phantom frames have their own.")
    if own.caption and own.captions:
        problems.append("--caption and --captions exclude each other: one text for all, or a table.")
    if own.split_of is not None and (own.folder or own.listing):
        problems.append("--split-of names the images itself: leave --images and --list out.")
    if training.start is not None and not set(parts) <= set(_WITH_START):
        problems.append("--start is a pipeline: only autoencoder, base and control take one.")
    if training.start is None and training.autoencoder_steps == 0:
        problems.append("--autoencoder-steps 0 keeps the autoencoder of --start; there is none.")
    rates = {"--learning-rate": training.learning_rate, "--batch-size": training.batch_size}
    if "base" not in parts and (names := [name for name, value in rates.items() if value is not None]):
        problems.append(f"{' and '.join(names)}: of the base, which is not built here.")
    if problems:
        raise ConfigError("\n".join(problems))


def _steps(parts: Sequence[str], training: Training, start: DiffusionBase | None) -> dict[str, int]:
    steps = dict(STEPS)
    if start is not None:  # less is to be learnt; an AutoencoderKL is kept
        tiny = is_trainable(start.vae)
        steps |= {"autoencoder": 1500 if tiny else 0, "decoder": 700 if tiny else 0, "base": 4000}
    if training.steps is not None:
        names = {*parts, "decoder"} if "autoencoder" in parts else set(parts)
        kept = {"autoencoder", "decoder"} if steps["autoencoder"] == 0 else set()
        steps |= dict.fromkeys(names - kept, training.steps)
    if training.autoencoder_steps is not None:
        steps["autoencoder"] = training.autoencoder_steps
    if training.autoencoder_steps == 0:
        steps["decoder"] = 0
    if training.decoder_steps is not None:
        steps["decoder"] = training.decoder_steps
    return steps


def list_images(pipeline: Path, corpus: Corpus, start: Path | None) -> None:
    """Put the list of all images that the base sees, also those of its start, into its folder.

    Before training: no pipeline without its list can be found there.
    """
    before = [] if start is None else read_seen(start)
    if images := {image.sha256: image for image in (*before, *corpus.seen)}:
        pipeline.mkdir(parents=True, exist_ok=True)
        write_seen(pipeline, list(images.values()))


# --- one folder, one build ---------------------------------------------------------------------------------


def _identity(
    parts: Sequence[str], corpus: Corpus, training: Training, steps: Mapping[str, int], size: int
) -> dict[str, object]:
    """What a checkpoint depends on; its learning rate depends on the number of steps."""
    identity: dict[str, object] = {
        "images": corpus.digest,
        "captions": digest_of(corpus.captions),
        "size": size,
    }
    if "autoencoder" in parts:
        identity["autoencoder steps"] = steps["autoencoder"]
        identity["decoder steps"] = steps["decoder"]
        identity["start"] = folder_digest(resolve(training.start, "pipeline")) if training.start else "none"
    if "base" in parts:
        identity["base steps"] = steps["base"]
        identity["learning rate"] = training.learning_rate or "default"
        identity["batch size"] = training.batch_size or "default"
    if "control" in parts:
        identity["control steps"] = steps["control"]
    return identity


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
