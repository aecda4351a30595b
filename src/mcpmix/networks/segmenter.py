"""Segmenters by name, own networks by import path, and the folder that a trained one is saved in.

segmentation-models-pytorch, timm and transformers are imported when one of their networks is asked for:
together they take seconds. Nothing is downloaded.
"""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import ConfigError, ModelError, TrainingError, bullet_list, did_you_mean
from mcpmix.core.files import read_json
from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.core.stage_folder import read_artifact, verify
from mcpmix.networks.segnet import SEGNETS, SegNet
from mcpmix.networks.states import WEIGHTS, load_matching, read_state, require_match
from mcpmix.networks.weight_files import EMBEDDED, PICKLES

_CONFIG = "config.json"
_TIMM = "tu-"  # smp's prefix of encoders from timm
Options = Mapping[str, Any] | None


def build_segmenter(
    name: str, variant: str, weights: str | None = None, options: Options = None, channels: int = 1
) -> nn.Module:
    """A network from B,3,H,W images (ImageNet-normalised) of any size to B,C,H,W logits.

    Args:
        name: a key of `SEGMENTERS`, or "package.module:ClassName" of an own network.
        variant: its size or encoder: "b0" of segformer, "resnet18" of unet and deeplabv3plus, "vgg16" of
            segnet.
        weights: pretrained weights; None: from scratch. "embedded" (nano), a folder or a hub id on this
            machine for segformer; a file or folder for the encoder of unet and deeplabv3plus; a file for
            the others.
        options: further arguments of a network of smp, such as `decoder_channels` of unet.
        channels: C: 1 for lesion or not, else one for each label, background first.

    Raises:
        ConfigError: the name or variant is unknown; the message lists what there is.
        ModelError: the weights do not fit.
    """
    if weights == EMBEDDED and (name, variant) != ("segformer", "nano"):
        raise ConfigError(
            f"segmenter.weights: embedded ones exist for segformer nano only, not for {name} {variant}. Set "
            "segmenter.weights=null to train from scratch, or name weights of this network."
        )
    if options and not (name in _WITH_OPTIONS or ":" in name):
        raise ConfigError(
            f"segmenter.options: {name} takes none, got {', '.join(options)}. They are for "
            f"{', '.join(_WITH_OPTIONS)} and classes of segmentation_models_pytorch: leave them out."
        )
    if ":" in name:
        return _build_own(name, variant, weights, options, channels)
    if name not in SEGMENTERS:
        raise ConfigError(
            f"segmenter.name: there is no {name!r} (your own network is 'package.module:ClassName'); "
            f"{did_you_mean(name, SEGMENTERS)}"
        )
    return SEGMENTERS[name](variant, weights, channels, **({"options": options} if options else {}))


def _segformer(variant: str, weights: str | None, channels: int) -> nn.Module:
    from mcpmix.networks.segformer import Segformer

    return Segformer(variant, weights, channels)


def _segnet(variant: str, weights: str | None, channels: int) -> nn.Module:
    """SegNet "vgg16" (the paper's) or "small" for any image size; `weights` are of the whole network."""
    if variant not in SEGNETS:
        raise ConfigError(f"segmenter.variant: unknown {variant!r}; known: {', '.join(SEGNETS)}.")
    network = SegNet(SEGNETS[variant], channels)
    if weights is not None:
        load_matching(network, read_state(weights), f"{weights} is not a SegNet {variant}:")
    return AnySize(network, 2 ** len(SEGNETS[variant]))


def _of_smp(
    architecture: str | Callable[..., nn.Module],
    variant: str,
    weights: str | None,
    channels: int,
    options: Options = None,
) -> nn.Module:
    """A class of segmentation-models-pytorch, or the one of this name, with so many output channels.

    The variant is its encoder: a name of smp, or "tu-" and a name of timm. `weights` must have every tensor
    of the encoder; a classifier among them is ignored.
    """
    import segmentation_models_pytorch as smp
    import timm

    build = getattr(smp, architecture) if isinstance(architecture, str) else architecture
    known, of_timm = variant, variant.startswith(_TIMM)
    names = [name for name in smp.encoders.get_encoder_names() if not name.startswith("timm-")]
    if of_timm:
        names = [_TIMM + name for name in timm.list_models()]
        # A tag after a dot names pretrained weights; timm knows the architecture without it.
        known = variant.partition(".")[0]
    if known not in names:
        raise ConfigError(
            f"segmenter.variant: there is no encoder {variant!r} (those of timm.list_models() take 'tu-', as "
            f"tu-tf_efficientnet_lite0); {did_you_mean(variant, names)}"
        )
    fixed = {"encoder_name": variant, "encoder_weights": None, "in_channels": 3, "classes": channels}
    known_options = [key for key in inspect.signature(build).parameters if key not in fixed]
    if unknown := [key for key in options or {} if key not in known_options]:
        raise ConfigError(
            f"segmenter.options: there is no {unknown[0]!r}; {did_you_mean(unknown[0], known_options)}"
        )
    try:
        network: nn.Module = build(**fixed, **(options or {}))
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        added = f" with {dict(options)}" if options else ""
        raise ConfigError(f"segmenter.variant: {variant!r} does not work here{added}: {error}") from error
    scale, shift = torch.ones(3), torch.zeros(3)
    if weights is not None:
        # The names in the file may have "encoder." and timm's "model." in front.
        wanted = {
            _bare(name): tensor
            for name, tensor in network.get_submodule("encoder").state_dict().items()
            if "num_batches_tracked" not in name
        }
        given = {_bare(name): tensor for name, tensor in read_state(weights).items()}
        given = {name: tensor for name, tensor in given.items() if name in wanted}
        require_match(given, wanted, f"segmenter.weights: {weights} does not fit the encoder {variant}:")
        with torch.no_grad():
            for name, tensor in wanted.items():
                tensor.copy_(given[name])
        published = timm.get_pretrained_cfg(variant.removeprefix(_TIMM)) if of_timm else None
        if published is not None:
            mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
            wanted_mean, wanted_std = torch.tensor(published.mean), torch.tensor(published.std)
            scale, shift = std / wanted_std, (mean - wanted_mean) / wanted_std
    return _EncoderDecoder(network, scale, shift)


