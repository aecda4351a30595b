"""Trains the embedded autoencoder: L1 on pixels and on their differences, with a trace of KL."""

from pathlib import Path


import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeding import numpy_rng, torch_rng
from mcpmix.models.blueprints import build_autoencoder
from mcpmix.models.diffusion import AutoencoderKL
from mcpmix.pretraining.corpus import Corpus
from mcpmix.training.resumable import run_steps

# Per latent value and against a mean over pixels: as small as Stable Diffusion's, whose error is a sum over
# pixels. A thousand times more, and the weak channels that carry hue are given up.
_KL_WEIGHT = 1e-9
_CROP_SHARE = 0.75  # of the steps see crops of half the side: more steps for the same pixels


def train_autoencoder(
    corpus: Corpus,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 8,
    learning_rate: float = 2e-3,
    progress: Progress = SILENT,
) -> nn.Module:
    """Train, measure the scale of the latents and save in diffusers' layout to `folder/vae`."""
    torch.manual_seed(0)
    model = build_autoencoder()
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, steps, pct_start=0.05)

    def step(index: int) -> float:
        cropped = index < _CROP_SHARE * steps
        images = image_batch(corpus, index, batch_size)
        images = random_crops(images, index) if cropped else images
        with torch.autocast("cpu", torch.bfloat16):
            posterior = model.encode(images).latent_dist
            latents = posterior.sample(generator=torch_rng("autoencoder", index))
            output = model.decode(latents).sample
        loss = reconstruction_loss(output.float(), images) + _KL_WEIGHT * posterior.kl().float().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        return loss.item()

    run_steps(
        step,
        steps=steps,
        state={"model": model, "optimiser": optimiser, "schedule": schedule},
        checkpoint=folder / "vae.checkpoint",
        save_every=100,
        title="autoencoder",
        progress=progress,
    )
    # One global scale, as Stable Diffusion has: whitening each channel makes weak ones too loud.
    model.eval()
    model.register_to_config(scaling_factor=1 / float(_sample_latents(model, corpus).std()))
    model.to(torch.float16).save_pretrained(folder / "vae")
    return model.float()


def image_batch(corpus: Corpus, index: int, batch_size: int) -> Tensor:
    """Batch number `index` of random images, flipped at random: B,3,S,S in [-1, 1]."""
    rng = numpy_rng("image batch", index)
    chosen = np.sort(rng.choice(len(corpus), batch_size, replace=len(corpus) < batch_size))
    images = torch.from_numpy(corpus.images[chosen]).permute(0, 3, 1, 2).float() / 127.5 - 1
    return images.flip(-1) if rng.random() < 0.5 else images


def random_crops(images: Tensor, index: int) -> Tensor:
    """Two random crops of half the side of each image: B,C,S,S to 2B,C,S/2,S/2."""
    half = images.shape[-1] // 2
    places = numpy_rng("crop", index).integers(half + 1, size=(2 * len(images), 2))
    twice = torch.cat([images, images])
    return torch.stack([image[:, y : y + half, x : x + half] for image, (y, x) in zip(twice, places, strict=True)])


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of pixels, of their differences (edges) and of 8x8 means (colour)."""
    error = output - target
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + edges + F.avg_pool2d(error, 8).abs().mean()


@torch.no_grad()
def _sample_latents(model: AutoencoderKL, corpus: Corpus, batches: int = 16) -> Tensor:
    return torch.cat(
        [model.encode(image_batch(corpus, -1 - i, 8)).latent_dist.mode() for i in range(batches)]
    )
