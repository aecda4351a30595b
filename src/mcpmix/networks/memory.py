"""Networks without weights: any pipeline on the meta device, from its configuration alone.

The configuration of Stable Diffusion 1.5 is written down here, so that its size is known on machines that do
not have it. For local folders it is read from their configuration files.
"""

import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, UNet2DConditionModel
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import CLIPTextConfig, CLIPTextModel

from mcpmix.core.errors import ModelError
from mcpmix.networks.controlnet import CONDITIONS, embedding_widths
from mcpmix.networks.diffusion import decoder_of, shrinkage
from mcpmix.networks.weight_files import resolve, split_pin

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


def build_meta(configs: PipelineConfigs) -> MetaPipeline:
    """All networks of stage 2, without memory for their weights.

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
                conditioning_channels=CONDITIONS,
                conditioning_embedding_out_channels=embedding_widths(unet),
            ),
        )


def parameter_count(network: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


_FLOAT = 4  # bytes
_MOMENTS = {"adamw": 8, "adamw-8bit": 2}  # bytes per trained parameter: two moments


@dataclass(frozen=True)
class MemoryPlan:
    """What a stage holds in memory at its peak, in bytes, by kind."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """All kinds together, in bytes."""
        return sum(self.parts.values())


class Footprint(TorchDispatchMode):
    """Counts the live bytes of all tensors that are made while it is active.

    Attributes:
        now: live bytes.
        peak: the most there ever were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the operation and note what it made."""
        del types
        result = func(*args, **(kwargs or {}))
        held = {
            id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in held:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, size).atexit = False

    def _remove(self, size: int) -> None:
        self.now -= size


def finetune_plan(
    pipeline: MetaPipeline,
    *,
    image_size: int,
    batch_size: int,
    precision: torch.dtype,
    checkpointing: bool,
    optimiser: str,
    unlock_decoder: bool = False,
) -> MemoryPlan:
    """The fine-tuning at its peak: frozen UNet, ControlNet in training; the other networks have left.

    Args:
        pipeline: on the meta device; left in training mode.
        image_size: side in pixels.
        batch_size: images of one pass.
        precision: number format of passes and of frozen weights; trained weights are float32.
        checkpointing: whether activations are computed twice instead of kept.
        optimiser: "adamw" or "adamw-8bit".
        unlock_decoder: whether the UNet's decoder is trained too.
    """
    learning = nn.ModuleList([pipeline.control])
    if unlock_decoder:
        learning.append(decoder_of(pipeline.unet))
    pipeline.unet.requires_grad_(False)
    learning.requires_grad_(True)
    trained = parameter_count(learning)
    frozen = parameter_count(pipeline.unet) + parameter_count(pipeline.control) - trained
    width = precision.itemsize
    # Autocast keeps copies of trained weights in its own format until the pass is over.
    copies = trained * width if width < _FLOAT else 0
    inputs = _inputs(pipeline, image_size, batch_size, precision)
    _prepare(pipeline, precision, checkpointing)
    with _without_gradients(learning):
        activations = _peak(lambda: _predict(pipeline, *inputs).square().mean().backward())
    return MemoryPlan(
        {
            "weights": frozen * width + trained * _FLOAT + copies,
            "gradients": trained * _FLOAT,
            "optimiser": trained * _MOMENTS[optimiser],
            "average": trained * _FLOAT,
            "activations": activations,
        }
    )


def synthesis_plan(pipeline: MetaPipeline, *, image_size: int, batch_size: int, passes: int) -> MemoryPlan:
    """Sampling at its peak, in float32: all networks, and the larger of a denoising step and of decoding.

    Args:
        pipeline: on the meta device.
        image_size: side in pixels.
        batch_size: images made at once.
        passes: how many conditions guidance puts into one pass; 1 without guidance.
    """
    networks = (pipeline.unet, pipeline.control, pipeline.vae, pipeline.text_encoder)
    for network in networks:
        nn.Module.to(network, torch.float32).eval()
    inputs = _inputs(pipeline, image_size, batch_size * passes, torch.float32)
    latents = inputs[0][:batch_size]
    with torch.no_grad():
        denoising = _peak(lambda: _predict(pipeline, *inputs))
        decoding = _peak(lambda: pipeline.vae.decode(latents).sample)
    return MemoryPlan(
        {
            "weights": sum(map(parameter_count, networks)) * _FLOAT,
            "activations": max(denoising, decoding),
        }
    )


def training_plan(
    network: nn.Module, *, image_size: int, batch_size: int, precision: torch.dtype = torch.float32
) -> MemoryPlan:
    """The training of a segmenter with AdamW; real and mixed images in one pass.

    Args:
        network: B,3,H,W to B,1,H,W, on the meta device.
        image_size: side in pixels.
        batch_size: real images of a step; as many mixed ones come with them.
        precision: number format of passes; weights are float32.
    """
    trained = parameter_count(network)
    copies = trained * precision.itemsize if precision.itemsize < _FLOAT else 0
    nn.Module.to(network, precision)
    images = torch.empty(2 * batch_size, 3, image_size, image_size, dtype=precision, device="meta")
    with _without_gradients(network):
        activations = _peak(lambda: network(images).square().mean().backward())
    return MemoryPlan(
        {
            "weights": trained * _FLOAT + copies,
            "gradients": trained * _FLOAT,
            "optimiser": trained * _MOMENTS["adamw"],
            "activations": activations,
        }
    )


# --- one step on the meta device ---------------------------------------------------------------------------


def _prepare(pipeline: MetaPipeline, precision: torch.dtype, checkpointing: bool) -> None:
    for network in (pipeline.unet, pipeline.control):
        nn.Module.to(network, precision).train()  # that of diffusers warns of rounding; nothing is rounded
        if checkpointing:
            network.enable_gradient_checkpointing(_checkpoint)
        else:
            network.disable_gradient_checkpointing()


def _checkpoint(part: nn.Module, *inputs: object) -> object:
    """As the networks do it by default; the mode of attention would be asleep while they compute again."""
    return checkpoint(
        part, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _FusedAttention())
    )


def _inputs(
    pipeline: MetaPipeline, image_size: int, count: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latents, timesteps, text and condition."""
    config, text = pipeline.unet.config, pipeline.text_encoder.config
    side = image_size // pipeline.latent_factor
    channels = pipeline.control.config.conditioning_channels
    return (
        torch.empty(count, config.in_channels, side, side, dtype=dtype, device="meta"),
        torch.empty(count, device="meta", dtype=torch.long),
        torch.empty(
            count, text.max_position_embeddings, config.cross_attention_dim, dtype=dtype, device="meta"
        ),
        torch.empty(count, channels, image_size, image_size, dtype=dtype, device="meta"),
    )


