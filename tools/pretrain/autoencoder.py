"""Trains the embedded autoencoder: L1 on pixels, on their differences and on their local means."""

from pathlib import Path

import numpy as np
import torch
from tools.pretrain.corpus import Corpus
from tools.pretrain.fitting import fit
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.errors import ModelError
from mcpmix.core.optimisers import one_cycle
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng
from mcpmix.networks.blueprints import build_autoencoder, trainable_copy
from mcpmix.networks.diffusion import Autoencoder, raw_latents


def train_autoencoder(
    corpus: Corpus,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 8,
    learning_rate: float = 1e-3,
    start: Autoencoder | None = None,
    progress: Progress = SILENT,
) -> Autoencoder:
    """Train, measure the scale of the latents and save in diffusers' layout to `folder/vae`.

    Args:
        corpus: images.
        folder: for the checkpoint and the result.
        steps: optimiser steps; 0 keeps `start` as it is.
        batch_size: images per step.
        learning_rate: the highest one of the schedule.
        start: where to start from; None: from scratch.
        progress: where to report.

    Raises:
        ModelError: `start` cannot be trained here.
    """
    if start is not None and steps == 0:
        return save_autoencoder(trainable_copy(start), folder)
    if start is not None:
        refuse_foreign(start)
    torch.manual_seed(0)
    model = build_autoencoder() if start is None else trainable_copy(start)
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=1e-4)

    def loss(index: int) -> Tensor:
        images = image_batch(corpus, index, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            output = model.decode(raw_latents(model, images)).sample
        return reconstruction_loss(output.float(), images)

    fit(
        loss,
        model,
        optimiser,
        one_cycle(optimiser, steps),
        steps=steps,
        checkpoint=folder / "vae.checkpoint",
        title="autoencoder",
        progress=progress,
    )
    # One global scale, as Stable Diffusion has: whitening each channel makes weak ones too loud.
    model.eval()
    model.register_to_config(scaling_factor=1 / float(_sample_latents(model, corpus).std()))
    return save_autoencoder(model, folder)


def is_trainable(vae: Autoencoder) -> bool:
    """Whether an autoencoder is of the kind that is trained here."""
    return type(vae) is type(build_autoencoder())


def refuse_foreign(vae: Autoencoder) -> None:
    """Raise a ModelError if an autoencoder is of a kind that is not trained here."""
    if not is_trainable(vae):
        raise ModelError(
            f"A {type(vae).__name__} is not trained here: without the losses it was made with it would get "
            "worse. Keep it with --autoencoder-steps 0 --decoder-steps 0."
        )


def save_autoencoder(model: Autoencoder, folder: Path) -> Autoencoder:
    """Save as float16 to `folder/vae`; returns the model in float32, rounded as it was saved."""
    model.eval().to(torch.float16).save_pretrained(folder / "vae")
    return model.float()


def image_batch(corpus: Corpus, index: int, batch_size: int) -> Tensor:
    """Batch number `index` of random images, flipped at random: B,3,S,S in [-1, 1]."""
    rng = numpy_rng("image batch", index)
    chosen = np.sort(rng.choice(len(corpus), batch_size, replace=len(corpus) < batch_size))
    images = torch.from_numpy(corpus.images[chosen]).permute(0, 3, 1, 2).float() / 127.5 - 1
    return images.flip(-1) if rng.random() < 0.5 else images


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of pixels, of their differences (edges) and of 8x8 means (colour)."""
    error = output - target
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + edges + F.avg_pool2d(error, 8).abs().mean()


@torch.no_grad()
def _sample_latents(model: Autoencoder, corpus: Corpus, batches: int = 16) -> Tensor:
    return torch.cat([raw_latents(model, image_batch(corpus, -1 - i, 8)) for i in range(batches)])
