"""A trained segmenter for new images of any size."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import DataError, ModelError
from mcpmix.core.pixels import as_images
from mcpmix.data.augment import normalise
from mcpmix.data.sample import resize_image
from mcpmix.networks.segmenter import load_network, read_description

_FLIPS: tuple[tuple[int, ...], ...] = ((), (3,), (2,), (2, 3))  # as it is, left-right, upside down, both


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
    def predict(self, image: np.ndarray, *, flips: bool = False) -> np.ndarray:
        """Where the lesion is, at the image's own size.

        Args:
            image: (H, W, 3) uint8, RGB, of any size.
            flips: whether to average over the image and its three mirror images, at four times the cost.

        Returns:
            (H, W) float32, probabilities of lesion.

        Raises:
            DataError: the image has another form; the message says how to convert it.
        """
        _require_rgb(image)
        small = as_images(resize_image(image, self.size)[None], self.device)
        logits = self._logits(normalise(small), _FLIPS if flips else _FLIPS[:1])
        full = F.interpolate(logits.float(), image.shape[:2], mode="bilinear", align_corners=False)
        probabilities: np.ndarray = torch.sigmoid(full).mean(dim=0)[0].cpu().numpy()
        return probabilities

    def fingerprint(self) -> str:
        """SHA-256 over the names and values of the weights, the same on every machine."""
        digest = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _logits(self, image: Tensor, views: tuple[tuple[int, ...], ...]) -> Tensor:
        """1,3,S,S to one 1,S,S map of logits per view, all of them turned back."""
        # One after the other: a batch may take other kernels, and the first map must not depend on the rest.
        return torch.cat([self.network(image.flip(axes)).flip(axes) for axes in views])


def _require_rgb(image: np.ndarray) -> None:
    if image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size:
        return
    hint = "Read files with mcpmix.data.sample.read_image."
    if image.ndim == 3 and image.shape[2] == 4:
        hint = "It has four channels: give the three of RGB, image[..., :3] if the fourth is opacity."
    elif image.ndim == 2:
        hint = "It is grey: repeat it, np.stack([image] * 3, axis=-1)."
    elif image.dtype == np.uint16:
        hint = "It has 16 bits: choose the range of levels to show and scale it to 0..255."
    elif np.issubdtype(image.dtype, np.floating):
        hint = "If its range is [0, 1]: (image * 255).round().astype(np.uint8)."
    raise DataError(f"predict expects an H,W,3 uint8 RGB image, got {image.dtype} {image.shape}. {hint}")


def load_segmenter(path: Path | str, device: torch.device | str = "cpu") -> Predictor:
    """Load a segmenter from its folder, or from a run's folder.

    Args:
        path: a folder with config.json and model.safetensors; or a run's folder, whose segmenter with the
            best validation score is taken.
        device: where it runs.

    Raises:
        ModelError: there is no segmenter, or it is damaged.
    """
    return Predictor(*load_network(segmenter_folder(path)), device=device)


def segmenter_folder(path: Path | str) -> Path:
    """The segmenter's own folder: `path` itself, or that of the best segmenter of a run.

    Raises:
        ModelError: it is a run without a finished segmenter.
    """
    folder = Path(path)
    if not (folder / "model.safetensors").exists() and (folder / "segmenter").is_dir():
        return _best_of_run(folder)
    return folder


def _best_of_run(run: Path) -> Path:
    """The finished segmenter with the highest validation DSC."""
    candidates = sorted(path.parent for path in (run / "segmenter").glob("*/seed-*/model.safetensors"))
    finished = [folder for folder in candidates if not folder.name.endswith(".partial")]
    if not finished:
        raise ModelError(f"{run} has no finished segmenter yet: run `mcpmix run` or `mcpmix train`.")
    return max(finished, key=lambda folder: float(read_description(folder).get("validation_dsc", 0)))