def _predict(pipeline: MetaPipeline, noisy: Tensor, t: Tensor, text: Tensor, condition: Tensor) -> Tensor:
    down, middle = pipeline.control(noisy, t, text, condition, return_dict=False)
    prediction: Tensor = pipeline.unet(
        noisy, t, text, down_block_additional_residuals=down, mid_block_additional_residual=middle
    ).sample
    return prediction


def _peak(action: Callable[[], object]) -> int:
    with _FusedAttention(), Footprint() as footprint:
        action()
    return footprint.peak


@contextmanager
def _without_gradients(network: nn.Module) -> Iterator[None]:
    """Inside, gradients of a network's weights go as soon as they are there: they are counted elsewhere."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    trained = (parameter for parameter in network.parameters() if parameter.requires_grad)
    hooks = [parameter.register_post_accumulate_grad_hook(drop) for parameter in trained]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Fused(torch.autograd.Function):
    """Attention as fused kernels do it: keeps its inputs and its output, never the matrix of all pairs."""

    @staticmethod
    def forward(ctx: FunctionCtx, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, result)
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        del gradients
        query, key, value, _ = ctx.saved_tensors  # type: ignore[attr-defined]
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _FusedAttention(TorchFunctionMode):
    """Inside, torch's attention has the sizes of its fused kernels, and no numbers."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run the operation, or what stands for attention."""
        del types
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value")
        return _Fused.apply(*(kwargs[n] if n in kwargs else args[i] for i, n in enumerate(names)))
