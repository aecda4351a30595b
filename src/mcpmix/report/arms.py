"""How an arm is called, described and drawn, wherever it appears."""

from collections.abc import Sequence
from dataclasses import dataclass

REFERENCE = "full-sup"
"""The arm that others are compared with."""
METHOD = "mcpmix-rla"
"""The arm whose comparison comes first."""

_LABELS = {
    "full-sup": "Full-Sup",
    "mcpmix": "+ MCPMix",
    "mcpmix-rla": "+ MCPMix + RLA",
    "mcpmix-stepwise": "+ MCPMix, stepwise",
    "mcpmix-cosine": "+ MCPMix, cosine",
    "mixup": "Mixup",
    "cutmix": "CutMix",
    "gridmix": "GridMix",
    "smoothmix": "SmoothMix",
    "augmix": "AugMix",
    "pixmix": "PixMix",
    "puzzlemix": "PuzzleMix",
    "hsmix": "HSMix",
    "diffusemix": "DiffuseMix",
    "append": "Synthetic appended",
}
_DESCRIPTIONS = {
    "full-sup": "real images only",
    "mcpmix": "real images, and mixed ones whose share s of the synthetic image is drawn uniformly",
    "mcpmix-rla": "real images, and mixed ones; the share s and the weight rho of their loss are learnt",
    "mcpmix-stepwise": "real images, and mixed ones whose largest share falls in steps",
    "mcpmix-cosine": "real images, and mixed ones whose largest share falls as a cosine",
    "mixup": "two real images and their masks blended by one random weight",
    "cutmix": "a rectangle of another real image and of its mask pasted in",
    "gridmix": "cells of a grid taken from another real image and its mask",
    "smoothmix": "two real images and their masks blended by a smooth bump",
    "augmix": "real images, and chains of photometric changes with a consistency term",
    "pixmix": "real images mixed with procedural pictures",
    "puzzlemix": "two real images put together along their salient parts, with their masks",
    "hsmix": "superpixels of another real image and of its mask pasted or blended in",
    "diffusemix": "halves of real and synthetic image side by side, with a fractal over them",
    "append": "real and synthetic images as samples of equal rank",
}
# Colours that people with colour-blindness tell apart, and that show on white, on black and on mucosa.
_COLOURS = ("#2b8bd0", "#d9860a", "#0a9e74", "#b0579c", "#8a7a1f", "#6a6fd1", "#c4513f", "#5f7480")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")  # of matplotlib
_SYMBOLS = ("●", "■", "◆", "▲", "▼", "✚", "✖", "⬢")  # the same as text


@dataclass(frozen=True)
class Arm:
    """One arm as a reader sees it.

    Attributes:
        name: key of the strategy.
        label: short name.
        description: what it trains on; empty for strategies unknown here.
        colour: `#rrggbb`.
        marker: a matplotlib marker.
        symbol: the marker as a character.
    """

    name: str
    label: str
    description: str
    colour: str
    marker: str
    symbol: str


def label_of(name: str) -> str:
    """Short name of an arm for readers; unknown names stay as they are."""
    return _LABELS.get(name, name)


def arms_of(names: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of a run in their order; the same list of names always gets the same colours."""
    return tuple(
        Arm(
            name,
            label_of(name),
            _DESCRIPTIONS.get(name, ""),
            _COLOURS[place % len(_COLOURS)],
            _MARKERS[shape % len(_MARKERS)],
            _SYMBOLS[shape % len(_SYMBOLS)],
        )
        # With each round through the colours the shapes move on by one, so that no two arms look alike.
        for place, name in enumerate(names)
        for shape in [place + place // len(_COLOURS)]
    )


def reference_of(names: Sequence[str]) -> str | None:
    """The arm that others are compared with: full supervision, else the first; None for a single arm."""
    if len(names) < 2:
        return None
    return REFERENCE if REFERENCE in names else names[0]


def method_of(names: Sequence[str]) -> str | None:
    """The arm whose comparison comes first: RLA, else the last; None for a single arm."""
    reference = reference_of(names)
    others = [name for name in names if name != reference]
    if reference is None:
        return None
    return METHOD if METHOD in others else others[-1]
