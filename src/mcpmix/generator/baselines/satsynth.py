"""SatSynth: image and mask from one joint diffusion model.

As published: the mask is one more channel with values -1 and 1 ("bits"), all channels are noised alike, the
loss is their mean squared error, and the sign of the drawn channel is the mask. Adapted: the model is the
run's base, so that the joint model starts from what the others start from; the mask stands beside the latents
as the shares of small squares that lie inside it, four channels of twice the latents' resolution; its bits
are -3 and 3, so that the noise which a short training leaves does not turn them over; there is no second
model for enlarging, since the base works at full size; and text stays as a condition, for guidance.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.pixels import as_pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey
from mcpmix.generator.base import BaseSettings, train_base
from mcpmix.generator.baselines.labelled_set import (
    Draw,
    Drawn,
    Real,
    Sources,
    batch_of,
    make_set,
    sampling_of,
    set_key,
    steps_of,
    words_of,
)
from mcpmix.generator.finetune_trainer import prepare, turn
from mcpmix.networks.diffusion import decode_latents, load_base
from mcpmix.networks.generator import Generator
from mcpmix.networks.mask_diffusion import decode_masks, encode_masks, widen_unet
from mcpmix.networks.weight_files import resolve

METHOD = "satsynth"
_LEARNING = {"batch_size", "accumulation", "processes", "learning_rate", "ema_decay", "augment", "colour"}
_FINER = 2  # squares of the mask per side of a latent
_AVERAGED = 10  # times that the weight average spans fit into the training, at least
_BIT = 3.0  # with 1, masks were noise after the few hundred steps in which the base learns the rest


def key(config: Config, sources: Sources) -> StageKey:
    """What the set depends on."""
    return set_key(METHOD, config, _read(config, sources), _LEARNING)


def run(
    config: Config, sources: Sources, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Train the joint model and draw images with their masks."""
    inputs = config, _read(config, sources), train_jointly
    return make_set(key(config, sources), *inputs, out, runtime, progress)


def _read(config: Config, sources: Sources) -> Sources:
    judge = sources.judge if config.synthesis.admission.enabled else None
    return Sources(sources.dataset, judge=judge)


def train_jointly(
    config: Config,
    sources: Sources,  # noqa: ARG001 (as all baselines are called)
    real: Real,
    folder: Path,
    runtime: Runtime,
    progress: Progress,
) -> Draw:
    """Train on latents with masks; the result draws both."""
    arrays, prompt, size = real.arrays, config.generator.prompt.text, config.data.size
    base = load_base(resolve(config.generator.base, "pipeline")).to(runtime.device)
    words = words_of(config, real.records)
    depths = np.broadcast_to(np.float32(0), arrays.masks.shape)
    examples = prepare(base, arrays, depths, config, words, progress)
    views, tints, count, channels, *_, side = examples.latents.shape
    turned = [turn(torch.from_numpy(np.array(arrays.masks)).float(), view) for view in range(views)]
    codes = _BIT * torch.stack([encode_masks(masks, side, _FINER) for masks in turned])
    codes = codes[:, None].expand(views, tints, *codes.shape[1:])
    joint = np.concatenate([examples.latents, codes.numpy()], axis=3)
    trained = train_base(
        joint.reshape(views * tints, *joint.shape[2:]),
        [[f"{prompt} {word}" if word else prompt for word in words or [None] * count]],
        replace(base, unet=widen_unet(base.unet, codes.shape[3])),
        BaseSettings(
            steps=steps_of(config),
            learning_rate=config.finetune.learning_rate,
            batch_size=batch_of(config),
            # Masks are learnt from nothing: a longer average would still hold weights that draw none.
            ema_decay=min(config.finetune.ema_decay, max(0.0, 1 - _AVERAGED / steps_of(config))),
            save_every=config.finetune.save_every,
            seed=config.seed,
        ),
        folder / f"{METHOD}.checkpoint",
        runtime,
        progress=progress,
    )
    generator, how = Generator(trained.to(runtime.device), None), sampling_of(config)

    def draw(seeds: Sequence[int], prompts: Sequence[str]) -> Drawn:
        blank = torch.zeros(len(seeds), 1, size, size)
        latents = generator.sample_latents(blank, prompts, seeds, how)
        pictures = decode_latents(trained.vae, latents[:, :channels])
        masks = decode_masks(latents[:, channels:].float().cpu(), size, _FINER)
        images = as_pixels((pictures.float().cpu() + 1) / 2)
        origins = [{"mask": "drawn with the image"}] * len(seeds)
        return Drawn(images, masks.numpy().astype(np.uint8), origins, [""] * len(seeds))

    return draw
