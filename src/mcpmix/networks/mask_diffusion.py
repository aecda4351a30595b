"""Diffusion of masks: a small model of masks alone, and a base whose latents carry a mask too."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.networks.diffusion import UNet, trainable_copy

if TYPE_CHECKING:
    from diffusers import DPMSolverMultistepScheduler, UNet2DModel

_WIDTHS = (32, 48, 64)
_GROUPS = 8  # of the norms


def new_mask_unet(side: int, seed: int) -> "UNet2DModel":
    """An untrained denoiser of B,1,side,side masks with values -1 and 1; 1 million parameters.

    Attention in the coarsest level only: it is where the parts of an outline find each other.
    """
    from diffusers import UNet2DModel

    torch.manual_seed(seed)
    return UNet2DModel(
        sample_size=side,
        in_channels=1,
        out_channels=1,
        block_out_channels=_WIDTHS,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=_GROUPS,
    )


def mask_scheduler() -> "DPMSolverMultistepScheduler":
    """The noise of masks: cosine, with the clean mask as what the denoiser predicts.

    Both are usual for values that are bits: what is predicted stays close to -1 and 1 at every step.
    """
    from diffusers import DPMSolverMultistepScheduler

    return DPMSolverMultistepScheduler(
        beta_schedule="squaredcos_cap_v2", prediction_type="sample", timestep_spacing="trailing"
    )


@torch.no_grad()
def draw_masks(unet: "UNet2DModel", seeds: Sequence[int], steps: int) -> Tensor:
    """B,1,side,side maps around -1 (outside) and 1 (inside), on the CPU; each comes from its own seed."""
    scheduler, side = mask_scheduler(), unet.config.sample_size
    scheduler.set_timesteps(steps, device=unet.device)
    noise = [torch.randn(1, side, side, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    maps = torch.stack(noise).to(unet.device) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        maps = scheduler.step(unet(maps, t).sample.clamp(-1, 1), t, maps, return_dict=False)[0]
    return maps.float().cpu()


def widen_unet(unet: UNet, extra: int) -> UNet:
    """A copy with more channels at input and output, which start without any effect: their weights are 0."""
    wide = trainable_copy(unet)
    channels = unet.config.in_channels + extra
    enter, leave = wide.conv_in, wide.conv_out
    wide.conv_in = nn.Conv2d(channels, enter.out_channels, enter.kernel_size, padding=enter.padding)
    wide.conv_out = nn.Conv2d(leave.in_channels, channels, leave.kernel_size, padding=leave.padding)
    with torch.no_grad():
        wide.conv_in.weight.zero_()[:, :-extra] = enter.weight
        wide.conv_in.bias.copy_(enter.bias)
        for new, old in ((wide.conv_out.weight, leave.weight), (wide.conv_out.bias, leave.bias)):
            new.zero_()[:-extra] = old
    wide.register_to_config(in_channels=channels, out_channels=channels)
    return wide


def encode_masks(masks: Tensor, side: int, finer: int) -> Tensor:
    """N,H,W masks in {0, 1} as N,finer²,side,side channels in [-1, 1], to stand beside latents.

    A place of the code says how much of its square lies inside; `finer` squares per side of a latent.
    """
    covered = F.adaptive_avg_pool2d(masks[:, None].float(), side * finer)
    return F.pixel_unshuffle(2 * covered - 1, finer)


def decode_masks(code: Tensor, size: int, finer: int) -> Tensor:
    """The masks N,size,size, bool, of a code: interpolated, then cut at 0."""
    return enlarged(F.pixel_shuffle(code, finer), size)


def enlarged(maps: Tensor, size: int) -> Tensor:
    """N,1,s,s maps as masks N,size,size, bool: interpolated, then cut at 0."""
    return F.interpolate(maps, (size, size), mode="bilinear", align_corners=False)[:, 0] > 0
