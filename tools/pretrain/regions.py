"""Finds what stands out from the wall, in depth alone: regions that no one has to label.

A ControlNet has to learn that something is under a mask. For that it needs regions with something in them,
and many more than anyone annotates. What rises from its surroundings along its whole outline is such a thing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from skimage.measure import regionprops

_LEVELS = np.linspace(0.55, 0.985, 24)  # quantiles of relief at which regions are cut out
_SMALLEST, _LARGEST = 0.004, 0.2  # shares of the image
_SOLIDITY = 0.85  # of the convex hull: folds are crescents, and are left out
_SURROUNDINGS = 0.08  # of the side: what is smoothed over to know the wall without what stands on it
_LEAST_CLEAR = 0.2  # quantile of the outline that must still rise: nearly all of it
_NO_DEPTH = 0.01  # outside the field of view
_VIEW_RIM = 3  # pixels inside the field of view where depth is not trusted


Window: TypeAlias = tuple[slice, slice]


@dataclass(frozen=True)
class RaisedRegion:
    """A region that stands out.

    Attributes:
        mask: S,S bool.
        rise: how steeply its outline rises, relative to the depth there; larger is clearer.
    """

    mask: npt.NDArray[np.bool_]
    rise: float


def raised_region(depth: npt.NDArray[np.floating]) -> RaisedRegion | None:
    """The clearest region that rises from the wall on nearly all sides; None where there is none.

    Args:
        depth: S,S relative inverse depth in [0, 1], near = 1, 0 outside the field of view.
    """
    depth = depth.astype(np.float32)
    relief, view = _relief(depth)
    smooth = ndimage.gaussian_filter(depth, 1.0)
    slopes = np.stack(np.gradient(smooth))
    best: tuple[float, Window, npt.NDArray[np.bool_]] | None = None
    for window, shape in _candidates(relief, view):
        outline = shape & ~ndimage.binary_erosion(shape)
        inward = np.stack(np.gradient(ndimage.gaussian_filter(shape.astype(np.float32), 1.5)))
        steepness = (slopes[:, *window] * inward).sum(axis=0) / (np.linalg.norm(inward, axis=0) + 1e-6)
        clearness = np.quantile(steepness[outline], _LEAST_CLEAR) / (0.02 + smooth[window][outline].mean())
        rise = float(clearness * (shape.sum() / depth.size) ** 0.25)  # of two equally clear ones the larger
        if rise > (best[0] if best else 0.0):
            best = rise, window, shape
    if best is None:
        return None
    mask = np.zeros(depth.shape, bool)
    mask[best[1]] = best[2]
    return RaisedRegion(mask, best[0])


def _relief(depth: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Depth without that of the surroundings, and where it can be trusted."""
    inside = depth > _NO_DEPTH
    view = ndimage.binary_erosion(inside, iterations=_VIEW_RIM, border_value=1)
    reach = _SURROUNDINGS * len(depth)
    seen = ndimage.gaussian_filter(view.astype(np.float32), reach)
    wall = ndimage.gaussian_filter(depth * view, reach) / np.maximum(seen, 1e-3)
    relief = ndimage.gaussian_filter(np.where(view, depth - wall, -1.0), 0.7)
    return relief.astype(np.float32), view


def _candidates(
    relief: npt.NDArray[np.float32], view: npt.NDArray[np.bool_]
) -> Iterator[tuple[Window, npt.NDArray[np.bool_]]]:
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
