"""What fine-tuning reads: every view of every training image, encoded once, and the draws of each step."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcpmix.config import Config, FinetuneConfig
from mcpmix.core.pixels import as_images
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.data.augment import apply_colour, draw_colour
from mcpmix.data.cache import Arrays
from mcpmix.generator.conditions import condition
from mcpmix.networks.diffusion import Autoencoder, Batch, DiffusionBase, embed_prompts, encode_images

_TURNS = 8  # the symmetries of a square: quarter turns and their mirror images
_TINTS = 3  # colour variants of each view that are encoded
_ENCODED = 8  # images that go through the autoencoder at once


@dataclass(frozen=True)
class TrainingSet:
    """All that a step reads, in memory: neither VAE nor text encoder is needed any more."""

    latents: Tensor  # V,U,N,C,h,w, one per view (symmetry of the square) and tint
    conditions: Tensor  # N,2,H,W mask and depth
    masks: Tensor  # N,H,W, also where the condition leaves them out
    text: Tensor  # 2,L,C embeddings of the empty and of the full prompt


def draw(
    data: TrainingSet, settings: FinetuneConfig, timesteps: int, count: int, identity: tuple[int, int]
) -> Callable[[slice], Batch]:
    """What chance chooses for the step that belongs to (seed, step): a function that gives rows of it.

    The draws are for the `count` examples of all processes and passes together; each of them then reads its
    own rows. The whole step is shown in one view.
    """
    rng = numpy_rng("finetune", *identity)
    chosen = rng.integers(len(data.masks), size=count)
    view = int(rng.integers(data.latents.shape[0]))
    tint = rng.integers(data.latents.shape[1], size=count)
    keep = rng.random((count, 2)) >= (settings.mask_dropout, settings.depth_dropout)
    prompted = (rng.random(count) >= settings.prompt_dropout).astype(np.int64)
    t = rng.integers(timesteps, size=count)
    shape = (count, *data.latents.shape[3:])
    noise = torch.randn(shape, generator=torch_rng("finetune noise", *identity))

    def batch(rows: slice) -> Batch:
        kept = torch.from_numpy(keep[rows]).float()[:, :, None, None]
        return Batch(
            clean=data.latents[view, tint[rows], chosen[rows]],
            noise=noise[rows],
            t=torch.from_numpy(t[rows]),
            shown=turn(data.conditions[chosen[rows]], view) * kept,
            masks=turn(data.masks[chosen[rows]], view),
            text=data.text[prompted[rows]],
        )

    return batch


def prepare(
    base: DiffusionBase, arrays: Arrays, depths: npt.NDArray[np.float32], config: Config
) -> TrainingSet:
    """Encode every view of every image and both prompts, once; depths are N,S,S in [0, 1]."""
    settings, images = config.finetune, as_images(arrays.images)
    turns = range(_TURNS if settings.augment else 1)
    tints = range(_TINTS if settings.colour > 0 else 1)
    latents = []
    for view, tint in product(turns, tints):
        colour = draw_colour(len(images), torch_rng("tint", config.seed, view, tint), settings.colour)
        latents.append(encode_all(base.vae, turn(apply_colour(colour, images), view)))
    masks = torch.from_numpy(arrays.masks).float()
    return TrainingSet(
        latents=torch.stack(latents).unflatten(0, (len(turns), len(tints))),
        conditions=condition(masks, torch.from_numpy(depths), settings.condition, settings.depth_under_mask),
        masks=masks,
        text=embed_prompts(base, ["", config.generator.prompt.text]),
    )


def encode_all(vae: Autoencoder, images: Tensor) -> Tensor:
    """N,3,H,W images in [0, 1] to N,C,h,w latents on the CPU, a few at a time."""
    parts = (images * 2 - 1).split(_ENCODED)
    return torch.cat([encode_images(vae, part.to(vae.device)).cpu() for part in parts])


def turn(images: Tensor, view: int) -> Tensor:
    """One of the eight symmetries of the square, applied to the last two axes."""
    turned = torch.rot90(images, view % 4, dims=(-2, -1))
    return turned.flip(-1) if view >= 4 else turned
