"""Plans the memory of a step without weights and without using that memory.

Networks are built from their configurations alone and run on torch's fake tensors, which have shapes and no
numbers; `Footprint` counts their live bytes. torch's own `MemTracker` would do this too, but it hooks every
parameter and fails on frozen ones, of which a UNet under a ControlNet is made.
"""

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcpmix.core.errors import ModelError
from mcpmix.core.files import read_json
from mcpmix.networks.diffusion import AUTOENCODERS, Autoencoder, predict_controlled, shrinkage
from mcpmix.networks.generator import CONDITIONS, decoder_of, embedding_widths
from mcpmix.networks.weight_files import resolve, split_pin

if TYPE_CHECKING:
    from diffusers import ControlNetModel, UNet2DConditionModel
    from transformers import CLIPTextModel

STABLE_DIFFUSION = "stable-diffusion-v1-5/stable-diffusion-v1-5"
# Where it differs from the defaults of diffusers and transformers; its size is thus known without its files.
SD15: dict[str, dict[str, Any]] = {
    "unet": {"cross_attention_dim": 768},
    "vae": {
        "_class_name": "AutoencoderKL",
        "block_out_channels": [128, 256, 512, 512],
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "layers_per_block": 2,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
    },
    "text_encoder": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
}
_FLOAT = 4  # bytes
_MOMENTS = {"adamw": 8, "adamw-8bit": 2}  # bytes per trained parameter: two moments


class MetaPipeline(NamedTuple):
    """A pipeline and a ControlNet for it on the meta device: shapes, no numbers."""

    unet: "UNet2DConditionModel"
    vae: Autoencoder
    text_encoder: "CLIPTextModel"
    control: "ControlNetModel"


def pipeline_configs(source: str) -> dict[str, dict[str, Any]]:
    """The `config.json` of UNet, autoencoder and text encoder; Stable Diffusion needs none, it is known."""
    name, _ = split_pin(source)
    if name == STABLE_DIFFUSION and not Path(name).is_dir():
        return SD15
    folder = resolve(source, "pipeline")
    try:
        return {part: read_json(folder / part / "config.json") for part in SD15}
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot read the configuration of the pipeline in {folder}: {error}") from error


def build_meta(configs: dict[str, dict[str, Any]]) -> MetaPipeline:
    """All networks of stage 2, without memory for their weights."""
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModel

    kind = configs["vae"].get("_class_name")
    if kind not in AUTOENCODERS:
        raise ModelError(f"Unknown autoencoder {kind!r}; known: {', '.join(AUTOENCODERS)}.")
    with torch.device("meta"):
        unet = diffusers.UNet2DConditionModel.from_config(configs["unet"])
        control = diffusers.ControlNetModel.from_unet(
            unet, conditioning_channels=CONDITIONS, conditioning_embedding_out_channels=embedding_widths(unet)
        )
        return MetaPipeline(
            unet,
            getattr(diffusers, kind).from_config(configs["vae"]),
            CLIPTextModel(CLIPTextConfig.from_dict(configs["text_encoder"])),
            control,
        )


def parameter_count(network: nn.Module) -> int:
    """Number of parameters, trained or frozen."""
    return sum(parameter.numel() for parameter in network.parameters())


def finetune_plan(
    pipeline: MetaPipeline,
    *,
    image_size: int,
    batch_size: int,
    precision: torch.dtype,
    checkpointing: bool,
    optimiser: str,
    unlock_decoder: bool = False,
) -> dict[str, float]:
    """Bytes of the fine-tuning at its peak: frozen UNet, ControlNet in training; no other network.

    Args:
        precision: of passes and of frozen weights; trained weights are float32.
        optimiser: "adamw" or "adamw-8bit".
    """
    with _fake(precision, pipeline.unet, pipeline.control) as (unet, control):
        learning = nn.ModuleList([control, *([decoder_of(unet)] if unlock_decoder else [])])
        unet.requires_grad_(False)
        learning.requires_grad_(True)
        if checkpointing:
            unet.enable_gradient_checkpointing()
            control.enable_gradient_checkpointing()
        inputs = _inputs(pipeline, image_size, batch_size, precision)
        activations = _backward_peak(learning, lambda: predict_controlled(unet, control, *inputs))
    trained = parameter_count(learning)
    frozen = parameter_count(pipeline.unet) + parameter_count(pipeline.control) - trained
    return {
        "weights": frozen * precision.itemsize + trained * _width_in_training(precision),
        "gradients": trained * _FLOAT,
        "optimiser": trained * _MOMENTS[optimiser],
        "average": trained * _FLOAT,
        "activations": activations,
    }


