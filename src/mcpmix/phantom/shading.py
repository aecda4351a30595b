"""The light that a surface sends to the camera, and the textures that colour it."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import cKDTree

from mcpmix.core.seeds import numpy_rng
from mcpmix.phantom.scene import NARROW_BAND, Floats, PatientStyle, Scene, lesion_axes
from mcpmix.phantom.surface import Surface

TILE = 256  # texels per side of a noise tile; a power of two, so that wrapping is a bit mask
WALL = 512  # texels around the tube and along one period of the wall
WALL_PERIOD = 2.0 * np.pi  # length of a period along the tube, radii: texels are square
VESSEL, VEIN, MOTTLE = 0, 1, 2
FINE, MEDIUM, COARSE, CELLS = 0, 1, 2, 3


@lru_cache(maxsize=1)
def noise_tiles() -> Floats:
    """Noise of zero mean and unit variance, (TILE, TILE, 4): fine, medium, coarse grain, and cells.

    The tiles are constants of the generator: seeds only choose where they are read.
    """
    rng = numpy_rng("phantom", "tiles")
    layers = [
        ndimage.gaussian_filter(rng.standard_normal((TILE, TILE)), s, mode="wrap") for s in (1.3, 4, 14)
    ]
    seeds = rng.uniform(0, TILE, (1100, 2))
    grid = np.stack(np.meshgrid(np.arange(TILE), np.arange(TILE), indexing="ij"), axis=-1).reshape(-1, 2)
    distance = cKDTree(seeds, boxsize=TILE).query(grid, k=2)[0]
    layers.append(-(distance[:, 1] - distance[:, 0]).clip(0, 3.0).reshape(TILE, TILE))
    stack = np.stack(layers, axis=-1)
    tiles: Floats = ((stack - stack.mean((0, 1))) / stack.std((0, 1))).astype(np.float32)
    return tiles


@lru_cache(maxsize=64)
def wall_texture(seed: int, patient: int, style: PatientStyle) -> Floats:
    """The unrolled wall of a patient, (WALL, WALL, 3).

    Channels are thin vessels 0..1, veins 0..1, and mottling of unit variance. Rows go along the tube,
    columns around it; both wrap.
    """
    rng = numpy_rng("phantom", seed, "wall", patient)
    start = rng.uniform(0, WALL, (style.vessel_count, 2))
    heading = rng.uniform(0, 2 * np.pi, style.vessel_count)
    trunks = _walk(rng, start, heading, 170, style.vessel_wander)
    branches = _children(rng, trunks, 4, 90, 1.4 * style.vessel_wander)
    twigs = _children(rng, branches, 3, 45, 1.8 * style.vessel_wander)
    step = WALL // TILE
    vein = _ink(step, 1.5, trunks).repeat(step, 0).repeat(step, 1)
    vessel = 1.1 * _ink(1, 1.2, trunks, branches) + 0.7 * _ink(1, 0.8, twigs)
    coarse = np.roll(noise_tiles()[..., COARSE], tuple(rng.integers(0, TILE, 2)), (0, 1))
    mottle = coarse.repeat(step, 0).repeat(step, 1)
    return np.stack([vessel.clip(0, 1), vein.clip(0, 1), mottle], axis=-1).astype(np.float32)


def sample_tile(tile: Floats, u: Floats, v: Floats) -> Floats:
    """Read a wrapping texture bilinearly.

    Args:
        tile: (N, N, C), N a power of two.
        u: column position in periods, any shape.
        v: row position in periods, same shape.

    Returns:
        Values of shape `u.shape + (C,)`.
    """
    size = tile.shape[0]
    fx, fy = u * size, v * size
    bx, by = np.floor(fx), np.floor(fy)
    ax, ay = (fx - bx)[..., None], (fy - by)[..., None]
    x0, y0 = bx.astype(np.int32) & (size - 1), by.astype(np.int32) & (size - 1)
    x1, y1 = (x0 + 1) & (size - 1), (y0 + 1) & (size - 1)
    flat = tile.reshape(size * size, -1)
    near = flat.take(y0 * size + x0, axis=0) * (1 - ax) + flat.take(y0 * size + x1, axis=0) * ax
    far = flat.take(y1 * size + x0, axis=0) * (1 - ax) + flat.take(y1 * size + x1, axis=0) * ax
    result: Floats = near + ay * (far - near)
    return result


# Points (N, T, 2) in texels, and headings (N, T).
_Paths = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _children(rng: np.random.Generator, parents: _Paths, count: int, length: int, wander: float) -> _Paths:
    """Paths that leave given ones at random places, to either side at an acute angle."""
    points, headings = parents
    parent = np.repeat(np.arange(len(points)), count)
    place = rng.integers(0, points.shape[1], parent.size)
    side = rng.choice([-1.0, 1.0], parent.size) * rng.uniform(0.35, 1.0, parent.size)
    return _walk(rng, points[parent, place], headings[parent, place] + side, length, wander)


def _walk(
    rng: np.random.Generator,
    start: npt.NDArray[np.float64],
    heading: npt.NDArray[np.float64],
    length: int,
    wander: float,
) -> _Paths:
    turns = np.cumsum(rng.normal(0.0, wander, (len(start), length)), axis=1)
    headings = heading[:, None] + turns
    steps = np.stack([np.cos(headings), np.sin(headings)], axis=-1)
    return start[:, None, :] + np.cumsum(steps, axis=1), headings


def _ink(step: int, width: float, *groups: _Paths) -> Floats:
    """Draw paths on the wall, reduced by `step`, with a soft brush of standard deviation `width` cells."""
    size = WALL // step
    canvas = np.zeros((size, size), dtype=np.float32)
    for points, _ in groups:
        cells = np.floor(points / step).astype(np.int64) & (size - 1)
        # Thickness tapers towards the end of a path.
        canvas[cells[..., 1], cells[..., 0]] = np.linspace(1.0, 0.35, cells.shape[1], dtype=np.float32)
    blurred: Floats = ndimage.gaussian_filter(canvas, width, mode="wrap", truncate=2.0)
    return blurred * (width * 2.5)


# What a vessel takes from, and a lesion adds to, (red, green, blue) at full strength.
_VESSEL_ABSORPTION = {"white": (0.28, 0.72, 0.62), "narrow": (0.45, 0.75, 0.70)}
_VEIN_ABSORPTION = {"white": (0.40, 0.42, 0.18), "narrow": (0.55, 0.30, 0.25)}
_LESION_TINT = {
    "reddish": (0.05, -0.60, -0.50),
    "pale": (0.25, 0.65, 0.60),
    "dark": (-0.48, -0.55, -0.45),
    "similar": (0.12, -0.46, -0.30),
}
_MUCUS = np.array([0.74, 0.60, 0.36], dtype=np.float32)
_NOISE_SCALE = 0.34  # periods of the noise tiles per half-width
_EXPOSED_SHARE = 0.72  # quantile of the light that automatic exposure brings to 1


def shade(
    style: PatientStyle,
    scene: Scene,
    surface: Surface,
    wall: Floats,
    x: Floats,
    y: Floats,
    rng: np.random.Generator,
) -> Floats:
    """Linear light per pixel, (H, W, 3), well-lit wall about as bright as its reflectance.

    Args:
        wall: the patient's `wall_texture`.
        x: image coordinates of the pixels, (H, W), -1..1.
        y: the same, downwards.
        rng: places the bubbles.
    """
    # Noise is read around the lesion, so that the lesion's texture moves with it.
    u, v = lesion_axes(scene.lesion, x, y)
    start_u, start_v = scene.lesion.grain_offset
    noise = sample_tile(noise_tiles(), _NOISE_SCALE * u + start_u, _NOISE_SCALE * v + start_v)
    light, facing = _light(style, surface.inverse, x, y, noise)
    linear = _reflectance(style, scene, surface, wall, noise) * light[..., None]
    # What lies on the surface: mucus, bubbles and highlights of the lamp.
    if style.mucus > 0:
        field = 0.9 * noise[..., COARSE] + 0.5 * noise[..., MEDIUM]
        veil = np.clip((field - (1.6 - 4.0 * style.mucus)) * 0.8, 0.0, 1.0)
        veil = 0.6 * veil * np.where(surface.mask, np.float32(0.35), np.float32(1.0))
        linear = linear + veil[..., None] * (_MUCUS * light[..., None] - linear)
    for _ in range(int(rng.poisson(style.bubbles))):
        _add_bubble(linear, light, x, y, rng)
    # Highlights need a surface that faces the lamp; the film's ripples break them up.
    ripple = 0.6 * noise[..., FINE] + 0.8 * noise[..., MEDIUM] + 0.3 * noise[..., COARSE]
    needed = (3.0 - 1.1 * style.gloss) + 6.0 * (1.0 - facing) - 0.8 * surface.dome
    shine = np.clip((ripple - needed) * 2.5, 0.0, 1.0) * np.minimum(light, 1.5) * 3.0
    result: Floats = linear + shine[..., None]
    return result


def _light(
    style: PatientStyle, inverse: Floats, x: Floats, y: Floats, noise: Floats
) -> tuple[Floats, Floats]:
    """Light on each pixel (well-lit wall about 1) and the cosine of incidence.

    A plane in space is `w = a x + b y + c` in inverse depth w, with normal (a, b, c), so the gradient of w
    is all that shading needs.
    """
    # The relief of the mucosa is a hundredth of the distance: it tilts normals, but is not worth a depth.
    w = inverse * (1.0 + 0.002 * noise[..., MEDIUM] + 0.012 * noise[..., COARSE])
    scale = 0.5 * len(w) / style.opening
    slope_x, slope_y = _slope(w, 1) * scale, _slope(w, 0) * scale
    rx, ry = x * style.opening, y * style.opening
    forward = w - rx * slope_x - ry * slope_y
    ray2 = 1.0 + rx * rx + ry * ry
    facing: Floats = w / np.sqrt((slope_x * slope_x + slope_y * slope_y + forward * forward) * ray2)
    # Places below their surroundings see less of the light that walls throw back.
    around = ndimage.uniform_filter(w, max(3, len(w) // 12), mode="nearest")
    open_air = np.clip(1.0 - 1.6 * (around - w) / (around + w), 0.35, 1.15)
    ambient = np.float32(style.ambient)
    diffuse = ambient + (1 - ambient) * facing * np.sqrt(facing)
    light = open_air * diffuse / (0.15 + ray2 / (w * w)) ** style.falloff
    # Edges in depth fall between pixels: soften their light by less than a pixel against stair-steps.
    light = ndimage.gaussian_filter(light, 0.7, mode="nearest", truncate=2.0)
    rank = int(_EXPOSED_SHARE * light.size)
    return light / np.partition(light.ravel(), rank)[rank], facing


def _slope(w: Floats, axis: int) -> Floats:
    """The smaller of the two one-sided differences, so that a jump in depth is not taken for a steep wall."""
    step = np.diff(w, axis=axis)
    before = np.concatenate([step.take([0], axis), step], axis)
    after = np.concatenate([step, step.take([-1], axis)], axis)
    return np.where(np.abs(before) < np.abs(after), before, after)


def _reflectance(style: PatientStyle, scene: Scene, surface: Surface, wall: Floats, noise: Floats) -> Floats:
    kind = "narrow" if style.mucosa in NARROW_BAND else "white"
    along = surface.along * (1.0 / WALL_PERIOD) + scene.along
    texture = sample_tile(wall, surface.turn + scene.roll, along)
    # Fine detail fades with distance as it falls below the size of a pixel.
    near = np.clip(surface.wall * 1.6 - 0.25, 0.0, 1.0)
    contrast = scene.lesion.contrast
    cover = np.clip((1.04 - surface.level) / (0.05 + 0.25 * (1.0 - contrast)), 0.0, 1.0)
    strength = style.vessel_strength * near * (1.0 - 0.75 * cover)
    thin, vein = texture[..., VESSEL] * strength, texture[..., VEIN] * strength
    spots = 0.6 * texture[..., MOTTLE] + 0.25 * noise[..., MEDIUM] + 0.15 * noise[..., FINE]
    mottle = np.exp(style.mottle * spots)
    fine, medium, cells = noise[..., FINE], noise[..., MEDIUM], noise[..., CELLS]
    if style.lesion_texture == "granular":
        grain = 0.8 * fine + 0.5 * medium
    elif style.lesion_texture == "pitted":
        grain = 0.9 * cells + 0.3 * medium
    else:
        grain = 0.6 * medium
    grain = grain * (0.03 + 0.13 * style.lesion_grain) * cover
    # Light that reaches deep places has bounced off the wall and takes on its colour.
    bounces = 1.0 + 0.5 * np.clip(0.9 - surface.wall, 0.0, 1.0)
    colour: Floats = np.empty((*thin.shape, 3), dtype=np.float32)
    for channel in range(3):
        value = style.wall[channel] * mottle ** (0.6, 1.1, 1.0)[channel]
        value *= 1.0 - _VESSEL_ABSORPTION[kind][channel] * thin
        value *= 1.0 - _VEIN_ABSORPTION[kind][channel] * vein
        tint = _LESION_TINT[style.lesion_colour][channel] * contrast
        value *= 1.0 + cover * tint + grain * (0.5, 1.0, 0.9)[channel]
        colour[..., channel] = np.clip(value, 0.01, 1.0) ** bounces
    return colour


def _add_bubble(linear: Floats, light: Floats, x: Floats, y: Floats, rng: np.random.Generator) -> None:
    """Draw one bubble into `linear`: a bright rim and a glint."""
    cx, cy = rng.uniform(-0.85, 0.85, 2)
    radius = float(np.exp(rng.uniform(np.log(0.02), np.log(0.07))))
    size = len(linear)
    x0, x1, y0, y1 = (
        int(np.clip((edge + 1.0) * size / 2, 0, size))
        for edge in (cx - 1.5 * radius, cx + 1.5 * radius, cy - 1.5 * radius, cy + 1.5 * radius)
    )
    window = (slice(y0, y1 + 1), slice(x0, x1 + 1))
    dx, dy = (x[window] - cx) / radius, (y[window] - cy) / radius
    q = np.sqrt(dx * dx + dy * dy)
    rim = np.exp(-(((q - 0.9) / 0.22) ** 2))
    glint = np.exp(-(((dx + 0.35) ** 2 + (dy + 0.35) ** 2) / 0.05))
    shine = (0.35 * rim + 1.6 * glint) * np.sqrt(light[window])
    linear[window] = linear[window] * (1.0 - 0.12 * (q < 0.9))[..., None] + shine[..., None]
