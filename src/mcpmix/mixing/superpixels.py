"""Superpixels of images (SLIC), made once for each sample, and a saliency that needs no network."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.seeding import numpy_rng
from mcpmix.mixing.photometric import Pixels
from mcpmix.mixing.strategy import Batch

_GREY = (0.299, 0.587, 0.114)
_SIDE = 64  # of the map on which saliency is computed
_SURROUNDINGS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)  # half widths of windows, in sides of the image


def superpixels(pixels: np.ndarray, segments: int, compactness: float) -> np.ndarray:
    """SLIC superpixels of one image.

    Args:
        pixels: (H, W, 3) float in [0, 1].
        segments: About how many.
        compactness: Weight of nearness against likeness of colours.

    Returns:
        Labels 0, 1, ... without gaps, (H, W), int.
    """
    # Imported here: it takes as long as a small run, and one strategy needs it.
    from skimage.segmentation import slic

    labels = slic(pixels, n_segments=segments, compactness=compactness, start_label=0)
    compact: np.ndarray = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    return compact


class SuperpixelCache:
    """Superpixels of samples, each made once.

    A sample has `maps` maps, of numbers of superpixels that belong to its id. They are made from the sample
    before augmentation and then moved as augmentation moved its pixels; so one map serves all epochs. A
    batch that cannot tell what its samples were (`Batch.originals` is None) may hold differently augmented
    images under one id: its maps are made anew each time.

    Args:
        fewest: Smallest number of superpixels.
        most: Largest number.
        compactness: As of `superpixels`.
        maps: Maps of each sample, to choose from.
    """

    def __init__(self, fewest: int, most: int, compactness: float, maps: int) -> None:
        self.fewest, self.most, self.compactness, self.maps = fewest, most, compactness, maps
        self._kept: dict[tuple[str, int], np.ndarray] = {}

    def labels(self, batch: Batch, pixels: Pixels, choices: np.ndarray) -> Tensor:
        """Superpixels of the images of a batch.

        Args:
            batch: Of B images.
            pixels: From normalised images to [0, 1].
            choices: Which map of each sample, (B,), int.

        Returns:
            Labels, (B, 1, H, W), int64, on the device of the images; each sample counts from 0.
        """
        names = [(name, int(choice)) for name, choice in zip(batch.ids, choices, strict=True)]
        if batch.originals is None:
            images = pixels.denormalise(batch.images)
            return _stacked([self._make(*pair) for pair in zip(names, images, strict=True)], images)
        missing = [index for index, name in enumerate(names) if name not in self._kept]
        if missing:
            originals = pixels.denormalise(batch.originals.images())
            for index in missing:
                self._kept[names[index]] = self._make(names[index], originals[index])
        maps = _stacked([self._kept[name] for name in names], batch.images)
        return batch.originals.warp(maps.float()).long()

    def _make(self, name: tuple[str, int], image: Tensor) -> np.ndarray:
        segments = int(numpy_rng("superpixels", *name).integers(self.fewest, self.most + 1))
        pixels = image.detach().float().permute(1, 2, 0).cpu().numpy()
        return superpixels(pixels, segments, self.compactness).astype(np.int32)


def _stacked(maps: list[np.ndarray], like: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(maps))[:, None].long().to(like.device)


def centre_surround(pixels: Tensor) -> Tensor:
    """How much each pixel differs from its surroundings, over several scales.

    Args:
        pixels: (B, 3, H, W) in [0, 1].

    Returns:
        (B, 1, H, W), 0 or more: mean absolute difference of grey between the pixel and the windows around it.
    """
    weights = torch.tensor(_GREY, device=pixels.device, dtype=pixels.dtype)[:, None, None]
    height, width = pixels.shape[2:]
    # Sums over superpixels need no single pixels, and wide windows are cheap on a small map.
    small = (min(height, _SIDE), min(width, _SIDE))
    grey = F.adaptive_avg_pool2d((pixels * weights).sum(1, keepdim=True), small)
    radii = sorted({max(1, round(share * min(small))) for share in _SURROUNDINGS})
    contrast = torch.stack([(grey - window_mean(grey, radius)).abs() for radius in radii]).mean(0)
    return F.interpolate(contrast, (height, width), mode="bilinear", align_corners=False)


def window_mean(values: Tensor, radius: int) -> Tensor:
    """Mean over windows of (2 radius + 1)^2 pixels, cut off at the border; (B, C, H, W)."""
    size = 2 * radius + 1
    # All rows of a window are equally long, so that the mean of their means is that of the window; this
    # takes 2 * size additions for each pixel instead of size^2.
    rows = F.avg_pool2d(values, (1, size), stride=1, padding=(0, radius), count_include_pad=False)
    return F.avg_pool2d(rows, (size, 1), stride=1, padding=(radius, 0), count_include_pad=False)
