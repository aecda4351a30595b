"""phi: frozen networks that turn images into feature vectors, for MMD, copies and distances.

All of them take images in [0, 1], B,3,H,W, normalise inside, and give B,F pooled features with gradients to
the image.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mcpmix.core.errors import ModelError

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


class SmallFeatures(nn.Module):
    """A small strided convolutional network with group norm and global average pooling.

    Group norm, not batch norm: a frozen phi must treat each image alone.

    Args:
        channels: width after each halving of the image.
    """

    def __init__(self, channels: tuple[int, ...] = (24, 48, 96, 128)) -> None:
        super().__init__()
        self.channels = tuple(channels)
        layers: list[nn.Module] = []
        width = 3
        for out in self.channels:
            layers += [
                nn.Conv2d(width, out, 3, stride=2, padding=1),
                nn.GroupNorm(8, out),
                nn.SiLU(),
                nn.Conv2d(out, out, 3, padding=1),
                nn.GroupNorm(8, out),
                nn.SiLU(),
            ]
            width = out
        self.body = nn.Sequential(*layers)

    @property
    def width(self) -> int:
        """Length F of a feature vector."""
        return self.channels[-1]

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W in [0, 1] to B,F."""
        pooled: Tensor = self.body(images * 2 - 1).mean(dim=(2, 3))
        return pooled


def save_features(model: SmallFeatures, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps({"class": "SmallFeatures", "channels": list(model.channels)}))
    save_file({k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}, folder / _WEIGHTS)


def freeze(model: nn.Module) -> nn.Module:
    """Evaluation mode and no gradients for the weights (the input keeps its own)."""
    return model.eval().requires_grad_(False)


def load_small_features(folder: Path) -> SmallFeatures:
    """Read what `save_features` wrote, frozen, in float32.

    Raises:
        ModelError: the folder has no such network.
    """
    try:
        config = json.loads((folder / _CONFIG).read_text())
        weights = load_file(folder / _WEIGHTS)
    except FileNotFoundError as error:
        raise ModelError(f"No feature network in {folder}: {Path(error.filename).name} is missing.") from error
    model = SmallFeatures(tuple(config["channels"]))
    model.load_state_dict({key: value.float() for key, value in weights.items()})
    freeze(model)
    return model
