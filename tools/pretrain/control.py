"""Trains the embedded ControlNet: it learns to put what rises from the wall under a mask, without any label.

From scratch, a few hundred steps on two dozen annotated frames do not teach a ControlNet that something is to
be under the mask. Thousands of regions that were found in depth do; fine-tuning then starts from there.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tools.pretrain.base import latent_cache, training_texts
from tools.pretrain.corpus import Corpus
from tools.pretrain.fitting import fit
from tools.pretrain.regions import raised_region
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.errors import DataError
from mcpmix.core.optimisers import plateau
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.generator.conditions import condition
from mcpmix.networks.blueprints import CONDITION_WIDTHS
from mcpmix.networks.controlnet import control_from_base
from mcpmix.networks.diffusion import (
    Batch,
    ControlNet,
    DiffusionBase,
    embed_prompts,
    noise_schedule,
    training_loss,
)

_CLEAR = 0.004  # rise of a region that is trained with
_LEFT_OUT = 0.1  # share of masks, of depths and of texts
_LESION_WEIGHT = 30.0  # with 8, nothing was under the mask after a thousand steps
_MIRRORED = 2  # the first two views of the latents are the images and their mirror images


def train_control(
    corpus: Corpus,
    base: DiffusionBase,
    prompt: str,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    learning_rate: float = 1.5e-3,
    ema_decay: float = 0.99,
    progress: Progress = SILENT,
) -> None:
    """Train on the clearest raised region of each image; save the averaged weights to `folder/control`.

    Args:
        corpus: images with depth.
        base: what the ControlNet steers; stays as it is.
        prompt: the text that fine-tuning will use.
        folder: for regions, latents, checkpoint and result.
        steps: optimiser steps.
        batch_size: images per step.
        learning_rate: after the warm-up; it falls to 0 over the last fifth of the steps.
        ema_decay: of the weight average that is saved.
        progress: where to report.

    Raises:
        DataError: nothing rises clearly in any of the images.
    """
    torch.manual_seed(0)
    examples = _Examples(corpus, base, prompt, folder, progress)
    base.unet.requires_grad_(False)
    control = control_from_base(base, 2, CONDITION_WIDTHS)
    average = AveragedModel(control, multi_avg_fn=get_ema_multi_avg_fn(ema_decay))
    schedule = noise_schedule(base.scheduler)
    optimiser = torch.optim.AdamW(control.parameters(), learning_rate)

    def loss(index: int) -> Tensor:
        batch = examples.batch(index, batch_size, schedule.timesteps)
        return training_loss(base.unet, control, batch, schedule, lesion_weight=_LESION_WEIGHT)

    fit(
        loss,
        control,
        optimiser,
        plateau(optimiser, steps),
        steps=steps,
        checkpoint=folder / "control.checkpoint",
        title="ControlNet",
        average=average,
        progress=progress,
    )
    averaged: ControlNet = average.module
    averaged.to(torch.float16).save_pretrained(folder / "control")


class _Examples:
    """Latents, regions, depths and texts of the images in which something rises clearly."""

    def __init__(
        self, corpus: Corpus, base: DiffusionBase, prompt: str, folder: Path, progress: Progress
    ) -> None:
        if corpus.depth is None:
            raise ValueError("this corpus has no depth")
        self.base = base
        self.depth = corpus.depth
        self.texts = training_texts(corpus, prompt)
        self.latents = latent_cache(base.vae, corpus, folder, progress)
        self.masks = raised_regions(corpus.depth, folder / "regions.npy", progress)
        self.usable = np.flatnonzero(self.masks.any(axis=(1, 2)))
        if not len(self.usable):
            raise DataError(f"Nothing rises clearly in any of the {len(corpus)} images; use more of them.")

    def batch(self, index: int, size: int, timesteps: int) -> Batch:
        """The examples of step `index`."""
        rng = numpy_rng("control batch", index)
        chosen = rng.choice(self.usable, size)
        view = int(rng.integers(_MIRRORED))
        kinds = rng.integers(len(self.texts), size=size)
        texts = [self.texts[kind][number] for kind, number in zip(kinds, chosen, strict=True)]
        kept = torch.from_numpy(rng.random((size, 2)) >= _LEFT_OUT).float()[:, :, None, None]
        worded = rng.random(size) >= _LEFT_OUT
        clean = torch.from_numpy(self.latents[view, chosen]).float()
        masks = torch.from_numpy(self.masks[chosen]).float()
        depths = torch.from_numpy(self.depth[chosen]).float()
        shown = condition(masks, depths, "both", "fill") * kept
        return Batch(
            clean=clean,
            noise=torch.randn(clean.shape, generator=torch_rng("control noise", index)),
            t=torch.from_numpy(rng.integers(timesteps, size=size)),
            shown=shown.flip(-1) if view else shown,
            masks=masks.flip(-1) if view else masks,
            text=embed_prompts(
                self.base, [text if use else "" for text, use in zip(texts, worded, strict=True)]
            ),
        )


def raised_regions(depths: np.ndarray, path: Path, progress: Progress = SILENT) -> npt.NDArray[np.bool_]:
    """The clearest raised region of each depth map, N,S,S, empty where none is clear; kept in a file."""
    if not path.exists():
        masks = np.zeros(depths.shape, bool)
        with progress.track("regions", len(depths)) as advance:
            for mask, depth in zip(masks, depths, strict=True):
                region = raised_region(depth)
                if region is not None and region.rise >= _CLEAR:
                    mask[:] = region.mask
                advance()
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            np.save(file, np.packbits(masks, axis=-1))
        temporary.replace(path)
    return np.unpackbits(np.load(path), axis=-1, count=depths.shape[-1]).astype(bool)
