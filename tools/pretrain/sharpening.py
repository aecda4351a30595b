"""Sharpens the decoder of the autoencoder against a critic that learns to tell its images from real ones.

Errors of pixels alone make the mean of all images that fit a latent: blurred mucosa without highlights. The
encoder stays as it is, so latents and every denoiser trained on them stay valid.
"""

from itertools import pairwise
from pathlib import Path

import torch
from tools.pretrain.autoencoder import image_batch, reconstruction_loss, refuse_foreign
from tools.pretrain.corpus import Corpus
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from mcpmix.core.checkpoint import run_steps
from mcpmix.core.optimisers import plateau
from mcpmix.core.progress import SILENT, Progress
from mcpmix.networks.diffusion import Autoencoder, raw_latents

_LEARNING_RATE = 5e-4
_CRITIC_ALONE = 100  # first steps, in which the critic learns and is not listened to
_ADVERSARIAL = 0.05
_MATCHING = 0.2
_FIRST_BATCH = 1_000_000  # batches other than those of the autoencoder


class PatchCritic(nn.Module):
    """Scores overlapping patches of an image: high for real ones. Spectral norms keep it smooth."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width)
        self.layers = nn.ModuleList(
            spectral_norm(nn.Conv2d(before, after, 4, 2, 1)) for before, after in pairwise(widths)
        )
        self.score = spectral_norm(nn.Conv2d(widths[-1], 1, 3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """B,3,S,S in [-1, 1] to scores B,1,S/8,S/8 and the features of each layer."""
        features = []
        for layer in self.layers:
            images = F.leaky_relu(layer(images), 0.2)
            features.append(images)
        return self.score(images), features


def sharpen_decoder(
    corpus: Corpus,
    vae: Autoencoder,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 8,
    progress: Progress = SILENT,
) -> None:
    """Train the decoder of `vae` in place; its encoder is left alone.

    Args:
        corpus: images.
        vae: a trained autoencoder, float32.
        folder: for the checkpoint.
        steps: optimiser steps.
        batch_size: images per step.
        progress: where to report.

    Raises:
        ModelError: `vae` cannot be trained here.
    """
    refuse_foreign(vae)
    torch.manual_seed(0)
    decoder, critic = vae.decoder, PatchCritic()
    vae.requires_grad_(False)
    decoder.requires_grad_(True)
    optimiser = torch.optim.AdamW(decoder.parameters(), _LEARNING_RATE, weight_decay=1e-4)
    opponent = torch.optim.AdamW(critic.parameters(), _LEARNING_RATE, betas=(0.5, 0.99))
    rates = plateau(optimiser, steps, warmup_steps=50, decay_share=0.3)

    def step(index: int) -> float:
        images = image_batch(corpus, _FIRST_BATCH + index, batch_size)
        latents = raw_latents(vae, images)
        with torch.autocast("cpu", torch.bfloat16):
            output = vae.decode(latents).sample
        output = output.float()
        loss = error = reconstruction_loss(output, images)
        if index >= _CRITIC_ALONE:
            loss = error + _teaching(critic, output, images)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimiser.step()
        rates.step()
        opponent.zero_grad(set_to_none=True)
        critic_loss(critic, output.detach(), images).backward()
        opponent.step()
        return error.item()

    run_steps(
        step,
        steps=steps,
        state={
            "decoder": decoder,
            "critic": critic,
            "optimiser": optimiser,
            "opponent": opponent,
            "rates": rates,
        },
        checkpoint=folder / "decoder.checkpoint",
        save_every=100,
        title="decoder",
        progress=progress,
    )


def critic_loss(critic: PatchCritic, made: Tensor, real: Tensor) -> Tensor:
    """Hinge loss: scores of real patches above 1, of made ones below -1."""
    return F.relu(1 - critic(real)[0]).mean() + F.relu(1 + critic(made)[0]).mean()


def _teaching(critic: PatchCritic, made: Tensor, real: Tensor) -> Tensor:
    """What the decoder learns from the critic: to be scored high, with the features of the real image."""
    critic.requires_grad_(False)
    score, features = critic(made)
    with torch.no_grad():
        _, wanted = critic(real)
    critic.requires_grad_(True)
    distance = torch.stack([(a - b).abs().mean() for a, b in zip(features, wanted, strict=True)]).sum()
    return _MATCHING * distance - _ADVERSARIAL * score.mean()
