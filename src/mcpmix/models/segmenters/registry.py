"""The segmenters by name."""

import difflib
from collections.abc import Callable

from torch import nn

from mcpmix.core.errors import ConfigError
from mcpmix.models.sources import EMBEDDED

Builder = Callable[[str, str | None], nn.Module]

_EMBEDDED_START = ("segformer", "nano")


# Each library is imported when one of its networks is asked for: together they take seconds.


def _segformer(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.models.segmenters.segformer import Segformer

    return Segformer(variant, weights)


def _unet(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.models.segmenters.smp import unet

    return unet(variant, weights)


def _deeplab(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.models.segmenters.smp import deeplab

    return deeplab(variant, weights)


def _segnet(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.models.segmenters.segnet import build_segnet

    return build_segnet(variant, weights)


SEGMENTERS: dict[str, Builder] = {
    "segformer": _segformer,
    "unet": _unet,
    "deeplabv3plus": _deeplab,
    "segnet": _segnet,
}
"""Names of the networks, and what builds them from a variant and a source of weights."""


def build_segmenter(name: str, variant: str, weights: str | None = None) -> nn.Module:
    """A network from B,3,H,W images (ImageNet-normalised) of any size to B,1,H,W logits.

    Args:
        name: a key of `SEGMENTERS`, or "package.module:ClassName" of an own network.
        variant: its size or encoder: "b0" of segformer, "resnet18" of unet and deeplabv3plus, "vgg16" of
            segnet.
        weights: pretrained weights; None: from scratch. "embedded" (nano), a folder or a hub id on this
            machine for segformer; a file or folder for the encoder of unet and deeplabv3plus; a file for
            the others.

    Raises:
        ConfigError: the name or variant is unknown; the message lists what there is.
        ModelError: the weights do not fit.
    """
    if weights == EMBEDDED and (name, variant) != _EMBEDDED_START:
        raise ConfigError(
            f"segmenter.weights: embedded ones exist for segformer nano only, not for {name} {variant}. Set "
            "segmenter.weights=null to train from scratch, or name weights of this network."
        )
    if ":" in name:
        from mcpmix.models.segmenters.custom import build_custom

        return build_custom(name, variant, weights)
    if name not in SEGMENTERS:
        nearest = difflib.get_close_matches(name.lower(), SEGMENTERS, n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise ConfigError(
            f"segmenter.name: unknown {name!r}: {hint}Known: {', '.join(SEGMENTERS)}, and "
            "'package.module:ClassName' for a network of your own."
        )
    return SEGMENTERS[name](variant, weights)
