"""Inverse depth of the wall and of the lesion per pixel: closed form, but for a short march through folds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcpmix.phantom.scene import Floats, Lesion, PatientStyle, Scene, lesion_axes, outline_radius

FAR = 14.0  # tube radii; nothing beyond is drawn
_NEAR = 0.25
_STEPS = 12
_REFINEMENTS = 3


@dataclass(frozen=True)
class Surface:
    """The visible surface; all arrays are (H, W)."""

    inverse: Floats  # inverse depth along the viewing axis, per tube radius
    wall: Floats  # inverse depth without the lesion
    turn: Floats  # angle around the tube of the visible wall point, in periods
    along: Floats  # position along the tube of the visible wall point, tube radii
    mask: npt.NDArray[np.bool_]  # whether the pixel shows the lesion
    level: Floats  # lesion coordinate, 0 at the centre, 1 on the outline, growing outside
    dome: Floats  # height profile of the lesion, 0..1, 0 outside


def pixel_grid(size: int) -> tuple[Floats, Floats]:
    """Centres of the pixels, (H, W) each, spanning -1..1 with y downwards."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    x, y = np.meshgrid(line, line)
    return x, y


def build_surface(style: PatientStyle, scene: Scene, x: Floats, y: Floats) -> Surface:
    """Intersect all viewing rays with the folded tube and put the lesion on it."""
    tube = _Tube(style, scene, x, y)
    z = tube.hit()
    px, py = tube.across(z)
    wall = 1.0 / z
    level, mask, dome = _lesion_profile(scene, x, y)
    return Surface(
        inverse=_raise(scene.lesion, wall, level, dome, mask, x, y),
        wall=wall,
        turn=np.arctan2(py, px) * np.float32(0.5 / np.pi),
        along=z,
        mask=mask,
        level=level,
        dome=dome,
    )


class _Tube:
    """A bent tube with folds; rays are `z * (x, y, 1)`, scaled by the opening of the lens."""

    def __init__(self, style: PatientStyle, scene: Scene, x: Floats, y: Floats) -> None:
        self.style, self.scene = style, scene
        # The axis of the tube is `offset + slope z + bend z^2 / (1 + z / 6)`; the rays take over the slope.
        opening = np.float32(style.opening)
        self.x = (x - np.float32(scene.lumen[0])) * opening
        self.y = (y - np.float32(scene.lumen[1])) * opening
        self.frequency = 2.0 * np.pi / style.fold_spacing

    def across(self, z: Floats) -> tuple[Floats, Floats]:
        """Position of the ray point at depth z in the cross-section of the tube."""
        ox, oy, bx, by = (np.float32(value) for value in (*self.scene.offset, *self.scene.bend))
        curve: Floats = z * z / (1.0 + z * (1.0 / 6.0))
        return self.x * z + (ox - bx * curve), self.y * z + (oy - by * curve)

    def gap(self, z: Floats) -> Floats:
        """Distance of the ray point beyond the wall, negative inside the lumen."""
        warp1, turn1, warp2, turn2 = (np.float32(value) for value in self.scene.fold_warp)
        px, py = self.across(z)
        rho = np.sqrt(px * px + py * py) + 1e-6
        cos, sin = px / rho, py / rho
        lobe_angle = self.scene.lobe_angle
        lobe = cos * float(np.cos(lobe_angle)) + sin * float(np.sin(lobe_angle))
        arcs = (4.0 * lobe * lobe - 3.0) * lobe  # cos 3 theta
        wave = np.sin(z * 1.7 + turn2)
        phase = z * self.frequency + self.scene.fold_phase
        phase += warp1 * (cos * np.cos(turn1) + sin * np.sin(turn1)) + warp2 * wave
        phase += 0.35 * arcs
        ridge = np.exp(self.style.fold_sharpness * (np.cos(phase) - 1.0))
        # Folds are crescents: high on one side of the tube, vanishing on the other, side by turns.
        side = cos * wave + sin * (1.0 - wave * wave)
        lobes = np.float32(0.5 * self.style.fold_lobes)
        depth = self.style.fold_height * (1.0 - lobes + lobes * (0.45 * arcs + 0.55 * side))
        result: Floats = rho - 1.0 + self.scene.triangle * arcs + depth * ridge
        return result

    def _shell(self, radius: float) -> Floats:
        """Depth at which rays leave a smooth tube of the given radius."""
        z = np.full_like(self.x, 1.5)
        for _ in range(3):  # the bend makes the equation cubic: fold it into the ray and solve again
            curve = z / (1.0 + z * (1.0 / 6.0))
            dx = self.x - self.scene.bend[0] * curve
            dy = self.y - self.scene.bend[1] * curve
            ox, oy = self.scene.offset
            a = dx * dx + dy * dy + 1e-5
            b = dx * ox + dy * oy
            c = ox * ox + oy * oy - radius * radius
            z = np.clip((np.sqrt(b * b - a * c) - b) / a, _NEAR, FAR)
        return z

    def hit(self) -> Floats:
        """Depth of the first wall point on each ray, in [_NEAR, FAR]."""
        first = self._shell(1.0 - self.scene.triangle - self.style.fold_height)
        last = np.maximum(self._shell(1.0 + self.scene.triangle), first + 1e-3)
        step = (last - first) / _STEPS
        low, high = first.copy(), last.copy()
        found = np.zeros(first.shape, dtype=bool)
        for index in range(1, _STEPS):
            z = first + step * index
            beyond = (self.gap(z) > 0) & ~found
            np.copyto(high, z, where=beyond)
            found |= beyond
            np.copyto(low, z, where=~found)
        for _ in range(_REFINEMENTS):
            middle = 0.5 * (low + high)
            beyond = self.gap(middle) > 0
            high = np.where(beyond, middle, high)
            low = np.where(beyond, low, middle)
        start, end = self.gap(low), self.gap(high)
        share = np.clip(-start / np.maximum(end - start, 1e-6), 0.0, 1.0)
        depth: Floats = np.clip(low + share * (high - low), _NEAR, FAR)
        return depth


