"""phi: frozen networks that turn images into feature vectors, for MMD, copies and distances.

All of them take images in [0, 1], B,3,H,W, normalise inside, and give B,F pooled features with gradients to
the image.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mcpmix.core.errors import ModelError
from mcpmix.core.files import expanded, read_json
from mcpmix.data.augment import normalise
from mcpmix.networks.weight_files import (
    EMBEDDED,
    RESNET_URL,
    digest_of_source,
    digest_of_weights,
    resnet_file,
    resolve,
    resolve_file,
    split_pin,
)

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


class SmallFeatures(nn.Module):
    """A small strided convolutional network with group norm and global average pooling.

    Group norm, not batch norm: a frozen phi must treat each image alone.

    Args:
        channels: width after each halving of the image; the last is the length F of a feature vector.
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

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W in [0, 1] to B,F."""
        pooled: Tensor = self.body(images * 2 - 1).mean(dim=(2, 3))
        return pooled


class ResNetFeatures(nn.Module):
    """ResNet-50 with ImageNet weights, pooled to 2048 features, as in the paper."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        from torchvision.models import resnet50  # it takes seconds to load

        self.body = resnet50()
        self.body.load_state_dict(weights)
        self.body.fc = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W in [0, 1] to B,2048."""
        features: Tensor = self.body(normalise(images))
        return features


def save_features(model: SmallFeatures, folder: Path) -> None:
    """Write config.json and model.safetensors, in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps({"class": "SmallFeatures", "channels": list(model.channels)}))
    save_file({k: v.to(torch.float16).contiguous() for k, v in model.state_dict().items()}, folder / _WEIGHTS)


def load_features(source: str) -> nn.Module:
    """A frozen phi: in evaluation mode, without gradients for its weights.

    Args:
        source: "embedded"; "resnet50" (torchvision's IMAGENET1K_V2 file in torch's local cache); or the path
            of a safetensors file with torchvision's ResNet-50 keys, or of a folder made by `save_features`.
            Files, folders and "embedded" may be pinned with `@sha256:<digest>`.

    Raises:
        ModelError: the weights are not on this machine, or have another digest.
    """
    name, _ = split_pin(source)
    model: nn.Module
    if source == "resnet50":
        path = _present_resnet()
        try:
            model = ResNetFeatures(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # torch fails on damaged files with errors of nearly every kind
            raise ModelError(f"{path} is damaged: {error!s:.160}. Fetch {RESNET_URL} again.") from error
    elif name == EMBEDDED or expanded(name).is_dir():
        model = load_small_features(resolve(source, "features"))
    elif (file := resolve_file(source)) is not None:
        try:
            model = ResNetFeatures({key: value.float() for key, value in load_file(file).items()})
        except (RuntimeError, OSError, SafetensorError) as error:
            raise ModelError(f"{file} has no ResNet-50 with torchvision's names: {error!s:.160}") from error
    else:
        raise ModelError(
            f"features: {source!r} is none of embedded, resnet50, a folder or a safetensors file."
        )
    return model.eval().requires_grad_(False)


def load_small_features(folder: Path) -> SmallFeatures:
    """Read what `save_features` wrote, in float32."""
    missing = [name for name in (_CONFIG, _WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"No feature network in {folder}: {missing[0]} is missing.")
    try:
        model = SmallFeatures(tuple(read_json(folder / _CONFIG)["channels"]))
        weights = load_file(folder / _WEIGHTS)
        model.load_state_dict({key: value.float() for key, value in weights.items()})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"The feature network in {folder} is damaged: {error!s:.160}. Fetch it again."
        ) from error
    return model


def features_digest(source: str) -> str:
    """SHA-256 of the weights that `load_features` reads; they may change under their name."""
    if source == "resnet50":
        return digest_of_weights(_present_resnet())
    return digest_of_source(source, "features")


def _present_resnet() -> Path:
    path = resnet_file()
    if not path.exists():
        raise ModelError(
            f"features: resnet50 needs {path.name} (98 MB, BSD-3-Clause) at {path}. Fetch {RESNET_URL} on a "
            "machine with internet and copy it there, or set rla.features=embedded."
        )
    return path
