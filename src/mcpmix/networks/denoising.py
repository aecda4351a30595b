"""The denoising error of a ControlNet on its base."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.networks.diffusion import NoiseSchedule


@dataclass(frozen=True)
class Batch:
    """Some examples with their noise, on the device of the networks.

    Attributes:
        clean: B,C,h,w latents.
        noise: likewise.
        t: (B,) timesteps.
        shown: B,2,H,W condition, a channel blank where it was dropped.
        masks: B,H,W.
        text: B,L,C embeddings.
    """

    clean: Tensor
    noise: Tensor
    t: Tensor
    shown: Tensor
    masks: Tensor
    text: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})


def denoising_error(unet: nn.Module, control: nn.Module, batch: Batch, schedule: NoiseSchedule) -> Tensor:
    """Squared error B,h,w of what the UNet predicts, mean over the channels of the latents."""
    # Channels side by side: the condition is as large as the image and has few of them, and is convolved much
    # faster like this.
    noisy = schedule.add_noise(batch.clean, batch.noise, batch.t).contiguous(
        memory_format=torch.channels_last
    )
    shown = batch.shown.contiguous(memory_format=torch.channels_last)
    down, middle = control(noisy, batch.t, batch.text, shown, return_dict=False)
    prediction: Tensor = unet(
        noisy,
        batch.t,
        batch.text,
        down_block_additional_residuals=down,
        mid_block_additional_residual=middle,
        return_dict=False,
    )[0]
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
        unet: of the base.
        control: the ControlNet.
        batch: examples with their noise.
        schedule: the base's forward process.
        lesion_weight: how much more an error under the mask counts.
        min_snr_gamma: clip of the signal-to-noise weighting; 0 switches it off.
    """
    error = denoising_error(unet, control, batch, schedule)
    emphasis = lesion_emphasis(batch.masks, (error.shape[-2], error.shape[-1]), lesion_weight)
    weight = schedule.min_snr_weight(batch.t, min_snr_gamma)
    return ((error * emphasis).mean(dim=(1, 2)) * weight).mean()


def lesion_emphasis(masks: Tensor, size: tuple[int, int], weight: float) -> Tensor:
    """Weights B,h,w of mean 1 that count a place under the mask `weight` times as much as one outside.

    Args:
        masks: B,H,W in {0, 1}.
        size: h and w of the latents.
        weight: 1 counts all places alike.
    """
    covered = F.adaptive_avg_pool2d(masks[:, None], size)[:, 0]
    emphasis = 1 + (weight - 1) * covered
    return emphasis / emphasis.mean(dim=(1, 2), keepdim=True)
