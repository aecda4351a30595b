"""How an arm is named, described and drawn, wherever it appears."""

from collections.abc import Sequence
from dataclasses import dataclass

_REFERENCE = "full-sup"
_METHOD = "mcpmix-rla"
_WORDS = {  # arm to its label, and to what it trains on
    "full-sup": ("Full-Sup", "real images only"),
    "full-sup-strong": (
        "Full-Sup, strong augmentation",
        "real images only, with strong changes of colour, sharpness and window",
    ),
    "mcpmix": (
        "+ MCPMix",
        "real images, and mixed ones whose share s of the synthetic image is drawn uniformly",
    ),
    "mcpmix-rla": (
        "+ MCPMix + RLA",
        "real images, and mixed ones; the share s and the weight rho of their loss are learnt",
    ),
    "mcpmix-stepwise": (
        "+ MCPMix, stepwise",
        "real images, and mixed ones whose largest share falls in steps",
    ),
    "mcpmix-cosine": (
        "+ MCPMix, cosine",
        "real images, and mixed ones whose largest share falls as a cosine",
    ),
    "mixup": ("Mixup", "two real images and their masks blended by one random weight"),
    "cutmix": ("CutMix", "a rectangle of another real image and of its mask pasted in"),
    "gridmix": ("GridMix", "cells of a grid taken from another real image and its mask"),
    "smoothmix": ("SmoothMix", "two real images and their masks blended by a smooth bump"),
    "augmix": ("AugMix", "real images, and chains of photometric changes with a consistency term"),
    "pixmix": ("PixMix", "real images mixed with procedural pictures"),
    "puzzlemix": ("PuzzleMix", "two real images put together along their salient parts, with their masks"),
    "hsmix": ("HSMix", "superpixels of another real image and of its mask pasted or blended in"),
    "diffusemix": (
        "DiffuseMix",
        "halves of real and synthetic image side by side, with a fractal over them",
    ),
    "pseudo-label": ("Pseudo-label", "real images, and unlabelled ones with the masks of a teacher"),
    "pseudo-label-mcpmix": (
        "Pseudo-label + MCPMix",
        "as Pseudo-label, and labelled images mixed with their counterparts",
    ),
    "mean-teacher": (
        "Mean teacher",
        "real images, and unlabelled ones on which the network is to agree with its moving average",
    ),
    "controlpolypnet": (
        "ControlPolypNet",
        "real images, and lesions painted into real surroundings under a mask",
    ),
    "gensrrfi": ("GenSRRFI", "real images, and synthetic ones under synthetic masks"),
    "satsynth": ("SatSynth", "real images, and synthetic ones drawn together with their masks"),
    "append": ("Synthetic appended", "real and synthetic images as samples of equal rank"),
}
# Colours that people with colour-blindness tell apart, and that show on white, on black and on mucosa.
_COLOURS = ("#2b8bd0", "#d9860a", "#0a9e74", "#b0579c", "#8a7a1f", "#6a6fd1", "#c4513f", "#5f7480")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")  # of matplotlib
_SYMBOLS = ("●", "■", "◆", "▲", "▼", "✚", "✖", "⬢")  # the same as text


@dataclass(frozen=True)
class Arm:
    """One arm as a reader sees it; the description is empty for strategies unknown here."""

    name: str
    label: str
    description: str
    colour: str
    marker: str
    symbol: str


def label_of(name: str) -> str:
    """Short name of an arm for readers; unknown names stay as they are."""
    return _WORDS.get(name, (name, ""))[0]


def arms_of(names: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of a run in their order; the same list of names always gets the same colours."""
    arms = []
    for place, name in enumerate(names):
        # With each round through the colours the shapes move on by one, so that no two arms look alike.
        shape = (place + place // len(_COLOURS)) % len(_MARKERS)
        colour = _COLOURS[place % len(_COLOURS)]
        arms.append(Arm(name, *_WORDS.get(name, (name, "")), colour, _MARKERS[shape], _SYMBOLS[shape]))
    return tuple(arms)


def reference_of(names: Sequence[str]) -> str | None:
    """The arm that others are compared with: full supervision, else the first; None for a single arm."""
    if len(names) < 2:
        return None
    return _REFERENCE if _REFERENCE in names else names[0]


def method_of(names: Sequence[str]) -> str | None:
    """The arm whose comparison comes first: RLA, else the last; None for a single arm."""
    others = [name for name in names if name != reference_of(names)]
    if len(names) < 2:
        return None
    return _METHOD if _METHOD in others else others[-1]
