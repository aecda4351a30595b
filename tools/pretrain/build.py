"""Makes the embedded weights anew, or a generator from own images.

Layer 4, beside the pipeline.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.pretrain.corpus import Corpus, image_corpus, phantom_corpus
from tools.pretrain.images import find_images, listed_images, read_captions
from tools.pretrain.recipe import (
    CORPUS_IMAGES,
    PARTS,
    PIXELS,
    PROMPTS,
    BuildPlan,
    BuildSteps,
    build,
    continued_steps,
)

from mcpmix.config import Config
from mcpmix.core.errors import ConfigError, StorageError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import digest_of, storage_errors, write_json
from mcpmix.data.dataset import load_collection, make_split
from mcpmix.data.leakage import read_seen, write_seen
from mcpmix.networks.diffusion import DiffusionBase, load_base
from mcpmix.networks.weight_files import folder_digest, resolve

_WITHOUT_LABELS = ("autoencoder", "base")  # what can be trained on images that have neither depth nor words
_WITH_START = ("autoencoder", "base", "control")  # what needs or takes a pipeline
_RESULTS = {part: part for part in PARTS} | {"autoencoder": "vae", "base": "pipeline"}
_IDENTITY = "build.json"


@dataclass(frozen=True)
class OwnImages:
    """Unlabelled images to train on in place of the phantom.

    Attributes:
        folder: where they are, at any depth.
        listing: text file that names those to use, one per line; None: all.
        split_of: a configuration; only the training part of its data set is used, and nothing else is read.
        caption: text of all images; by default the prompt of `split_of`, else one for colon and polyp.
        captions: CSV or JSONL with a text for each image.
    """

    folder: Path | None = None
    listing: Path | None = None
    split_of: Config | None = None
    caption: str | None = None
    captions: Path | None = None

    @property
    def given(self) -> bool:
        """Whether any images are named."""
        return any(place is not None for place in (self.folder, self.listing, self.split_of))


@dataclass(frozen=True)
class Training:
    """How to train; None stands for what the published weights were made with.

    Attributes:
        steps: optimiser steps of each network.
        autoencoder_steps: those of the autoencoder, if they differ; 0 keeps that of `start`.
        decoder_steps: those in which its decoder is sharpened, if they differ; 0: it is not.
        start: "embedded", a pipeline folder or a hub id to go on from, or that a ControlNet is to steer;
            None: from scratch, and the base in the folder.
        size: side in pixels of the images.
        learning_rate: of the base.
        batch_size: of the base.
    """

    steps: int | None = None
    autoencoder_steps: int | None = None
    decoder_steps: int | None = None
    start: str | None = None
    size: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None


PHANTOM = OwnImages()
AS_PUBLISHED = Training()


def build_weights(
    part: str,
    folder: Path,
    *,
    own: OwnImages = PHANTOM,
    training: Training = AS_PUBLISHED,
    frames: int | None = None,
    progress: Progress = SILENT,
) -> list[Path]:
    """Train networks like the embedded ones; a stopped build goes on where it was.

    Args:
        part: "autoencoder", "base" (with its autoencoder), "depth", "features", "segmenter", "control" (for
            the base of `training.start`, or the one in `folder`) or "all".
        folder: for the corpus, checkpoints and results.
        own: own unlabelled images in place of the phantom; autoencoder and base only.
        training: how to train.
        frames: number of phantom frames; by default that of the published weights.
        progress: where to report.

    Returns:
        The folders of the results.

    Raises:
        ConfigError: the arguments do not go together.
        DataError: own images are missing or cannot be read.
        ModelError: the start cannot be loaded or trained.
        StorageError: the folder holds another build, or cannot be written.
    """
    parts = _parts(part, own)
    _refuse_contradictions(parts, own, training, frames)
    if "control" in parts and "base" not in parts and training.start is None:
        _require_base(folder / _RESULTS["base"])
    paths = _paths(own)
    start = None if training.start is None else load_base(resolve(training.start, "pipeline"))
    steps = _steps(parts, training, start)
    size = _size(own, training, start)
    with storage_errors(folder):
        if paths:
            corpus = image_corpus(paths, _captions(own, paths), folder / "corpus", size, progress)
        else:
            corpus = _phantoms(folder / "corpus", frames, size, progress)
        _claim(folder, _identity(parts, corpus, training, steps, size))
        if "base" in parts:
            _list_images(folder / _RESULTS["base"], corpus, training)
        plan = BuildPlan(steps, start, training.learning_rate, training.batch_size)
        for name in parts:
            if name == "control":
                base = resolve(training.start, "pipeline") if training.start else folder / _RESULTS["base"]
                _claim(folder, {"base of control": folder_digest(base)})
            build(name, corpus, folder, plan, progress)
    return [folder / _RESULTS[name] for name in parts]


# --- what was asked for ------------------------------------------------------------------------------------


def _parts(part: str, own: OwnImages) -> tuple[str, ...]:
    """What to build, in the order in which one needs the other."""
    chosen = {"all": PARTS, "base": ("autoencoder", "base")}.get(part, (part,))
    if not own.given:
        return chosen
    if part != "all" and part not in _WITHOUT_LABELS:
        raise ConfigError(
            f"{part} cannot be built from --images: it needs depth or words, which only the phantom has. "
            f"From own images: {', '.join(_WITHOUT_LABELS)}."
        )
    return tuple(name for name in chosen if name in _WITHOUT_LABELS)


def _refuse_contradictions(
    parts: Sequence[str], own: OwnImages, training: Training, frames: int | None
) -> None:
    problems = []
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
    given = {"--learning-rate": training.learning_rate, "--batch-size": training.batch_size}
    if "base" not in parts and (names := [name for name, value in given.items() if value is not None]):
        problems.append(f"{' and '.join(names)}: of the base, which is not built here.")
    if problems:
        raise ConfigError("\n".join(problems))


def _require_base(pipeline: Path) -> None:
    if not (pipeline / "model_index.json").exists():
        raise ConfigError(
            f"A ControlNet is made for a base: there is none in {pipeline}. Build it there first, or name "
            "one with --start, for example --start embedded."
        )


def _paths(own: OwnImages) -> list[Path]:
    if own.split_of is not None:
        return _training_part(own.split_of)
    if own.listing is not None:
        return listed_images(own.listing, own.folder)
    return find_images(own.folder) if own.folder is not None else []


def _training_part(config: Config) -> list[Path]:
    data = config.data
    if data.source == "phantom":
        raise ConfigError("--split-of: this configuration draws a phantom; it has no images of its own.")
    collection = load_collection(
        data.source, root=data.root, images=data.images, masks=data.masks, groups=data.groups
    )
    split = make_split(collection, data.split, config.seed)
    wanted = set(split.train)
    return [sample.image for sample in collection.samples if sample.id in wanted]


def _captions(own: OwnImages, paths: Sequence[Path]) -> list[str]:
    if own.captions is not None:
        return read_captions(own.captions, paths)
    default = own.split_of.generator.prompt.text if own.split_of else PROMPTS[0]
    return [own.caption or default] * len(paths)


def _steps(parts: Sequence[str], training: Training, start: DiffusionBase | None) -> BuildSteps:
    steps = BuildSteps() if start is None else continued_steps(start)
    if training.steps is not None:
        names = {*parts, "decoder"} if "autoencoder" in parts else set(parts)
        kept = {"autoencoder", "decoder"} if steps.autoencoder == 0 else set()
        steps = replace(steps, **dict.fromkeys(names - kept, training.steps))
    if training.autoencoder_steps is not None:
        steps = replace(steps, autoencoder=training.autoencoder_steps)
    if training.autoencoder_steps == 0:
        steps = replace(steps, decoder=0)
    if training.decoder_steps is not None:
        steps = replace(steps, decoder=training.decoder_steps)
    return steps


def _size(own: OwnImages, training: Training, start: DiffusionBase | None) -> int:
    size = training.size or (own.split_of.data.size if own.split_of else PIXELS)
    multiple = start.image_multiple if start else 32
    if size % multiple:
        raise ConfigError(f"--size {size}: sides must be a multiple of {multiple} for these networks.")
    return size


def _phantoms(folder: Path, frames: int | None, size: int, progress: Progress) -> Corpus:
    corpus = phantom_corpus(folder, frames or CORPUS_IMAGES, size, progress)
    if frames is not None and len(corpus) != frames:
        raise StorageError(
            f"{folder} holds a corpus of {len(corpus)} frames, not of {frames}. Leave --corpus out to use "
            "it, or choose another folder."
        )
    return corpus


def _list_images(pipeline: Path, corpus: Corpus, training: Training) -> None:
    """Put the list of all images that the base sees, also those of its start, into its folder.

    Before training: no pipeline without its list can be found there.
    """
    before = [] if training.start is None else read_seen(resolve(training.start, "pipeline"))
    images = {image.sha256: image for image in (*before, *corpus.seen)}
    if images:
        pipeline.mkdir(parents=True, exist_ok=True)
        write_seen(pipeline, list(images.values()))


# --- one folder, one build ---------------------------------------------------------------------------------


def _identity(
    parts: Sequence[str], corpus: Corpus, training: Training, steps: BuildSteps, size: int
) -> dict[str, object]:
    """What a checkpoint depends on; its learning rate depends on the number of steps."""
    identity: dict[str, object] = {
        "images": corpus.digest,
        "captions": digest_of(corpus.captions),
        "size": size,
    }
    if "autoencoder" in parts:
        identity["autoencoder steps"] = steps.autoencoder
        identity["decoder steps"] = steps.decoder
        identity["start"] = folder_digest(resolve(training.start, "pipeline")) if training.start else "none"
    if "base" in parts:
        identity["base steps"] = steps.base
        identity["learning rate"] = training.learning_rate or "default"
        identity["batch size"] = training.batch_size or "default"
    if "control" in parts:
        identity["control steps"] = steps.control
    return identity


def _claim(folder: Path, identity: Mapping[str, object]) -> None:
    """Note what is built here; refuse a folder whose checkpoints come from something else."""
    path = folder / _IDENTITY
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
