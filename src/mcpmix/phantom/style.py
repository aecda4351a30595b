"""The look of a phantom patient: mucosa, vessels, device and lesion habit, drawn once per patient."""

from dataclasses import dataclass

import numpy as np

from mcpmix.core.seeds import numpy_rng

Colour = tuple[float, float, float]

# Linear-light reflectance of the wall (red, green, blue) and how often a patient has it.
MUCOSA: dict[str, tuple[Colour, float]] = {
    "pale": ((0.80, 0.38, 0.31), 0.24),
    "orange": ((0.80, 0.27, 0.10), 0.24),
    "red": ((0.72, 0.13, 0.085), 0.20),
    "brown": ((0.48, 0.19, 0.085), 0.12),
    "green": ((0.30, 0.46, 0.32), 0.10),
    "blue": ((0.30, 0.42, 0.50), 0.10),
}
NARROW_BAND = ("green", "blue")
VIEWS = ("octagonal", "round", "full")
LIGHTS = ("dim", "normal", "bright")
VESSELS = ("sparse", "moderate", "dense")
FOCUS = ("sharp", "soft")
SURFACES = ("clean", "mucus")
LESION_COLOURS = ("reddish", "pale", "dark", "similar")
ELEVATIONS = ("raised", "flat")
LESION_SIZES = ("small", "large")
LESION_TEXTURES = ("smooth", "granular", "pitted")


@dataclass(frozen=True)
class PatientStyle:
    """Everything that is the same in all frames of a patient.

    Lengths in the image are in half-widths of the frame (the frame spans -1..1); lengths in the scene are in
    radii of the tube; colours are linear-light reflectances or gains.
    """

    mucosa: str  # name of the mucosa colour, a key of `MUCOSA`
    wall: Colour  # reflectance of the wall, three values in (0, 1)
    mottle: float  # strength of slow colour variation over the wall, 0..0.3
    gloss: float  # how readily wet highlights appear, 0..1
    vessels: str  # name of the vessel density
    vessel_count: int  # number of vessel trunks on one period of the wall
    vessel_strength: float  # absorption of a vessel, 0..1
    vessel_wander: float  # tortuosity of vessels, radians per step
    view: str  # shape of the field of view
    view_size: tuple[float, float]  # half-widths (x, y) of the field of view, or its radius first
    view_cut: float  # length of the cut corners of an octagonal view
    view_shift: float  # sideways shift of the field of view
    opening: float  # tangent of half the horizontal viewing angle
    light: str  # name of the light level
    exposure: float  # brightness of the well-lit wall before the tone curve
    # exponent of the light's loss with squared distance; 1 is the inverse-square law, less is what devices
    # that lift the shadows show
    falloff: float
    ambient: float  # share of light that ignores the surface's tilt, 0..1
    vignette: float  # loss of light in the corners, 0..1
    focus: str  # name of the sharpness
    blur: float  # blur of optics and sensor, standard deviation in half-widths
    white_balance: Colour  # gains of the three channels
    gamma: float  # exponent from linear light to pixel values
    contrast: float  # slope about mid-grey
    saturation: float  # 1 leaves colours as they are
    noise: float  # standard deviation of sensor noise, in units of the full range
    surface: str  # name of the state of the surface
    mucus: float  # share of the wall under mucus, 0..1
    bubbles: float  # mean number of bubbles in a frame
    fold_spacing: float  # distance of neighbouring folds
    fold_height: float  # how far folds reach into the lumen
    fold_sharpness: float  # how narrow the crests of folds are, 1..4
    fold_lobes: float  # how much folds break into three haustral arcs, 0..1
    lesion_colour: str  # name of the lesion's usual colour relative to the wall
    lesion_contrast: float  # usual amount of colour contrast, 0..1
    lesion_texture: str  # name of the lesion's surface texture
    lesion_grain: float  # strength of that texture, 0..1


def patient_style(seed: int, patient: int) -> PatientStyle:
    """Draw the style of a patient; it depends on the two arguments and on nothing else."""
    rng = numpy_rng("phantom", seed, "patient", patient)
    mucosa = _pick(rng, tuple(MUCOSA), [share for _, share in MUCOSA.values()])
    tissue = _draw_tissue(rng, mucosa)
    return PatientStyle(mucosa=mucosa, **tissue, **_draw_device(rng), **_draw_lesion_habit(rng, mucosa))  # type: ignore[arg-type]


