"""A user's own network by its import path."""

import importlib
import inspect

import segmentation_models_pytorch as smp
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import ConfigError, ModelError, bullet_list
from mcpmix.networks.smp import build_architecture
from mcpmix.networks.states import AnySize, mismatches, read_state


class _Checked(nn.Module):
    """A user's network whose logits have the size of the image, or a message that says what came."""

    def __init__(self, network: nn.Module, path: str) -> None:
        super().__init__()
        self.network = network
        self._path = path

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits."""
        logits = self.network(images)
        if not isinstance(logits, Tensor) or logits.shape[:2] != (len(images), 1) or logits.ndim != 4:
            came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModelError(
                f"{self._path}: the network returned {came} for images {tuple(images.shape)}; expected "
                "logits (B, 1, H, W), one channel, before the sigmoid."
            )
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


def build_custom(path: str, variant: str, weights: str | None = None) -> nn.Module:
    """The network of an import path.

    The class is called as `Class(variant=variant)` if it has a parameter of that name, else without
    arguments. It gets ImageNet-normalised images whose sides are multiples of its attribute `size_multiple`
    (32 if it has none), and returns (B, 1, h, w) logits; smaller ones are enlarged. A class of
    segmentation_models_pytorch takes `variant` as its encoder, and `weights` for it.

    Args:
        path: "package.module:ClassName".
        variant: for the class, if it wants one.
        weights: state file of the network; None: as the class makes it.

    Raises:
        ConfigError: nothing there, no network, or the class needs other arguments.
        ModelError: the weights are not of this network.
    """
    made = _locate(path)
    if isinstance(made, type) and issubclass(made, smp.base.SegmentationModel):
        return build_architecture(made, variant, weights)
    network = _call(made, path, variant)
    if weights is not None:
        state = read_state(weights)
        problems = mismatches(state, network.state_dict(), exact=True)
        if problems:
            raise ModelError(bullet_list(f"segmenter.weights: {weights} is no {path}:", problems))
        network.load_state_dict(state)
    return AnySize(_Checked(network, path), int(getattr(network, "size_multiple", 32)))


def _locate(path: str) -> object:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"segmenter.name: cannot import {path!r} ({error}). Expected 'package.module:ClassName' of "
            "something installed or on PYTHONPATH."
        ) from error


def _call(made: object, path: str, variant: str) -> nn.Module:
    if not callable(made):
        raise ConfigError(f"segmenter.name: {path} is {type(made).__name__}; expected a class of nn.Module.")
    arguments = {"variant": variant} if "variant" in inspect.signature(made).parameters else {}
    try:
        inspect.signature(made).bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"segmenter.name: {path} cannot be called with {arguments or 'no arguments'}: {error}. Give the "
            "other parameters defaults, or name a function that returns the network."
        ) from error
    network = made(**arguments)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"segmenter.name: {path} gave {type(network).__name__}; expected an nn.Module.")
    return network
