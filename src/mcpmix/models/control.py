"""ControlNets: where they start from, and how they are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from diffusers import ControlNetModel
from torch import nn

from mcpmix.core.errors import ModelError, bullet_list
from mcpmix.models.diffusion import DiffusionBase


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


def control_from_base(
    base: DiffusionBase, condition_channels: int, embedding: Sequence[int]
) -> ControlNetModel:
    """A ControlNet that starts as a copy of the UNet's encoder, with zero output.

    Args:
        base: where the encoder weights come from.
        condition_channels: channels of the condition image; mask and depth make 2.
        embedding: widths of the condition embedding; its length fixes the down-sampling (four for 8x).
    """
    control: ControlNetModel = ControlNetModel.from_unet(
        base.unet,
        conditioning_channels=condition_channels,
        conditioning_embedding_out_channels=tuple(embedding),
    )
    return control.train().requires_grad_(True)


def control_from_start(base: DiffusionBase, folder: Path) -> ControlNetModel:
    """A trained ControlNet for mask and depth, to be trained further.

    One for grey images in three channels, as the published ones for depth are, is taken too: depth gets the
    sum of their weights, so that it answers to depth as before, and the mask starts without any.

    Args:
        base: what it is to steer.
        folder: of the ControlNet, in diffusers' layout.

    Raises:
        ModelError: it does not fit the base, or takes another kind of condition.
    """
    control: ControlNetModel = load_control(folder)
    differences = [
        f"{name}: {control.config[name]} there, {base.unet.config[name]} in the base"
        for name in ("in_channels", "block_out_channels", "layers_per_block", "cross_attention_dim")
        if _listed(control.config[name]) != _listed(base.unet.config[name])
    ]
    if differences:
        raise ModelError(
            bullet_list(f"The ControlNet {folder} is not made for this base:", differences)
            + "\nSet finetune.start to one that is, or to null for a copy of the base's encoder."
        )
    _take_mask_and_depth(control, folder)
    return control.train().requires_grad_(True)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _take_mask_and_depth(control: ControlNetModel, folder: Path) -> None:
    """Let a ControlNet take two channels, if it does not."""
    channels = control.config["conditioning_channels"]
    if channels == 2:
        return
    if channels != 3:
        raise ModelError(
            f"The ControlNet {folder} takes a condition of {channels} channels; expected 2 (mask, depth) or "
            "3 (a grey image of depth)."
        )
    first = control.controlnet_cond_embedding.conv_in
    weight = first.weight.detach().sum(dim=1)
    replaced = nn.Conv2d(2, first.out_channels, first.kernel_size, padding=first.padding)
    with torch.no_grad():
        replaced.weight.copy_(torch.stack([torch.zeros_like(weight), weight], dim=1))
        cast(nn.Parameter, replaced.bias).copy_(first.bias)
    control.controlnet_cond_embedding.conv_in = replaced
    control.register_to_config(conditioning_channels=2)
