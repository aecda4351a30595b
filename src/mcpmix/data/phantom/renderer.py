"""From a scene to an image: reflectance, light at the camera, wet highlights, mucus, and the device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from mcpmix.core.errors import DataError
from mcpmix.core.seeding import numpy_rng
from mcpmix.data.phantom.geometry import Surface, build_surface, pixel_grid
from mcpmix.data.phantom.scene import SMALL_AREA, Floats, Scene, draw_scene, lesion_axes, view_distance
from mcpmix.data.phantom.style import NARROW_BAND, PatientStyle, patient_style
from mcpmix.data.phantom.texture import (
    CELLS,
    COARSE,
    FINE,
    MEDIUM,
    MOTTLE,
    VEIN,
    VESSEL,
    WALL_PERIOD,
    noise_tiles,
    sample_tile,
    wall_texture,
)

_SMALLEST, _LARGEST = 16, 2048

# What a vessel or a lesion takes from (red, green, blue) at full strength.
_VESSEL_ABSORPTION = {"white": (0.28, 0.72, 0.62), "narrow": (0.45, 0.75, 0.70)}
_VEIN_ABSORPTION = {"white": (0.40, 0.42, 0.18), "narrow": (0.55, 0.30, 0.25)}
_LESION_TINT = {
    "reddish": (0.05, -0.60, -0.50),
    "pale": (0.25, 0.65, 0.60),
    "dark": (-0.48, -0.55, -0.45),
    "similar": (0.10, -0.35, -0.20),
}


@dataclass(frozen=True)
class PhantomFrame:
    """One rendered frame with its exact annotation.

    Attributes:
        image: (H, W, 3) uint8, RGB.
        mask: (H, W) uint8 in {0, 1}: the pixels that show the lesion.
        depth: (H, W) float32 in [0, 1], near = 1: inverse depth, scaled to the visible field of this frame;
            0 outside the field of view.
        words: Appearance of patient and frame, in the order mucosa, view, light, vessels, focus, surface,
            lesion colour, lesion elevation, lesion size; all from `WORDS`.
        patient: Number of the patient.
        frame: Number of the frame.
    """

    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    depth: Floats
    words: tuple[str, ...]
    patient: int
    frame: int


def render(seed: int, patient: int, frame: int, size: int = 128) -> PhantomFrame:
    """Render a frame of a patient; the result depends on the arguments only.

    Args:
        seed: Seed of the whole phantom data set.
        patient: Number of the patient.
        frame: Number of the frame; frames share the patient's look and differ in pose and lesion.
        size: Height and width in pixels, 16..2048. The scene does not depend on it.

    Returns:
        The image with its exact mask and depth.

    Raises:
        DataError: If the size is out of range.
    """
    if not _SMALLEST <= size <= _LARGEST:
        raise DataError(
            f"A phantom frame needs a size of {_SMALLEST} to {_LARGEST} pixels, but render() got {size}. "
            "Choose a size in that range, for example 128."
        )
    style = patient_style(seed, patient)
    scene = draw_scene(seed, patient, frame, style)
    x, y = pixel_grid(size)
    view = view_distance(style, x, y)
    visible = view > 0
    surface = build_surface(style, scene, x, y)
    rng = numpy_rng("phantom", seed, "pixels", patient, frame)
    noise = _surface_noise(scene, x, y)
    light, facing = _light(style, surface, noise, x, y)
    wall = wall_texture(seed, patient, style)
    colour = _reflectance(style, scene, surface, wall, noise, x, y)
    linear = colour * light[..., None]
    linear = _wet(rng, style, scene, surface, linear, light, facing, noise, x, y)
    image = _device(rng, style, scene, linear, light, view, x, y)
    mask = surface.mask & visible
    return PhantomFrame(
        image=image,
        mask=mask.astype(np.uint8),
        depth=_depth_map(surface.inverse, visible),
        words=_words(style, scene, float(mask.mean())),
        patient=patient,
        frame=frame,
    )


def _words(style: PatientStyle, scene: Scene, area: float) -> tuple[str, ...]:
    return (
        style.mucosa,
        style.view,
        style.light,
        style.vessels,
        style.focus,
        style.surface,
        style.lesion_colour,
        "raised" if scene.lesion.raised else "flat",
        "small" if area < SMALL_AREA else "large",
    )


def _depth_map(inverse: Floats, visible: npt.NDArray[np.bool_]) -> Floats:
    low, high = float(inverse[visible].min()), float(inverse[visible].max())
    scaled = np.clip((inverse - low) / max(high - low, 1e-6), 0.0, 1.0)
    return np.where(visible, scaled, np.float32(0.0)).astype(np.float32)


def _light(
    style: PatientStyle, surface: Surface, noise: Floats, x: Floats, y: Floats
) -> tuple[Floats, Floats]:
    """Light that comes back from each pixel (well-lit wall about 1) and the cosine of incidence.

    A plane in space is `w = a x + b y + c` in inverse depth w, with normal (a, b, c), so the gradient of w
    is all that shading needs.
    """
    # The relief of the mucosa is a hundredth of the distance: it tilts normals, but is not worth a depth.
    w = surface.inverse * (1.0 + 0.002 * noise[..., MEDIUM] + 0.012 * noise[..., COARSE])
    scale = np.float32(0.5 * len(w) / style.opening)
    slope_x, slope_y = _slope(w, 1) * scale, _slope(w, 0) * scale
    rx, ry = x * np.float32(style.opening), y * np.float32(style.opening)
    forward = w - rx * slope_x - ry * slope_y
    ray2 = 1.0 + rx * rx + ry * ry
    facing = w / np.sqrt((slope_x * slope_x + slope_y * slope_y + forward * forward) * ray2)
    distance2 = ray2 / (w * w)
    ambient = np.float32(style.ambient)
    # Places below their surroundings see less of the light that walls throw back.
    around = ndimage.uniform_filter(w, max(3, len(w) // 12), mode="nearest")
    open_air = np.clip(1.0 - 1.6 * (around - w) / (around + w), 0.35, 1.15)
    light: Floats = open_air * (ambient + (1 - ambient) * facing * np.sqrt(facing)) / (0.15 + distance2) ** np.float32(style.falloff)
    # Edges in depth fall between pixels: soften their light by less than a pixel against stair-steps.
    light = ndimage.gaussian_filter(light, 0.7, mode="nearest", truncate=2.0)
    # The device's automatic exposure: the brighter part of the wall gets the same level in every frame.
    rank = int(0.72 * light.size)
    reference = np.partition(light.ravel(), rank)[rank]
    return light / reference, facing.astype(np.float32)


def _slope(w: Floats, axis: int) -> Floats:
    """The smaller of the two one-sided differences, so that a jump in depth is not taken for a steep wall."""
    step = np.diff(w, axis=axis)
    before = np.concatenate([step.take([0], axis), step], axis)
    after = np.concatenate([step, step.take([-1], axis)], axis)
    return np.where(np.abs(before) < np.abs(after), before, after)


def _surface_noise(scene: Scene, x: Floats, y: Floats) -> Floats:
    """Noise tiles read on the surface, (H, W, 4); the lesion's texture moves with the lesion."""
    u, v = lesion_axes(scene.lesion, x, y)
    ou, ov = scene.lesion.grain_offset
    return sample_tile(noise_tiles(), 0.34 * u + np.float32(ou), 0.34 * v + np.float32(ov))


