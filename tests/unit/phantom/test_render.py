"""Frames: determinism, depth, patients that differ, words."""

import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.phantom import PhantomFrame, patient_style, render
from mcpmix.phantom.scene import draw_scene
from mcpmix.phantom.shading import noise_tiles, wall_texture
from mcpmix.phantom.surface import pixel_grid

PATIENTS, FRAMES = 25, 4


def same(a: PhantomFrame, b: PhantomFrame) -> bool:
    arrays = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("image", "mask", "depth"))
    return arrays and a.words == b.words


def test_same_arguments_same_frame_in_any_order_and_with_cold_caches():
    keys = [(7, 0, 0), (7, 1, 3), (7, 0, 1), (8, 0, 0)]
    first = {key: render(*key) for key in keys}
    wall_texture.cache_clear()
    noise_tiles.cache_clear()
    for key in reversed(keys):
        assert same(first[key], render(*key))


def test_seed_patient_and_frame_each_change_the_frame():
    base = render(0, 0, 0, 64)
    for other in (render(1, 0, 0, 64), render(0, 1, 0, 64), render(0, 0, 1, 64)):
        assert not np.array_equal(base.image, other.image)
        assert not np.array_equal(base.mask, other.mask)


def test_global_random_state_is_neither_read_nor_moved():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    one = render(0, 0, 0, 64)
    assert np.array_equal(before, np.random.get_state()[1])
    np.random.seed(2)
    assert same(one, render(0, 0, 0, 64))


def test_types_and_shapes(frames):
    frame = frames[0]
    assert frame.image.shape == (64, 64, 3)
    assert frame.mask.shape == frame.depth.shape == (64, 64)
    assert (frame.image.dtype, frame.mask.dtype, frame.depth.dtype) == (np.uint8, np.uint8, np.float32)
    assert (frames[5].patient, frames[5].frame) == (1, 1)


def test_depth_spans_zero_to_one_in_the_view_and_is_zero_outside(frames, visible):
    for frame in frames:
        inside = visible(frame)
        assert frame.depth[inside].min() == 0.0
        assert frame.depth[inside].max() == 1.0
        assert not frame.depth[~inside].any()


def test_depth_falls_towards_the_lumen(frames, visible):
    checked = 0
    for frame in frames:
        scene = draw_scene(0, frame.patient, frame.frame, patient_style(0, frame.patient))
        x, y = pixel_grid(64)
        distance = np.hypot(x - scene.lumen[0], y - scene.lumen[1])
        wall = visible(frame) & (frame.mask == 0)
        rings = [wall & (distance >= low) & (distance < low + 0.3) for low in (0.0, 0.35, 0.7)]
        if min(ring.sum() for ring in rings) > 40:
            means = [frame.depth[ring].mean() for ring in rings]
            assert means[0] < means[1] < means[2]
            checked += 1
    assert checked > 40


def test_patients_differ_more_than_frames_of_a_patient(frames, visible):
    colours = np.array([frame.image[visible(frame)].mean(axis=0) for frame in frames])
    colours = colours.reshape(PATIENTS, FRAMES, 3)
    between = colours.mean(axis=1).var(axis=0)
    within = colours.var(axis=1).mean(axis=0)
    assert (between > 2 * within).all()


def test_sizes_share_the_layout():
    for patient in range(6):
        large = render(0, patient, 1, 256)
        for size in (64, 128):
            small = render(0, patient, 1, size)
            block = 256 // size
            reduced = large.mask.reshape(size, block, size, block).mean(axis=(1, 3)) >= 0.5
            overlap = (reduced & (small.mask == 1)).sum() / (reduced | (small.mask == 1)).sum()
            assert overlap > 0.9
            depth = large.depth.reshape(size, block, size, block).mean(axis=(1, 3))
            assert np.corrcoef(depth.ravel(), small.depth.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("size", [0, 15, 2049])
def test_impossible_size_is_refused_with_the_range(size):
    with pytest.raises(DataError, match=rf"16 to 2048 pixels, but render\(\) got {size}"):
        render(0, 0, 0, size)


def test_nine_words_describe_a_frame_and_vary(frames):
    columns = list(zip(*(frame.words for frame in frames), strict=True))
    assert len(columns) == 9
    assert all(len(set(column)) > 1 for column in columns)
    words = {word for column in columns for word in column}
    assert all(word.isalpha() and word.islower() for word in words)
    assert 20 < len(words) < 30


def test_two_kinds_of_lesion_take_turns_and_look_their_kind():
    brightness = {1: [], 2: []}  # of the lesion, against the one that is drawn without kinds
    for patient in range(4):
        for frame in range(4):
            plain, found = render(3, patient, frame, 64), render(3, patient, frame, 64, kinds=2)
            label = 1 + (patient + frame) % 2
            assert np.array_equal(found.mask, plain.mask * label)
            assert found.words[6:8] == (("pale", "flat"), ("dark", "raised"))[label - 1]
            around = found.mask == 0
            assert np.abs(found.image[around].astype(int) - plain.image[around]).mean() < 8
            means = [frame.image[~around].mean() for frame in (found, plain)]
            brightness[label].append(means[0] / means[1])
    assert np.mean(brightness[1]) > np.mean(brightness[2]) + 0.15


def test_one_kind_is_what_is_drawn_without_being_asked():
    assert same(render(3, 1, 2, 64), render(3, 1, 2, 64, kinds=1))
