"""From arguments to a frame: draw the scene, shade it, and pass the light through the patient's device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from mcpmix.core.errors import DataError
from mcpmix.core.pixels import Pixels, outline
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

_SMALLEST, _LARGEST = 16, 2048


@dataclass(frozen=True)
class PhantomFrame:
    """One rendered frame with its exact annotation."""

    image: Pixels  # (H, W, 3) uint8, RGB
    mask: Pixels  # (H, W) uint8 in {0, 1}: the pixels that show the lesion
    # (H, W) float32 in [0, 1], near = 1: inverse depth, scaled to the visible field of this frame; 0 outside.
    depth: Floats
    # Appearance of patient and frame, in the order mucosa, view, light, vessels, focus, surface, lesion
    # colour, lesion elevation, lesion size; all from `WORDS`.
    words: tuple[str, ...]
    patient: int
    frame: int


def render(seed: int, patient: int, frame: int, size: int = 128) -> PhantomFrame:
    """Render a frame of a patient; the result depends on the arguments only.

    Args:
        seed: of the whole phantom data set.
        frame: frames share the patient's look and differ in pose and lesion.
        size: height and width in pixels, 16..2048. The scene does not depend on it.
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
        mask=mask.astype(np.uint8),
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


def caption(frame: PhantomFrame, lesion: bool = True) -> str:
    """Describe a frame in one lower-case sentence; without `lesion`, only the patient's appearance.

    Returns:
        For example "a clinical colon endoscopic image, pale mucosa, octagonal view, bright light, dense
        vessels, sharp focus, clean surface, showing a small reddish raised lesion".
    """
    mucosa, view, light, vessels, focus, surface, colour, elevation, size = frame.words
    text = (
        f"a clinical colon endoscopic image, {mucosa} mucosa, {view} view, {light} light, {vessels} vessels, "
        f"{focus} focus, {surface} surface"
    )
    return f"{text}, showing a {size} {colour} {elevation} lesion" if lesion else text


_GAP = 2  # pixels between frames
_CONTOUR = (90, 255, 120)


def contact_sheet(frames: Sequence[PhantomFrame], columns: int, contours: bool = False) -> Pixels:
    """Lay frames out row by row on a dark ground, as an RGB image.

    Args:
        columns: frames per row, at least 1.
        contours: whether to draw the outline of each mask, one pixel wide and just outside it.
    """
    sizes = sorted({frame.image.shape[:2] for frame in frames})
    if len(sizes) != 1 or columns < 1:
        raise DataError(
            "A contact sheet needs at least one frame, all frames of one size, and at least one column, but "
            f"contact_sheet() got {len(frames)} frames of sizes {sizes} and columns={columns}. "
            "Render all frames with the same size."
        )
    height, width = sizes[0]
    rows = -(-len(frames) // columns)
    sheet = np.full((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3), 24, dtype=np.uint8)
    for index, frame in enumerate(frames):
        top, left = index // columns * (height + _GAP), index % columns * (width + _GAP)
        tile = sheet[top : top + height, left : left + width]
        tile[:] = frame.image
        if contours:
            tile[outline(frame.mask, outside=True)] = _CONTOUR
    return sheet
