"""Patients: plain parameters. Lesions: whole, in view, and of sensible size."""

import dataclasses

import numpy as np
from scipy import ndimage

from mcpmix.phantom import patient_style
from mcpmix.phantom.scene import draw_scene
from mcpmix.phantom.surface import build_surface, pixel_grid


def test_patient_style_is_plain_and_repeatable():
    style = patient_style(3, 5)
    assert style == patient_style(3, 5)
    assert style != patient_style(3, 6)
    for value in dataclasses.asdict(style).values():
        for part in value if isinstance(value, tuple) else (value,):
            assert type(part) in (float, int, str)


def test_no_lesion_is_cut_by_the_edge_of_the_view(frames):
    for frame in frames:
        style = patient_style(0, frame.patient)
        scene = draw_scene(0, frame.patient, frame.frame, style)
        x, y = pixel_grid(64)
        assert build_surface(style, scene, x, y).mask.sum() == frame.mask.sum()


def test_masks_are_binary_inside_the_view_and_of_sensible_area(frames, visible):
    for frame in frames:
        assert set(np.unique(frame.mask)) == {0, 1}
        assert not frame.mask[~visible(frame)].any()
        assert 0.018 < frame.mask.mean() < 0.26
    areas = np.array([frame.mask.mean() for frame in frames])
    assert areas.min() < 0.035
    assert areas.max() > 0.13


def test_mask_is_one_piece(frames):
    assert all(ndimage.label(frame.mask, np.ones((3, 3)))[1] == 1 for frame in frames)
