"""A latent diffusion model in diffusers' folder layout: its parts, its noise schedule and its training loss.

Stable Diffusion 1.5 and the embedded model go through the same functions; everything that differs
(prediction type, noise schedule, latent scale, text length) is read from the folder's configuration files.

In this folder diffusers and transformers are imported by the functions that need them: together they take
seconds, which a run that only reuses what is finished does not have to spend.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import DependencyError, ModelError
from mcpmix.core.files import read_json

if TYPE_CHECKING:
    from diffusers import (
        AutoencoderKL,
        AutoencoderTiny,
        ControlNetModel,
        SchedulerMixin,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextModel, CLIPTokenizer

Autoencoder: TypeAlias = "AutoencoderKL | AutoencoderTiny"
UNet: TypeAlias = "UNet2DConditionModel"
ControlNet: TypeAlias = "ControlNetModel"
Network = TypeVar("Network", "UNet2DConditionModel", "AutoencoderTiny", "AutoencoderKL", "CLIPTextModel")
_ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]  # layers that LoRA widens
# Without accelerate: diffusers advises to install it unless it is told so; neither memory nor time differ.
_LOADING = {"torch_dtype": torch.float32, "low_cpu_mem_usage": False}
AUTOENCODERS = ("AutoencoderKL", "AutoencoderTiny")  # classes of diffusers


@dataclass
class DiffusionBase:
    """The parts of a text-conditioned latent diffusion model, all on one device."""

    unet: "UNet2DConditionModel"
    vae: Autoencoder
    text_encoder: "CLIPTextModel"
    tokenizer: "CLIPTokenizer"
    scheduler: "SchedulerMixin"

    def freeze(self) -> "DiffusionBase":
        """Evaluation mode, no gradients for any weight; returns itself."""
        for module in (self.unet, self.vae, self.text_encoder):
            module.eval().requires_grad_(False)
        return self

    def to(self, device: torch.device | str) -> "DiffusionBase":
        """Move all networks; returns itself."""
        for module in (self.unet, self.vae, self.text_encoder):
            module.to(device)
        return self

    @property
    def latent_factor(self) -> int:
        """See `shrinkage`."""
        return shrinkage(self.vae)

    @property
    def image_multiple(self) -> int:
        """Image sides must be a multiple of this: VAE factor times UNet factor."""
        return image_multiple(self.vae, self.unet)


def load_base(folder: Path, *, unet: "UNet | None" = None) -> DiffusionBase:
    """Load a pipeline folder (unet, vae, text_encoder, tokenizer, scheduler); frozen, float32, on the CPU.

    Args:
        unet: used in place of the folder's own, which is then not read.

    Raises:
        ModelError: a part is missing or damaged.
    """
    from diffusers import DPMSolverMultistepScheduler, UNet2DConditionModel
    from transformers import CLIPTextModel, CLIPTokenizer

    parts = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
    missing = [part for part in parts if not (folder / part).is_dir()]
    if missing:
        raise ModelError(
            f"{folder} is not a diffusers pipeline folder: {', '.join(missing)} missing "
            f"(expected the sub-folders {', '.join(parts)})."
        )
    try:
        return DiffusionBase(
            unet=unet or UNet2DConditionModel.from_pretrained(folder / "unet", **_LOADING),
            vae=load_autoencoder(folder / "vae"),
            text_encoder=CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32),
            tokenizer=CLIPTokenizer.from_pretrained(folder / "tokenizer"),
            scheduler=DPMSolverMultistepScheduler.from_pretrained(folder / "scheduler"),
        ).freeze()
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load the diffusion model in {folder}: {error}") from error


def load_autoencoder(folder: Path) -> Autoencoder:
    """A frozen autoencoder from its own folder; its configuration says which of the known kinds it is.

    Raises:
        ModelError: it is missing, damaged or of an unknown kind.
    """
    import diffusers

    try:
        name = read_json(folder / "config.json").get("_class_name")
        if name not in AUTOENCODERS:
            raise ModelError(f"{folder}: unknown autoencoder {name!r}; known: {', '.join(AUTOENCODERS)}.")
        vae: Autoencoder = getattr(diffusers, name).from_pretrained(folder, **_LOADING)
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load the autoencoder in {folder}: {error}") from error
    vae.register_to_config(_name_or_path="")  # saved elsewhere, it would tell the path of this folder
    return vae.eval().requires_grad_(False)


def require_channels(vae: Autoencoder, wanted: int, source: str) -> None:
    """Refuse an autoencoder, named `source`, whose latents have other channels than a denoiser takes."""
    channels = vae.config.latent_channels
    if channels != wanted:
        raise ModelError(
            f"adapt.autoencoder: {source} makes latents of {channels} channels; the denoiser of the base "
            f"expects {wanted}. Take one made for this base, or set adapt.unet to train a denoiser for it "
            "from scratch."
        )


def shrinkage(vae: Autoencoder) -> int:
    """How many times smaller than an image its latents are, per side."""
    widths = vae.config.get("block_out_channels") or vae.config.get("encoder_block_out_channels")
    return int(2 ** (len(widths) - 1))


def image_multiple(vae: Autoencoder, unet: UNet) -> int:
    """Image sides must be a multiple of this: VAE factor times UNet factor."""
    return int(shrinkage(vae) * 2 ** (len(unet.config.block_out_channels) - 1))


UNETS = {"tiny": (64, 96, 144), "small": (64, 128, 192), "medium": (128, 192, 256)}
"""Widths of the denoisers that can be made from scratch, by name: 6, 11 and 22 million parameters."""


def new_unet(
    size: str, *, latent_channels: int, text_width: int, latent_side: int, seed: int | None = None
) -> "UNet2DConditionModel":
    """An untrained denoiser; it is convolutional and takes latents of other sides too.

    Attention in the two coarser levels only: in the finest it would double the cost of a step.

    Args:
        size: a key of `UNETS`.
        seed: of its weights; None: whatever torch's global stream gives.
    """
    from diffusers import UNet2DConditionModel

    if seed is not None:
        torch.manual_seed(seed)
    return UNet2DConditionModel(
        sample_size=latent_side,
        in_channels=latent_channels,
        out_channels=latent_channels,
        block_out_channels=UNETS[size],
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=text_width,
        attention_head_dim=4,
        norm_num_groups=16,
    )


def save_base(base: DiffusionBase, folder: Path) -> None:
    """Write all parts as float16 safetensors in diffusers' layout, with a model_index.json."""
    from diffusers import StableDiffusionPipeline

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


