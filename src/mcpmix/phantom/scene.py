"""What is drawn at random: the look of a patient, once; then, for each frame, pose, folds and one lesion."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.core.seeds import numpy_rng

Floats = npt.NDArray[np.float32]
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
LESION_TEXTURES = ("smooth", "granular", "pitted")
SHAPES = ("sessile", "pedunculated", "flat", "irregular")
SMALL_AREA = 0.07  # share of the frame below which a lesion is called small
_AREA_RANGE = (0.023, 0.235)
MAX_TRIANGLE = 0.12
_MARGIN = 0.04  # kept free between a lesion and the edge of the view, in half-widths
_TRIES = 60


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


# --- what changes from frame to frame ----------------------------------------------------------------------


@dataclass(frozen=True)
class Lesion:
    """One lesion, drawn in image space.

    The outline in polar coordinates about `centre`, in axes turned by `angle` and stretched by `aspect`, is
    `radius * (1 + sum_k amplitude_k cos(order_k phi + phase_k))`.
    """

    shape: str  # one of `SHAPES`
    centre: tuple[float, float]  # image coordinates, half-widths
    radius: float  # mean radius, half-widths
    angle: float  # direction of the long axis, radians
    aspect: float  # stretch along the long axis (and shrinkage across), >= 1
    waves: tuple[tuple[int, float, float], ...]  # rows of (order, amplitude, phase)
    # relative gain of inverse depth at the top; 0.5 brings the top to two thirds of the distance
    height: float
    lean: float  # shift of the top towards the lumen, in radii
    contrast: float  # colour contrast of this frame, 0..1
    grain_offset: tuple[float, float]  # where in the texture tile the lesion's texture starts

    @property
    def raised(self) -> bool:
        """Whether the lesion stands out clearly from the wall."""
        return self.height >= 0.12


@dataclass(frozen=True)
class Scene:
    """The drawn parameters of a frame."""

    lumen: tuple[float, float]  # image position where the axis of the tube vanishes, half-widths
    offset: tuple[float, float]  # position of the camera across the tube, radii
    bend: tuple[float, float]  # curvature of the axis, per radius
    fold_phase: float  # phase of the folds, radians
    # amplitudes and phases that keep folds from being perfect rings
    fold_warp: tuple[float, float, float, float]
    triangle: float  # how far the cross-section departs from a circle, radii
    lobe_angle: float  # orientation of the three haustral arcs, radians
    along: float  # where along the wall's texture the camera is, in periods
    roll: float  # rotation of the texture, in periods
    motion: tuple[float, float]  # motion blur (x, y), half-widths
    light_gain: float  # factor on the patient's exposure
    lesion: Lesion


def draw_scene(seed: int, patient: int, frame: int, style: PatientStyle) -> Scene:
    """Draw the parameters of one frame; they do not depend on the size of the image."""
    rng = numpy_rng("phantom", seed, "frame", patient, frame)
    turn, reach = rng.uniform(0.0, 2.0 * np.pi), 1.05 * np.sqrt(rng.uniform(0.0, 1.0))
    lumen = (float(reach * np.cos(turn)), float(reach * np.sin(turn)))
    away = rng.uniform(0.0, 2.0 * np.pi)
    stand = rng.uniform(0.0, 0.3)
    bend_turn, bend = rng.uniform(0.0, 2.0 * np.pi), rng.uniform(0.0, 0.09)
    blur_turn, blur = rng.uniform(0.0, np.pi), max(0.0, rng.uniform(-0.03, 0.03))
    warp = rng.uniform([0.3, 0.0, 0.2, 0.0], [1.9, 2.0 * np.pi, 0.9, 2.0 * np.pi])
    return Scene(
        lumen=lumen,
        offset=(float(stand * np.cos(away)), float(stand * np.sin(away))),
        bend=(float(bend * np.cos(bend_turn)), float(bend * np.sin(bend_turn))),
        fold_phase=rng.uniform(0.0, 2.0 * np.pi),
        fold_warp=(float(warp[0]), float(warp[1]), float(warp[2]), float(warp[3])),
        triangle=rng.uniform(0.0, MAX_TRIANGLE),
        lobe_angle=rng.uniform(0.0, 2.0 * np.pi),
        along=rng.uniform(),
        roll=rng.uniform(),
        motion=(float(blur * np.cos(blur_turn)), float(blur * np.sin(blur_turn))),
        light_gain=float(np.exp(rng.normal(0.0, 0.12))),
        lesion=_draw_lesion(rng, style, lumen),
    )


def view_distance(style: PatientStyle, x: Floats, y: Floats) -> Floats:
    """Distance to the edge of the field of view, positive inside, in half-widths; same shape as `x`."""
    ax, ay = np.abs(x - style.view_shift), np.abs(y)
    width, height = style.view_size
    if style.view == "full":
        inside: Floats = np.minimum(1.0 - np.abs(x), 1.0 - ay) + np.float32(1e-3)
    elif style.view == "round":
        inside = np.minimum(width - np.sqrt(ax * ax + ay * ay), 0.93 - ay)
    else:
        corner = (width + height - style.view_cut - ax - ay) * np.float32(np.sqrt(0.5))
        inside = np.minimum(np.minimum(width - ax, height - ay), corner)
    return inside


def outline_radius(lesion: Lesion, phi: Floats) -> Floats:
    """Radius of the lesion's outline at angles `phi` in its own stretched axes, half-widths."""
    radius = np.ones_like(phi)
    for order, amplitude, phase in lesion.waves:
        radius += amplitude * np.cos(order * phi + phase)
    return lesion.radius * radius