def _lesion_profile(scene: Scene, x: Floats, y: Floats) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    lesion = scene.lesion
    u, v = lesion_axes(lesion, x, y)
    reach = outline_radius(lesion, np.arctan2(v, u))
    level = (np.sqrt(u * u + v * v) / reach).astype(np.float32, copy=False)
    mask = level < 1.0
    # The top leans to the lumen, so that slope is gentle on the near side and steep on the far side.
    # `angle` is the tangent about the lumen, hence the lumen lies on the negative v side.
    shift = np.clip(1.0 - level, 0.0, 1.0) * (-0.5 * lesion.lean * lesion.radius)
    q = np.clip(np.sqrt(u * u + (v - shift) ** 2) / reach, 0.0, 1.0)
    inside = np.clip(1.0 - q * q, 0.0, 1.0)
    if lesion.shape == "pedunculated":
        dome = 0.3 + 0.7 * np.sqrt(inside)
    elif lesion.shape == "flat":
        dome = np.clip(inside * 1.6, 0.0, 1.0)
        dome = dome * dome * (3.0 - 2.0 * dome)
    elif lesion.shape == "irregular":
        wobble = np.sin(u * (5.0 / lesion.radius) + lesion.waves[0][2])
        wobble = wobble * np.sin(v * (4.2 / lesion.radius) + lesion.waves[1][2])
        dome = inside**0.6 * (0.8 + 0.2 * wobble)
    else:
        dome = inside**0.7
    return level, mask, np.where(mask, dome, np.float32(0.0)).astype(np.float32)


def _raise(
    lesion: Lesion,
    wall: Floats,
    level: Floats,
    dome: Floats,
    mask: npt.NDArray[np.bool_],
    x: Floats,
    y: Floats,
) -> Floats:
    """Inverse depth with the lesion: its base is the plane through the wall around it, lifted by the dome.

    A plane in space is linear in inverse depth, so the base is a linear fit; flat lesions follow the wall.
    """
    inside = level < 1.2
    dx, dy = x[inside] - lesion.centre[0], y[inside] - lesion.centre[1]
    basis = np.stack([np.ones_like(dx), dx, dy], axis=1).astype(np.float64)
    plane = np.linalg.solve(basis.T @ basis + 1e-6 * np.eye(3), basis.T @ wall[inside].astype(np.float64))
    base = plane[0] + plane[1] * (x - lesion.centre[0]) + plane[2] * (y - lesion.centre[1])
    own = np.clip(dome * min(1.0, 4.0 * lesion.height), 0.0, 1.0)
    if lesion.shape == "pedunculated":
        own = mask.astype(np.float32)
    base = wall + own * (np.maximum(base, 0.05).astype(np.float32) - wall)
    raised: Floats = (base * (1.0 + np.float32(lesion.height) * dome)).astype(np.float32)
    return raised
