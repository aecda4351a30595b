"""Trains an autoencoder: all of it on errors of pixels, then its decoder against a critic.

Errors of pixels alone make the mean of all images that fit a latent: blurred mucosa without highlights. The
critic learns to tell decoded images from real ones, and so brings back edges and highlights. It leaves the
encoder as it is, so that latents and every denoiser trained on them stay valid.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from mcpmix.core.errors import ModelError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng
from mcpmix.core.training import fit, one_cycle, plateau, run_steps
from mcpmix.generator.base import Images
from mcpmix.networks.diffusion import Autoencoder, raw_latents, trainable_copy

_SHARPENING_RATE = 5e-4
_CRITIC_ALONE = 100  # first steps, in which the critic learns and is not listened to
_ADVERSARIAL = 0.05
_MATCHING = 0.2
_FIRST_BATCH = 1_000_000  # of sharpening: batches other than those of the autoencoder


def is_trainable(vae: Autoencoder) -> bool:
    """Whether an autoencoder is of the kind that these losses are made for; an AutoencoderKL gets worse."""
    return type(vae).__name__ == "AutoencoderTiny"


def _refuse_others(vae: Autoencoder) -> None:
    if not is_trainable(vae):
        raise ModelError(
            f"A {type(vae).__name__} is not trained here: without the losses it was made with it would get "
            "worse. Keep it as it is, with no steps for autoencoder and decoder."
        )


def train_autoencoder(
    images: Images,
    start: Autoencoder,
    folder: Path,
    *,
    steps: int,
    learning_rate: float = 1e-3,
    batch_size: int = 8,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> Autoencoder:
    """Train a copy of `start`, measure the scale of its latents and save it with `save_autoencoder`.

    Args:
        images: N,S,S,3 uint8.
        folder: for the checkpoint and the result.
        steps: optimiser steps; 0 keeps `start` as it is.
        learning_rate: the highest one.

    Raises:
        ModelError: `start` cannot be trained here.
    """
    model = trainable_copy(start).to(device)
    if steps == 0:
        return save_autoencoder(model, folder)
    _refuse_others(start)
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=1e-4)

    def loss(index: int) -> Tensor:
        batch = image_batch(images, index, batch_size, device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            output = model.decode(raw_latents(model, batch)).sample
        return reconstruction_loss(output.float(), batch)

    fit(loss, model, optimiser, one_cycle, steps, folder / "autoencoder.checkpoint", progress=progress)
    model.eval().cpu()
    model.register_to_config(scaling_factor=1 / latent_spread(model, images))
    return save_autoencoder(model, folder)


@torch.no_grad()
def latent_spread(vae: Autoencoder, images: Images) -> float:
    """Standard deviation of the unscaled latents, over all channels.

    One global scale, as Stable Diffusion has: whitening each channel makes weak ones too loud.
    """
    batches = (image_batch(images, -1 - number, 8) for number in range(16))
    return float(torch.cat([raw_latents(vae, batch) for batch in batches]).std())


@torch.no_grad()
def reconstruction_psnr(vae: Autoencoder, images: Images) -> float:
    """Mean peak signal-to-noise ratio in dB of 64 random images that went through an autoencoder."""
    ratios = []
    for number in range(8):
        batch = image_batch(images, -1 - number, 8)
        error = (vae.decode(raw_latents(vae, batch)).sample.clamp(-1, 1) - batch).square().mean(dim=(1, 2, 3))
        ratios.append(10 * torch.log10(4 / error.clamp(min=1e-10)))
    return float(torch.cat(ratios).mean())


def save_autoencoder(model: Autoencoder, folder: Path) -> Autoencoder:
    """Save as float16 to `folder/vae`; returns the model in float32, rounded as it was saved."""
    model.eval().to(torch.float16).save_pretrained(folder / "vae")
    return model.float()


def image_batch(images: Images, index: int, batch_size: int, device: torch.device | str = "cpu") -> Tensor:
    """Batch number `index` of random images, flipped at random: B,3,S,S in [-1, 1]."""
    rng = numpy_rng("image batch", index)
    chosen = np.sort(rng.choice(len(images), batch_size, replace=len(images) < batch_size))
    batch = torch.from_numpy(np.array(images[chosen])).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
    return batch.flip(-1) if rng.random() < 0.5 else batch


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of pixels, of their differences (edges) and of 8x8 means (colour)."""
    error = output - target
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + edges + F.avg_pool2d(error, 8).abs().mean()


# --- the decoder against a critic --------------------------------------------------------------------------


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
    images: Images,
    vae: Autoencoder,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 8,
    device: torch.device | str = "cpu",
    progress: Progress = SILENT,
) -> None:
    """Train the decoder of a trained autoencoder in place; its encoder is left alone.

    Args:
        images: N,S,S,3 uint8.
        folder: for the checkpoint.

    Raises:
        ModelError: `vae` cannot be trained here.
    """
    _refuse_others(vae)
    torch.manual_seed(0)
    decoder, critic = vae.to(device).decoder, PatchCritic().to(device)
    vae.requires_grad_(False)
    decoder.requires_grad_(True)
    optimiser = torch.optim.AdamW(decoder.parameters(), _SHARPENING_RATE, weight_decay=1e-4)
    opponent = torch.optim.AdamW(critic.parameters(), _SHARPENING_RATE, betas=(0.5, 0.99))
    rates = plateau(optimiser, steps, warmup_steps=50, decay_share=0.3)

    def step(index: int) -> float:
        real = image_batch(images, _FIRST_BATCH + index, batch_size, device)
        latents = raw_latents(vae, real)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            output = vae.decode(latents).sample
        output = output.float()
        loss = error = reconstruction_loss(output, real)
        if index >= _CRITIC_ALONE:
            loss = error + _teaching(critic, output, real)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimiser.step()
        rates.step()
        opponent.zero_grad(set_to_none=True)
        critic_loss(critic, output.detach(), real).backward()
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