def _reflectance(
    style: PatientStyle,
    scene: Scene,
    surface: Surface,
    wall: Floats,
    noise: Floats,
    x: Floats,
    y: Floats,
) -> Floats:
    kind = "narrow" if style.mucosa in NARROW_BAND else "white"
    texture = sample_tile(
        wall, surface.turn + np.float32(scene.roll), surface.along / WALL_PERIOD + np.float32(scene.along)
    )
    # Fine detail fades with distance as it falls below the size of a pixel.
    near = np.clip(surface.wall * 1.6 - 0.25, 0.0, 1.0)
    lesion = scene.lesion
    cover = np.clip((1.04 - surface.level) / np.float32(0.05 + 0.25 * (1.0 - lesion.contrast)), 0.0, 1.0)
    strength = np.float32(style.vessel_strength) * near * (1.0 - 0.75 * cover)
    thin, vein = texture[..., VESSEL] * strength, texture[..., VEIN] * strength
    mottle = np.exp(np.float32(style.mottle) * (0.6 * texture[..., MOTTLE] + 0.25 * noise[..., MEDIUM] + 0.15 * noise[..., FINE]))
    grain = _lesion_grain(style, noise) * cover
    tint = np.array(_LESION_TINT[style.lesion_colour], dtype=np.float32) * np.float32(lesion.contrast)
    colour: Floats = np.empty((*thin.shape, 3), dtype=np.float32)
    for channel in range(3):
        value = style.wall[channel] * mottle ** np.float32((0.6, 1.1, 1.0)[channel])
        value *= 1.0 - np.float32(_VESSEL_ABSORPTION[kind][channel]) * thin
        value *= 1.0 - np.float32(_VEIN_ABSORPTION[kind][channel]) * vein
        value *= 1.0 + cover * tint[channel] + grain * np.float32((0.5, 1.0, 0.9)[channel])
        # Light that reaches deep places has bounced off the wall and takes on its colour.
        colour[..., channel] = np.clip(value, 0.01, 1.0) ** (1.0 + 0.5 * np.clip(0.9 - surface.wall, 0, 1))
    return colour


