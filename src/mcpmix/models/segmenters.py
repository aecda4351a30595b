"""Segmentation networks: any module from B,3,H,W images (ImageNet-normalised) to B,1,H,W logits."""

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation

from mcpmix.core.errors import ConfigError, ModelError
from mcpmix.models.sources import resolve

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"

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


class Segformer(nn.Module):
    """SegFormer with one output channel, its logits brought to the input's size."""

    def __init__(self, variant: str, weights: str | None = None) -> None:
        super().__init__()
        if variant not in _SEGFORMER:
            raise ConfigError(f"segmenter.variant: unknown {variant!r}; known: {', '.join(_SEGFORMER)}.")
        depths, widths, decoder = _SEGFORMER[variant]
        narrow = variant == "nano"
        config = SegformerConfig(
            # From the usual 0.02, made for wide layers, a narrow network learns nothing for long.
            initializer_range=0.1 if narrow else 0.02,
            drop_path_rate=0.0 if narrow else 0.1,
            depths=depths,
            hidden_sizes=widths,
            decoder_hidden_size=decoder,
            num_labels=1,
            classifier_dropout_prob=0.1,
        )
        if weights is None:
            self.network = SegformerForSemanticSegmentation(config)
        else:
            # The decoder of a pretrained encoder, or of another number of classes, starts anew.
            self.network = SegformerForSemanticSegmentation.from_pretrained(
                resolve(weights, "segmenter"), num_labels=1, ignore_mismatched_sizes=True
            )

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits."""
        logits = self.network(pixel_values=images).logits
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


SEGMENTERS: dict[str, Callable[..., nn.Module]] = {"segformer": Segformer}


def build_segmenter(name: str, variant: str, weights: str | None = None) -> nn.Module:
    """A network by name.

    Raises:
        ConfigError: the name or variant is unknown; the message lists what there is.
    """
    if name not in SEGMENTERS:
        nearest = difflib.get_close_matches(name, SEGMENTERS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(SEGMENTERS)}"
        raise ConfigError(f"segmenter.name: unknown {name!r}: {hint}")
    return SEGMENTERS[name](variant, weights)


def save_segmenter(network: nn.Module, folder: Path, description: dict[str, Any]) -> None:
    """Write config.json (name, variant, size and what else `description` says) and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(description, indent=1))
    save_file({k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}, folder / _WEIGHTS)


def load_network(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Read back what `save_segmenter` wrote: the network in evaluation mode and its description.

    Raises:
        ModelError: the folder has no segmenter, or a damaged one.
    """
    try:
        description: dict[str, Any] = json.loads((folder / _CONFIG).read_text())
        state = load_file(folder / _WEIGHTS)
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no segmenter ({_CONFIG} and {_WEIGHTS} expected): {error}") from error
    network = build_segmenter(description["name"], description["variant"])
    network.load_state_dict(state)
    return network.eval(), description
