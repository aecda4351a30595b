"""Trains the embedded denoiser and text encoder on the latents of a corpus, and writes the whole pipeline."""

import hashlib
from pathlib import Path
from typing import cast

import numpy as np
import torch
from tools.pretrain.corpus import Corpus
from tools.pretrain.fitting import fit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.optimisers import plateau
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.networks import blueprints
from mcpmix.networks.diffusion import (
    Autoencoder,
    DiffusionBase,
    encode_images,
    noise_schedule,
    save_base,
    tokenise,
)

_EMPTY_PROMPT_SHARE = 0.1
_VIEWED_IMAGES = 4096  # views times images, for small corpora
_MOST_VIEWS = 16
_SMALLEST_CROP = 0.8  # of the side
_NOUNS = ("mucosa", "view", "light")  # what the first words of a phantom frame are about


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


def train_base(
    corpus: Corpus,
    vae: Autoencoder,
    prompts: list[str],
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    learning_rate: float = 7e-4,
    ema_decay: float = 0.998,
    start: DiffusionBase | None = None,
    progress: Progress = SILENT,
) -> DiffusionBase:
    """Train on cached latents; save the averaged weights as a pipeline to `folder/pipeline`.

    Args:
        corpus: images and captions.
        vae: the trained autoencoder.
        prompts: texts that will be used later; the tokenizer learns them all, and where images have
            appearance words, the first one is trained with.
        folder: for checkpoints, the latent cache and the result.
        steps: optimiser steps.
        batch_size: latents per step.
        learning_rate: after the warm-up; it falls to 0 over the last fifth of the steps.
        ema_decay: of the weight average that is saved.
        start: denoiser, text encoder, tokenizer and noise schedule to start from; None: from scratch.
        progress: where to report.
    """
    torch.manual_seed(0)
    texts = training_texts(corpus, prompts[0])
    known = [*prompts, *(text for kind in texts for text in kind)]
    base = _start_from(start, vae) if start else _untrained(corpus, vae, known, folder / "tokenizer")
    latents = latent_cache(vae, corpus, folder, progress)
    tokens = torch.stack([tokenise(base.tokenizer, kind) for kind in texts])
    empty = tokenise(base.tokenizer, [""])[0]
    schedule = noise_schedule(base.scheduler)
    model = TextAndDenoiser(base)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema_decay))
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate)

    def loss(index: int) -> Tensor:
        rng = numpy_rng("base batch", index)
        chosen = rng.choice(len(corpus), batch_size)
        clean = torch.from_numpy(latents[rng.integers(len(latents), size=batch_size), chosen]).float()
        text = tokens[rng.integers(len(texts), size=batch_size), chosen]
        text[torch.from_numpy(rng.random(batch_size) < _EMPTY_PROMPT_SHARE)] = empty
        noise = torch.randn(clean.shape, generator=torch_rng("base noise", index))
        t = torch.from_numpy(rng.integers(schedule.timesteps, size=batch_size))
        prediction = model(schedule.add_noise(clean, noise, t), t, text)
        # All timesteps alike: weighting by signal-to-noise would all but leave out the noisiest ones, in
        # which colour and layout are decided.
        return (prediction - schedule.target(clean, noise, t)).square().mean()

    fit(
        loss,
        model,
        optimiser,
        plateau(optimiser, steps),
        steps=steps,
        checkpoint=folder / "base.checkpoint",
        title="diffusion base",
        average=average,
        save_every=250,
        after_save=lambda _: save_average(base, average, folder / "pipeline"),
        progress=progress,
    )
    return base


def training_texts(corpus: Corpus, prompt: str) -> list[list[str]]:
    """The texts that each image is trained with, by kind: its caption, and prompts where it has words."""
    if not any(corpus.words):
        return [corpus.captions]
    return [corpus.captions, *prompted_captions(corpus, prompt)]


