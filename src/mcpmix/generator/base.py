"""Trains denoiser and text encoder of a diffusion base on the latents of images, in full or by LoRA."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.device import Runtime
from mcpmix.core.files import written
from mcpmix.core.pixels import Pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.core.training import fit, plateau
from mcpmix.networks.diffusion import (
    Autoencoder,
    DiffusionBase,
    add_lora,
    encode_images,
    merge_lora,
    noise_schedule,
    tokenise,
    trainable_copy,
)

_EMPTY_PROMPT_SHARE = 0.1
_VIEWED_IMAGES = 4096  # views times images, for small corpora
_MOST_VIEWS = 16
_SMALLEST_CROP = 0.8  # of the side
_ENCODED = 16  # images that go through the autoencoder at once


class Images(Protocol):
    """N,S,S,3 uint8: an array, a memory map, or several of them under one numbering."""

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice | np.ndarray) -> Pixels: ...


@dataclass(frozen=True)
class BaseSettings:
    """How a base is trained."""

    steps: int
    learning_rate: float  # after the warm-up; it falls to 0 over the last fifth of the steps
    batch_size: int
    ema_decay: float = 0.998  # of the weight average that is the result
    lora_rank: int = 0  # 0: all weights of denoiser and text encoder learn
    save_every: int = 250
    look_every: int = 0  # steps between two more checkpoints, to look at the base; 0: none
    seed: int = 0


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
    latents: np.ndarray,
    texts: Sequence[Sequence[str]],
    start: DiffusionBase,
    settings: BaseSettings,
    checkpoint: Path,
    runtime: Runtime,
    *,
    chances: np.ndarray | None = None,
    look: Callable[[int, Callable[[], DiffusionBase]], None] | None = None,
    progress: Progress = SILENT,
) -> DiffusionBase:
    """Train copies of UNet and text encoder; the result has their averaged weights, on the CPU.

    Args:
        latents: V,N,C,h,w of V views of N images.
        texts: kinds of texts, each with one text for each image; a step draws a kind for each image.
        start: what to start from; stays as it is.
        chances: probability (N,) with which an image is drawn; None: all alike.
        look: called after each checkpoint with the number of finished steps and a function that gives the
            averaged base so far.
    """
    unet, text_encoder = trainable_copy(start.unet), trainable_copy(start.text_encoder)
    if settings.lora_rank:
        text_encoder.requires_grad_(False)
        add_lora(unet, settings.lora_rank)
    base = replace(start, unet=unet, text_encoder=text_encoder)
    model = TextAndDenoiser(base).to(runtime.device)
    # Only what learns is averaged and saved: with LoRA that is a hundredth of the weights.
    named = {name.replace(".", "/"): p for name, p in model.named_parameters() if p.requires_grad}
    learning = nn.ParameterDict(named)
    average = AveragedModel(learning, multi_avg_fn=get_ema_multi_avg_fn(settings.ema_decay))
    optimiser = torch.optim.AdamW(learning.parameters(), settings.learning_rate, fused=True)
    tokens = torch.stack([tokenise(base.tokenizer, kind) for kind in texts])
    empty, size = tokenise(base.tokenizer, [""])[0], settings.batch_size
    schedule = noise_schedule(base.scheduler)

    def loss(index: int) -> Tensor:
        rng = numpy_rng("base batch", settings.seed, index)
        chosen = rng.choice(latents.shape[1], size, p=chances)
        clean = torch.from_numpy(latents[rng.integers(len(latents), size=size), chosen]).float()
        text = tokens[rng.integers(len(texts), size=size), chosen]
        text[torch.from_numpy(rng.random(size) < _EMPTY_PROMPT_SHARE)] = empty
        noise = torch.randn(clean.shape, generator=torch_rng("base noise", settings.seed, index))
        t = torch.from_numpy(rng.integers(schedule.timesteps, size=size))
        clean, noise, t, text = (x.to(runtime.device) for x in (clean, noise, t, text))
        noisy = schedule.add_noise(clean, noise, t).contiguous(memory_format=torch.channels_last)
        with runtime.autocast():
            prediction = model(noisy, t, text)
        # All timesteps alike: weighting by signal-to-noise would all but leave out the noisiest ones, in
        # which colour and layout are decided.
        return (prediction.float() - schedule.target(clean, noise, t)).square().mean()

    def averaged() -> DiffusionBase:
        result = replace(base, unet=trainable_copy(unet), text_encoder=trainable_copy(text_encoder))
        parameters = dict(TextAndDenoiser(result).named_parameters())
        means = cast(nn.ParameterDict, average.module)
        with torch.no_grad():
            for name in named:
                parameters[name.replace("/", ".")].copy_(means[name])
        if settings.lora_rank:
            merge_lora(result.unet)
        return result.to("cpu").freeze()

    fit(
        loss,
        learning,
        optimiser,
        plateau,
        settings.steps,
        checkpoint,
        average=average,
        save_every=settings.save_every,
        also_save_every=settings.look_every,
        after_save=None if look is None else lambda step: look(step, averaged),
        progress=progress,
    )
    return averaged()


# --- latents -----------------------------------------------------------------------------------------------


def latent_cache(
    vae: Autoencoder,
    images: Images,
    folder: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> np.ndarray:
    """Latents of all views of all images, V,N,C,h,w float16, computed once for each encoder.

    A killed call resumes after the last batch that it wrote.
    """
    # Also where the latents are there already: whoever decodes with it next must round alike after a kill.
    vae = vae.to(runtime.device, memory_format=torch.channels_last)
    # Latents depend on the encoder and the scale; the decoder may be sharpened later.
    digest = hashlib.sha256(f"{vae.config.scaling_factor} {len(images)}".encode())
    for name, value in sorted(vae.encoder.state_dict().items()):
        digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    path = folder / f"latents-{digest.hexdigest()[:12]}.npy"
    if path.exists():
        return cast(np.ndarray, np.load(path, mmap_mode="r"))
    for old in folder.glob("latents-*"):  # of an encoder that was trained further
        if old.stem != path.stem:
            old.unlink()
    views, raw = view_count(len(images)), path.with_suffix(".raw")
    blank = torch.zeros(1, 3, *images[:1].shape[1:3], device=vae.device)
    shape = (views, *encode_images(vae, blank)[0].shape)
    row = 2 * int(np.prod(shape))  # bytes of all views of one image
    done = raw.stat().st_size // row // _ENCODED * _ENCODED if raw.exists() else 0
    with raw.open("ab") as file, progress.track("latents", len(images), done) as advance:
        file.truncate(done * row)
        for start in range(done, len(images), _ENCODED):
            pixels = torch.from_numpy(np.array(images[start : start + _ENCODED])).to(vae.device)
            batch = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
            with runtime.autocast():
                parts = [encode_images(vae, view(batch, number, start)).cpu() for number in range(views)]
            file.write(torch.stack(parts, dim=1).to(torch.float16).numpy().tobytes())
            file.flush()
            advance(len(batch))
    encoded = np.memmap(raw, np.float16, "r", shape=(len(images), *shape)).swapaxes(0, 1)
    with written(path) as temporary, temporary.open("wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": encoded.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in encoded:
            file.write(np.ascontiguousarray(part).data)
    raw.unlink()
    return cast(np.ndarray, np.load(path, mmap_mode="r"))


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
