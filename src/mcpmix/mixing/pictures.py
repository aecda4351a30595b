"""Structurally rich pictures made by code: fractals and patterns like those that excite features.

They stand in for the downloaded mixing sets of PixMix and DiffuseMix. A picture belongs to a seed and an
index, is made when it is first asked for, and is kept in memory. The design of PixMix's pictures does not
depend on the size that they are made at.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcpmix.core.seeds import numpy_rng

_WALKERS, _BURN_IN, _STEPS = 1500, 20, 60
_OCTAVES = 6

Painter = Callable[[np.random.Generator, int, int], np.ndarray]
"""From a random stream, a height and a width to colours, (H, W, 3) in [0, 1]."""


@lru_cache(maxsize=2048)
def mixing_picture(seed: int, index: int, height: int, width: int) -> Tensor:
    """The picture of this index, from 0, in the mixing set of PixMix that the seed names.

    Returns:
        (3, height, width), uint8, on the CPU. Shared between callers: not to be changed.
    """
    draws = numpy_rng("mixing-picture", seed, index)
    painter = PAINTERS[int(draws.choice(len(PAINTERS), p=_CHANCES))]
    colours = (painter(draws, height, width).clip(0, 1) * 255).round().astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(colours.transpose(2, 0, 1)))


@lru_cache(maxsize=1024)
def fractal_picture(seed: int, index: int, height: int, width: int) -> Tensor:
    """The fractal of this index, from 0, in the set of DiffuseMix that the seed names.

    Returns:
        (3, height, width), uint8: black ground, brighter in one colour where points are denser. Shared
        between callers: not to be changed.
    """
    draws = numpy_rng("diffusemix-fractal", seed, index)
    density = _attractor_density(draws, height, width, outside=0.01)
    colour = draws.uniform(0.3, 1.0, 3)
    return torch.from_numpy(np.rint(255 * colour[:, None, None] * density).astype(np.uint8))


def attractor(maps: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Points (N, 2), x and y, of the attractor of an iterated function system, by the chaos game.

    Maps, (M, 2, 3), are contracting and affine: a 2 x 2 matrix and a translation each. They are drawn in
    proportion to their area factors.
    """
    areas = np.abs(np.linalg.det(maps[:, :, :2])) + 0.01  # lines have no area, and count a little
    points = np.zeros((_WALKERS, 2))
    visited = []
    for step in range(_BURN_IN + _STEPS):
        chosen = maps[draws.choice(len(maps), _WALKERS, p=areas / areas.sum())]
        points = np.einsum("nij,nj->ni", chosen[:, :, :2], points) + chosen[:, :, 2]
        if step >= _BURN_IN:
            visited.append(points)
    return np.concatenate(visited)


def random_maps(draws: np.random.Generator) -> np.ndarray:
    """A random system of 2 to 4 contracting affine maps whose attractor fills a picture well, (M, 2, 3).

    Matrices are rotations around singular values s1 >= s2 in [0, 1] with the sum of all s1 + 2 s2 in
    [(5 + M) / 2, (6 + M) / 2]: less gives dust, more gives blots. Translations are uniform in [-1, 1].
    """
    count = int(draws.integers(2, 5))
    while True:
        scales = np.sort(draws.random((count, 2)), axis=1)[:, ::-1]
        if (5 + count) / 2 <= (scales @ [1, 2]).sum() <= (6 + count) / 2:
            break
    rotations = []
    for _ in range(2):
        angles = draws.uniform(0, 2 * np.pi, count)
        cosine, sine = np.cos(angles), np.sin(angles)
        rotations.append(np.stack([cosine, -sine, sine, cosine], axis=-1).reshape(-1, 2, 2))
    signs = draws.choice([-1.0, 1.0], (count, 2))
    matrices = rotations[0] @ ((scales * signs)[:, :, None] * rotations[1])
    return np.concatenate([matrices, draws.uniform(-1, 1, (count, 2, 1))], axis=2)