def trainable_copy(network: Network) -> Network:
    """A copy to train, which does not know from which folder its weights came."""
    from transformers import CLIPTextModel

    copied = copy.deepcopy(network).train().requires_grad_(True)
    if isinstance(copied, CLIPTextModel):
        copied.config._name_or_path = ""
    else:
        copied.register_to_config(_name_or_path="")
    return copied


# --- LoRA: a few weights beside frozen ones ----------------------------------------------------------------


def add_lora(unet: "UNet2DConditionModel", rank: int) -> None:
    """Freeze a UNet and give its attention layers low-rank weights that learn.

    Raises:
        DependencyError: peft is not installed.
    """
    require_peft("adapt: a base of this size learns by LoRA", "set adapt.lora_rank=0 to train all weights")
    from peft import LoraConfig

    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=_ATTENTION))


def merge_lora(unet: "UNet2DConditionModel") -> None:
    """Add what `add_lora` has learnt to the weights themselves; the UNet is a plain one again."""
    unet.fuse_lora()
    unet.unload_lora()


def require_peft(purpose: str, instead: str) -> None:
    """Raise a DependencyError if the package for LoRA is not installed."""
    if find_spec("peft") is None:
        get = "Get it with `pip install 'mcpmix[adapt]'`"
        raise DependencyError(f"{purpose}, which needs the package peft. {get}, or {instead}.")


# --- latents and prompts -----------------------------------------------------------------------------------


def raw_latents(vae: Autoencoder, images: Tensor) -> Tensor:
    """B,3,H,W in [-1, 1] to unscaled latents (a posterior's mode: no randomness to keep track of)."""
    encoded = vae.encode(images)
    latents: Tensor = encoded.latents if "latents" in encoded else encoded.latent_dist.mode()
    return latents


@torch.no_grad()
def encode_images(vae: Autoencoder, images: Tensor) -> Tensor:
    """B,3,H,W in [-1, 1] to scaled latents."""
    return raw_latents(vae, images) * vae.config.scaling_factor


@torch.no_grad()
def decode_latents(vae: Autoencoder, latents: Tensor) -> Tensor:
    """Scaled latents to images B,3,H,W in [-1, 1]."""
    images: Tensor = vae.decode(latents / vae.config.scaling_factor).sample
    return images.clamp(-1, 1)


def tokenise(tokenizer: "CLIPTokenizer", prompts: Sequence[str]) -> Tensor:
    """Token ids B,L, padded and cut to the model's length."""
    ids: Tensor = tokenizer(
        list(prompts),
        padding="max_length",
        truncation=True,
        max_length=tokenizer.model_max_length,
        return_tensors="pt",
    ).input_ids
    return ids


@torch.no_grad()
def embed_prompts(base: DiffusionBase, prompts: Sequence[str]) -> Tensor:
    """Text embeddings B,L,C; equal prompts are computed once."""
    unique = list(dict.fromkeys(prompts))
    ids = tokenise(base.tokenizer, unique).to(base.text_encoder.device)
    embeddings: Tensor = base.text_encoder(ids).last_hidden_state
    return embeddings[[unique.index(prompt) for prompt in prompts]]


