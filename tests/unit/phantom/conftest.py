"""Frames of several patients, rendered once."""

import numpy as np
import pytest

from mcpmix.phantom import PhantomFrame, patient_style, render
from mcpmix.phantom.scene import view_distance
from mcpmix.phantom.surface import pixel_grid

PATIENTS, FRAMES = 25, 4


@pytest.fixture(scope="session")
def frames() -> list[PhantomFrame]:
    """All frames of all patients at 64 pixels, patient by patient."""
    return [render(0, patient, frame, 64) for patient in range(PATIENTS) for frame in range(FRAMES)]


@pytest.fixture(scope="session")
def visible():
    """Which pixels of a frame lie in the field of view."""

    def inside(frame: PhantomFrame) -> np.ndarray:
        x, y = pixel_grid(len(frame.mask))
        return view_distance(patient_style(0, frame.patient), x, y) > 0

    return inside