def _attractor_density(draws: np.random.Generator, height: int, width: int, outside: float) -> np.ndarray:
    """How dense the points of a random attractor are in each pixel, (height, width) in [0, 1].

    A share of the points, `outside` on either side, falls out of the picture, so that single outliers do not
    shrink the fractal.
    """
    points = attractor(random_maps(draws), draws)
    low, high = np.quantile(points, [outside, 1 - outside], axis=0)
    places = (points - low) / np.maximum(high - low, 1e-9)
    places = places[((places >= 0) & (places < 1)).all(1)]
    columns, rows = (places * [width, height]).astype(int).T
    counts = np.bincount(rows * width + columns, minlength=height * width).reshape(height, width)
    density: np.ndarray = np.log1p(counts) / np.log1p(max(int(counts.max()), 1))
    return density


def _fractal(draws: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A fractal, brighter where its points are denser, over a plasma."""
    ground = _plasma(draws, height, width)
    density = _attractor_density(draws, height, width, outside=0.02)
    cover = (density > 0)[..., None] * (0.5 + 0.5 * density[..., None])
    return (1 - cover) * ground + cover * _palette(draws)(density)


def _plasma(draws: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Coloured noise with more weight on coarse structures."""
    total = np.zeros((height, width))
    decay = draws.uniform(0.45, 0.75)
    for octave in range(_OCTAVES):
        grid = torch.from_numpy(draws.normal(size=(1, 1, 2 + 2**octave, 2 + 2**octave)))
        layer = F.interpolate(grid, (height, width), mode="bicubic", align_corners=True)
        total += decay**octave * layer[0, 0].numpy()
    return _palette(draws)(_stretched(total))


def _gratings(draws: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Waves of some orientations, bent by a nonlinearity: like what early features answer to."""
    rows, columns = _grid(height, width)
    total = np.zeros((height, width))
    for _ in range(int(draws.integers(3, 9))):
        angle, phase = draws.uniform(0, 2 * np.pi, 2)
        frequency = 2 * np.pi * draws.uniform(2, 24)
        total += np.cos(frequency * (np.cos(angle) * columns + np.sin(angle) * rows) + phase)
    return _palette(draws)(0.5 + 0.5 * np.tanh(draws.uniform(0.5, 3) * total))


def _rings(draws: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Waves around some centres: the curls and eyes of deeper features."""
    rows, columns = _grid(height, width)
    total = np.zeros((height, width))
    for row, column in draws.random((int(draws.integers(2, 6)), 2)):
        angle = np.arctan2(rows - row, columns - column)
        distance = np.hypot(rows - row, columns - column)
        total += np.cos(2 * np.pi * draws.uniform(4, 20) * distance + draws.integers(0, 7) * angle)
    return _palette(draws)(_stretched(total))


def _mosaic(draws: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Cells around random points, each of one colour."""
    rows, columns = _grid(height, width)
    centres = draws.random((int(draws.integers(20, 80)), 2))
    nearest, owner = np.full((height, width), np.inf), np.zeros((height, width), dtype=int)
    for number, (row, column) in enumerate(centres):
        distance = (rows - row) ** 2 + (columns - column) ** 2
        closer = distance < nearest
        nearest[closer], owner[closer] = distance[closer], number
    return _palette(draws)(draws.random(len(centres)))[owner]


def _leaves(draws: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Discs of many sizes that fell on each other."""
    rows, columns = _grid(height, width)
    picture = np.broadcast_to(draws.random(3), (height, width, 3)).copy()
    palette = _palette(draws)
    for _ in range(int(draws.integers(60, 150))):
        row, column, shade = draws.random(3)
        radius = 0.02 / max(draws.random(), 0.08)  # many small, few large
        picture[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = palette(np.array(shade))
    return picture


def _grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each pixel's centre in [0, 1], to be broadcast."""
    return (np.arange(height)[:, None] + 0.5) / height, (np.arange(width)[None, :] + 0.5) / width


def _stretched(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    return (values - low) / max(high - low, 1e-9)


def _palette(draws: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """From values in [0, 1] to colours in [0, 1]: one wave for each channel."""
    frequency, phase = draws.uniform(0.3, 1.5, 3), draws.random(3)
    return lambda values: 0.5 + 0.5 * np.cos(2 * np.pi * (values[..., None] * frequency + phase))


PAINTERS: Final[tuple[Painter, ...]] = (_fractal, _plasma, _gratings, _rings, _mosaic, _leaves)
_CHANCES: Final = (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)  # half are fractals
