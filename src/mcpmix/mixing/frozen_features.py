"""The frozen phi, between whose features of mixed and of real images RLA measures the discrepancy."""

from collections.abc import Callable

from torch import Tensor, nn

from mcpmix.core.errors import ModelError

FeatureExtractor = Callable[[Tensor], Tensor]
"""Images (B, 3, H, W) to pooled features (B, F); an `nn.Module` or any differentiable function."""


class FrozenFeatures:
    """Calls phi with frozen weights, in evaluation mode, on the device of the images.

    Not an `nn.Module`, on purpose: as an attribute of one it stays out of `parameters()`, `state_dict()` and
    `train()`. The module it was given is frozen in place.
    """

    def __init__(self, extractor: FeatureExtractor) -> None:
        self._extractor = extractor
        if isinstance(extractor, nn.Module):
            extractor.requires_grad_(False)
            extractor.eval()

    def __call__(self, images: Tensor) -> Tensor:
        """Features (B, F) of images (B, 3, H, W); gradients flow to the images, never to the weights."""
        if isinstance(self._extractor, nn.Module):
            if self._extractor.training:  # a model that contains phi may have been switched to training
                self._extractor.eval()
            weight = next(self._extractor.parameters(), None)
            if weight is not None and weight.device != images.device:
                self._extractor.to(images.device)
        features = self._extractor(images)
        if features.ndim != 2 or features.shape[0] != images.shape[0]:
            raise ModelError(
                f"The feature extractor must return one vector per image, ({images.shape[0]}, F), for images "
                f"{tuple(images.shape)}; it gave {tuple(features.shape)}. Average feature maps over height "
                "and width."
            )
        return features