# --- the noise schedule ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseSchedule:
    """Forward process of a trained model."""

    alphas_cumprod: Tensor  # signal power left after each of the training timesteps, (T,), decreasing
    prediction_type: str  # what the UNet predicts: "epsilon", "v_prediction" or "sample"

    @property
    def timesteps(self) -> int:
        """Number of training timesteps T."""
        return len(self.alphas_cumprod)

    def add_noise(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """x_t = sqrt(a) x_0 + sqrt(1 - a) noise; `t` has shape (B,)."""
        signal, noise_level = self._levels(t, latents)
        return signal * latents + noise_level * noise

    def target(self, latents: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What the UNet should answer to x_t."""
        if self.prediction_type == "epsilon":
            return noise
        if self.prediction_type == "sample":
            return latents
        if self.prediction_type == "v_prediction":
            signal, noise_level = self._levels(t, latents)
            return signal * noise - noise_level * latents
        raise ModelError(
            f"Unknown prediction type {self.prediction_type!r} in the scheduler's configuration."
        )

    def clean(self, prediction: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """The latents x_0 that an answer of the UNet to x_t stands for: the inverse of `target`."""
        if self.prediction_type == "sample":
            return prediction
        signal, noise_level = self._levels(t, noisy)
        if self.prediction_type == "epsilon":
            return (noisy - noise_level * prediction) / signal
        return signal * noisy - noise_level * prediction

    def min_snr_weight(self, t: Tensor, gamma: float) -> Tensor:
        """Loss weights (B,) of min-SNR-gamma for this prediction type; gamma <= 0 means 1 everywhere."""
        if gamma <= 0:
            return torch.ones_like(t, dtype=torch.float32)
        alpha = self.alphas_cumprod.to(t.device)[t]
        snr = alpha / (1 - alpha)
        clipped = snr.clamp(max=gamma)
        if self.prediction_type == "epsilon":
            return clipped / snr.clamp(min=1e-8)
        if self.prediction_type == "v_prediction":
            return clipped / (snr + 1)
        return clipped

    def _levels(self, t: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        alpha = self.alphas_cumprod.to(like.device)[t].to(like.dtype).view(-1, 1, 1, 1)
        return alpha.sqrt(), (1 - alpha).sqrt()


def noise_schedule(scheduler: "SchedulerMixin") -> NoiseSchedule:
    """The forward process that belongs to a pipeline's scheduler configuration."""
    from diffusers import DDPMScheduler

    forward = DDPMScheduler.from_config(scheduler.config)
    return NoiseSchedule(forward.alphas_cumprod.float(), forward.config.prediction_type)


# --- the training loss of a ControlNet ---------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Examples with their noise, for a ControlNet."""

    clean: Tensor  # B,C,h,w latents
    noise: Tensor  # B,C,h,w
    t: Tensor  # (B,) timesteps
    shown: Tensor  # B,2,H,W condition, a channel blank where it was dropped
    masks: Tensor  # B,H,W
    text: Tensor  # B,L,C embeddings

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})


def predict_controlled(
    unet: nn.Module, control: nn.Module | None, noisy: Tensor, t: Tensor, text: Tensor, condition: Tensor
) -> Tensor:
    """The UNet's answer B,C,h,w with what the ControlNet adds to it, if there is one."""
    down, middle = (None, None) if control is None else control(noisy, t, text, condition, return_dict=False)
    prediction: Tensor = unet(
        noisy,
        t,
        text,
        down_block_additional_residuals=down,
        mid_block_additional_residual=middle,
        return_dict=False,
    )[0]
    return prediction


def denoising_error(unet: nn.Module, control: nn.Module, batch: Batch, schedule: NoiseSchedule) -> Tensor:
    """Squared error B,h,w of what the UNet predicts, mean over the channels of the latents."""
    # Channels last: the condition is as large as the image, has few channels, and is convolved much faster.
    noisy = schedule.add_noise(batch.clean, batch.noise, batch.t).contiguous(
        memory_format=torch.channels_last
    )
    shown = batch.shown.contiguous(memory_format=torch.channels_last)
    prediction = predict_controlled(unet, control, noisy, batch.t, batch.text, shown)
    target = schedule.target(batch.clean, batch.noise, batch.t)
    return (prediction.float() - target).square().mean(dim=1)


def training_loss(
    unet: nn.Module,
    control: nn.Module,
    batch: Batch,
    schedule: NoiseSchedule,
    *,
    lesion_weight: float = 1.0,
    min_snr_gamma: float = 0.0,
) -> Tensor:
    """Mean error of a batch, weighted by lesion and by signal-to-noise ratio; 0-d.

    Args:
        lesion_weight: how much more an error under the mask counts.
        min_snr_gamma: clip of the signal-to-noise weighting; 0 switches it off.
    """
    error = denoising_error(unet, control, batch, schedule)
    emphasis = lesion_emphasis(batch.masks, (error.shape[-2], error.shape[-1]), lesion_weight)
    weight = schedule.min_snr_weight(batch.t, min_snr_gamma)
    return ((error * emphasis).mean(dim=(1, 2)) * weight).mean()


def lesion_emphasis(masks: Tensor, size: tuple[int, int], weight: float) -> Tensor:
    """Weights B,h,w of mean 1 by which a place under the masks B,H,W counts `weight` times as much."""
    covered = F.adaptive_avg_pool2d((masks[:, None] > 0).to(masks), size)[:, 0]
    emphasis = 1 + (weight - 1) * covered
    return emphasis / emphasis.mean(dim=(1, 2), keepdim=True)
