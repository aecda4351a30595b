"""Architectures of segmentation-models-pytorch with any of its encoders; nothing is downloaded."""

from collections.abc import Callable

import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError, TrainingError, did_you_mean
from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.networks.segmenter import AnySize, read_state, require_match

_TIMM = "tu-"  # smp's prefix of encoders from timm


class EncoderDecoder(nn.Module):
    """An smp network for any image size, with the input its encoder was pretrained on.

    Images come normalised by the mean and deviation of ImageNet. Pretrained timm encoders ("tu-...") that
    want other numbers get them: the change is part of the state, so that a saved network needs no weights
    to be rebuilt. Other encoders take the images as they come.

    Args:
        network: an smp model with one output class.
        scale: factor of each channel, (3,).
        shift: summand of each channel, (3,).
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.inner = AnySize(network)
        self.register_buffer("scale", scale[:, None, None])
        self.register_buffer("shift", shift[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits."""
        logits: Tensor = self.inner(images * self.scale + self.shift)
        return logits


class DeepLab(EncoderDecoder):
    """DeepLabV3+: its pooled branch has one value per image, of which batch norm needs two in training."""

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits; at least two images in training."""
        if self.training and len(images) == 1:
            raise TrainingError(
                "DeepLabV3+ cannot be trained on a batch of one image: batch norm of its image pooling needs "
                "two values. Set train.batch_size to 2 or more, or choose another segmenter."
            )
        return super().forward(images)


def unet(variant: str, weights: str | None = None) -> nn.Module:
    """UNet with the encoder `variant`; arguments as `build_architecture`."""
    return build_architecture(smp.Unet, variant, weights)


def deeplab(variant: str, weights: str | None = None) -> nn.Module:
    """DeepLabV3+ with the encoder `variant`; arguments as `build_architecture`."""
    return build_architecture(smp.DeepLabV3Plus, variant, weights)


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
    _require_encoder(variant)
    try:
        network = architecture(encoder_name=variant, encoder_weights=None, in_channels=3, classes=1)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"segmenter.variant: {variant!r} does not work here: {error}") from error
    scale, shift = torch.ones(3), torch.zeros(3)
    if weights is not None:
        _load_encoder(network.get_submodule("encoder"), variant, weights)
        published = (
            timm.get_pretrained_cfg(variant.removeprefix(_TIMM)) if variant.startswith(_TIMM) else None
        )
        if published is not None:
            mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
            wanted_mean, wanted_std = torch.tensor(published.mean), torch.tensor(published.std)
            scale, shift = std / wanted_std, (mean - wanted_mean) / wanted_std
    wrapper = DeepLab if architecture is smp.DeepLabV3Plus else EncoderDecoder
    return wrapper(network, scale, shift)


def _require_encoder(variant: str) -> None:
    names = [name for name in smp.encoders.get_encoder_names() if not name.startswith("timm-")]
    if variant in names:
        return
    if variant.startswith(_TIMM):
        names = [_TIMM + name for name in timm.list_models()]
        # A tag after a dot names pretrained weights; timm knows the architecture without it.
        if variant.partition(".")[0] in names:
            return
    raise ConfigError(
        f"segmenter.variant: there is no encoder {variant!r} (those of timm.list_models() take 'tu-', as "
        f"tu-tf_efficientnet_lite0); {did_you_mean(variant, names)}"
    )


def _load_encoder(encoder: nn.Module, variant: str, weights: str) -> None:
    """Copy the tensors of a file into an encoder, with or without "encoder." and timm's "model." in names."""

    def bare(name: str) -> str:
        return name.removeprefix("encoder.").removeprefix("model.")

    given = {bare(name): tensor for name, tensor in read_state(weights).items()}
    wanted = {
        bare(name): tensor
        for name, tensor in encoder.state_dict().items()
        if "num_batches_tracked" not in name
    }
    headline = f"segmenter.weights: {weights} does not fit the encoder {variant}:"
    require_match(given, wanted, headline, exact=False)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])
