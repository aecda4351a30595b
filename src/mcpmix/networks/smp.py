"""Architectures of segmentation-models-pytorch with any of its encoders; nothing is downloaded."""

from collections.abc import Callable
from functools import partial

import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError, TrainingError, did_you_mean
from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.networks.segmenter_parts import AnySize, read_state, require_match

_TIMM = "tu-"  # smp's prefix of encoders from timm


class EncoderDecoder(nn.Module):
    """An smp network for any image size, with the input its encoder was pretrained on.

    Images come normalised by the mean and deviation of ImageNet. Pretrained timm encoders ("tu-...") that
    want other numbers get them: the change is part of the state, so that a saved network needs no weights
    to be rebuilt. Other encoders take the images as they come: `scale` (3,) is 1 and `shift` (3,) is 0.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.inner = AnySize(network)
        self.register_buffer("scale", scale[:, None, None])
        self.register_buffer("shift", shift[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits; at least two images where DeepLabV3+ is trained."""
        if self.training and len(images) == 1 and isinstance(self.inner.network, smp.DeepLabV3Plus):
            raise TrainingError(
                "DeepLabV3+ cannot be trained on a batch of one image: batch norm of its image pooling needs "
                "two values. Set train.batch_size to 2 or more, or choose another segmenter."
            )
        logits: Tensor = self.inner(images * self.scale + self.shift)
        return logits


def build_architecture(
    architecture: Callable[..., nn.Module], variant: str, weights: str | None
) -> nn.Module:
    """An smp model with one output channel.

    Args:
        architecture: a class of segmentation_models_pytorch.
        variant: the encoder: a name of smp ("resnet18"), or "tu-" and a name of timm.
        weights: file or folder with the encoder's tensors (see `read_state`); every tensor of the encoder
            must be in it; a classifier is ignored. None: from scratch.

    Raises:
        ConfigError: smp has no such encoder, or the architecture cannot use it.
        ModelError: the weights are not of this encoder.
    """
    known, of_timm = variant, variant.startswith(_TIMM)
    names = [name for name in smp.encoders.get_encoder_names() if not name.startswith("timm-")]
    if of_timm:
        names = [_TIMM + name for name in timm.list_models()]
        # A tag after a dot names pretrained weights; timm knows the architecture without it.
        known = variant.partition(".")[0]
    if known not in names:
        raise ConfigError(
            f"segmenter.variant: there is no encoder {variant!r} (those of timm.list_models() take 'tu-', as "
            f"tu-tf_efficientnet_lite0); {did_you_mean(variant, names)}"
        )
    try:
        network = architecture(encoder_name=variant, encoder_weights=None, in_channels=3, classes=1)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"segmenter.variant: {variant!r} does not work here: {error}") from error
    scale, shift = torch.ones(3), torch.zeros(3)
    if weights is not None:
        # The names in the file may have "encoder." and timm's "model." in front.
        wanted = {
            _bare(name): tensor
            for name, tensor in network.get_submodule("encoder").state_dict().items()
            if "num_batches_tracked" not in name
        }
        given = {_bare(name): tensor for name, tensor in read_state(weights).items()}
        headline = f"segmenter.weights: {weights} does not fit the encoder {variant}:"
        require_match(given, wanted, headline, exact=False)
        with torch.no_grad():
            for name, tensor in wanted.items():
                tensor.copy_(given[name])
        published = timm.get_pretrained_cfg(variant.removeprefix(_TIMM)) if of_timm else None
        if published is not None:
            mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
            wanted_mean, wanted_std = torch.tensor(published.mean), torch.tensor(published.std)
            scale, shift = std / wanted_std, (mean - wanted_mean) / wanted_std
    return EncoderDecoder(network, scale, shift)


def _bare(name: str) -> str:
    return name.removeprefix("encoder.").removeprefix("model.")


unet = partial(build_architecture, smp.Unet)
deeplab = partial(build_architecture, smp.DeepLabV3Plus)
