"""Contact sheets: many frames in one image."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mcpmix.core.errors import DataError
from mcpmix.data.phantom.renderer import PhantomFrame

_GAP = 2  # pixels between frames
_CONTOUR = (90, 255, 120)


def contact_sheet(
    frames: Sequence[PhantomFrame], columns: int, contours: bool = False
) -> npt.NDArray[np.uint8]:
    """Lay frames out row by row on a dark ground.

    Args:
        frames: At least one frame, all of one size.
        columns: Frames per row, at least 1.
        contours: Whether to draw the outline of each mask, one pixel wide and just outside it.

    Returns:
        An RGB image, (H, W, 3) uint8.

    Raises:
        DataError: If there is no frame, no column, or the sizes differ.
    """
    sizes = sorted({frame.image.shape[:2] for frame in frames})
    if len(sizes) != 1 or columns < 1:
        raise DataError(
            "A contact sheet needs at least one frame, all frames of one size, and at least one column, but "
            f"contact_sheet() got {len(frames)} frames of sizes {sizes} and columns={columns}. "
            "Render all frames with the same size."
        )
    height, width = sizes[0]
    rows = -(-len(frames) // columns)
    sheet = np.full((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3), 24, dtype=np.uint8)
    for index, frame in enumerate(frames):
        top, left = index // columns * (height + _GAP), index % columns * (width + _GAP)
        tile = _with_contour(frame) if contours else frame.image
        sheet[top : top + height, left : left + width] = tile
    return sheet


def _with_contour(frame: PhantomFrame) -> npt.NDArray[np.uint8]:
    inside = np.pad(frame.mask.astype(bool), 1)
    grown = inside[:-2, 1:-1] | inside[2:, 1:-1] | inside[1:-1, :-2] | inside[1:-1, 2:]
    tile = frame.image.copy()
    tile[grown & ~inside[1:-1, 1:-1]] = _CONTOUR
    return tile
