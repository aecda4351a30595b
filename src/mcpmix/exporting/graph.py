"""What an exported file computes: all that lies between the pixels of an image and the probabilities."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.data.transforms import normalise

_ONE = 2.0**22  # Pillow keeps the weights of 8-bit images as multiples of 1 / _ONE
_BRIGHTEST = 255


class WholeSegmenter(nn.Module):
    """A segmenter with its preprocessing, as `mcpmix.inference.Predictor` runs it, in tensor operations only.

    Args:
        network: from normalised 1,3,S,S images to 1,1,S,S logits.
        size: the side S it was trained at, in pixels.
    """

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, image: Tensor) -> Tensor:
        """An image to its probabilities of lesion.

        Args:
            image: (H, W, 3) RGB, uint8; or float32 in [0, 1], which is rounded to 256 levels: files and
                training have no others.

        Returns:
            (H, W) float32.
        """
        levels = image.permute(2, 0, 1).double()
        if image.is_floating_point():
            levels = torch.floor(levels * _BRIGHTEST + 0.5).clamp(0, _BRIGHTEST)
        small = resize_levels(levels, self.size).float()[None] / _BRIGHTEST
        logits = self.network(normalise(small)).float()
        full = F.interpolate(logits, image.shape[:2], mode="bilinear", align_corners=False)
        return torch.sigmoid(full)[0, 0]


def resize_levels(levels: Tensor, size: int) -> Tensor:
    """Grey levels at another size, bit for bit as `mcpmix.data.sample.resize_image` gives them with Pillow.

    Equality matters: a grey level more or less moves the outline of a mask. Both passes are weighted sums of
    whole numbers below 2 ** 53, which float64 adds exactly in any order, on any machine.

    Args:
        levels: (C, H, W) float64, whole numbers in 0..255.
        size: side of the result in pixels.

    Returns:
        (C, size, size) float64, whole numbers in 0..255.
    """
    narrow = _rounded(levels @ _weights(levels.shape[2], size).T)
    return _rounded(_weights(levels.shape[1], size) @ narrow)


def _rounded(sums: Tensor) -> Tensor:
    return torch.floor((sums + _ONE / 2) / _ONE).clamp(0, _BRIGHTEST)


def _weights(length: int, size: int) -> Tensor:
    """What each of `length` pixels counts in each of `size` new ones: (size, length) whole numbers, float64.

    A triangle about the new pixel's centre, as wide as two pixels of the coarser grid. The operations are in
    Pillow's order.
    """
    places = torch.arange(length, dtype=torch.float64)
    ratio = (places[-1:] + 1) / size  # from a tensor: an exported graph has no other numbers that vary
    reach = ratio.clamp(min=1)
    centres = (torch.arange(size, dtype=torch.float64) + 0.5) * ratio
    distances = (places - centres[:, None] + 0.5) * (1 / reach)
    triangle = (1 - distances.abs()).clamp(min=0)
    shares = triangle / triangle.sum(dim=1, keepdim=True)
    return torch.floor(shares * _ONE + 0.5)
