"""SegFormer (Xie et al., 2021) from transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.utils import logging

from mcpmix.core.errors import ConfigError
from mcpmix.models.segmenters.segformer_folder import require_segformer

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
    """SegFormer with one output channel, its logits brought to the input's size.

    Args:
        variant: "nano", "b0" ... "b5".
        weights: "embedded" (nano), a hub id that is on this machine, or a local folder; None: from scratch.

    Raises:
        ConfigError: there is no such variant.
        ModelError: the weights are not here, damaged, or of another network or variant.
    """

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
            with _without_report():
                self.network = SegformerForSemanticSegmentation.from_pretrained(
                    require_segformer(weights, variant, config),
                    num_labels=1,
                    ignore_mismatched_sizes=True,
                    dtype=torch.float32,
                )

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits."""
        logits = self.network(pixel_values=images).logits
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


@contextmanager
def _without_report() -> Iterator[None]:
    """Silences transformers while weights are loaded: it warns of what is meant to start anew."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def save_headless(network: Segformer, folder: Path) -> None:
    """Save a start for others in float16: without the last layer, which each task learns anew."""
    state = {
        name: value.detach().to(torch.float16)
        for name, value in network.network.state_dict().items()
        if not name.startswith("decode_head.classifier.")
    }
    network.network.save_pretrained(folder, state_dict=state)
