"""Tileable textures: noise shared by all patients, and vessels and mottling on a patient's unrolled wall."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from scipy.spatial import cKDTree

from mcpmix.core.seeding import numpy_rng
from mcpmix.data.phantom.scene import Floats
from mcpmix.data.phantom.style import PatientStyle

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

    Channels are thin vessels 0..1, veins 0..1, and mottling of unit variance. Rows go along the
    tube, columns around it; both wrap.
    """
    rng = numpy_rng("phantom", seed, "wall", patient)
    trunks = _trunks(rng, style)
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
        u: Column position in periods, any shape.
        v: Row position in periods, same shape.

    Returns:
        Values of shape `u.shape + (C,)`.
    """
    size = tile.shape[0]
    fx, fy = u * np.float32(size), v * np.float32(size)
    bx, by = np.floor(fx), np.floor(fy)
    ax, ay = (fx - bx)[..., None], (fy - by)[..., None]
    x0, y0 = bx.astype(np.int32) & (size - 1), by.astype(np.int32) & (size - 1)
    x1, y1 = (x0 + 1) & (size - 1), (y0 + 1) & (size - 1)
    flat = tile.reshape(size * size, -1)
    near = flat.take(y0 * size + x0, axis=0) * (1 - ax) + flat.take(y0 * size + x1, axis=0) * ax
    far = flat.take(y1 * size + x0, axis=0) * (1 - ax) + flat.take(y1 * size + x1, axis=0) * ax
    result: Floats = near + ay * (far - near)
    return result


_Paths = tuple[
    npt.NDArray[np.float64], npt.NDArray[np.float64]
]  # points (N, T, 2) in texels, headings (N, T)


def _trunks(rng: np.random.Generator, style: PatientStyle) -> _Paths:
    start = rng.uniform(0, WALL, (style.vessel_count, 2))
    heading = rng.uniform(0, 2 * np.pi, style.vessel_count)
    return _walk(rng, start, heading, 170, style.vessel_wander)


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
    return blurred * np.float32(width * 2.5)
