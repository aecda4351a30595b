"""The bank of pairs on the page: what was tried and admitted, the contact sheet, the histogram."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mcpmix.reporting.tiles import Tile, make_tile

_PICTURES = (
    ("alignment.png", "How well the judge finds the lesion under its mask, in synthetic and in real images."),
    ("sheet.png", "Contact sheet of the bank."),
)


def bank_tiles(folder: Path) -> tuple[Tile, ...]:
    """The pictures that synthesis has drawn, as far as they are there, at their own size."""
    tiles = []
    for name, caption in _PICTURES:
        if (folder / name).exists():
            with Image.open(folder / name) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            tiles.append(make_tile(pixels, (), caption, caption, side=max(pixels.shape)))
    return tuple(tiles)


def bank_text(counts: Mapping[str, Any]) -> str:
    """What the manifest of the pairs says, in sentences.

    Args:
        counts: of the manifest.
    """
    images, parents = counts.get("images"), counts.get("parents")
    if "scores" not in counts:
        return f"{images} counterparts of {parents} masks; none was judged, all are used."
    scores, rejected = counts["scores"], counts["rejected"]
    reasons = ", ".join(f"{kind} {number}" for kind, number in rejected.items()) or "none"
    return (
        f"{images} counterparts of {parents} masks were admitted, of {counts['tries']} images tried. "
        f"Rejected, by reason: {reasons}. Mean alignment of the admitted {_figure(scores['alignment'])}, of "
        f"all tried {_figure(scores['alignment_tried'])}; the same judge reaches "
        f"{_figure(scores['alignment_real'])} on real images of groups it has not seen. Mean distance of the "
        "admitted in features, where 1 is as far as two groups are apart: to the source "
        f"{_figure(scores['distance_source'])}, to the nearest other training image "
        f"{_figure(scores['distance_train'])}, to the nearest held-out image "
        f"{_figure(scores['distance_held_out'])}; between counterparts of one mask "
        f"{_figure(scores['diversity'])}."
    )


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
