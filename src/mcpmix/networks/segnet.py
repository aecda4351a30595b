"""SegNet (Badrinarayanan et al., 2017): an encoder-decoder that unpools to where the maxima were."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Width and number of convolutions of each stage. `small` is ours, for CPUs.
SEGNETS: dict[str, tuple[tuple[int, int], ...]] = {
    "vgg16": ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)),
    "small": ((16, 2), (32, 2), (64, 2), (128, 2)),
}


class SegNet(nn.Module):
    """Encoder of convolutions and maxima, decoder of unpooling and convolutions; no other connections.

    Args:
        stages: width and number of convolutions (at least 1) of each stage of the encoder, from the image
            down. The decoder mirrors them. Sides of images must be multiples of 2 ** len(stages).
        channels: C, of the logits.
    """

    def __init__(self, stages: tuple[tuple[int, int], ...], channels: int = 1) -> None:
        super().__init__()
        inputs = [3, *(width for width, _ in stages[:-1])]
        self.encoder = nn.ModuleList(
            _stage([before] + [width] * count) for before, (width, count) in zip(inputs, stages, strict=True)
        )
        # The last decoder stage keeps its width; the head makes the logits of it.
        outputs = [stages[0][0], *inputs[1:]]
        self.decoder = nn.ModuleList(
            _stage([width] * count + [after])
            for after, (width, count) in reversed(list(zip(outputs, stages, strict=True)))
        )
        self.head = nn.Conv2d(stages[0][0], channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,C,H,W logits; H and W multiples of 2 ** number of stages."""
        maps, places = images, []
        for stage in self.encoder:
            maps, where = F.max_pool2d(stage(maps), 2, return_indices=True)
            places.append(where)
        for stage in self.decoder:
            maps = stage(unpool(maps, places.pop()))
        logits: Tensor = self.head(maps)
        return logits


def _stage(widths: list[int]) -> nn.Sequential:
    """Convolutions from each width to the next, with batch norm."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")  # as in the paper
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def unpool(maps: Tensor, places: Tensor) -> Tensor:
    """Values back to where the maxima of 2 x 2 cells were, zeros elsewhere: B,C,H,W to B,C,2H,2W.

    Not `F.max_unpool2d`, which torch refuses in deterministic mode; cells do not overlap, so nothing is
    written twice.
    """
    batch, channels, height, width = maps.shape
    empty = torch.zeros(batch, channels, 4 * height * width, dtype=maps.dtype, device=maps.device)
    full: Tensor = empty.scatter(2, places.flatten(2), maps.flatten(2))
    return full.reshape(batch, channels, 2 * height, 2 * width)
