"""The mask-conditioned generator: a ControlNet on a base, how it starts, what is saved of it, how it draws.

An image depends on its own seed and conditions only, never on the batch it was made in (up to rounding).
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mcpmix.core.errors import ModelError, bullet_list
from mcpmix.core.files import read_json
from mcpmix.networks.diffusion import (
    ControlNet,
    DiffusionBase,
    UNet,
    decode_latents,
    embed_prompts,
    encode_images,
    merge_lora,
    predict_controlled,
    require_peft,
)

CONDITIONS = 2  # channels of the condition: mask and depth
LORA_FILE = "pytorch_lora_weights.safetensors"  # as diffusers names it
DECODER_FILE = "unet_decoder.safetensors"  # in the folder of a ControlNet
LORA_NEEDS = "few_steps.lora names a LoRA", "set it to null to distil the run's own generator"
# What a ControlNet has in common with the UNet whose encoder it began as.
_SHARED = ("in_channels", "block_out_channels", "down_block_types", "layers_per_block", "cross_attention_dim")
# What diffusers assumes where an old configuration file, as some published ones are, does not say it.
_PUBLISHED_CHANNELS, _PUBLISHED_WIDTHS = 3, (16, 32, 96, 256)
_DECODER = ("up_blocks", "conv_norm_out", "conv_out")


@dataclass(frozen=True)
class SamplingSettings:
    """How images are drawn."""

    steps: int
    guidance: float  # classifier-free; 1 needs no unconditional pass
    # How far to go from what the mask's absence would give to what the mask gives; 1 adds nothing and costs
    # nothing, above 1 takes one more pass and paints the lesion more distinctly.
    mask_guidance: float
    strength: float  # 1 starts from noise; below 1 from the noised latents of the source images
    # In how many steps a consistency model has learnt; its noise is drawn anew in each step (LCM). None: the
    # networks denoise, and the solver is DPM-Solver++.
    learnt_steps: int | None = None


class Generator:
    """A ControlNet on its base, both frozen, on one device; sampled with few steps.

    Without a ControlNet it draws what the base knows, whatever the condition says.
    """

    def __init__(self, base: DiffusionBase, control: "ControlNet | None") -> None:
        self.base = base.freeze()
        self.control = None if control is None else control.eval().requires_grad_(False)
        self.device = base.unet.device
        self._embeddings: dict[str, Tensor] = {}

    @torch.no_grad()
    def sample(
        self,
        condition: Tensor,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: SamplingSettings,
        sources: Tensor | None = None,
    ) -> Tensor:
        """Draw one image per condition.

        Args:
            condition: B,2,H,W in [0, 1]: mask and depth, or what else the ControlNet was trained with.
            seeds: each image's noise comes from its own.
            sources: B,3,H,W in [0, 1], the real images; needed for strength below 1.

        Returns:
            B,3,H,W images in [0, 1], float32 on the CPU.
        """
        images = decode_latents(
            self.base.vae, self.sample_latents(condition, prompts, seeds, settings, sources)
        )
        return (images.float().cpu() + 1) / 2

    @torch.no_grad()
    def sample_latents(
        self,
        condition: Tensor,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: SamplingSettings,
        sources: Tensor | None = None,
    ) -> Tensor:
        """The latents B,C,h,w of what `sample` draws, with all channels that the UNet has."""
        return self.path(condition, prompts, seeds, settings, sources)[1][-1]

    @torch.no_grad()
    def path(
        self,
        condition: Tensor,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: SamplingSettings,
        sources: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Timesteps (K,) of the steps from noise to image, and the latents before each and at the end.

        Arguments are those of `sample`; latents are K + 1 times B,C,h,w.
        """
        from diffusers import DPMSolverMultistepScheduler, LCMScheduler

        height, width = condition.shape[2:]
        require_sides("generator", condition, self.base.image_multiple)
        condition = condition.to(self.device, self.base.unet.dtype)
        if settings.learnt_steps is None:
            scheduler = DPMSolverMultistepScheduler.from_config(self.base.scheduler.config)
        else:
            scheduler = LCMScheduler.from_config(
                self.base.scheduler.config, original_inference_steps=settings.learnt_steps
            )
        scheduler.set_timesteps(settings.steps, device=self.device)
        factor, first = self.base.latent_factor, 0
        shape = (self.base.unet.config.in_channels, height // factor, width // factor)
        streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        noise = torch.stack([torch.randn(shape, generator=stream) for stream in streams])
        noise = noise.to(condition)
        if settings.strength >= 1:
            latents = noise * scheduler.init_noise_sigma
        elif sources is None:
            raise ModelError("strength below 1 starts from the real images: pass them as `sources`.")
        else:
            clean = encode_images(self.base.vae, sources.to(condition) * 2 - 1)
            first = settings.steps - max(1, round(settings.steps * settings.strength))
            scheduler.set_begin_index(first)
            latents = scheduler.add_noise(clean, noise, scheduler.timesteps[first].repeat(len(seeds)))
        weights, text, conditions = self._guides(
            prompts, condition, settings.guidance, settings.mask_guidance
        )
        passed = [latents]
        with _embedded_once(self.control, conditions):
            for t in scheduler.timesteps[first:]:
                prediction = self._predict(passed[-1], t, weights, text, conditions)
                taken = scheduler.step(prediction, t, passed[-1], generator=streams, return_dict=False)
                passed.append(taken[0])
        return scheduler.timesteps[first:], passed

    def _guides(
        self, prompts: Sequence[str], condition: Tensor, guidance: float, mask_guidance: float
    ) -> tuple[tuple[float, ...], Tensor, Tensor]:
        """The passes of each step, and how their predictions are weighted.

        The answer with everything, moved away from the answer without text by `guidance` and from the answer
        without mask by `mask_guidance`: a weighted sum whose weights add up to 1.

        Returns:
            G weights, G*B,L,C text embeddings and G*B,2,H,W conditions.
        """
        text, blank = self.embed(prompts), mask_guidance - 1
        asked = [(guidance + blank, text, condition)]
        if guidance > 1:
            asked.append((1 - guidance, self.embed([""]).expand_as(text), condition))
        if blank:
            maskless = torch.cat([torch.zeros_like(condition[:, :1]), condition[:, 1:]], dim=1)
            asked.append((-blank, text, maskless))
        weights, texts, conditions = zip(*asked, strict=True)
        return weights, torch.cat(texts), torch.cat(conditions)

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """Embeddings B,L,C; cached by text."""
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._embeddings]
        if missing:
            self._embeddings.update(zip(missing, embed_prompts(self.base, missing), strict=True))
        return torch.stack([self._embeddings[prompt] for prompt in prompts])

    def _predict(
        self, latents: Tensor, t: Tensor, weights: Sequence[float], text: Tensor, condition: Tensor
    ) -> Tensor:
        """The UNet's guided prediction; all passes go through the networks as one batch."""
        inputs = latents.repeat(len(weights), 1, 1, 1)
        prediction = predict_controlled(self.base.unet, self.control, inputs, t, text, condition)
        answers = prediction.chunk(len(weights))
        return torch.stack([w * answer for w, answer in zip(weights, answers, strict=True)]).sum(dim=0)


