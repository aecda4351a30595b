"""Trains a ControlNet without any label: it learns to put what rises from the wall under a mask.

From scratch, a few hundred steps on two dozen annotated frames do not teach a ControlNet that something is to
be under the mask. For that it needs many more regions with something in them than anyone annotates. What
rises from its surroundings along its whole outline is such a thing, and depth alone shows it. Fine-tuning
then starts from there.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from skimage.measure import regionprops
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.device import setup
from mcpmix.core.errors import DataError
from mcpmix.core.files import written
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.core.training import fit, plateau
from mcpmix.generator.base import latent_cache
from mcpmix.generator.conditions import condition
from mcpmix.networks.diffusion import (
    Batch,
    ControlNet,
    DiffusionBase,
    embed_prompts,
    noise_schedule,
    training_loss,
)
from mcpmix.networks.generator import control_from_base

_CONDITION_WIDTHS = (8, 16, 24, 48)  # of the embedding of mask and depth
_CLEAR = 0.004  # rise of a region that is trained with
_LEFT_OUT = 0.1  # share of masks, of depths and of texts
_LESION_WEIGHT = 30.0  # with 8, nothing was under the mask after a thousand steps
_MIRRORED = 2  # the first two views of the latents are the images and their mirror images

_LEVELS = np.linspace(0.55, 0.985, 24)  # quantiles of relief at which regions are cut out
_SMALLEST, _LARGEST = 0.004, 0.2  # shares of the image
_SOLIDITY = 0.85  # of the convex hull: folds are crescents, and are left out
_SURROUNDINGS = 0.08  # of the side: what is smoothed over to know the wall without what stands on it
_LEAST_CLEAR = 0.2  # quantile of the outline that must still rise: nearly all of it
_NO_DEPTH = 0.01  # outside the field of view
_VIEW_RIM = 3  # pixels inside the field of view where depth is not trusted

Mask = npt.NDArray[np.bool_]


def train_control(
    images: np.ndarray,
    depths: np.ndarray,
    texts: Sequence[Sequence[str]],
    base: DiffusionBase,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    ema_decay: float = 0.99,
    progress: Progress = SILENT,
) -> None:
    """Train on the clearest raised region of each image; save the averaged weights to `folder/control`.

    Args:
        images: N,S,S,3 uint8.
        depths: N,S,S in [0, 1], near = 1.
        texts: as those of `train_base`.
        base: what the ControlNet steers; stays as it is.
        folder: for regions, latents, checkpoint and result.
        ema_decay: of the weight average that is saved.

    Raises:
        DataError: nothing rises clearly in any of the images.
    """
    torch.manual_seed(0)
    examples = Examples(images, depths, texts, base, folder, progress)
    base.unet.requires_grad_(False)
    control = control_from_base(base, 2, _CONDITION_WIDTHS)
    average = AveragedModel(control, multi_avg_fn=get_ema_multi_avg_fn(ema_decay))
    schedule = noise_schedule(base.scheduler)
    optimiser = torch.optim.AdamW(control.parameters(), 1.5e-3)

    def loss(index: int) -> Tensor:
        batch = examples.batch(index, batch_size, schedule.timesteps)
        return training_loss(base.unet, control, batch, schedule, lesion_weight=_LESION_WEIGHT)

    fit(
        loss,
        control,
        optimiser,
        plateau,
        steps,
        folder / "control.checkpoint",
        average=average,
        progress=progress,
    )
    averaged: ControlNet = average.module
    averaged.to(torch.float16).save_pretrained(folder / "control")


class Examples:
    """Latents, regions, depths and texts of the images in which something rises clearly."""

    def __init__(
        self,
        images: np.ndarray,
        depths: np.ndarray,
        texts: Sequence[Sequence[str]],
        base: DiffusionBase,
        folder: Path,
        progress: Progress,
    ) -> None:
        self.base, self.depths, self.texts = base, depths, texts
        self.latents = latent_cache(
            base.vae, images, folder, setup("cpu", "float32", 0, deterministic=True), progress
        )
        self.masks = raised_regions(depths, folder / "regions.npy", progress)
        self.usable = np.flatnonzero(self.masks.any(axis=(1, 2)))
        if not len(self.usable):
            raise DataError(f"Nothing rises clearly in any of the {len(images)} images; use more of them.")

    def batch(self, index: int, size: int, timesteps: int) -> Batch:
        """The examples of step `index`."""
        rng = numpy_rng("control batch", index)
        chosen = rng.choice(self.usable, size)
        view = int(rng.integers(_MIRRORED))
        kinds = rng.integers(len(self.texts), size=size)
        texts = [self.texts[kind][number] for kind, number in zip(kinds, chosen, strict=True)]
        kept = torch.from_numpy(rng.random((size, 2)) >= _LEFT_OUT).float()[:, :, None, None]
        worded = rng.random(size) >= _LEFT_OUT
        clean = torch.from_numpy(self.latents[view, chosen]).float()
        masks = torch.from_numpy(self.masks[chosen]).float()
        depths = torch.from_numpy(self.depths[chosen]).float()
        shown = condition(masks, depths, "both", "fill") * kept
        return Batch(
            clean=clean,
            noise=torch.randn(clean.shape, generator=torch_rng("control noise", index)),
            t=torch.from_numpy(rng.integers(timesteps, size=size)),
            shown=shown.flip(-1) if view else shown,
            masks=masks.flip(-1) if view else masks,
            text=embed_prompts(
                self.base, [text if use else "" for text, use in zip(texts, worded, strict=True)]
            ),
        )


# --- regions that stand out --------------------------------------------------------------------------------


def raised_regions(depths: np.ndarray, path: Path, progress: Progress = SILENT) -> Mask:
    """The clearest raised region of each depth map, N,S,S, empty where none is clear; kept in a file."""
    if not path.exists():
        masks = np.zeros(depths.shape, bool)
        with progress.track("regions", len(depths)) as advance:
            for mask, depth in zip(masks, depths, strict=True):
                region, rise = raised_region(depth)
                if rise >= _CLEAR:
                    mask[:] = region
                advance()
        with written(path) as temporary, temporary.open("wb") as file:
            np.save(file, np.packbits(masks, axis=-1))
    return np.unpackbits(np.load(path), axis=-1, count=depths.shape[-1]).astype(bool)


def raised_region(depth: npt.NDArray[np.floating]) -> tuple[Mask, float]:
    """The clearest region that rises from the wall on nearly all sides.

    Args:
        depth: S,S relative inverse depth in [0, 1], near = 1, 0 outside the field of view.

    Returns:
        Its mask, S,S, and how steeply its outline rises relative to the depth there; an empty mask and 0
        where there is none.
    """
    depth = depth.astype(np.float32)
    view = ndimage.binary_erosion(depth > _NO_DEPTH, iterations=_VIEW_RIM, border_value=1)
    reach = _SURROUNDINGS * len(depth)
    seen = ndimage.gaussian_filter(view.astype(np.float32), reach)
    wall = ndimage.gaussian_filter(depth * view, reach) / np.maximum(seen, 1e-3)
    relief = ndimage.gaussian_filter(np.where(view, depth - wall, -1.0), 0.7).astype(np.float32)
    smooth = ndimage.gaussian_filter(depth, 1.0)
    slopes = np.stack(np.gradient(smooth))
    best, best_rise = np.zeros(depth.shape, bool), 0.0
    for window, shape in _candidates(relief, view):
        outline = shape & ~ndimage.binary_erosion(shape)
        inward = np.stack(np.gradient(ndimage.gaussian_filter(shape.astype(np.float32), 1.5)))
        steepness = (slopes[:, *window] * inward).sum(axis=0) / (np.linalg.norm(inward, axis=0) + 1e-6)
        clearness = np.quantile(steepness[outline], _LEAST_CLEAR) / (0.02 + smooth[window][outline].mean())
        rise = float(clearness * (shape.sum() / depth.size) ** 0.25)  # of two equally clear ones the larger
        if rise > best_rise:
            best, best_rise = np.zeros(depth.shape, bool), rise
            best[window] = shape
    return best, best_rise


def _candidates(relief: npt.NDArray[np.float32], view: Mask) -> Iterator[tuple[tuple[slice, slice], Mask]]:
    """Compact regions of high relief, cut at many levels, each in a window one pixel larger all around."""
    size = len(relief)
    if not view.any():
        return
    for level in np.quantile(relief[view], _LEVELS):
        labels, _ = ndimage.label((relief > level) & view)
        for region in regionprops(labels):
            top, left, bottom, right = region.bbox
            if min(top, left) == 0 or max(bottom, right) == size:
                continue
            if not _SMALLEST <= region.area / size**2 <= _LARGEST or region.solidity < _SOLIDITY:
                continue
            window = slice(top - 1, bottom + 1), slice(left - 1, right + 1)
            yield window, np.pad(ndimage.binary_fill_holes(region.image), 1)
