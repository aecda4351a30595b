"""Stage `adapt`: the diffusion base learns from images without masks, of the training part and unlabelled.

A generator can add only what it knows beyond the labelled images. Unlabelled images of the same kind are the
prior that everybody has. No mask and no image of validation or test is trained on; validation images are
what the drawn images are compared with on the way.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import ModelError
from mcpmix.core.pixels import Pixels, as_images, as_pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, seed_everything, seed_for
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays, training_digest
from mcpmix.data.leakage import SeenImage, images_of, read_seen, write_seen
from mcpmix.data.unlabelled import TRAINING_PART, Unlabelled
from mcpmix.generator.autoencoder import (
    latent_spread,
    reconstruction_psnr,
    save_autoencoder,
    sharpen_decoder,
    train_autoencoder,
)
from mcpmix.generator.base import BaseSettings, Images, latent_cache, train_base
from mcpmix.generator.counterparts import Looks
from mcpmix.metrics.statistics import KID, kid
from mcpmix.networks.diffusion import (
    Autoencoder,
    DiffusionBase,
    load_autoencoder,
    load_base,
    new_unet,
    require_channels,
    save_base,
)
from mcpmix.networks.features import features_digest, load_features
from mcpmix.networks.generator import Generator, SamplingSettings
from mcpmix.networks.weight_files import folder_digest, resolve

PIPELINE = "pipeline"
"""Folder of the adapted base, inside the stage's."""
_LOG = "log.jsonl"
_CHECKPOINT = "base.checkpoint"
_LARGE = 200_000_000  # parameters of a denoiser, above which LoRA is the default
_LORA_RANK = 16
_SCALES = (0.8, 1.25)  # spread of another autoencoder's latents, relative to that of the base's own
_SAMPLING = SamplingSettings(steps=12, guidance=2.0, mask_guidance=1.0, strength=1.0)
_SHEET = (4, 8)  # rows and columns
_NOT_IN_KEY = {"save_every", "validate_every", "validation_images"}  # the result does not depend on them