class _Known(nn.Module):
    """Returns a result that is already known."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, _: Tensor) -> Tensor:
        return self.answer


@contextmanager
def _embedded_once(control: "ControlNet | None", condition: Tensor) -> Iterator[None]:
    """Embed the condition once instead of in every step: it is work at image size, and never changes."""
    if control is None:
        yield
        return
    embedding = control.controlnet_cond_embedding
    control.controlnet_cond_embedding = _Known(embedding(condition))
    try:
        yield
    finally:
        control.controlnet_cond_embedding = embedding


def load_generator(base: DiffusionBase, control: Path, lora: Path | None = None) -> Generator:
    """A generator from a base on its device and the folder of a ControlNet.

    Where the folder holds an unlocked decoder, it takes the place of the base's own. A LoRA is added last.

    Raises:
        ModelError: the folder is missing, damaged or made for another base.
    """
    network = load_control(control).to(base.unet.device)
    load_decoder(base.unet, control)
    if lora is not None:
        load_lora(base.unet, lora)
    return Generator(base, network)


def load_lora(unet: UNet, folder: Path) -> None:
    """Add a published LoRA to the weights of a UNet.

    Raises:
        DependencyError: peft is not installed.
        ModelError: the file is missing, damaged or made for another base.
    """
    require_peft(*LORA_NEEDS)
    from diffusers import StableDiffusionPipeline

    try:
        found = StableDiffusionPipeline.lora_state_dict(
            folder, weight_name=LORA_FILE, unet_config=unet.config, local_files_only=True
        )
        StableDiffusionPipeline.load_lora_into_unet(*found, unet)
        if not getattr(unet, "peft_config", None):
            raise ValueError("it has no weights for a UNet")
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"few_steps.lora: {folder / LORA_FILE} cannot be added to this base: {error!s:.300}\nTake a LoRA "
            "that is made for generator.base."
        ) from error
    merge_lora(unet)


def require_sides(what: str, images: Tensor, multiple: int) -> None:
    """Refuse images B,C,H,W whose sides are not multiples of what a network, `what`, needs."""
    height, width = images.shape[2:]
    if height % multiple or width % multiple:
        raise ModelError(
            f"The {what} needs image sides that are multiples of {multiple}, got {width}x{height}. "
            f"Set data.size to {max(multiple, round(height / multiple) * multiple)}."
        )


# --- what a ControlNet starts from -------------------------------------------------------------------------


def load_control(folder: Path) -> ControlNet:
    """Read a ControlNet folder in diffusers' layout.

    Raises:
        ModelError: it is missing or damaged.
    """
    from diffusers import ControlNetModel

    try:
        control: ControlNet = ControlNetModel.from_pretrained(folder, low_cpu_mem_usage=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load the ControlNet in {folder}: {error}") from error
    return control


def embedding_widths(unet: UNet) -> tuple[int, ...]:
    """Widths of the condition embedding: the published ones, none wider than the UNet's first block."""
    return tuple(min(width, unet.config.block_out_channels[0]) for width in _PUBLISHED_WIDTHS)


