"""What changes from frame to frame: where the camera looks, how folds stand, and one lesion."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.core.seeds import numpy_rng
from mcpmix.phantom.style import PatientStyle

Floats = npt.NDArray[np.float32]

SHAPES = ("sessile", "pedunculated", "flat", "irregular")
SMALL_AREA = 0.07  # share of the frame below which a lesion is called small
_AREA_RANGE = (0.023, 0.235)
MAX_TRIANGLE = 0.12
_MARGIN = 0.04  # kept free between a lesion and the edge of the view, in half-widths
_TRIES = 60


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
