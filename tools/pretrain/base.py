"""Trains denoiser and text encoder on the latents of images, and writes the whole pipeline."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from diffusers import StableDiffusionPipeline
from tools.pretrain.fitting import fit, plateau, trainable_copy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.core.stage_folder import written
from mcpmix.networks.diffusion import Autoencoder, DiffusionBase, encode_images, noise_schedule, tokenise

_EMPTY_PROMPT_SHARE = 0.1
_VIEWED_IMAGES = 4096  # views times images, for small corpora
_MOST_VIEWS = 16
_SMALLEST_CROP = 0.8  # of the side


class TextAndDenoiser(nn.Module):
    """The two networks that are trained together, so that one average and one optimiser serve both."""

    def __init__(self, base: DiffusionBase) -> None:
        super().__init__()
        self.unet = base.unet
        self.text_encoder = base.text_encoder

    def forward(self, noisy: Tensor, timesteps: Tensor, tokens: Tensor) -> Tensor:
        """Noisy latents B,C,h,w, timesteps (B,), token ids B,L to the UNet's prediction."""
        prediction: Tensor = self.unet(noisy, timesteps, self.text_encoder(tokens).last_hidden_state).sample
        return prediction


def save_base(base: DiffusionBase, folder: Path) -> None:
    """Write all parts as float16 safetensors in diffusers' layout, with a model_index.json."""
    pipeline = StableDiffusionPipeline(
        vae=base.vae,
        text_encoder=base.text_encoder,
        tokenizer=base.tokenizer,
        unet=base.unet,
        scheduler=base.scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.to(dtype=torch.float16).save_pretrained(folder)


def train_base(
    images: np.ndarray,
    texts: Sequence[Sequence[str]],
    start: DiffusionBase,
    folder: Path,
    *,
    steps: int,
    learning_rate: float,
    batch_size: int,
    ema_decay: float = 0.998,
    progress: Progress = SILENT,
) -> DiffusionBase:
    """Train copies of UNet and text encoder; save the averaged weights as a pipeline to `folder/pipeline`.

    Args:
        images: N,S,S,3 uint8.
        texts: kinds of texts, each with one text for each image; a step draws a kind for each image.
        start: what to start from; its autoencoder makes the latents and goes into the result.
        folder: for checkpoints, the latent cache and the result.
        learning_rate: after the warm-up; it falls to 0 over the last fifth of the steps.
        ema_decay: of the weight average that is saved.
    """
    unet, text_encoder = trainable_copy(start.unet), trainable_copy(start.text_encoder)
    base = DiffusionBase(unet, start.vae, text_encoder, start.tokenizer, start.scheduler)
    latents = latent_cache(base.vae, images, folder, progress)
    tokens = torch.stack([tokenise(base.tokenizer, kind) for kind in texts])
    empty = tokenise(base.tokenizer, [""])[0]
    schedule = noise_schedule(base.scheduler)
    model = TextAndDenoiser(base)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema_decay))
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate)

    def loss(index: int) -> Tensor:
        rng = numpy_rng("base batch", index)
        chosen = rng.choice(len(images), batch_size)
        clean = torch.from_numpy(latents[rng.integers(len(latents), size=batch_size), chosen]).float()
        text = tokens[rng.integers(len(texts), size=batch_size), chosen]
        text[torch.from_numpy(rng.random(batch_size) < _EMPTY_PROMPT_SHARE)] = empty
        noise = torch.randn(clean.shape, generator=torch_rng("base noise", index))
        t = torch.from_numpy(rng.integers(schedule.timesteps, size=batch_size))
        prediction = model(schedule.add_noise(clean, noise, t), t, text)
        # All timesteps alike: weighting by signal-to-noise would all but leave out the noisiest ones, in
        # which colour and layout are decided.
        return (prediction - schedule.target(clean, noise, t)).square().mean()

    def save_average(_: int) -> None:
        trained = cast(TextAndDenoiser, average.module)
        parts = trainable_copy(trained.unet), trainable_copy(base.vae), trainable_copy(trained.text_encoder)
        save_base(DiffusionBase(*parts, base.tokenizer, base.scheduler), folder / "pipeline")

    fit(
        loss,
        model,
        optimiser,
        plateau,
        steps,
        folder / "base.checkpoint",
        average=average,
        save_every=250,
        after_save=save_average,
        progress=progress,
    )
    return base


# --- latents -----------------------------------------------------------------------------------------------


def latent_cache(
    vae: Autoencoder, images: np.ndarray, folder: Path, progress: Progress = SILENT
) -> np.ndarray:
    """Latents of all views of all images, V,N,C,h,w float16, computed once for each encoder."""
    # Latents depend on the encoder and the scale; the decoder may be sharpened later.
    digest = hashlib.sha256(str(vae.config.scaling_factor).encode())
    for name, value in sorted(vae.encoder.state_dict().items()):
        digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    path = folder / f"latents-{digest.hexdigest()[:12]}.npy"
    if path.exists():
        return cast(np.ndarray, np.load(path))
    parts: list[list[np.ndarray]] = [[] for _ in range(view_count(len(images)))]
    with progress.track("latents", len(images)) as advance:
        for start in range(0, len(images), 16):
            pixels = torch.from_numpy(np.array(images[start : start + 16]))
            batch = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
            for number, latents in enumerate(parts):
                latents.append(encode_images(vae, view(batch, number, start)).to(torch.float16).numpy())
            advance(len(batch))
    for old in folder.glob("latents-*.npy"):  # of an encoder that was trained further
        old.unlink()
    stacked = np.stack([np.concatenate(part) for part in parts])
    with written(path) as temporary, temporary.open("wb") as file:
        np.save(file, stacked)
    return stacked


def view_count(images: int) -> int:
    """Views of each image that are trained on: few images get more, so that none is learnt by heart."""
    return min(max(_VIEWED_IMAGES // images, 2), _MOST_VIEWS)


def view(images: Tensor, number: int, first: int) -> Tensor:
    """View 0 is the images B,3,S,S themselves, 1 their mirror images, others random crops, flipped at random.

    Args:
        first: place of the first of them in the corpus; the random stream belongs to place and view.
    """
    if number < 2:
        return images.flip(-1) if number else images
    size, views = images.shape[-1], []
    for place, image in enumerate(images):
        rng = numpy_rng("view", number, first + place)
        side = round(size * rng.uniform(_SMALLEST_CROP, 1))
        top, left = rng.integers(size - side + 1, size=2)
        cut = image[None, :, top : top + side, left : left + side]
        whole = F.interpolate(cut, (size, size), mode="bicubic", align_corners=False)[0].clamp(-1, 1)
        views.append(whole.flip([axis for axis in (-2, -1) if rng.random() < 0.5]))
    return torch.stack(views)