def _bare(name: str) -> str:
    return name.removeprefix("encoder.").removeprefix("model.")


_WITH_OPTIONS = ("unet", "deeplabv3plus")
SEGMENTERS: dict[str, Callable[..., nn.Module]] = {
    "segformer": _segformer,
    "unet": partial(_of_smp, "Unet"),
    "deeplabv3plus": partial(_of_smp, "DeepLabV3Plus"),
    "segnet": _segnet,
}
"""What builds a network from a variant and a source of weights, by name."""


def _build_own(path: str, variant: str, weights: str | None, options: Options, channels: int) -> nn.Module:
    """The network of an import path.

    The class is called with `variant`, and with `classes`, the number of several channels, where it has such
    parameters. It gets images whose sides are multiples of its attribute `size_multiple` (32 if it has none),
    and returns (B, C, h, w) logits; smaller ones are enlarged. A class of segmentation_models_pytorch takes
    `variant` as its encoder, and `weights` for it.
    """
    import segmentation_models_pytorch as smp

    module, _, name = path.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"segmenter.name: cannot import {path!r} ({error}). Expected 'package.module:ClassName' of "
            "something installed or on PYTHONPATH."
        ) from error
    if not callable(made):
        raise ConfigError(f"segmenter.name: {path} is {type(made).__name__}; expected a class of nn.Module.")
    if isinstance(made, type) and issubclass(made, smp.base.SegmentationModel):
        return _of_smp(made, variant, weights, channels, options)
    if options:
        raise ConfigError(f"segmenter.options: {path} is not of smp and takes none; leave them out.")
    offered: dict[str, Any] = {"variant": variant} | ({"classes": channels} if channels > 1 else {})
    arguments = {name: offered[name] for name in inspect.signature(made).parameters if name in offered}
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
    return AnySize(_Checked(network, path, channels), int(getattr(network, "size_multiple", 32)))