def _lesion_grain(style: PatientStyle, noise: Floats) -> Floats:
    if style.lesion_texture == "granular":
        pattern = 0.8 * noise[..., FINE] + 0.5 * noise[..., MEDIUM]
    elif style.lesion_texture == "pitted":
        pattern = 0.9 * noise[..., CELLS] + 0.3 * noise[..., MEDIUM]
    else:
        pattern = 0.6 * noise[..., MEDIUM]
    return pattern * np.float32(0.03 + 0.13 * style.lesion_grain)


def _wet(
    rng: np.random.Generator,
    style: PatientStyle,
    scene: Scene,
    surface: Surface,
    linear: Floats,
    light: Floats,
    facing: Floats,
    noise: Floats,
    x: Floats,
    y: Floats,
) -> Floats:
    """Add what lies on the surface: mucus, bubbles and highlights of the lamp."""
    if style.mucus > 0:
        field = 0.9 * noise[..., COARSE] + 0.5 * noise[..., MEDIUM]
        veil = np.clip((field - np.float32(1.6 - 4.0 * style.mucus)) * 0.8, 0.0, 1.0)
        veil = 0.6 * veil * np.where(surface.mask, np.float32(0.35), np.float32(1.0))
        paint = np.array([0.74, 0.60, 0.36], dtype=np.float32)
        linear = linear + veil[..., None] * (paint * light[..., None] - linear)
    for _ in range(int(rng.poisson(style.bubbles))):
        _bubble(rng, linear, light, x, y)
    # Highlights need a surface that faces the lamp; the film's ripples break them up.
    ripple = 0.6 * noise[..., FINE] + 0.8 * noise[..., MEDIUM] + 0.3 * noise[..., COARSE]
    needed = np.float32(3.0 - 1.1 * style.gloss) + 6.0 * (1.0 - facing) - 0.8 * surface.dome
    shine = np.clip((ripple - needed) * 2.5, 0.0, 1.0)
    return linear + (shine * np.minimum(light, 1.5) * 3.0)[..., None]


def _bubble(rng: np.random.Generator, linear: Floats, light: Floats, x: Floats, y: Floats) -> None:
    cx, cy = rng.uniform(-0.85, 0.85, 2)
    radius = float(np.exp(rng.uniform(np.log(0.02), np.log(0.07))))
    size = len(x)
    x0, x1 = (int(np.clip((c + 1) * size / 2, 0, size)) for c in (cx - 1.5 * radius, cx + 1.5 * radius))
    y0, y1 = (int(np.clip((c + 1) * size / 2, 0, size)) for c in (cy - 1.5 * radius, cy + 1.5 * radius))
    window = (slice(y0, y1 + 1), slice(x0, x1 + 1))
    dx, dy = (x[window] - cx) / radius, (y[window] - cy) / radius
    q = np.sqrt(dx * dx + dy * dy)
    rim = np.exp(-(((q - 0.9) / 0.22) ** 2))
    glint = np.exp(-(((dx + 0.35) ** 2 + (dy + 0.35) ** 2) / 0.05))
    shine = (0.35 * rim + 1.6 * glint) * np.sqrt(np.maximum(light[window], 0.0))
    linear[window] = linear[window] * (1.0 - 0.12 * (q < 0.9))[..., None] + shine[..., None]


def _device(
    rng: np.random.Generator,
    style: PatientStyle,
    scene: Scene,
    linear: Floats,
    light: Floats,
    view: Floats,
    x: Floats,
    y: Floats,
) -> npt.NDArray[np.uint8]:
    size = len(x)
    shade = 1.0 - np.float32(style.vignette * 0.5) * (x * x + y * y)
    gains = np.array(style.white_balance, dtype=np.float32) * np.float32(style.exposure * scene.light_gain)
    linear = linear * shade[..., None] * gains
    linear = _blur(linear, style.blur * size / 2, scene.motion[0] * size / 2, scene.motion[1] * size / 2)
    tone = 1.0 - np.exp(-1.25 * np.maximum(linear, 0.0))
    pixels = tone ** np.float32(style.gamma)
    grey = pixels.mean(axis=-1, keepdims=True)
    pixels = grey + np.float32(style.saturation) * (pixels - grey)
    pixels = 0.45 + np.float32(style.contrast) * (pixels - 0.45)
    pixels += np.float32(style.noise) * rng.standard_normal(pixels.shape, dtype=np.float32)
    edge = np.clip(view * np.float32(size / 2) + 0.5, 0.0, 1.0)
    pixels = pixels * edge[..., None] + 0.02 * (1.0 - edge[..., None])
    image: npt.NDArray[np.uint8] = (np.clip(pixels, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
    return image


def _blur(linear: Floats, sigma: float, motion_x: float, motion_y: float) -> Floats:
    """Blur by optics (standard deviation in pixels) and by a straight motion (pixels)."""
    for axis, motion in ((0, motion_y), (1, motion_x)):
        spread = float(np.hypot(sigma, motion / np.sqrt(12.0)))
        linear = ndimage.gaussian_filter1d(linear, spread, axis=axis, mode="nearest", truncate=2.5)
    return linear
