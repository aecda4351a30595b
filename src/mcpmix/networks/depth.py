"""Depth networks: any AutoModelForDepthEstimation, brought to one convention (near = 1, per image).

Networks return either inverse depth up to scale and shift (MiDaS, DPT, Depth Anything), in which near things
have large values, or metres (ZoeDepth, GLPN, the metric Depth Anything), in which they have small ones.
Where possible this is read from the configuration of the network.
"""

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.errors import ModelError
from mcpmix.core.files import read_json

_METRIC_TYPES = ("zoedepth", "glpn")
_METRIC_DPT = re.compile(r"dpt[^/]*(nyu|kitti)", re.IGNORECASE)  # DPTs trained on sets with depth in metres
_ROUNDING = 1e-5  # relative; what float32 leaves of a constant map that was resized
_RANGE = 1e3  # largest plausible ratio of two depths in one image


class DepthNetwork:
    """A frozen depth network with its processor.

    Args:
        folder: a local folder in transformers' layout.
        near: "large" or "small": which values near things get; "auto": as the configuration says.
    """

    def __init__(self, folder: Path, near: str = "auto", device: torch.device | str = "cpu") -> None:
        from transformers import AutoImageProcessor, AutoModelForDepthEstimation

        try:
            self.processor = AutoImageProcessor.from_pretrained(folder)
            model = AutoModelForDepthEstimation.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            raise ModelError(f"Cannot load a depth network from {folder}: {error}") from error
        self.model = model.to(device).eval().requires_grad_(False)
        self.near = convention(folder, near)
        self.device = device

    @torch.no_grad()
    def __call__(self, images: np.ndarray) -> np.ndarray:
        """B,H,W,3 uint8 images to B,H,W float32 depth in [0, 1], near = 1."""
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.device)
        output, size = self.model(**inputs), images.shape[1:3]
        if self.model.config.model_type == "zoedepth":  # its processor pads, and only it knows how much
            sizes = [size] * len(images)
            maps = self.processor.post_process_depth_estimation(output, sizes, sizes)
            raw = torch.stack([item["predicted_depth"] for item in maps]).float()
        else:
            raw = output.predicted_depth.float()[:, None]
            raw = F.interpolate(raw, size, mode="bilinear", align_corners=False)[:, 0]
        return normalise_depth(raw, self.near).cpu().numpy()


def convention(folder: Path, near: str = "auto") -> str:
    """Whether a network gives near things "large" or "small" values; "auto" reads its configuration.

    Metric networks are known by their type or `depth_estimation_type`, DPTs by a folder that is named after a
    metric data set.
    """
    if near != "auto":
        return near
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise ValueError("config.json must hold an object")
    except (OSError, ValueError) as error:
        raise ModelError(f"Cannot load a depth network from {folder}: {error}") from error
    kind = config.get("model_type")
    named_metric = kind == "dpt" and _METRIC_DPT.search(folder.as_posix()) is not None
    metric = kind in _METRIC_TYPES or config.get("depth_estimation_type") == "metric" or named_metric
    return "small" if metric else "large"


def normalise_depth(raw: Tensor, near: str) -> Tensor:
    """Stretch each raw map of B,H,W to [0, 1] with near = 1; one that is constant up to rounding gives 0."""
    if not torch.isfinite(raw).all():
        raise ModelError(
            "The depth network returns values that are not finite. Its weights are damaged, or do not belong "
            "to its configuration: fetch them again."
        )
    if near == "small":
        # Inverse first: metric depth compresses what is near, and the other convention is inverse depth. A
        # single pixel at nearly nothing would be infinitely near and leave no contrast to all others.
        raw = 1 / raw.clamp(min=raw.amax(dim=(1, 2), keepdim=True).clamp(min=1e-6) / _RANGE)
    low = raw.amin(dim=(1, 2), keepdim=True)
    high = raw.amax(dim=(1, 2), keepdim=True)
    flat = high - low <= _ROUNDING * torch.maximum(high.abs(), low.abs())
    return torch.where(flat, torch.zeros_like(raw), (raw - low) / (high - low).clamp(min=1e-12))