def control_from_base(
    base: DiffusionBase, condition_channels: int = CONDITIONS, embedding: Sequence[int] | None = None
) -> ControlNet:
    """A ControlNet that starts as a copy of the UNet's encoder, with zero output.

    Args:
        condition_channels: channels of the condition image; mask and depth make 2.
        embedding: widths of the condition embedding; its length fixes the down-sampling (four for 8x). None:
            see `embedding_widths`.
    """
    from diffusers import ControlNetModel

    control: ControlNet = ControlNetModel.from_unet(
        base.unet,
        conditioning_channels=condition_channels,
        conditioning_embedding_out_channels=tuple(embedding or embedding_widths(base.unet)),
    )
    return control.train().requires_grad_(True)


def control_from_start(base: DiffusionBase, folder: Path) -> ControlNet:
    """A trained ControlNet for mask and depth, to be trained further.

    One for grey images in three channels, as the published ones for depth are, is taken too: depth gets the
    sum of their weights, so that it answers to depth as before, and the mask starts without any.

    Raises:
        ModelError: it does not fit the base, takes another kind of condition, or comes with a decoder.
    """
    require_fit(folder, base.unet.config, base.latent_factor)
    if (folder / DECODER_FILE).exists():
        raise ModelError(
            f"{folder} holds a ControlNet with an unlocked decoder ({DECODER_FILE}), which it would lose as "
            "a start. Take one that was trained without, or delete that file if this is wanted."
        )
    control = load_control(folder)
    control.register_to_config(_name_or_path="")  # a path of this machine, which may name people
    if control.config["conditioning_channels"] == 3:
        grey = control.controlnet_cond_embedding.conv_in
        weight = grey.weight.detach().sum(dim=1)
        both = nn.Conv2d(2, grey.out_channels, grey.kernel_size, padding=grey.padding)
        with torch.no_grad():
            both.weight.copy_(torch.stack([torch.zeros_like(weight), weight], dim=1))
            cast(nn.Parameter, both.bias).copy_(grey.bias)
        control.controlnet_cond_embedding.conv_in = both
        control.register_to_config(conditioning_channels=2)
    return control.train().requires_grad_(True)


