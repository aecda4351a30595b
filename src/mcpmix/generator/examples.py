"""What fine-tuning reads: every view of every training image, encoded once, and the draws of each step."""

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
    """All that a step reads, in memory: neither VAE nor text encoder is needed any more.

    Attributes:
        latents: V,U,N,C,h,w, one per view (symmetry of the square) and tint.
        conditions: N,2,H,W mask and depth.
        masks: N,H,W, also where the condition leaves them out.
        text: 2,L,C embeddings of the empty and of the full prompt.
    """

    latents: Tensor
    conditions: Tensor
    masks: Tensor
    text: Tensor


@dataclass(frozen=True)
class Draws:
    """What chance chose for one optimiser step, for the examples of all processes and passes together.

    Attributes:
        view: the symmetry of the square that the whole step is shown in.
        chosen: (B,) examples.
        tint: (B,) colour variants.
        keep: (B, 2) whether mask and depth are shown.
        prompted: (B,) 1 with the prompt, 0 without.
        t: (B,) timesteps.
        noise: B,C,h,w.
    """

    view: int
    chosen: npt.NDArray[np.int64]
    tint: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_]
    prompted: npt.NDArray[np.int64]
    t: npt.NDArray[np.int64]
    noise: Tensor

    def batch(self, data: TrainingSet, rows: slice, device: torch.device) -> Batch:
        """The examples of some of the draws."""
        chosen = self.chosen[rows]
        kept = torch.from_numpy(self.keep[rows]).float()[:, :, None, None]
        return Batch(
            clean=data.latents[self.view, self.tint[rows], chosen],
            noise=self.noise[rows],
            t=torch.from_numpy(self.t[rows]),
            shown=turn(data.conditions[chosen], self.view) * kept,
            masks=turn(data.masks[chosen], self.view),
            text=data.text[self.prompted[rows]],
        ).to(device)


def draw(
    data: TrainingSet, settings: FinetuneConfig, timesteps: int, count: int, identity: tuple[int, int]
) -> Draws:
    """The draws for `count` examples of the step that belongs to (seed, step)."""
    rng = numpy_rng("finetune", *identity)
    chosen = rng.integers(len(data.masks), size=count)
    view = int(rng.integers(data.latents.shape[0]))
    tint = rng.integers(data.latents.shape[1], size=count)
    keep = rng.random((count, 2)) >= (settings.mask_dropout, settings.depth_dropout)
    prompted = (rng.random(count) >= settings.prompt_dropout).astype(np.int64)
    t = rng.integers(timesteps, size=count)
    shape = (count, *data.latents.shape[3:])
    noise = torch.randn(shape, generator=torch_rng("finetune noise", *identity))
    return Draws(view, chosen, tint, keep, prompted, t, noise)


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
