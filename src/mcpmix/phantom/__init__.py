"""Procedural endoscopic scenes with exact masks and depth, for a demonstration that needs no download.

From arguments to a frame: draw the scene, shade it, and pass the light through the patient's device.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import Pixels
from mcpmix.core.seeds import numpy_rng
from mcpmix.phantom.scene import (
    SMALL_AREA,
    Floats,
    PatientStyle,
    Scene,
    draw_scene,
    patient_style,
    view_distance,
)
from mcpmix.phantom.shading import shade, wall_texture
from mcpmix.phantom.surface import build_surface, pixel_grid

__all__ = ["PhantomFrame", "patient_style", "render"]

_SMALLEST, _LARGEST = 16, 2048
KINDS = (("pale", "flat", 0.1), ("dark", "pedunculated", 0.5))  # colour, shape, height of lesions
_CLEAR = 0.7  # least contrast of a lesion whose kind is to be seen


@dataclass(frozen=True)
class PhantomFrame:
    """One rendered frame with its exact annotation."""

    image: Pixels  # (H, W, 3) uint8, RGB
    # (H, W) uint8 in {0, 1}: the pixels that show the lesion; 2 for a lesion of the second kind.
    mask: Pixels
    # (H, W) float32 in [0, 1], near = 1: inverse depth, scaled to the visible field of this frame; 0 outside.
    depth: Floats
    # Appearance of patient and frame, in the order mucosa, view, light, vessels, focus, surface, lesion
    # colour, lesion elevation, lesion size.
    words: tuple[str, ...]
    patient: int
    frame: int


def render(seed: int, patient: int, frame: int, size: int = 128, kinds: int = 1) -> PhantomFrame:
    """Render a frame of a patient; the result depends on the arguments only.

    Args:
        seed: of the whole phantom data set.
        frame: frames share the patient's look and differ in pose and lesion.
        size: height and width in pixels, 16..2048. The scene does not depend on it.
        kinds: 1: lesions as they come. 2: by turns flat and pale, with the label 1, or raised and dark, with
            the label 2.
    """
    if not _SMALLEST <= size <= _LARGEST:
        raise DataError(
            f"A phantom frame needs a size of {_SMALLEST} to {_LARGEST} pixels, but render() got {size}. "
            "Choose a size in that range, for example 128."
        )
    style = patient_style(seed, patient)
    scene = draw_scene(seed, patient, frame, style)
    label = 1
    if kinds > 1:
        label += (patient + frame) % len(KINDS)
        colour, shape, height = KINDS[label - 1]
        style = replace(style, lesion_colour=colour)
        lesion = replace(
            scene.lesion, shape=shape, height=height, contrast=max(scene.lesion.contrast, _CLEAR)
        )
        scene = replace(scene, lesion=lesion)
    x, y = pixel_grid(size)
    view = view_distance(style, x, y)
    surface = build_surface(style, scene, x, y)
    rng = numpy_rng("phantom", seed, "pixels", patient, frame)
    linear = shade(style, scene, surface, wall_texture(seed, patient, style), x, y, rng)
    linear *= (1.0 - 0.5 * style.vignette * (x * x + y * y))[..., None]
    visible = view > 0
    mask = surface.mask & visible
    low, high = float(surface.inverse[visible].min()), float(surface.inverse[visible].max())
    depth = np.clip((surface.inverse - low) / max(high - low, 1e-6), 0.0, 1.0)
    elevation = "raised" if scene.lesion.raised else "flat"
    extent = "small" if float(mask.mean()) < SMALL_AREA else "large"
    look = (style.mucosa, style.view, style.light, style.vessels, style.focus, style.surface)
    return PhantomFrame(
        image=_device(style, scene, rng, linear, view),
        mask=mask.astype(np.uint8) * np.uint8(label),
        depth=np.where(visible, depth, np.float32(0.0)).astype(np.float32),
        words=(*look, style.lesion_colour, elevation, extent),
        patient=patient,
        frame=frame,
    )


def _device(
    style: PatientStyle, scene: Scene, rng: np.random.Generator, linear: Floats, view: Floats
) -> Pixels:
    """Exposure, blur, tone curve, colour, noise and the black surround of the field of view."""
    half = len(linear) / 2  # pixels per half-width
    gains = np.array(style.white_balance, dtype=np.float32) * (style.exposure * scene.light_gain)
    linear = linear * gains
    for axis, motion in ((0, scene.motion[1]), (1, scene.motion[0])):
        # A motion is taken as a Gaussian with the variance of a uniform smear of that length.
        spread = float(np.hypot(style.blur * half, motion * half / np.sqrt(12.0)))
        linear = ndimage.gaussian_filter1d(linear, spread, axis=axis, mode="nearest", truncate=2.5)
    pixels = (1.0 - np.exp(-1.25 * np.maximum(linear, 0.0))) ** style.gamma
    grey = pixels.mean(axis=-1, keepdims=True)
    pixels = grey + style.saturation * (pixels - grey)
    pixels = 0.45 + style.contrast * (pixels - 0.45)
    pixels += style.noise * rng.standard_normal(pixels.shape, dtype=np.float32)
    edge = np.clip(view * half + 0.5, 0.0, 1.0)[..., None]
    pixels = pixels * edge + 0.02 * (1.0 - edge)
    image: Pixels = (np.clip(pixels, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
    return image
