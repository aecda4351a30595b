"""The mask-conditioned generator: a ControlNet on a frozen base, sampled with few steps.

An image depends on its own seed and conditions only, never on the batch it was made in (up to rounding).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import ControlNetModel, DPMSolverMultistepScheduler
from torch import Tensor

from mcpmix.core.errors import ModelError
from mcpmix.models.diffusion import DiffusionBase, decode_latents, embed_prompts, encode_images, load_decoder


@dataclass(frozen=True)
class SamplingSettings:
    """How images are drawn.

    Attributes:
        steps: denoising steps of DPM-Solver++.
        guidance: classifier-free guidance; 1 needs no unconditional pass.
        control_scale: weight of the ControlNet's residuals.
        strength: 1 starts from noise; below 1 from the noised latents of the source images.
    """

    steps: int = 12
    guidance: float = 1.5
    control_scale: float = 1.0
    strength: float = 1.0


class Generator:
    """Base model and ControlNet, frozen, on one device."""

    def __init__(self, base: DiffusionBase, control: ControlNetModel) -> None:
        self.base = base.freeze()
        self.control = control.eval().requires_grad_(False)
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
            condition: B,2,H,W in [0, 1]: mask and depth.
            prompts: B texts.
            seeds: B seeds; each image's noise comes from its own.
            settings: see SamplingSettings.
            sources: B,3,H,W in [0, 1], the real images; needed for strength below 1.

        Returns:
            B,3,H,W images in [0, 1], float32 on the CPU.
        """
        condition = condition.to(self.device, self.base.unet.dtype)
        _check_size(condition, self.base.image_multiple)
        scheduler = DPMSolverMultistepScheduler.from_config(self.base.scheduler.config)
        scheduler.set_timesteps(settings.steps, device=self.device)
        latents, first = self._start(condition, seeds, settings, sources, scheduler)
        text = self._text(prompts, settings.guidance)
        for t in scheduler.timesteps[first:]:
            prediction = self._predict(latents, t, text, condition, settings)
            latents = scheduler.step(prediction, t, latents, return_dict=False)[0]
        images = decode_latents(self.base.vae, latents)
        return (images.float().cpu() + 1) / 2

    def _start(
        self,
        condition: Tensor,
        seeds: Sequence[int],
        settings: SamplingSettings,
        sources: Tensor | None,
        scheduler: DPMSolverMultistepScheduler,
    ) -> tuple[Tensor, int]:
        """First latents and the index of the first timestep to run."""
        factor = self.base.latent_factor
        shape = (
            self.base.unet.config.in_channels,
            condition.shape[2] // factor,
            condition.shape[3] // factor,
        )
        noise = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds])
        noise = noise.to(condition)
        if settings.strength >= 1:
            return noise * scheduler.init_noise_sigma, 0
        if sources is None:
            raise ModelError("strength below 1 starts from the real images: pass them as `sources`.")
        clean = encode_images(self.base.vae, sources.to(condition) * 2 - 1)
        first = settings.steps - max(1, round(settings.steps * settings.strength))
        scheduler.set_begin_index(first)
        return scheduler.add_noise(clean, noise, scheduler.timesteps[first].repeat(len(seeds))), first

    def _text(self, prompts: Sequence[str], guidance: float) -> Tensor:
        """Embeddings B,L,C, or 2B,L,C with the empty text first when guidance is on; cached by text."""
        wanted = ["", *prompts] if guidance > 1 else list(prompts)
        missing = [prompt for prompt in dict.fromkeys(wanted) if prompt not in self._embeddings]
        if missing:
            self._embeddings.update(zip(missing, embed_prompts(self.base, missing), strict=True))
        text = torch.stack([self._embeddings[prompt] for prompt in prompts])
        if guidance <= 1:
            return text
        return torch.cat([self._embeddings[""].expand_as(text), text])

    def _predict(
        self, latents: Tensor, t: Tensor, text: Tensor, condition: Tensor, settings: SamplingSettings
    ) -> Tensor:
        """The UNet's answer, guided; both halves of the guidance in one pass."""
        guided = settings.guidance > 1
        inputs = torch.cat([latents, latents]) if guided else latents
        control_inputs = torch.cat([condition, condition]) if guided else condition
        down, middle = self.control(
            inputs, t, text, control_inputs, conditioning_scale=settings.control_scale, return_dict=False
        )
        prediction: Tensor = self.base.unet(
            inputs,
            t,
            text,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
            return_dict=False,
        )[0]
        if not guided:
            return prediction
        empty, conditional = prediction.chunk(2)
        return empty + settings.guidance * (conditional - empty)


def load_generator(base: DiffusionBase, control: Path) -> Generator:
    """A generator from a base on its device and the folder of a ControlNet.

    Where the folder holds an unlocked decoder, it takes the place of the base's own.

    Raises:
        ModelError: the folder is missing, damaged or made for another base.
    """
    network = load_control(control).to(base.unet.device)
    load_decoder(base.unet, control)
    return Generator(base, network)


def load_control(folder: Path) -> ControlNetModel:
    """Read a ControlNet folder in diffusers' layout.

    Raises:
        ModelError: it is missing or damaged.
    """
    try:
        control: ControlNetModel = ControlNetModel.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load the ControlNet in {folder}: {error}") from error
    return control


def _check_size(condition: Tensor, multiple: int) -> None:
    height, width = condition.shape[2:]
    if height % multiple or width % multiple:
        raise ModelError(
            f"The generator needs image sides that are multiples of {multiple}, got {width}x{height}. "
            f"Set data.size to {max(multiple, round(height / multiple) * multiple)}."
        )
