"""Segmenters by name, own networks by import path, and the folder that a trained one is saved in."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import ConfigError, ModelError, did_you_mean
from mcpmix.networks.segmenter_parts import WEIGHTS, AnySize, load_matching, read_state
from mcpmix.networks.weight_files import EMBEDDED, PICKLES

_CONFIG = "config.json"

# By import path: each library is imported when one of its networks is asked for; together they take seconds.
SEGMENTERS = {
    "segformer": "mcpmix.networks.segformer:Segformer",
    "unet": "mcpmix.networks.smp:unet",
    "deeplabv3plus": "mcpmix.networks.smp:deeplab",
    "segnet": "mcpmix.networks.segnet:build_segnet",
}
"""Names of the networks, and what builds them from a variant and a source of weights."""
_OF_SMP = "mcpmix.networks.smp:build_architecture"  # for any class of that library


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
    if weights == EMBEDDED and (name, variant) != ("segformer", "nano"):
        raise ConfigError(
            f"segmenter.weights: embedded ones exist for segformer nano only, not for {name} {variant}. Set "
            "segmenter.weights=null to train from scratch, or name weights of this network."
        )
    if ":" in name:
        return _build_own(name, variant, weights)
    if name not in SEGMENTERS:
        raise ConfigError(
            f"segmenter.name: there is no {name!r} (your own network is 'package.module:ClassName'); "
            f"{did_you_mean(name, SEGMENTERS)}"
        )
    network: nn.Module = _imported(SEGMENTERS[name])(variant, weights)
    return network


# --- own networks ------------------------------------------------------------------------------------------


def _build_own(path: str, variant: str, weights: str | None) -> nn.Module:
    """The network of an import path.

    The class is called as `Class(variant=variant)` if it has a parameter of that name, else without
    arguments. It gets images whose sides are multiples of its attribute `size_multiple` (32 if it has none),
    and returns (B, 1, h, w) logits; smaller ones are enlarged. A class of segmentation_models_pytorch takes
    `variant` as its encoder, and `weights` for it.
    """
    import segmentation_models_pytorch as smp

    made = _imported(path)
    if not callable(made):
        raise ConfigError(f"segmenter.name: {path} is {type(made).__name__}; expected a class of nn.Module.")
    if isinstance(made, type) and issubclass(made, smp.base.SegmentationModel):
        built: nn.Module = _imported(_OF_SMP)(made, variant, weights)
        return built
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
    if weights is not None:
        load_matching(network, read_state(weights), f"segmenter.weights: {weights} does not fit {path}:")
    return AnySize(_Checked(network, path), int(getattr(network, "size_multiple", 32)))


def _imported(path: str) -> Any:  # noqa: ANN401 - whatever a user names
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"segmenter.name: cannot import {path!r} ({error}). Expected 'package.module:ClassName' of "
            "something installed or on PYTHONPATH."
        ) from error


class _Checked(nn.Module):
    """A user's network whose logits are brought to the size of the image; other outputs are refused."""

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


# --- the folder of a trained segmenter ---------------------------------------------------------------------

_EXPECTED = f"Expected a folder with {_CONFIG} and {WEIGHTS}, as `mcpmix train` writes it, or a run's folder"


def save_segmenter(network: nn.Module, folder: Path, description: dict[str, Any]) -> None:
    """Write config.json (name, variant, size and what else `description` says) and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(description, indent=1), encoding="utf-8")
    # Cloned: safetensors refuses tensors that share memory, as tied layers of a user's network do.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
    save_file(state, folder / WEIGHTS)


def load_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Read back what `save_segmenter` wrote: the network in evaluation mode and its description.

    Raises:
        ModelError: the folder has no segmenter, a damaged one, or weights of another architecture.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        if folder.is_file() and (folder.suffix in PICKLES or _is_pickle(folder)):
            what = "is a pickle, which can run code when it is opened, and is not read"
        raise ModelError(f"{folder} {what}. {_EXPECTED}.")
    missing = [name for name in (_CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        there = f" {', '.join(pickles[:3])} there is a pickle and is not read." if pickles else ""
        raise ModelError(f"{folder} has no segmenter: no {' and no '.join(missing)}.{there} {_EXPECTED}.")
    description = read_description(folder)
    path, name, variant = folder / WEIGHTS, description["name"], description["variant"]
    if _is_pickle(path):
        raise ModelError(
            f"{path} is a pickle under another name, which can run code when it is opened, and "
            "is not read. Ask for the weights as safetensors."
        )
    try:
        state = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"{path} ({path.stat().st_size} bytes) is damaged or cut off: {error}. Copy it again and compare "
            "the sizes."
        ) from error
    network = build_segmenter(name, variant)
    load_matching(network, state, f"{path} is not of a {name} {variant}, which {_CONFIG} next to it names:")
    return network.eval(), description


def read_description(folder: Path) -> dict[str, Any]:
    """The config.json of a segmenter: at least `name`, `variant` and `size`.

    Raises:
        ModelError: it is missing or damaged, or not of a segmenter.
    """
    path = folder / _CONFIG
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged ({error}). Copy the segmenter's folder again.") from error
    needed = ("name", "variant", "size")
    lacking = [name for name in needed if not isinstance(description, dict) or name not in description]
    if lacking:
        raise ModelError(f"{path} does not say {', '.join(lacking)}: it is not of a segmenter. {_EXPECTED}.")
    return dict(description)


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    # Pickle's protocol mark, or the ZIP archive that torch.save makes. A safetensors file starts with the
    # length of its header in 8 bytes, which may be such a mark by chance; the ninth is the header's "{".
    return start.startswith((b"\x80", b"PK\x03\x04")) and start[8:] != b"{"
