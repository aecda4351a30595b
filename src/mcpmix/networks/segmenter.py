"""The segmenters by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mcpmix.core.errors import ConfigError, ModelError, bullet_list, did_you_mean
from mcpmix.networks.states import mismatches
from mcpmix.networks.weight_files import EMBEDDED

Builder = Callable[[str, str | None], nn.Module]

_EMBEDDED_START = ("segformer", "nano")


# Each library is imported when one of its networks is asked for: together they take seconds.


def _segformer(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.networks.segformer import Segformer

    return Segformer(variant, weights)


def _unet(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.networks.smp import unet

    return unet(variant, weights)


def _deeplab(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.networks.smp import deeplab

    return deeplab(variant, weights)


def _segnet(variant: str, weights: str | None) -> nn.Module:
    from mcpmix.networks.segnet import build_segnet

    return build_segnet(variant, weights)


SEGMENTERS: dict[str, Builder] = {
    "segformer": _segformer,
    "unet": _unet,
    "deeplabv3plus": _deeplab,
    "segnet": _segnet,
}
"""Names of the networks, and what builds them from a variant and a source of weights."""


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
    if weights == EMBEDDED and (name, variant) != _EMBEDDED_START:
        raise ConfigError(
            f"segmenter.weights: embedded ones exist for segformer nano only, not for {name} {variant}. Set "
            "segmenter.weights=null to train from scratch, or name weights of this network."
        )
    if ":" in name:
        from mcpmix.networks.custom import build_custom

        return build_custom(name, variant, weights)
    if name not in SEGMENTERS:
        raise ConfigError(
            f"segmenter.name: there is no {name!r} (your own network is 'package.module:ClassName'); "
            f"{did_you_mean(name, SEGMENTERS)}"
        )
    return SEGMENTERS[name](variant, weights)


_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_EXPECTED = f"Expected a folder with {_CONFIG} and {_WEIGHTS}, as `mcpmix train` writes it, or a run's folder"
_NEEDED = ("name", "variant", "size")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # pickle's protocol mark; the ZIP archive that torch.save makes


def save_segmenter(network: nn.Module, folder: Path, description: dict[str, Any]) -> None:
    """Write config.json (name, variant, size and what else `description` says) and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(description, indent=1), encoding="utf-8")
    # Cloned: safetensors refuses tensors that share memory, as tied layers of a user's network do.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
    save_file(state, folder / _WEIGHTS)


def load_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Read back what `save_segmenter` wrote: the network in evaluation mode and its description.

    Raises:
        ModelError: the folder has no segmenter, a damaged one, or weights of another architecture.
    """
    _refuse_other_things(folder)
    description = read_description(folder)
    state = _read_weights(folder / _WEIGHTS)
    name, variant = description["name"], description["variant"]
    network = build_segmenter(name, variant)
    problems = mismatches(state, network.state_dict(), exact=True)
    if problems:
        headline = f"{folder / _WEIGHTS} is not of a {name} {variant}, which {_CONFIG} beside it names:"
        raise ModelError(bullet_list(headline, problems))
    network.load_state_dict(state)
    return network.eval(), description


def _refuse_other_things(folder: Path) -> None:
    """A file in place of the folder, a folder without the two files, a pickle."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        if folder.is_file() and (folder.suffix in _PICKLES or _is_pickle(folder)):
            what = "is a pickle, which can run code of its maker when it is opened, and is not read"
        raise ModelError(f"{folder} {what}. {_EXPECTED}.")
    missing = [name for name in (_CONFIG, _WEIGHTS) if not (folder / name).is_file()]
    if missing:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
        there = f" {', '.join(pickles[:3])} there is a pickle and is not read." if pickles else ""
        raise ModelError(f"{folder} has no segmenter: no {' and no '.join(missing)}.{there} {_EXPECTED}.")


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
    lacking = [name for name in _NEEDED if not isinstance(description, dict) or name not in description]
    if lacking:
        raise ModelError(f"{path} does not say {', '.join(lacking)}: it is not of a segmenter. {_EXPECTED}.")
    return dict(description)


def _read_weights(path: Path) -> dict[str, Tensor]:
    if _is_pickle(path):
        raise ModelError(
            f"{path} is a pickle under another name, which can run code of its maker when it is opened, and "
            "is not read. Ask for the weights as safetensors."
        )
    try:
        return load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        size = path.stat().st_size
        raise ModelError(
            f"{path} ({size} bytes) is damaged or cut off: {error}. Copy it again and compare the sizes."
        ) from error


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file starts with the length of its header in 8 bytes, which may be a pickle's mark by
    # chance; the ninth is the header's first, "{".
    return start.startswith(_PICKLE_STARTS) and start[8:] != b"{"