def synthesis_plan(
    pipeline: MetaPipeline, *, image_size: int, batch_size: int, passes: int
) -> dict[str, float]:
    """Bytes of sampling at its peak, in float32: all networks, and a denoising step or the decoding.

    Args:
        passes: how many conditions guidance puts into one pass; 1 without guidance.
    """
    networks = (pipeline.unet, pipeline.control, pipeline.vae)
    with _fake(torch.float32, *networks) as (unet, control, vae), torch.no_grad():
        inputs = _inputs(pipeline, image_size, batch_size * passes, torch.float32)
        latents = inputs[0][:batch_size]
        with Footprint() as denoising:
            predict_controlled(unet, control, *inputs)
        with Footprint() as decoding:
            vae.decode(latents)
    return {
        "weights": sum(map(parameter_count, pipeline)) * _FLOAT,
        "activations": max(denoising.peak, decoding.peak),
    }


def training_plan(
    network: nn.Module, *, image_size: int, batch_size: int, precision: torch.dtype = torch.float32
) -> dict[str, float]:
    """Bytes of the training of a segmenter with AdamW; real and mixed images go through it in one pass.

    Args:
        network: B,3,H,W to B,1,H,W; left as it is.
        batch_size: real images of a step; as many mixed ones come with them.
        precision: of passes; weights are float32.
    """
    with _fake(precision, network) as (fake,):
        images = torch.empty(2 * batch_size, 3, image_size, image_size, dtype=precision)
        activations = _backward_peak(fake, lambda: fake(images))
    trained = parameter_count(network)
    return {
        "weights": trained * _width_in_training(precision),
        "gradients": trained * _FLOAT,
        "optimiser": trained * _MOMENTS["adamw"],
        "activations": activations,
    }


class Footprint(TorchDispatchMode):
    """Counts the live bytes of all tensors that are made while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0  # the most bytes that were ever live

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
        inputs = tree_leaves((args, kwargs))
        held = {id(leaf.untyped_storage()) for leaf in inputs if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(storage := leaf.untyped_storage()) not in held:
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._remove, storage.nbytes()).atexit = False
        return result

    def _remove(self, size: int) -> None:
        self.now -= size


@contextmanager
def _fake(precision: torch.dtype, *networks: nn.Module) -> Iterator[list[Any]]:
    """Inside, tensors are fake, and so are these copies of networks, in training mode.

    They are on the CPU and not on the meta device because there attention is fused, as on a GPU.
    """
    # Not the `to` of diffusers, which warns of rounding: nothing is rounded.
    bare = [nn.Module.to(copy.deepcopy(network), device="meta", dtype=precision) for network in networks]
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield [network.to_empty(device="cpu").train() for network in bare]


def _width_in_training(precision: torch.dtype) -> int:
    """Bytes of a trained weight: autocast keeps a copy in its own format until the pass is over."""
    return _FLOAT + (precision.itemsize if precision.itemsize < _FLOAT else 0)


def _inputs(
    pipeline: MetaPipeline, image_size: int, count: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latents, timesteps, text and condition."""
    unet, text = pipeline.unet.config, pipeline.text_encoder.config
    side = image_size // shrinkage(pipeline.vae)
    return (
        torch.empty(count, unet.in_channels, side, side, dtype=dtype),
        torch.empty(count, dtype=torch.long),
        torch.empty(count, text.max_position_embeddings, unet.cross_attention_dim, dtype=dtype),
        torch.empty(count, CONDITIONS, image_size, image_size, dtype=dtype),
    )


def _backward_peak(learning: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes at the peak of a step; gradients of weights are freed at once: they are counted elsewhere."""
    for parameter in learning.parameters():
        parameter.register_post_accumulate_grad_hook(lambda done: setattr(done, "grad", None))
    with Footprint() as footprint:
        forward().square().mean().backward()
    return footprint.peak
