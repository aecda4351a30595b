"""ControlNets: how they are initialised, loaded and checked against a base."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from mcpmix.core.errors import ModelError, bullet_list
from mcpmix.core.reading import read_json
from mcpmix.networks.diffusion import DECODER_FILE, DiffusionBase

if TYPE_CHECKING:
    from diffusers import ControlNetModel, UNet2DConditionModel

# What a ControlNet has in common with the UNet whose encoder it began as.
_SHARED = ("in_channels", "block_out_channels", "down_block_types", "layers_per_block", "cross_attention_dim")
CONDITIONS = 2  # channels of the condition: mask and depth
# What diffusers assumes where an old configuration file, as some published ones are, does not say it.
_PUBLISHED_CHANNELS, _PUBLISHED_WIDTHS = 3, (16, 32, 96, 256)


def load_control(folder: Path) -> "ControlNetModel":
    """Read a ControlNet folder in diffusers' layout.

    Raises:
        ModelError: it is missing or damaged.
    """
    from diffusers import ControlNetModel

    try:
        control: ControlNetModel = ControlNetModel.from_pretrained(folder, low_cpu_mem_usage=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load the ControlNet in {folder}: {error}") from error
    return control


def embedding_widths(unet: "UNet2DConditionModel") -> tuple[int, ...]:
    """Widths of the condition embedding: the published ones, none wider than the UNet's first block."""
    return tuple(min(width, unet.config.block_out_channels[0]) for width in _PUBLISHED_WIDTHS)


def control_from_base(
    base: DiffusionBase, condition_channels: int = CONDITIONS, embedding: Sequence[int] | None = None
) -> "ControlNetModel":
    """A ControlNet that starts as a copy of the UNet's encoder, with zero output.

    Args:
        condition_channels: channels of the condition image; mask and depth make 2.
        embedding: widths of the condition embedding; its length fixes the down-sampling (four for 8x). None:
            see `embedding_widths`.
    """
    from diffusers import ControlNetModel

    control: ControlNetModel = ControlNetModel.from_unet(
        base.unet,
        conditioning_channels=condition_channels,
        conditioning_embedding_out_channels=tuple(embedding or embedding_widths(base.unet)),
    )
    return control.train().requires_grad_(True)


def control_from_start(base: DiffusionBase, folder: Path) -> "ControlNetModel":
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
