"""The phantom: determinism, exact masks and depth, patients that differ, words, contact sheets."""

import dataclasses

import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.phantom import WORDS, PhantomFrame, caption, contact_sheet, patient_style, render
from mcpmix.phantom.scene import draw_scene, view_distance
from mcpmix.phantom.shading import noise_tiles, sample_tile, wall_texture
from mcpmix.phantom.surface import build_surface, pixel_grid

PATIENTS, FRAMES = 25, 4


@pytest.fixture(scope="module")
def frames() -> list[PhantomFrame]:
    return [render(0, patient, frame, 64) for patient in range(PATIENTS) for frame in range(FRAMES)]


def visible(frame: PhantomFrame, seed: int = 0) -> np.ndarray:
    x, y = pixel_grid(len(frame.mask))
    return view_distance(patient_style(seed, frame.patient), x, y) > 0


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


def test_masks_are_binary_inside_the_view_and_of_sensible_area(frames):
    for frame in frames:
        assert set(np.unique(frame.mask)) == {0, 1}
        assert not frame.mask[~visible(frame)].any()
        assert 0.018 < frame.mask.mean() < 0.26
    areas = np.array([frame.mask.mean() for frame in frames])
    assert areas.min() < 0.035
    assert areas.max() > 0.13


def test_no_lesion_is_cut_by_the_edge_of_the_view(frames):
    for frame in frames:
        style = patient_style(0, frame.patient)
        scene = draw_scene(0, frame.patient, frame.frame, style)
        x, y = pixel_grid(64)
        assert build_surface(style, scene, x, y).mask.sum() == frame.mask.sum()


def test_mask_is_one_piece(frames):
    from scipy import ndimage

    assert all(ndimage.label(frame.mask, np.ones((3, 3)))[1] == 1 for frame in frames)


def test_depth_spans_zero_to_one_in_the_view_and_is_zero_outside(frames):
    for frame in frames:
        inside = visible(frame)
        assert frame.depth[inside].min() == 0.0
        assert frame.depth[inside].max() == 1.0
        assert not frame.depth[~inside].any()


def test_depth_falls_towards_the_lumen(frames):
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


def test_lesion_shows_in_the_image(frames, monkeypatch):
    from mcpmix.phantom import frame as renderer

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


def test_patients_differ_more_than_frames_of_a_patient(frames):
    colours = np.array([frame.image[visible(frame)].mean(axis=0) for frame in frames])
    colours = colours.reshape(PATIENTS, FRAMES, 3)
    between = colours.mean(axis=1).var(axis=0)
    within = colours.var(axis=1).mean(axis=0)
    assert (between > 2 * within).all()


def test_patient_style_is_plain_and_repeatable():
    style = patient_style(3, 5)
    assert style == patient_style(3, 5)
    assert style != patient_style(3, 6)
    for value in dataclasses.asdict(style).values():
        for part in value if isinstance(value, tuple) else (value,):
            assert type(part) in (float, int, str)


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


def test_words_are_from_the_closed_vocabulary(frames):
    assert len(WORDS) == len(set(WORDS))
    for frame in frames:
        assert len(frame.words) == 9
        assert set(frame.words) <= set(WORDS)
    used = {word for frame in frames for word in frame.words}
    assert len(used) > 0.9 * len(WORDS)


def test_captions_use_few_lower_case_words(frames):
    texts = [caption(frame, lesion) for frame in frames for lesion in (True, False)]
    vocabulary = {word.strip(",") for text in texts for word in text.split()}
    assert all(word.isalpha() and word.islower() for word in vocabulary)
    assert len(vocabulary | set(WORDS)) < 80


def test_caption_in_full():
    words = ("pale", "octagonal", "bright", "dense", "sharp", "clean", "reddish", "raised", "small")
    frame = dataclasses.replace(render(0, 0, 0, 16), words=words)
    look = (
        "a clinical colon endoscopic image, pale mucosa, octagonal view, bright light, dense vessels, "
        "sharp focus, clean surface"
    )
    assert caption(frame, lesion=False) == look
    assert caption(frame) == look + ", showing a small reddish raised lesion"


def test_sample_tile_reads_texels_and_midpoints_and_wraps():
    tile = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
    u = np.array([0.25, 0.375, 1.25, -0.25, 0.875], dtype=np.float32)
    v = np.array([0.5, 0.5, 0.5, 0.0, 0.0], dtype=np.float32)
    assert sample_tile(tile, u, v)[:, 0].tolist() == [9.0, 9.5, 9.0, 3.0, 1.5]


def test_contact_sheet_places_frames_and_draws_contours_outside_masks(frames):
    some = frames[:3]
    sheet = contact_sheet(some, columns=2)
    assert sheet.shape == (130, 130, 3)
    assert np.array_equal(sheet[:64, 66:], some[1].image)
    assert np.array_equal(sheet[66:, :64], some[2].image)
    assert (sheet[66:, 66:] == 24).all()
    drawn = contact_sheet(some, columns=2, contours=True)[:64, :64]
    changed = (drawn != some[0].image).any(axis=2)
    assert changed.sum() > 10
    assert not changed[some[0].mask == 1].any()


def test_contact_sheet_refuses_nothing_and_mixtures(frames):
    for given, columns in (([], 2), ([frames[0], render(0, 0, 0, 32)], 2), (frames[:2], 0)):
        with pytest.raises(DataError, match=f"got {len(given)} frames of sizes .* columns={columns}"):
            contact_sheet(given, columns)
