"""SegFormer, and whether a folder of weights is one that it can start from.

transformers also accepts a folder of any other network: it initialises missing tensors at random, and so
would train from scratch under the name of pretrained weights. Folders are therefore checked first, from the
headers of their files.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.utils import logging

from mcpmix.core.errors import ConfigError, ModelError
from mcpmix.core.files import read_json
from mcpmix.networks.weight_files import resolve, resolve_file

# depths, hidden sizes, decoder width. `nano` is ours: half the width of b0 and one block per stage.
_SEGFORMER: dict[str, tuple[list[int], list[int], int]] = {
    "nano": ([1, 1, 1, 1], [16, 32, 80, 128], 64),
    "b0": ([2, 2, 2, 2], [32, 64, 160, 256], 256),
    "b1": ([2, 2, 2, 2], [64, 128, 320, 512], 256),
    "b2": ([3, 4, 6, 3], [64, 128, 320, 512], 768),
    "b3": ([3, 4, 18, 3], [64, 128, 320, 512], 768),
    "b4": ([3, 8, 27, 3], [64, 128, 320, 512], 768),
    "b5": ([3, 6, 40, 3], [64, 128, 320, 512], 768),
}
_EXPECTED = (
    "Expected a folder with config.json and model.safetensors, as save_pretrained of a SegFormer writes it"
)


class Segformer(nn.Module):
    """SegFormer, its logits brought to the input's size.

    Args:
        variant: "nano", "b0" ... "b5".
        weights: "embedded" (nano), a hub id that is on this machine, or a local folder; None: from scratch.
        channels: C, of the logits.
    """

    def __init__(self, variant: str, weights: str | None = None, channels: int = 1) -> None:
        super().__init__()
        if variant not in _SEGFORMER:
            raise ConfigError(f"segmenter.variant: unknown {variant!r}; known: {', '.join(_SEGFORMER)}.")
        depths, widths, decoder = _SEGFORMER[variant]
        narrow = variant == "nano"
        config = SegformerConfig(
            # With the usual 0.02, meant for wide layers, a narrow network long learns nothing.
            initializer_range=0.1 if narrow else 0.02,
            drop_path_rate=0.0 if narrow else 0.1,
            depths=depths,
            hidden_sizes=widths,
            decoder_hidden_size=decoder,
            num_labels=channels,
            classifier_dropout_prob=0.1,
        )
        if weights is None:
            self.network = SegformerForSemanticSegmentation(config)
            return
        folder = require_segformer(weights, variant, config)
        with _without_report():
            self.network = SegformerForSemanticSegmentation.from_pretrained(
                folder, num_labels=channels, ignore_mismatched_sizes=True, dtype=torch.float32
            )

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,C,H,W logits."""
        logits = self.network(pixel_values=images).logits
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


@contextmanager
def _without_report() -> Iterator[None]:
    """Silence transformers, which warns about a decoder that is meant to be newly initialised."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def require_segformer(source: str, variant: str, wanted: SegformerConfig) -> Path:
    """The folder of weights that a SegFormer `variant` of configuration `wanted` can start from.

    Args:
        source: as configured: a hub id that is on this machine or a folder, optionally pinned.
    """
    if (file := resolve_file(source)) is not None:
        raise ModelError(f"{file} is a file. {_EXPECTED}.")
    folder = resolve(source, "segmenter")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no {path.name}. {_EXPECTED}.")
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged ({error}). Copy the folder again.") from error
    found = found if isinstance(found, dict) else {}
    if found.get("model_type") != "segformer":
        what = f"is of another kind of network ({found.get('model_type') or 'unnamed'})"
        if {"name", "variant"} <= found.keys():
            what = f"is a segmenter that mcpmix trained ({found['name']} {found['variant']})"
        raise ModelError(f"{folder} {what}; SegFormer cannot start from it. {_EXPECTED}.")
    for key in ("depths", "hidden_sizes"):
        there = found.get(key, getattr(SegformerConfig(), key))  # what a file leaves out is the default
        if list(there) != list(getattr(wanted, key)):
            raise ModelError(
                f"{folder} is not of a SegFormer {variant}: its {key} are {list(there)}, expected "
                f"{list(getattr(wanted, key))}. Set segmenter.variant to the one of these weights."
            )
    names = sorted(_tensor_names(folder))
    if not any(name.startswith("segformer.") for name in names):
        few = ", ".join(names[:3]) or "none"
        raise ModelError(f"{folder} holds no tensors of a SegFormer, but others ({few} ...). {_EXPECTED}.")
    return folder


def _tensor_names(folder: Path) -> set[str]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no model.safetensors. {_EXPECTED}.")
    names: set[str] = set()
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                names.update(file.keys())
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(
                f"{path} ({path.stat().st_size} bytes) is damaged or cut off, or not a safetensors file: "
                f"{error}. Copy it again and compare the sizes."
            ) from error
    return names
