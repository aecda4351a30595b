"""Depth against closed forms."""

import dataclasses

import numpy as np

from mcpmix.phantom import patient_style
from mcpmix.phantom.scene import draw_scene
from mcpmix.phantom.surface import build_surface, pixel_grid


def test_smooth_straight_tube_has_the_depth_of_a_cylinder():
    style = dataclasses.replace(patient_style(0, 0), fold_height=0.0)
    scene = dataclasses.replace(
        draw_scene(0, 0, 0, style), offset=(0.0, 0.0), bend=(0.0, 0.0), triangle=0.0, lumen=(0.2, -0.1)
    )
    x, y = pixel_grid(64)
    # A ray z (x, y, 1) leaves a cylinder of radius 1 about the viewing axis where z |(x, y)| = 1.
    expected = np.clip(np.hypot(x - 0.2, y + 0.1) * style.opening, 1 / 14, 4.0)
    assert np.allclose(build_surface(style, scene, x, y).wall, expected, rtol=5e-3, atol=2e-3)


def test_wall_points_lie_within_the_folded_tube():
    for patient in range(6):
        style = patient_style(0, patient)
        scene = dataclasses.replace(draw_scene(0, patient, 0, style), offset=(0.1, 0.0), bend=(0.0, 0.0))
        x, y = pixel_grid(64)
        z = 1.0 / build_surface(style, scene, x, y).wall
        across = np.hypot(
            (x - scene.lumen[0]) * style.opening * z + 0.1, (y - scene.lumen[1]) * style.opening * z
        )
        reached = z < 13.9
        assert across[reached].max() < 1.0 + scene.triangle + 0.01
        assert across[reached].min() > 1.0 - scene.triangle - style.fold_height - 0.01


def test_raised_lesion_is_nearer_than_the_wall_it_stands_on():
    found = 0
    for patient in range(12):
        style = patient_style(0, patient)
        scene = draw_scene(0, patient, 0, style)
        flat = dataclasses.replace(scene, lesion=dataclasses.replace(scene.lesion, height=0.0))
        x, y = pixel_grid(64)
        raised, level = build_surface(style, scene, x, y), build_surface(style, flat, x, y)
        core = raised.level < 0.5
        if scene.lesion.raised:
            assert raised.inverse[core].mean() > 1.05 * level.inverse[core].mean()
            found += 1
        assert np.array_equal(raised.inverse[~raised.mask], raised.wall[~raised.mask])
    assert found > 3
