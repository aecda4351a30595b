"""The frozen feature extractor phi, held so that it belongs to nobody's parameters or checkpoint."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mcpmix.core.errors import ModelError

FeatureExtractor = Callable[[Tensor], Tensor]
"""Images (B, 3, H, W) to pooled features (B, F); an `nn.Module` or any differentiable function."""


class FrozenFeatures:
    """Calls phi with frozen weights, in evaluation mode, on the device of the images.

    Not an `nn.Module`, on purpose: as an attribute of one it stays out of `parameters()`, `state_dict()` and
    `train()`. The module it was given is frozen in place.

    Args:
        extractor: The network or function; see `FeatureExtractor`.
    """

    def __init__(self, extractor: FeatureExtractor) -> None:
        self._extractor = extractor
        if isinstance(extractor, nn.Module):
            extractor.requires_grad_(False)
            extractor.eval()

    def __call__(self, images: Tensor) -> Tensor:
        """Features (B, F) of images (B, 3, H, W); gradients flow to the images, never to the weights."""
        if isinstance(self._extractor, nn.Module):
            self._settle(self._extractor, images.device)
        features = self._extractor(images)
        if features.ndim != 2 or features.shape[0] != images.shape[0]:
            raise ModelError(
                f"The feature extractor must give one vector per image, ({images.shape[0]}, F), for images "
                f"{tuple(images.shape)}; it gave {tuple(features.shape)}. Average feature maps over height "
                "and width."
            )
        return features

    @staticmethod
    def _settle(extractor: nn.Module, device: torch.device) -> None:
        if extractor.training:  # a model that contains phi may have been switched to training as a whole
            extractor.eval()
        weight = next(extractor.parameters(), None)
        if weight is not None and weight.device != device:
            extractor.to(device)