def _draw_tissue(rng: np.random.Generator, mucosa: str) -> dict[str, object]:
    base = np.array(MUCOSA[mucosa][0])
    wall = np.clip(base * np.exp(rng.normal(0.0, 0.07, 3)) * rng.uniform(0.9, 1.1), 0.05, 0.92)
    vessels = _pick(rng, VESSELS)
    low, high = {"sparse": (3, 7), "moderate": (9, 16), "dense": (20, 34)}[vessels]
    surface = _pick(rng, SURFACES, [0.6, 0.4])
    wet = surface == "mucus"
    return {
        "wall": (float(wall[0]), float(wall[1]), float(wall[2])),
        "mottle": rng.uniform(0.05, 0.22),
        "gloss": rng.uniform(0.15, 1.0),
        "vessels": vessels,
        "vessel_count": int(rng.integers(low, high)),
        "vessel_strength": rng.uniform(0.35, 0.8),
        "vessel_wander": rng.uniform(0.06, 0.2),
        "surface": surface,
        "mucus": rng.uniform(0.06, 0.22) if wet else 0.0,
        "bubbles": rng.uniform(2.0, 9.0) if wet else rng.uniform(0.0, 0.6),
        "fold_spacing": rng.uniform(0.8, 1.6),
        "fold_sharpness": rng.uniform(1.2, 3.6),
        "fold_height": rng.uniform(0.18, 0.45),
        "fold_lobes": rng.uniform(0.2, 0.9),
    }


def _draw_device(rng: np.random.Generator) -> dict[str, object]:
    view = _pick(rng, VIEWS, [0.45, 0.3, 0.25])
    light = _pick(rng, LIGHTS, [0.28, 0.44, 0.28])
    low, high = {"dim": (0.6, 0.85), "normal": (1.1, 1.5), "bright": (1.8, 2.5)}[light]
    focus = _pick(rng, FOCUS, [0.6, 0.4])
    gains = np.exp(rng.normal(0.0, 0.06, 3))
    size = rng.uniform(0.9, 0.99)
    return {
        "view": view,
        "view_size": (size, rng.uniform(0.86, 0.99) if view == "octagonal" else size),
        "view_cut": rng.uniform(0.3, 0.6),
        "view_shift": rng.uniform(-0.05, 0.05),
        "opening": rng.uniform(0.85, 1.25),
        "light": light,
        "exposure": rng.uniform(low, high),
        "falloff": rng.uniform(0.55, 0.9),
        "ambient": rng.uniform(0.06, 0.22),
        "vignette": rng.uniform(0.05, 0.55),
        "focus": focus,
        "blur": rng.uniform(0.007, 0.010) if focus == "sharp" else rng.uniform(0.016, 0.024),
        "white_balance": (float(gains[0]), float(gains[1]), float(gains[2])),
        "gamma": rng.uniform(0.52, 0.7),
        "contrast": rng.uniform(0.9, 1.2),
        "saturation": rng.uniform(0.8, 1.15),
        "noise": rng.uniform(0.004, 0.022),
    }


def _draw_lesion_habit(rng: np.random.Generator, mucosa: str) -> dict[str, object]:
    # Redness is not a cue under narrow-band light, where neoplasia turns dark or brown.
    weights = [0.0, 0.25, 0.5, 0.25] if mucosa in NARROW_BAND else [0.4, 0.22, 0.18, 0.2]
    colour = _pick(rng, LESION_COLOURS, weights)
    return {
        "lesion_colour": colour,
        "lesion_contrast": rng.uniform(0.15, 0.28) if colour == "similar" else rng.uniform(0.25, 1.0),
        "lesion_texture": _pick(rng, LESION_TEXTURES),
        "lesion_grain": rng.uniform(0.15, 1.0),
    }


def _pick(rng: np.random.Generator, names: tuple[str, ...], weights: list[float] | None = None) -> str:
    edges = np.cumsum(weights if weights is not None else np.ones(len(names)))
    return names[int(np.searchsorted(edges, rng.uniform(0.0, edges[-1]), side="right"))]
