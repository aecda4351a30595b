"""Depth networks: any AutoModelForDepthEstimation, brought to one convention (near = 1, per image)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoImageProcessor, AutoModelForDepthEstimation

from mcpmix.core.errors import ModelError


class DepthNetwork:
    """A frozen depth network with its processor.

    Args:
        folder: a local folder in transformers' layout.
        near: whether near things get "large" values (inverse depth) or "small" ones (metric depth).
        device: where it runs.
    """

    def __init__(self, folder: Path, near: str = "large", device: torch.device | str = "cpu") -> None:
        try:
            self.processor = AutoImageProcessor.from_pretrained(folder)
            model = AutoModelForDepthEstimation.from_pretrained(folder, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise ModelError(f"Cannot load a depth network from {folder}: {error}") from error
        self.model = model.to(device).eval().requires_grad_(False)
        self.near = near
        self.device = device

    @torch.no_grad()
    def __call__(self, images: np.ndarray) -> np.ndarray:
        """B,H,W,3 uint8 images to B,H,W float32 depth in [0, 1], near = 1."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        raw = self.model(**inputs).predicted_depth.float()
        resized = F.interpolate(raw[:, None], images.shape[1:3], mode="bilinear", align_corners=False)[:, 0]
        return normalise_depth(resized, self.near).cpu().numpy()


def normalise_depth(raw: Tensor, near: str) -> Tensor:
    """Stretch each image's depth B,H,W to [0, 1] with near = 1; a constant map becomes 0.

    Args:
        raw: as the network gives it.
        near: "large" if near things have large values, "small" if they have small ones.
    """
    if near == "small":
        # Inverse first: metric depth compresses what is near, and the other convention is inverse depth.
        raw = 1 / raw.clamp(min=1e-6)
    low = raw.amin(dim=(1, 2), keepdim=True)
    span = raw.amax(dim=(1, 2), keepdim=True) - low
    return torch.where(span > 0, (raw - low) / span.clamp(min=1e-12), torch.zeros_like(raw))
