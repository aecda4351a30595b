"""Networks without weights: any pipeline on the meta device, from its configuration alone.

The configuration of Stable Diffusion 1.5 is written down here, so that its size is known on machines that do
not have it. For local folders it is read from their configuration files.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from mcpmix.core.errors import ModelError
from mcpmix.models.diffusion import shrinkage
from mcpmix.models.sources import resolve, split_pin

STABLE_DIFFUSION = "stable-diffusion-v1-5/stable-diffusion-v1-5"
_PARTS = ("unet", "vae", "text_encoder")


@dataclass(frozen=True)
class PipelineConfigs:
    """The configurations of a pipeline's networks, with the keys of their `config.json`."""

    unet: Mapping[str, Any]
    vae: Mapping[str, Any]
    text_encoder: Mapping[str, Any]


SD15 = PipelineConfigs(
    unet={
        "_class_name": "UNet2DConditionModel",
        "act_fn": "silu",
        "attention_head_dim": 8,
        "block_out_channels": [320, 640, 1280, 1280],
        "center_input_sample": False,
        "cross_attention_dim": 768,
        "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
        "downsample_padding": 1,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
        "in_channels": 4,
        "layers_per_block": 2,
        "mid_block_scale_factor": 1,
        "norm_eps": 1e-05,
        "norm_num_groups": 32,
        "out_channels": 4,
        "sample_size": 64,
        "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    },
    vae={
        "_class_name": "AutoencoderKL",
        "act_fn": "silu",
        "block_out_channels": [128, 256, 512, 512],
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "in_channels": 3,
        "latent_channels": 4,
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "out_channels": 3,
        "sample_size": 512,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    },
    text_encoder={
        "architectures": ["CLIPTextModel"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dropout": 0.0,
        "eos_token_id": 2,
        "hidden_act": "quick_gelu",
        "hidden_size": 768,
        "initializer_factor": 1.0,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 77,
        "model_type": "clip_text_model",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "projection_dim": 768,
        "vocab_size": 49408,
    },
)
"""Stable Diffusion 1.5."""

_KNOWN = {STABLE_DIFFUSION: SD15}
_AUTOENCODERS = {"AutoencoderKL": AutoencoderKL, "AutoencoderTiny": AutoencoderTiny}


@dataclass(frozen=True)
class MetaPipeline:
    """A pipeline and a ControlNet for it on the meta device: shapes, no numbers."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL | AutoencoderTiny
    text_encoder: CLIPTextModel
    control: ControlNetModel

    @property
    def latent_factor(self) -> int:
        """How many times smaller than the image its latents are, per side."""
        return shrinkage(self.vae)


def pipeline_configs(source: str) -> PipelineConfigs:
    """The configurations of a generator, also of a known one that is not on this machine.

    Args:
        source: "embedded", a folder or a hub id.

    Raises:
        ModelError: it is neither known nor here, or its configuration files are damaged.
    """
    name, _ = split_pin(source)
    if name in _KNOWN and not Path(name).expanduser().is_dir():
        return _KNOWN[name]
    folder = resolve(source, "pipeline")
    try:
        read = [json.loads((folder / part / "config.json").read_text(encoding="utf-8")) for part in _PARTS]
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot read the configuration of the pipeline in {folder}: {error}") from error
    return PipelineConfigs(*read)


def build_meta(configs: PipelineConfigs, condition_channels: int, embedding: Sequence[int]) -> MetaPipeline:
    """All networks of stage 2, without memory for their weights.

    Args:
        configs: of the pipeline.
        condition_channels: channels of the ControlNet's condition; mask and depth make 2.
        embedding: widths of its condition embedding.

    Raises:
        ModelError: the configuration is not one of a known pipeline.
    """
    kind = configs.vae.get("_class_name")
    if kind not in _AUTOENCODERS:
        raise ModelError(f"Unknown autoencoder {kind!r}; known: {', '.join(_AUTOENCODERS)}.")
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(dict(configs.unet))
        return MetaPipeline(
            unet,
            _AUTOENCODERS[kind].from_config(dict(configs.vae)),
            CLIPTextModel(CLIPTextConfig.from_dict(dict(configs.text_encoder))),
            ControlNetModel.from_unet(
                unet,
                conditioning_channels=condition_channels,
                conditioning_embedding_out_channels=tuple(embedding),
            ),
        )


def parameter_count(network: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())
