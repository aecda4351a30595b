"""The editor by instruction of DiffuseMix.

An edit depends on its own image, instruction and seed only, never on the batch it was made in (up to
rounding).
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mcpmix.core.errors import ModelError
from mcpmix.networks.generator import require_sides


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
        require_sides("editor", images, int(self.pipeline.vae_scale_factor * 2 ** (levels - 1)))
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
