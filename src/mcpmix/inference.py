"""A trained segmenter for new images of any size."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from mcpmix.core.errors import DataError, ModelError
from mcpmix.data.sample import resize_image
from mcpmix.data.transforms import normalise
from mcpmix.models.segmenters import load_network


class Predictor:
    """A segmenter with its preprocessing.

    Args:
        network: from normalised B,3,S,S images to B,1,S,S logits.
        description: the segmenter's config.json; `size` is the side S it was trained at.
        device: where it runs.
    """

    def __init__(
        self, network: nn.Module, description: dict[str, Any], device: torch.device | str = "cpu"
    ) -> None:
        self.network = network.to(device).eval()
        self.description = description
        self.size = int(description["size"])
        self.device = device

    @torch.inference_mode()
    def predict(self, image: np.ndarray) -> np.ndarray:
        """H,W,3 uint8 RGB to H,W float32 lesion probabilities, at the image's own size."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise DataError(f"predict expects an H,W,3 uint8 RGB image, got {image.dtype} {image.shape}.")
        small = torch.from_numpy(resize_image(image, self.size)).permute(2, 0, 1)[None].float() / 255
        logits = self.network(normalise(small.to(self.device)))
        full = F.interpolate(logits.float(), image.shape[:2], mode="bilinear", align_corners=False)
        probabilities: np.ndarray = torch.sigmoid(full)[0, 0].cpu().numpy()
        return probabilities


def load_segmenter(path: Path | str, device: torch.device | str = "cpu") -> Predictor:
    """Load a segmenter from its folder, or from a run's folder.

    Args:
        path: a folder with config.json and model.safetensors; or a run's folder, whose segmenter with the
            best validation score is taken.
        device: where it runs.

    Raises:
        ModelError: there is no segmenter.
    """
    folder = Path(path)
    if not (folder / "model.safetensors").exists() and (folder / "segmenter").is_dir():
        folder = _best_of_run(folder)
    return Predictor(*load_network(folder), device=device)


def _best_of_run(run: Path) -> Path:
    """The finished segmenter with the highest validation DSC."""
    candidates = sorted(path.parent for path in (run / "segmenter").glob("*/seed-*/model.safetensors"))
    finished = [folder for folder in candidates if not folder.name.endswith(".partial")]
    if not finished:
        raise ModelError(f"{run} has no finished segmenter yet: run `mcpmix run` or `mcpmix train`.")
    return max(finished, key=lambda folder: float(load_network(folder)[1]["validation_dsc"]))