def prompted_captions(corpus: Corpus, prompt: str) -> list[list[str]]:
    """The prompt of the method with one and with three appearance phrases behind it, for each image.

    A base that has only seen full captions would not know what to make of the prompt that fine-tuning and
    synthesis use.
    """
    phrases = [
        [f"{word} {noun}" for word, noun in zip(words, _NOUNS, strict=False)] for words in corpus.words
    ]
    return [[" ".join([prompt, ", ".join(parts[:count])]).strip() for parts in phrases] for count in (1, 3)]


def _untrained(corpus: Corpus, vae: Autoencoder, texts: list[str], store: Path) -> DiffusionBase:
    tokenizer = blueprints.stored_tokenizer(texts, store)
    return DiffusionBase(
        blueprints.build_unet(corpus.images.shape[1]),
        vae,
        blueprints.build_text_encoder(tokenizer),
        tokenizer,
        blueprints.build_scheduler(),
    )


def _start_from(start: DiffusionBase, vae: Autoencoder) -> DiffusionBase:
    unet, text_encoder = blueprints.trainable_copy(start.unet), blueprints.trainable_copy(start.text_encoder)
    return DiffusionBase(unet, vae, text_encoder, start.tokenizer, start.scheduler)


def save_average(base: DiffusionBase, average: AveragedModel, folder: Path) -> None:
    """Write the pipeline with averaged weights; the trained ones stay as they are."""
    trained = cast(TextAndDenoiser, average.module)
    copied = DiffusionBase(
        blueprints.trainable_copy(trained.unet),
        blueprints.trainable_copy(base.vae),
        blueprints.trainable_copy(trained.text_encoder),
        base.tokenizer,
        base.scheduler,
    )
    save_base(copied, folder)


def _encoder_digest(vae: Autoencoder) -> str:
    """SHA-256 of what latents depend on: the encoder and the scale. The decoder may be sharpened later."""
    digest = hashlib.sha256(str(vae.config.scaling_factor).encode())
    for name, value in sorted(vae.encoder.state_dict().items()):
        digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def view_count(images: int) -> int:
    """Views of each image that are trained on: few images get more, so that none is learnt by heart."""
    return min(max(_VIEWED_IMAGES // images, 2), _MOST_VIEWS)


def view(images: Tensor, number: int, first: int) -> Tensor:
    """View 0 is the images B,3,S,S themselves, 1 their mirror images, others random crops, flipped at random.

    Args:
        images: in any range.
        number: which view.
        first: place of the first of them in the corpus; the random stream belongs to place and view.
    """
    if number < 2:
        return images.flip(-1) if number else images
    return torch.stack([_crop(image, number, first + place) for place, image in enumerate(images)])


def _crop(image: Tensor, number: int, place: int) -> Tensor:
    rng = numpy_rng("view", number, place)
    size = image.shape[-1]
    side = round(size * rng.uniform(_SMALLEST_CROP, 1))
    top, left = rng.integers(size - side + 1, size=2)
    cut = image[None, :, top : top + side, left : left + side]
    whole = F.interpolate(cut, (size, size), mode="bicubic", align_corners=False)[0].clamp(-1, 1)
    flips = [axis for axis in (-2, -1) if rng.random() < 0.5]
    return whole.flip(flips)


def latent_cache(vae: Autoencoder, corpus: Corpus, folder: Path, progress: Progress = SILENT) -> np.ndarray:
    """Latents of all views of all images, V,N,C,h,w float16, computed once for each encoder."""
    path = folder / f"latents-{_encoder_digest(vae)[:12]}.npy"
    if path.exists():
        return cast(np.ndarray, np.load(path))
    count = view_count(len(corpus))
    parts: list[list[np.ndarray]] = [[] for _ in range(count)]
    with progress.track("latents", len(corpus)) as advance:
        for start in range(0, len(corpus), 16):
            pixels = torch.from_numpy(np.array(corpus.images[start : start + 16]))
            images = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
            for number, latents in enumerate(parts):
                seen = view(images, number, start)
                latents.append(encode_images(vae, seen).to(torch.float16).numpy())
            advance(len(images))
    for old in folder.glob("latents-*.npy"):  # of an encoder that was trained further
        old.unlink()
    stacked = np.stack([np.concatenate(part) for part in parts])
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.save(file, stacked)
    temporary.replace(path)
    return stacked
