"""HSMix: pasting and blending the superpixels of two images."""

from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.seeds import numpy_rng, numpy_stream
from mcpmix.data.augment import LUMA, to_pixels
from mcpmix.mixing.partner_mixes import blend, require_partners
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require

_SIDE = 64  # of the map on which saliency is computed
_SURROUNDINGS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)  # half widths of windows, in sides of the image
_TINY = 1e-4
_SPAN = 1e-5


@final
class HSMix(FixedStrategy):
    """Mix each image with a partner twice: superpixels pasted (hard), and superpixels blended (soft).

    Hard: each superpixel of the partner is pasted with probability `select`. Soft: on the superpixels of the
    hard image, the partner's weight is constant; it follows the share of the partner in the saliency of both,
    stretched over the regions of an image to [0, 1], or is drawn from U(0, 1). Masks are mixed with the same
    weights: hard targets for the hard image, soft ones for the soft image. Training does not use the real
    images themselves, as published.

    SLIC computes the superpixels once for each sample, and they move along with augmentation. Each sample has
    `maps` superpixel maps with different numbers of superpixels: a new draw in each step would make SLIC part
    of every step. Saliency is the difference from the surroundings at several scales instead of OpenCV's
    measure. The published code scrambles pixels before SLIC; here superpixels follow the edges of the image,
    as the paper describes.

    Cost: two images for each one.

    Args:
        fewest: Smallest number of superpixels of an image, 1 or more: few for one large lesion, many for
            small ones.
        most: Largest number, `fewest` or more.
        select: Probability that a superpixel of the partner is pasted, in [0, 1].
        compactness: SLIC's weight of nearness against colour, above 0.
        variant: Which of the two images to train on.
        weights: Where the soft weights come from: "saliency", or "random" as in the paper's simpler version.
        region: "sum" adds saliency over a region, as the published code does, so that larger regions have
            more weight; "mean" averages it.
        maps: Superpixel maps of each sample, 1 or more.
    """

    needs_pairs: ClassVar[bool] = False
    ahead: ClassVar[bool] = True
    search: ClassVar[Search] = {"fewest": (30, 80), "most": (80, 400), "select": (0.2, 0.5)}

    def __init__(
        self,
        fewest: int = 30,
        most: int = 80,
        select: float = 0.2,
        compactness: float = 8.0,
        variant: Literal["both", "hard", "soft"] = "both",
        weights: Literal["saliency", "random"] = "saliency",
        region: Literal["sum", "mean"] = "sum",
        maps: int = 4,
    ) -> None:
        super().__init__()
        checks = {
            f"fewest is {fewest} and most is {most}; expected 1 <= fewest <= most": 1 <= fewest <= most,
            f"select is {select}; expected a probability in [0, 1]": 0 <= select <= 1,
            f"compactness is {compactness}; expected a value above 0": compactness > 0,
            f"variant is {variant!r}; expected both, hard or soft": variant in ("both", "hard", "soft"),
            f"weights is {weights!r}; expected saliency or random": weights in ("saliency", "random"),
            f"region is {region!r}; expected sum or mean": region in ("sum", "mean"),
            f"maps is {maps}; expected 1 or more": maps >= 1,
        }
        require("HSMix", checks)
        self.fewest, self.most, self.compactness, self.maps = fewest, most, compactness, maps
        self.select, self.variant, self.weights, self.region = select, variant, weights, region
        self.kept: dict[tuple[str, int], np.ndarray] = {}  # superpixel maps by sample and number

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """Hard and soft images with their masks, each with half of the weight, or one of them."""
        require_partners(batch, "HSMix")
        draws, count = numpy_stream(rng), len(batch.images)
        labels = self.labels(batch, draws.integers(self.maps, size=count))
        partners = torch.from_numpy(draws.permutation(count)).to(labels.device)
        pasted = self.pasted(labels[partners], draws)
        shares = {"hard": pasted.to(batch.images)}
        if self.variant != "hard":
            # The partner's superpixels where it is pasted, numbered after the own ones, which stay elsewhere.
            regions = torch.where(pasted, labels[partners] + labels.max() + 1, labels)
            shares["soft"] = self.soft_share(batch.images, partners, regions, draws)
        chosen = ("hard", "soft") if self.variant == "both" else (self.variant,)
        self.note(**{f"partner_share_{name}": float(shares[name].mean()) for name in chosen})
        terms = []
        for name in chosen:
            images, masks = (blend(v, v[partners], 1.0 - shares[name]) for v in (batch.images, batch.masks))
            terms.append(Term(images, masks, 1.0 / len(chosen), name))
        return terms

    def labels(self, batch: Batch, choices: np.ndarray) -> Tensor:
        """Superpixels of the images of a batch.

        Maps are made from the samples before augmentation and then moved as augmentation moved the pixels, so
        that one map serves all epochs. A batch that cannot tell what its samples were may hold differently
        augmented images under one id: its maps are recomputed each time. `choices`, (B,), int, says which map
        of each sample.

        Returns:
            Labels, (B, 1, H, W), int64, on the device of the images; each sample counts from 0.
        """
        names = [(name, int(choice)) for name, choice in zip(batch.ids, choices, strict=True)]
        if batch.originals is None:
            images = to_pixels(batch.images)
            maps = [self._make(name, image) for name, image in zip(names, images, strict=True)]
        else:
            missing = [index for index, name in enumerate(names) if name not in self.kept]
            if missing:
                images = to_pixels(batch.originals.images())
                self.kept.update({names[i]: self._make(names[i], images[i]) for i in missing})
            maps = [self.kept[name] for name in names]
        labels = torch.from_numpy(np.stack(maps))[:, None].long().to(batch.images.device)
        return labels if batch.originals is None else batch.originals.warp(labels.float()).long()

    def _make(self, name: tuple[str, int], image: Tensor) -> np.ndarray:
        segments = int(numpy_rng("superpixels", *name).integers(self.fewest, self.most + 1))
        pixels = image.detach().float().permute(1, 2, 0).cpu().numpy()
        return superpixels(pixels, segments, self.compactness).astype(np.int32)

    def pasted(self, labels: Tensor, draws: np.random.Generator) -> Tensor:
        """Where the partner is pasted: whole superpixels of it, bool like its labels (B, 1, H, W)."""
        count = int(labels.max()) + 1
        chosen = draws.random((len(labels), count)) < self.select
        return per_region(torch.from_numpy(chosen).to(labels.device), labels)

    def soft_share(
        self, images: Tensor, partners: Tensor, regions: Tensor, draws: np.random.Generator
    ) -> Tensor:
        """The partner's weight, constant in each region, (B, 1, H, W) in [0, 1]."""
        if self.weights == "random":
            drawn = torch.from_numpy(draws.random((len(regions), int(regions.max()) + 1)))
            return per_region(drawn.to(images), regions)
        saliency = centre_surround(to_pixels(images))
        ratio = saliency[partners] / (saliency + saliency[partners] + _TINY)
        return stretched_over_regions(ratio, regions, average=self.region == "mean")


