"""Networks that draw images: the mask-conditioned generator, and the editor by instruction of DiffuseMix.

An image depends on its own seed and conditions only, never on the batch it was made in (up to rounding).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mcpmix.core.errors import ModelError
from mcpmix.networks.controlnet import load_control
from mcpmix.networks.diffusion import (
    DiffusionBase,
    decode_latents,
    embed_prompts,
    encode_images,
    load_decoder,
    predict_controlled,
)

if TYPE_CHECKING:
    from diffusers import ControlNetModel


@dataclass(frozen=True)
class SamplingSettings:
    """How images are drawn."""

    steps: int  # of DPM-Solver++
    guidance: float  # classifier-free; 1 needs no unconditional pass
    # How far to go from what the mask's absence would give to what the mask gives; 1 adds nothing and costs
    # nothing, above 1 takes one more pass and paints the lesion more distinctly.
    mask_guidance: float
    strength: float  # 1 starts from noise; below 1 from the noised latents of the source images


class Generator:
    """A ControlNet on its base, both frozen, on one device; sampled with few steps.

    Without a ControlNet it draws what the base knows, whatever the condition says.
    """

    def __init__(self, base: DiffusionBase, control: "ControlNetModel | None") -> None:
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
        from diffusers import DPMSolverMultistepScheduler

        height, width = condition.shape[2:]
        _require_sides("generator", condition, self.base.image_multiple)
        condition = condition.to(self.device, self.base.unet.dtype)
        scheduler = DPMSolverMultistepScheduler.from_config(self.base.scheduler.config)
        scheduler.set_timesteps(settings.steps, device=self.device)
        factor, first = self.base.latent_factor, 0
        shape = (self.base.unet.config.in_channels, height // factor, width // factor)
        noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds])
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
        with _embedded_once(self.control, conditions):
            for t in scheduler.timesteps[first:]:
                prediction = self._predict(latents, t, weights, text, conditions)
                latents = scheduler.step(prediction, t, latents, return_dict=False)[0]
        return latents

    def _guides(
        self, prompts: Sequence[str], condition: Tensor, guidance: float, mask_guidance: float
    ) -> tuple[tuple[float, ...], Tensor, Tensor]:
        """The passes of each step, and how their predictions are weighted.

        The answer with everything, moved away from the answer without text by `guidance` and from the answer
        without mask by `mask_guidance`: a weighted sum whose weights add up to 1.

        Returns:
            G weights, G*B,L,C text embeddings and G*B,2,H,W conditions.
        """
        text, blank = self._text(prompts), mask_guidance - 1
        asked = [(guidance + blank, text, condition)]
        if guidance > 1:
            asked.append((1 - guidance, self._text([""]).expand_as(text), condition))
        if blank:
            maskless = torch.cat([torch.zeros_like(condition[:, :1]), condition[:, 1:]], dim=1)
            asked.append((-blank, text, maskless))
        weights, texts, conditions = zip(*asked, strict=True)
        return weights, torch.cat(texts), torch.cat(conditions)

    def _text(self, prompts: Sequence[str]) -> Tensor:
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
def _embedded_once(control: "ControlNetModel | None", condition: Tensor) -> Iterator[None]:
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


def load_generator(base: DiffusionBase, control: Path) -> Generator:
    """A generator from a base on its device and the folder of a ControlNet.

    Where the folder holds an unlocked decoder, it takes the place of the base's own.

    Raises:
        ModelError: the folder is missing, damaged or made for another base.
    """
    network = load_control(control).to(base.unet.device)
    load_decoder(base.unet, control)
    return Generator(base, network)


class InstructEditor:
    """InstructPix2Pix, with the scheduler that DiffuseMix uses: another appearance in the same layout.

    It does not see masks: DiffuseMix trains on its edits under the mask of the original.

    Args:
        folder: a pipeline in diffusers' layout, such as that of timbrooks/instruct-pix2pix.

    Raises:
        ModelError: the folder is missing, damaged or of another kind of pipeline.
    """

    def __init__(
        self, folder: Path, device: torch.device | str = "cpu", precision: torch.dtype = torch.float32
    ) -> None:
        from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionInstructPix2PixPipeline

        try:
            # The safety checker blackens frames of mucosa.
            pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
                folder,
                dtype=precision,
                safety_checker=None,
                requires_safety_checker=False,
                low_cpu_mem_usage=False,
            )
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(f"Cannot load the editor in {folder}: {error}") from error
        latents, inputs = pipeline.vae.config.latent_channels, pipeline.unet.config.in_channels
        if inputs != 2 * latents:
            raise ModelError(
                f"{folder} is not an InstructPix2Pix pipeline: its UNet takes {inputs} channels, expected "
                f"{2 * latents} (latents of the noise and of the image)."
            )
        pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(pipeline.scheduler.config)
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline = pipeline.to(device)
        self.precision = precision

    @torch.no_grad()
    def edit(
        self,
        images: Tensor,
        instructions: Sequence[str],
        seeds: Sequence[int],
        *,
        steps: int,
        guidance: float,
        image_guidance: float,
    ) -> Tensor:
        """Edit each image by its own instruction.

        Args:
            images: B,3,H,W in [0, 1].
            seeds: each image's noise comes from its own.
            guidance: towards the instruction.
            image_guidance: towards the image.

        Returns:
            B,3,H,W in [0, 1], float32 on the CPU.
        """
        levels = len(self.pipeline.unet.config.block_out_channels)
        _require_sides("editor", images, int(self.pipeline.vae_scale_factor * 2 ** (levels - 1)))
        edited: Tensor = self.pipeline(
            prompt=list(instructions),
            image=images.to(self.pipeline.device, self.precision),
            num_inference_steps=steps,
            guidance_scale=guidance,
            image_guidance_scale=image_guidance,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            output_type="pt",
        ).images
        return edited.float().cpu().clamp(0, 1)


def _require_sides(what: str, images: Tensor, multiple: int) -> None:
    height, width = images.shape[2:]
    if height % multiple or width % multiple:
        raise ModelError(
            f"The {what} needs image sides that are multiples of {multiple}, got {width}x{height}. "
            f"Set data.size to {max(multiple, round(height / multiple) * multiple)}."
        )