def lesion_axes(lesion: Lesion, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Image coordinates in the lesion's own turned and stretched axes (area is preserved)."""
    dx, dy = x - lesion.centre[0], y - lesion.centre[1]
    cos, sin = np.float32(np.cos(lesion.angle)), np.float32(np.sin(lesion.angle))
    stretch = np.float32(np.sqrt(lesion.aspect))
    return (dx * cos + dy * sin) * (1 / stretch), (dy * cos - dx * sin) * stretch


def _draw_lesion(rng: np.random.Generator, style: PatientStyle, lumen: tuple[float, float]) -> Lesion:
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    low, high = {
        "sessile": (0.12, 0.45),
        "pedunculated": (0.35, 0.8),
        "flat": (0.08, 0.12),
        "irregular": (0.08, 0.4),
    }[shape]
    wild = {"sessile": 0.05, "pedunculated": 0.05, "flat": 0.09, "irregular": 0.16}[shape]
    waves = tuple(
        (order, rng.normal(0.0, wild / order**0.6), rng.uniform(0.0, 2.0 * np.pi)) for order in range(2, 8)
    )
    area = float(np.exp(rng.uniform(np.log(_AREA_RANGE[0]), np.log(_AREA_RANGE[1]))))
    aspect = rng.uniform(1.0, 1.35 if shape == "pedunculated" else 1.9)
    tilt = rng.normal(0.0, 0.35)
    centre, area = _place(rng, style, lumen, area, np.sqrt(aspect))
    power = 1.0 + 0.5 * sum(amplitude * amplitude for _, amplitude, _ in waves)
    toward = np.arctan2(lumen[1] - centre[1], lumen[0] - centre[0])
    return Lesion(
        shape=shape,
        centre=centre,
        radius=float(np.sqrt(4.0 * area / (np.pi * power))),
        angle=float(toward + 0.5 * np.pi + tilt),
        aspect=aspect,
        waves=waves,
        height=rng.uniform(low, high),
        lean=rng.uniform(0.0, 0.35),
        contrast=float(np.clip(style.lesion_contrast * rng.uniform(0.5, 1.4), 0.12, 1.0)),
        grain_offset=(rng.uniform(), rng.uniform()),
    )


def _place(
    rng: np.random.Generator, style: PatientStyle, lumen: tuple[float, float], area: float, stretch: float
) -> tuple[tuple[float, float], float]:
    """Find a centre where a lesion of about this area fits the view and is not down the lumen.

    The bound is a circle around the largest possible outline, so the whole lesion is certainly visible;
    after every few failures the lesion shrinks and may come nearer to the lumen.
    """
    clearance = 0.35
    for attempt in range(_TRIES):
        x, y = rng.uniform(-0.85, 0.85, 2)
        reach = np.sqrt(4.0 * area / np.pi) * stretch * 1.12 + _MARGIN
        room = float(view_distance(style, np.array([x], np.float32), np.array([y], np.float32))[0])
        apart = float(np.hypot(x - lumen[0], y - lumen[1]))
        if room > reach and apart > clearance + 0.7 * reach:
            return (float(x), float(y)), area
        if attempt % 4 == 3:
            area, clearance = max(_AREA_RANGE[0], 0.93 * area), max(0.22, 0.93 * clearance)
    return (style.view_shift, 0.0), _AREA_RANGE[0]