def require_fit(folder: Path, unet: Mapping[str, Any], latent_factor: int | None = None) -> None:
    """Refuse a ControlNet, by its configuration file, that is not made for a base with this UNet.

    Args:
        unet: configuration of the base's UNet.
        latent_factor: side of an image over the side of its latents; None: not compared.

    Raises:
        ModelError: with all differences.
    """
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load the ControlNet in {folder}: {error}") from error
    kind = config.get("_class_name")
    if kind != "ControlNetModel":
        raise ModelError(f"{folder} does not hold a ControlNet but a network of class {kind}.")
    differences = []
    for name in _SHARED:
        there, here = config.get(name), unet.get(name)
        here = list(here) if isinstance(here, tuple) else here
        if there != here:
            differences.append(f"{name}: {there} there, {here} in the base")
    factor = 2 ** (len(config.get("conditioning_embedding_out_channels", _PUBLISHED_WIDTHS)) - 1)
    if latent_factor is not None and factor != latent_factor:
        differences.append(f"down-sampling of the condition: {factor} there, {latent_factor} in the base")
    if (channels := config.get("conditioning_channels", _PUBLISHED_CHANNELS)) not in (2, 3):
        differences.append(
            f"channels of the condition: {channels} there; expected 2 (mask, depth) or 3 (depth in grey)"
        )
    if differences:
        raise ModelError(
            bullet_list(f"The ControlNet {folder} is not made for this base:", differences)
            + "\nSet finetune.start to one that is, or to null for a copy of the base's encoder."
        )


# --- the unlocked decoder ----------------------------------------------------------------------------------


def decoder_of(unet: UNet) -> nn.ModuleDict:
    """The UNet's decoder, shared with it: up blocks, last norm and last convolution.

    The names in its state dict are those of the UNet's.
    """
    return nn.ModuleDict({name: part for name in _DECODER if (part := getattr(unet, name)) is not None})


def with_decoder(unet: UNet, decoder: nn.ModuleDict) -> UNet:
    """A second UNet with another decoder; encoder and middle are shared with the first, not copied."""
    view = copy.copy(unet)
    view._modules = {**unet._modules, **dict(decoder.items())}
    return view


def lower_frozen(unet: UNet, precision: torch.dtype) -> None:
    """Keep the frozen weights of the UNet's blocks in the format in which autocast computes.

    Autocast would round the same weights in the same way at every pass: results are equal to the last bit,
    and half of the memory is free. Norms stay as they are, since autocast computes some of them in float32;
    so does the first layer, by which the UNet says which format its inputs have.
    """
    if precision == torch.float32:
        return
    for blocks in (unet.down_blocks, unet.mid_block, unet.up_blocks):
        for layer in blocks.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear) and not layer.weight.requires_grad:
                layer.to(precision)


def save_decoder(decoder: nn.ModuleDict, control: Path) -> None:
    """Write an unlocked decoder into the folder of the ControlNet that was trained with it."""
    save_file({name: t.contiguous() for name, t in decoder.state_dict().items()}, control / DECODER_FILE)


def load_decoder(unet: UNet, control: Path) -> bool:
    """Put the decoder that was saved with a ControlNet into a UNet, if there is one; returns whether.

    Raises:
        ModelError: the file is damaged or belongs to another base.
    """
    path = control / DECODER_FILE
    if not path.exists():
        return False
    try:
        decoder_of(unet).load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"{path} does not fit the decoder of the base model. Use the base that the ControlNet was "
            f"fine-tuned on, or fine-tune again. ({error!s:.160})"  # torch would list all layers
        ) from error
    return True