def key(config: Config, dataset: Artifact, unlabelled: Artifact | None) -> StageKey:
    """What the base depends on."""
    settings = {
        "adapt": config.adapt.model_dump(mode="json", exclude=_NOT_IN_KEY | {"autoencoder"}),
        "base": folder_digest(resolve(config.generator.base, "pipeline")),
        "prompt": config.generator.prompt.text,
        "size": config.data.size,
        "precision": config.runtime.precision,
    }
    if config.adapt.autoencoder is not None:
        settings["autoencoder"] = folder_digest(resolve(config.adapt.autoencoder, "pipeline"))
    if config.adapt.looks:
        settings["features"] = features_digest(config.rla.features)
    inputs = {"dataset": training_digest(dataset)}
    if unlabelled is not None:
        inputs["unlabelled"] = unlabelled.digest
    return StageKey("adapt", settings, inputs, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    unlabelled: Artifact | None,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Train autoencoder and base; the result is a pipeline folder like the one it started from.

    Raises:
        ModelError: the autoencoder does not fit the base, or cannot be trained.
        DependencyError: LoRA needs a package that is not installed.
    """
    stage_key = key(config, dataset, unlabelled)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    settings, index = config.adapt, DatasetIndex.read(dataset)
    labelled, held = (
        load_arrays(index.part(part), config.data.size, cache_of(dataset.folder)).images
        for part in ("train", "validation")
    )
    seen, places, images = images_of(index.part("train")), [TRAINING_PART] * len(labelled), Pool(labelled)
    if unlabelled is not None:
        more = Unlabelled.read(unlabelled)
        seen, places, images = [*seen, *more.seen], [*places, *more.places], Pool(labelled, more.images)
    with workspace(out, stage_key) as space:
        folder, prompt = space.folder, config.generator.prompt.text
        seed_everything(config.seed, "adapt")
        start = _start(config, images, folder, runtime, progress)
        features = load_features(config.rla.features)
        texts = [[prompt] * len(images)]
        if (looks := _looks(config, images, seen, places, features, folder)) is not None:
            texts.append([f"{prompt} {looks.words(image.sha256)}" for image in seen])
        preview = Preview(config, held, features, looks, folder, runtime, progress)
        base = train_base(
            latent_cache(start.vae, images, folder, runtime, progress),
            texts,
            start,
            BaseSettings(
                steps=settings.steps,
                learning_rate=settings.learning_rate,
                batch_size=settings.batch_size,
                ema_decay=settings.ema_decay,
                lora_rank=lora_rank(config, start),
                save_every=settings.save_every,
                look_every=settings.validate_every,
                seed=config.seed,
            ),
            folder / _CHECKPOINT,
            runtime,
            chances=draw_chances(places),
            look=preview,
            progress=progress,
        )
        save_base(base, folder / PIPELINE)
        before = read_seen(resolve(config.generator.base, "pipeline"))
        write_seen(folder / PIPELINE, list({image.sha256: image for image in (*before, *seen)}.values()))
        if looks is not None:
            looks.write(folder / PIPELINE)
        counts = {place: places.count(place) for place in dict.fromkeys(places)}
        facts = {"images": counts, "steps": settings.steps, **preview.rows()[-1]}
        done = space.finish("*.checkpoint", "latents-*", **facts)
        folder_digest.cache_clear()  # this process may know another base by this path
        return done


def _start(
    config: Config, images: Images, folder: Path, runtime: Runtime, progress: Progress
) -> DiffusionBase:
    """What training starts from: the base, with the autoencoder and the denoiser that are asked for.

    The autoencoder is the base's own or another one, checked and trained further.
    """
    settings, base = config.adapt, load_base(resolve(config.generator.base, "pipeline"))
    vae = base.vae
    if settings.autoencoder is not None:
        vae = load_autoencoder(resolve(settings.autoencoder, "pipeline"))
        require_same_latents(vae, base, settings.autoencoder, images, fresh=settings.unet is not None)
    if settings.autoencoder_steps or settings.decoder_steps:
        vae = train_autoencoder(
            images, vae, folder, steps=settings.autoencoder_steps, device=runtime.device, progress=progress
        )
        if settings.decoder_steps:
            sharpen_decoder(
                images, vae, folder, steps=settings.decoder_steps, device=runtime.device, progress=progress
            )
            save_autoencoder(vae, folder)
        vae = load_autoencoder(folder / "vae")
    if settings.unet is not None:
        vae.register_to_config(scaling_factor=1 / latent_spread(vae, images))
    progress.say(
        f"adapt: the autoencoder reconstructs these images at {reconstruction_psnr(vae, images):.1f} dB"
    )
    base.vae = vae
    if settings.unet is not None:
        base.unet = new_unet(
            settings.unet,
            latent_channels=vae.config.latent_channels,
            text_width=base.text_encoder.config.hidden_size,
            latent_side=config.data.size // base.latent_factor,
            seed=seed_for("unet", config.seed) % 2**32,
        )
    return base


class Pool:
    """Images of several arrays under one numbering."""

    def __init__(self, *arrays: Pixels) -> None:
        self.arrays = arrays
        self.starts = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, chosen: slice | np.ndarray) -> Pixels:
        """B,S,S,3 of the chosen places."""
        places = np.arange(len(self))[chosen]
        owners = np.searchsorted(self.starts, places, side="right") - 1
        pairs = zip(owners, places - self.starts[owners], strict=True)
        return np.stack([self.arrays[owner][place] for owner, place in pairs])


def draw_chances(places: Sequence[str]) -> np.ndarray:
    """Probability (N,) of each image: a place counts by the square root of its number of images.

    By number, ten thousand frames of one kind would drown the few of the kind that is wanted; in equal
    shares, a few dozen images would be learnt by heart.
    """
    _, place, counts = np.unique(np.asarray(places), return_inverse=True, return_counts=True)
    weights = 1 / np.sqrt(counts)[place]
    return weights / weights.sum()


def lora_rank(config: Config, start: DiffusionBase) -> int:
    """Rank of LoRA for a base to start from; 0: all its weights learn."""
    rank = config.adapt.lora_rank
    if rank != "auto":
        return rank
    return _LORA_RANK if sum(p.numel() for p in start.unet.parameters()) > _LARGE else 0


def require_same_latents(
    vae: Autoencoder, base: DiffusionBase, source: str, images: Images, *, fresh: bool
) -> None:
    """Refuse an autoencoder whose latents the base's denoiser does not know.

    Args:
        fresh: whether the denoiser is made from scratch for it; then any will do.

    Raises:
        ModelError: channels or scale of the latents differ.
    """
    if fresh:
        return
    require_channels(vae, base.unet.config.in_channels, source)
    spreads = [latent_spread(each, images) * each.config.scaling_factor for each in (vae, base.vae)]
    ratio = spreads[0] / spreads[1]
    if not _SCALES[0] <= ratio <= _SCALES[1]:
        raise ModelError(
            f"adapt.autoencoder: the latents of {source} spread {ratio:.2f} times as much as those of the "
            f"base's autoencoder; expected {_SCALES[0]} to {_SCALES[1]}. Take one made for this base, or set "
            "adapt.unet to train a denoiser for it from scratch."
        )


# --- looks: groups of images that the prompt can name ------------------------------------------------------


def _looks(
    config: Config,
    images: Images,
    seen: Sequence[SeenImage],
    places: Sequence[str],
    features: torch.nn.Module,
    folder: Path,
) -> Looks | None:
    """Group the images by their features, once; None if no looks are asked for."""
    if not config.adapt.looks:
        return None
    if (found := Looks.read(folder)) is None:
        numbers = group_looks(features_of(features, images), config.adapt.looks, config.seed)
        words = tuple(look_words(number) for number in range(max(numbers) + 1))
        own = [number for number, place in zip(numbers, places, strict=True) if place == TRAINING_PART]
        shares = tuple(own.count(number) / len(own) for number in range(len(words)))
        look_of = {image.sha256: number for image, number in zip(seen, numbers, strict=True)}
        found = Looks(words, look_of, shares)
        found.write(folder)
    return found


def look_words(number: int) -> str:
    """What the prompt calls a look; digits apart, so that a tokenizer sees each."""
    return f"look {' '.join(f'{number:02d}')}"


def group_looks(features: np.ndarray, count: int, seed: int) -> list[int]:
    """The look of each image, by k-means on its features (N, F); numbered without gaps."""
    from scipy.cluster.vq import kmeans2, whiten

    scaled = whiten(features[:, features.std(axis=0) > 0])
    _, labels = kmeans2(scaled, min(count, len(features)), minit="++", rng=seed_for("looks", seed) % 2**32)
    return [int(number) for number in np.unique(labels, return_inverse=True)[1]]


@torch.inference_mode()
def features_of(phi: torch.nn.Module, images: Images) -> np.ndarray:
    """Features (N, F) float64 of N,S,S,3 images."""
    parts = [phi(as_images(images[start : start + 32])) for start in range(0, len(images), 32)]
    return np.asarray(torch.cat(parts), dtype=np.float64)


# --- previews of the base on the way -----------------------------------------------------------------------


class Preview:
    """Draws images from the base while it learns: a sheet, and their KID to held-out images.

    Args:
        held: M,S,S,3 uint8 of the validation part.
    """

    def __init__(
        self,
        config: Config,
        held: Pixels,
        features: torch.nn.Module,
        looks: Looks | None,
        folder: Path,
        runtime: Runtime,
        progress: Progress,
    ) -> None:
        self.config, self.features, self.folder = config, features, folder
        self.runtime, self.progress = runtime, progress
        self.held = features_of(features, held) if len(held) > 1 else None  # KID needs two
        self.prompts = draw_prompts(config, looks, config.adapt.validation_images)
        self.log = JsonLines(folder / _LOG)

    def rows(self) -> list[dict[str, Any]]:
        """What was found so far."""
        return list(self.log.rows())

    def __call__(self, step: int, averaged: Callable[[], DiffusionBase]) -> None:
        """Draw and compare if it is due; idempotent."""
        every, last = self.config.adapt.validate_every, step == self.config.adapt.steps
        if not (last or (every and step % every == 0)) or step in [row["step"] for row in self.rows()]:
            return
        images = draw_images(averaged(), self.prompts, self.config, self.runtime)
        found = KID(math.nan, math.nan)
        if self.held is not None:
            found = kid(features_of(self.features, images), self.held)
        write_png(self.folder / "sheets" / f"step-{step:06d}.png", sheet_of(images))
        self.log.append(step=step, kid=found.value, kid_error=found.error)
        self.progress.say(
            f"adapt: KID to the validation part {found.value:.4f} ± {found.error:.4f} at {step}"
        )


def draw_prompts(config: Config, looks: Looks | None, count: int) -> list[str]:
    """Prompts for images that are to look like those of the training part."""
    prompt, rng = config.generator.prompt.text, numpy_rng("preview", config.seed)
    return [prompt if looks is None else f"{prompt} {looks.draw(rng)}" for _ in range(count)]


def draw_images(base: DiffusionBase, prompts: Sequence[str], config: Config, runtime: Runtime) -> Pixels:
    """B,S,S,3 images that a base draws by itself, one for each prompt; their seeds belong to the run."""
    generator, size, parts = Generator(base.to(runtime.device), None), config.data.size, []
    batch = config.synthesis.batch_size
    for start in range(0, len(prompts), batch):
        asked = prompts[start : start + batch]
        seeds = [seed_for("adapt", config.seed, start + number) for number in range(len(asked))]
        parts.append(generator.sample(torch.zeros(len(asked), 2, size, size), asked, seeds, _SAMPLING))
    return as_pixels(torch.cat(parts))


def sheet_of(images: Pixels) -> Pixels:
    """The first images side by side."""
    rows = min(_SHEET[0], math.ceil(len(images) / _SHEET[1]))
    shown = images[: rows * _SHEET[1]]
    blank = np.zeros((rows * _SHEET[1] - len(shown), *images.shape[1:]), np.uint8)
    grid = np.concatenate([shown, blank]).reshape(rows, _SHEET[1], *images.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in grid])
