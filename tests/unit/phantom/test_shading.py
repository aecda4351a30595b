"""Textures wrap, and the lesion shows."""

import dataclasses

import numpy as np

from mcpmix.phantom import render
from mcpmix.phantom.scene import draw_scene
from mcpmix.phantom.shading import sample_tile


def test_sample_tile_reads_texels_and_midpoints_and_wraps():
    tile = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
    u = np.array([0.25, 0.375, 1.25, -0.25, 0.875], dtype=np.float32)
    v = np.array([0.5, 0.5, 0.5, 0.0, 0.0], dtype=np.float32)
    assert sample_tile(tile, u, v)[:, 0].tolist() == [9.0, 9.5, 9.0, 3.0, 1.5]


def test_lesion_shows_in_the_image(frames, monkeypatch):
    from mcpmix import phantom as renderer

    def without(seed, patient, frame, style):
        scene = draw_scene(seed, patient, frame, style)
        return dataclasses.replace(
            scene, lesion=dataclasses.replace(scene.lesion, radius=1e-3, height=0.0, contrast=0.0)
        )

    monkeypatch.setattr(renderer, "draw_scene", without)
    change = []
    for frame in frames[::2]:
        plain = render(0, frame.patient, frame.frame, 64)
        difference = np.abs(frame.image.astype(int) - plain.image.astype(int)).mean(axis=2)
        change.append(difference[frame.mask == 1].mean())
    assert min(change) > 2.5  # grey levels: faint, but there
    assert np.percentile(change, 90) > 2 * np.percentile(change, 10)  # from faint to obvious