def superpixels(pixels: np.ndarray, segments: int, compactness: float) -> np.ndarray:
    """About so many SLIC superpixels of an image (H, W, 3) in [0, 1]: labels (H, W) without gaps, from 0."""
    # Imported here: it takes as long as a small run, and one strategy needs it.
    from skimage.segmentation import slic

    labels = slic(pixels, n_segments=segments, compactness=compactness, start_label=0)
    compact: np.ndarray = np.unique(labels, return_inverse=True)[1].reshape(labels.shape)
    return compact


def centre_surround(pixels: Tensor) -> Tensor:
    """How much pixels of images (B, 3, H, W) in [0, 1] differ from their surroundings, over several scales.

    Returns:
        (B, 1, H, W), 0 or more: mean absolute difference of grey between the pixel and the windows around it.
    """
    weights = torch.tensor(LUMA, device=pixels.device, dtype=pixels.dtype)[:, None, None]
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


def per_region(values: Tensor, labels: Tensor) -> Tensor:
    """Values of regions (B, R) as a map, (B, 1, H, W)."""
    return values.gather(1, labels.flatten(1)).reshape(labels.shape)


def stretched_over_regions(ratio: Tensor, regions: Tensor, *, average: bool) -> Tensor:
    """A map (B, 1, H, W), summed or averaged over regions and stretched to [0, 1] within each sample.

    Regions are labels (B, 1, H, W), int64; the result is constant in each of them.
    """
    flat, size = regions.flatten(1), ratio[0].numel()
    empty = torch.zeros(len(flat), int(regions.max()) + 1, dtype=torch.float64, device=ratio.device)
    area = empty.scatter_add(1, flat, torch.ones_like(flat, dtype=torch.float64))
    value = empty.scatter_add(1, flat, ratio.flatten(1).double()) / (area.clamp(min=1) if average else size)
    lowest = value.masked_fill(area == 0, torch.inf).amin(1, keepdim=True)
    highest = value.masked_fill(area == 0, -torch.inf).amax(1, keepdim=True)
    return per_region(((value - lowest) / (highest - lowest + _SPAN)).to(ratio), regions)