class _Checked(nn.Module):
    """A user's network whose logits are brought to the size of the image; other outputs are refused."""

    def __init__(self, network: nn.Module, path: str, channels: int) -> None:
        super().__init__()
        self.network = network
        self._path, self._channels = path, channels

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,C,H,W logits."""
        logits = self.network(images)
        fits = isinstance(logits, Tensor) and logits.shape[:2] == (len(images), self._channels)
        if not fits or logits.ndim != 4:
            came = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ModelError(
                f"{self._path}: the network returned {came} for images {tuple(images.shape)}; expected "
                f"logits (B, {self._channels}, H, W), before the sigmoid or softmax: one channel, or one "
                "for each label of several classes, which a parameter `classes` counts."
            )
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


# --- any size of image, and the input that encoders know ---------------------------------------------------


class AnySize(nn.Module):
    """Lets a network that needs certain image sizes take all.

    The image is extended to the right and below by its own last column and row up to the next multiple of
    `multiple`; the logits are cropped to the image. A size that is a multiple already passes unchanged.
    """

    def __init__(self, network: nn.Module, multiple: int = 32) -> None:
        super().__init__()
        self.network = network
        self.multiple = multiple

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,C,H,W logits."""
        height, width = images.shape[2:]
        padded = F.pad(images, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        logits: Tensor = self.network(padded)
        return logits[..., :height, :width]


class _EncoderDecoder(nn.Module):
    """An smp network for any image size, with the input its encoder was pretrained on.

    Images come normalised by the mean and deviation of ImageNet. Pretrained timm encoders ("tu-...") that
    want other numbers get them: the change is part of the state, so that a saved network needs no weights
    to be rebuilt. Other encoders take the images as they come: `scale` (3,) is 1 and `shift` (3,) is 0.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.inner = AnySize(network)
        self.register_buffer("scale", scale[:, None, None])
        self.register_buffer("shift", shift[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,C,H,W logits; at least two images where DeepLabV3+ is trained."""
        if self.training and len(images) == 1 and type(self.inner.network).__name__ == "DeepLabV3Plus":
            raise TrainingError(
                "DeepLabV3+ cannot be trained on a batch of one image: batch norm of its image pooling needs "
                "two values. Set train.batch_size to 2 or more, or choose another segmenter."
            )
        logits: Tensor = self.inner(images * self.scale + self.shift)
        return logits


# --- the folder of a trained segmenter ---------------------------------------------------------------------

_EXPECTED = f"Expected a folder with {_CONFIG} and {WEIGHTS}, as `mcpmix train` writes it, or a run's folder"


def save_segmenter(network: nn.Module, folder: Path, description: dict[str, Any]) -> None:
    """Write config.json (name, variant, size and what else `description` says) and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(description, indent=1), encoding="utf-8")
    # Cloned: safetensors refuses tensors that share memory, as tied layers of a user's network do.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in network.state_dict().items()}
    save_file(state, folder / WEIGHTS)


def load_network(folder: Path, trust: bool | str = False) -> tuple[nn.Module, dict[str, Any]]:
    """Read back what `save_segmenter` wrote: the network in evaluation mode and its description.

    Args:
        trust: whether code that the folder names, `package.module:ClassName`, may be imported and run; or the
            only one that may, because the user's own configuration names it.

    Raises:
        ModelError: there is no segmenter, it is damaged, or it names code that is not trusted.
        StorageError: a stage wrote it, and it is not what the stage left there.
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
    if (made := read_artifact(folder)) is not None:  # a stage wrote it; a copy need not have all its files
        verify(made, (_CONFIG, WEIGHTS))
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
    if ":" in name and trust not in (True, name):
        raise ModelError(
            f"{folder / _CONFIG} names a network by its code, {name}, which would be imported and run. If "
            "you trust this folder and that code, say so: --trust, or load_segmenter(..., trust=True)."
        )
    headline = f"{path} is not of a {name} {variant}, which {_CONFIG} next to it names:"
    options, classes = description.get("options"), description.get("classes", [])
    build = partial(build_segmenter, name, variant, options=options, channels=len(classes) + 1)
    try:
        if options:  # they may ask for any amount of memory: shapes are compared before there is any
            with torch.device("meta"):
                require_match(state, build().state_dict(), headline)
        network = build()
    except (ConfigError, ModelError, MemoryError):
        raise
    except Exception as error:  # whatever a network makes of arguments that are not meant for it
        raise ModelError(
            f"{folder / _CONFIG} does not describe a network: {error!r}. {_EXPECTED}."
        ) from error
    load_matching(network, state, headline)
    return network.eval(), description


def read_description(folder: Path) -> dict[str, Any]:
    """The config.json of a segmenter: at least `name`, `variant` and `size`."""
    path = folder / _CONFIG
    try:
        description = read_json(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged ({error}). Copy the segmenter's folder again.") from error
    needed = ("name", "variant", "size")
    lacking = [name for name in needed if not isinstance(description, dict) or name not in description]
    if lacking:
        raise ModelError(f"{path} does not say {', '.join(lacking)}: it is not of a segmenter. {_EXPECTED}.")
    wrong = [
        f"{name} is {str(description[name])[:40]!r}, expected {what}"
        for name, (what, fits) in _FIELDS.items()
        if name in description and not fits(description[name])
    ]
    if wrong:
        raise ModelError(bullet_list(f"{path} is not of a segmenter. {_EXPECTED}:", wrong))
    return dict(description)


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("a text", lambda value: isinstance(value, str)),
    "variant": ("a text", lambda value: isinstance(value, str)),
    "size": ("whole pixels up to 8192", lambda value: type(value) is int and 0 < value <= 8192),
    "options": ("settings by name", lambda value: isinstance(value, dict)),
    "classes": ("2 to 255 plain names", lambda value: isinstance(value, list) and _are_plain(value)),
    "validation_dsc": ("a number", lambda value: type(value) in (int, float)),
}


def _are_plain(names: list[Any]) -> bool:
    """Whether these can be names of classes: predictions of each get a folder of that name."""
    return 2 <= len(names) <= 255 and all(re.fullmatch(r"\w[\w .+-]*", str(name)) for name in names)


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(9)
    # Pickle's protocol mark, or the ZIP archive that torch.save makes. A safetensors file starts with the
    # length of its header in 8 bytes, which may be such a mark by chance; the ninth is the header's "{".
    return start.startswith((b"\x80", b"PK\x03\x04")) and start[8:] != b"{"
