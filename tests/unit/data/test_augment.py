"""Paired transforms: image, counterpart and mask move together; recorded parameters replay exactly."""

import json

import numpy as np
import pytest
import torch
from scipy import ndimage

from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD, as_images
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import (
    Augmentation,
    Blur,
    Colour,
    Crop,
    Geometry,
    apply_blur,
    apply_colour,
    apply_geometry,
    denormalise,
    draw_augmentation,
    draw_blur,
    draw_colour,
    draw_crop,
    draw_geometry,
    normalise,
    to_pixels,
)


def geometry(angle=0.0, zoom=1.0, hflip=False, vflip=False) -> Geometry:
    return Geometry(torch.tensor([angle]), torch.tensor([zoom]), torch.tensor([hflip]), torch.tensor([vflip]))


def colour(brightness=0.0, contrast=0.0, saturation=0.0, tint=(0.0, 0.0, 0.0)) -> Colour:
    return Colour(
        torch.tensor([brightness]), torch.tensor([contrast]), torch.tensor([saturation]), torch.tensor([tint])
    )


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch_rng("test", seed))


DRAWN = {"rotate": 30.0, "scale": 0.2, "flip": True}


def test_an_image_as_its_own_mask_stays_identical():
    mask = (pictures(8, 1, 32, 32) > 0.5).float()
    drawn = draw_geometry(8, torch_rng("g"), **DRAWN)
    moved = apply_geometry(drawn, mask, "nearest")
    assert torch.equal(apply_geometry(drawn, mask.repeat(1, 3, 1, 1), "nearest"), moved.repeat(1, 3, 1, 1))
    for kind in (torch.uint8, torch.bool, torch.int64, torch.float64):
        as_kind = apply_geometry(drawn, mask.to(kind), "nearest")
        assert as_kind.dtype == kind
        assert torch.equal(as_kind.float(), moved)
    assert not torch.equal(moved, mask)


def test_a_smooth_image_thresholded_after_the_move_is_the_moved_mask():
    """Bilinear and nearest use the same places: at most pixels on the outline differ."""
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    distance = ((rows - 20) ** 2 + (columns - 40) ** 2).sqrt()
    smooth = torch.sigmoid(12 - distance).repeat(16, 1, 1, 1)
    drawn = draw_geometry(16, torch_rng("g"), **DRAWN)
    image = apply_geometry(drawn, smooth) >= 0.5
    mask = apply_geometry(drawn, (smooth >= 0.5).float(), "nearest") > 0
    assert (image != mask).float().mean() < 0.015
    assert mask.any(dim=(1, 2, 3)).all()


def test_flips_of_image_counterpart_and_mask_agree_and_are_exact():
    image, synthetic = pictures(16, 3, 9, 9), pictures(16, 3, 9, 9, seed=1)
    mask = (image[:, :1] > 0.5).to(torch.uint8)
    drawn = draw_geometry(16, torch_rng("f"), rotate=0, scale=0, flip=True)
    combinations = set(zip(drawn.hflip.tolist(), drawn.vflip.tolist(), strict=True))
    assert len(combinations) == 4
    results = [
        apply_geometry(drawn, image),
        apply_geometry(drawn, synthetic),
        apply_geometry(drawn, mask, "nearest"),
    ]
    for original, result in zip((image, synthetic, mask), results, strict=True):
        for row in range(16):
            expected = original[row].numpy()
            if drawn.hflip[row]:
                expected = expected[..., ::-1]
            if drawn.vflip[row]:
                expected = expected[..., ::-1, :]
            np.testing.assert_array_equal(result[row].numpy(), expected)


def test_no_rotation_zoom_or_flip_is_exactly_the_identity():
    drawn = draw_geometry(4, torch_rng("n"), rotate=0, scale=0, flip=False)
    image = pictures(4, 3, 7, 5)
    assert torch.equal(apply_geometry(drawn, image), image)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_quarter_turns_are_counter_clockwise(turns, mode):
    image = pictures(1, 3, 16, 16)
    moved = apply_geometry(geometry(angle=90.0 * turns), image, mode)
    torch.testing.assert_close(moved, torch.rot90(image, turns, dims=(-2, -1)), atol=2e-6, rtol=0)


def test_rotation_keeps_shapes_in_oblong_images():
    image = torch.zeros(1, 1, 40, 80)
    image[..., 18:22, 30:50] = 1  # a bar of 20 x 4
    upright = apply_geometry(geometry(angle=90.0), image, "nearest")
    expected = torch.zeros_like(image)
    expected[..., 10:30, 38:42] = 1
    middle = slice(20, 60)  # what lies beyond is reflected
    assert torch.equal(upright[..., middle], expected[..., middle])


def test_zoom_enlarges():
    image = torch.zeros(1, 1, 32, 32)
    image[..., 12:20, 12:20] = 1
    expected = torch.zeros_like(image)
    expected[..., 8:24, 8:24] = 1
    assert torch.equal(apply_geometry(geometry(zoom=2.0), image, "nearest"), expected)
    expected = torch.zeros_like(image)
    expected[..., 14:18, 14:18] = 1
    shrunk = apply_geometry(geometry(zoom=0.5), image, "nearest")
    assert torch.equal(shrunk[..., 8:24, 8:24], expected[..., 8:24, 8:24])


def test_what_lies_beyond_the_border_is_reflected():
    image = pictures(1, 1, 18, 18)
    moved = apply_geometry(geometry(zoom=1 / 3), image, "nearest")
    tiled = np.pad(image[0, 0].numpy(), 18, mode="symmetric")
    np.testing.assert_array_equal(moved[0, 0].numpy(), tiled[1::3, 1::3])


def test_flip_comes_before_rotation():
    image = pictures(1, 1, 8, 8)
    moved = apply_geometry(geometry(angle=90.0, hflip=True), image, "nearest")
    assert torch.equal(moved, torch.rot90(image.flip(-1), 1, dims=(-2, -1)))


def test_bilinear_move_against_scipy():
    """Same places, same interpolation, same reflection as an independent implementation."""
    angle, zoom, side = 25.0, 0.85, 33
    image = pictures(1, 1, side, side).double()
    moved = apply_geometry(geometry(angle=angle, zoom=zoom), image)
    radians = np.deg2rad(angle)
    inverse = np.array([[np.cos(radians), np.sin(radians)], [-np.sin(radians), np.cos(radians)]]) / zoom
    centre = np.array([(side - 1) / 2] * 2)
    expected = ndimage.affine_transform(
        image[0, 0].numpy(), inverse, centre - inverse @ centre, order=1, mode="reflect"
    )
    np.testing.assert_allclose(moved[0, 0].numpy(), expected, atol=1e-5)


def test_moving_and_mixing_commute():
    real, synthetic = pictures(6, 3, 24, 24), pictures(6, 3, 24, 24, seed=1)
    drawn = draw_geometry(6, torch_rng("m"), **DRAWN)
    mixed_first = apply_geometry(drawn, 0.65 * real + 0.35 * synthetic)
    mixed_last = 0.65 * apply_geometry(drawn, real) + 0.35 * apply_geometry(drawn, synthetic)
    torch.testing.assert_close(mixed_first, mixed_last)


def test_moving_and_normalising_commute():
    image = pictures(6, 3, 24, 24)
    drawn = draw_geometry(6, torch_rng("m"), **DRAWN)
    torch.testing.assert_close(
        apply_geometry(drawn, normalise(image)), normalise(apply_geometry(drawn, image))
    )


def test_integers_are_not_interpolated():
    with pytest.raises(
        ValueError, match=r"bilinear needs floating point images, got torch\.uint8; use nearest"
    ):
        apply_geometry(geometry(), torch.zeros(1, 1, 4, 4, dtype=torch.uint8))


def test_half_precision_keeps_its_format():
    image = pictures(2, 3, 16, 16)
    drawn = draw_geometry(2, torch_rng("h"), **DRAWN)
    moved = apply_geometry(drawn, image.bfloat16())
    assert moved.dtype == torch.bfloat16
    torch.testing.assert_close(moved.float(), apply_geometry(drawn, image), atol=0.01, rtol=0.01)


def test_draws_stay_in_their_ranges_and_fill_them():
    drawn = draw_geometry(4000, torch_rng("r"), rotate=30, scale=0.2, flip=True)
    assert 29 < drawn.angle.max() <= 30
    assert -30 <= drawn.angle.min() < -29
    assert 1.19 < drawn.zoom.max() <= 1.2
    assert 0.8 <= drawn.zoom.min() < 0.81
    for flips in (drawn.hflip, drawn.vflip):
        assert 0.45 < flips.float().mean() < 0.55


def test_switching_one_setting_off_leaves_the_others():
    full = draw_geometry(8, torch_rng("s"), **DRAWN)
    still = draw_geometry(8, torch_rng("s"), **{**DRAWN, "rotate": 0.0})
    assert torch.equal(full.zoom, still.zoom)
    assert torch.equal(full.hflip, still.hflip)
    assert not still.angle.any()
    rng, other = torch_rng("s"), torch_rng("s")
    draw_geometry(8, rng, rotate=0, scale=0, flip=False)
    draw_geometry(8, other, **DRAWN)
    assert torch.equal(rng.get_state(), other.get_state())


def test_the_same_stream_draws_the_same():
    image = pictures(8, 3, 32, 32)
    first, again = (apply_geometry(draw_geometry(8, torch_rng("x"), **DRAWN), image) for _ in range(2))
    assert torch.equal(first, again)


def test_rows_are_independent_of_the_rest_of_the_batch():
    image = pictures(8, 3, 32, 32)
    moves, colours = draw_geometry(8, torch_rng("x"), **DRAWN), draw_colour(8, torch_rng("y"), 0.7)
    whole = apply_colour(colours, apply_geometry(moves, image))
    for row in range(8):
        one = slice(row, row + 1)
        move = Geometry(moves.angle[one], moves.zoom[one], moves.hflip[one], moves.vflip[one])
        tone = Colour(
            colours.brightness[one], colours.contrast[one], colours.saturation[one], colours.tint[one]
        )
        torch.testing.assert_close(apply_colour(tone, apply_geometry(move, image[one])), whole[one])


def test_colour_at_strength_zero_is_exactly_the_identity():
    image = pictures(8, 3, 16, 16)
    image[0], image[1] = 0, 1
    assert torch.equal(apply_colour(draw_colour(8, torch_rng("c"), 0.0), image), image)
    drawn = draw_colour(8, torch_rng("c"), 0.5)
    for row in (0, 1, 2):  # also for single samples of a batch
        for values in (drawn.brightness, drawn.contrast, drawn.saturation, drawn.tint):
            values[row] = 0
    changed = apply_colour(drawn, image)
    assert torch.equal(changed[:3], image[:3])
    assert not (changed[3:] == image[3:]).all(dim=(1, 2, 3)).any()


def test_colour_by_hand():
    image = torch.tensor([0.2, 0.4, 0.6]).view(1, 3, 1, 1).repeat(1, 1, 1, 2)
    image[..., 1] = 0.1
    grey = 0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6

    def first_pixel(change: Colour) -> list[float]:
        return apply_colour(change, image)[0, :, 0, 0].tolist()

    assert first_pixel(colour(brightness=0.25)) == pytest.approx([0.25, 0.5, 0.75])
    assert first_pixel(colour(saturation=-1.0)) == pytest.approx([grey] * 3)
    middle = (grey + 0.1) / 2
    assert first_pixel(colour(contrast=-0.5)) == pytest.approx(
        [(value + middle) / 2 for value in (0.2, 0.4, 0.6)]
    )
    assert first_pixel(colour(tint=(0.1, 0.0, -0.1))) == pytest.approx([0.22, 0.4, 0.54])
    assert first_pixel(colour(brightness=1.0)) == pytest.approx([0.4, 0.8, 1.0])  # clamped


def test_colour_draws_stay_in_their_ranges():
    drawn = draw_colour(4000, torch_rng("r"), strength=0.5)
    for tone in (drawn.brightness, drawn.contrast, drawn.saturation):
        assert 0.19 < tone.abs().max() <= 0.2
    assert drawn.tint.abs().max() <= 0.5 * 0.1 * 4 / 3
    torch.testing.assert_close(drawn.tint.sum(dim=1), torch.zeros(4000), atol=1e-7, rtol=0)


def test_pixels_become_images_also_from_read_only_and_reversed_memory():
    pixels = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)[:, ::-1]
    pixels.flags.writeable = False

    images = as_images(pixels)

    assert images.dtype == torch.float32
    np.testing.assert_array_equal(images.numpy(), np.moveaxis(pixels, 3, 1) / np.float32(255))


def test_normalise_bytes_and_floats_and_back():
    rows = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), dtype=np.uint8)
    mean, std = np.reshape(IMAGENET_MEAN, (3, 1, 1)), np.reshape(IMAGENET_STD, (3, 1, 1))
    images = torch.from_numpy(rows)
    normal = normalise(images)
    assert normal.dtype == torch.float32
    np.testing.assert_allclose(normal.numpy(), (rows / 255 - mean) / std, atol=1e-5)
    assert torch.equal(normalise(images.float() / 255), normal)
    torch.testing.assert_close(denormalise(normal), images.float() / 255)
    torch.testing.assert_close(to_pixels(normal), images.float() / 255)
    assert float(to_pixels(torch.full((1, 3, 2, 2), 50.0)).max()) == 1.0


# --- crop, blur and all together ---------------------------------------------------------------------------

EVERYTHING = {**DRAWN, "colour": 0.5, "crop": 0.4, "blur": 2.0}


def crop(left=0.0, top=0.0, side=1.0) -> Crop:
    return Crop(torch.tensor([left]), torch.tensor([top]), torch.tensor([side]))


def test_crop_by_hand():
    image = pictures(1, 2, 8, 8)
    window = apply_geometry(geometry(), image, "nearest", crop(left=0.5, top=0.25, side=0.5))
    expected = image[:, :, 2:6, 4:8].repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2)
    assert torch.equal(window, expected)


def test_crop_is_of_what_the_geometry_shows():
    image = pictures(1, 1, 8, 8)
    window = apply_geometry(geometry(angle=90.0, hflip=True), image, "nearest", crop(top=0.5, side=0.5))
    turned = torch.rot90(image.flip(-1), 1, dims=(-2, -1))[:, :, 4:, :4]
    assert torch.equal(window, turned.repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2))


def test_a_crop_that_keeps_everything_changes_no_bit():
    image = pictures(4, 3, 16, 16)
    drawn = draw_geometry(4, torch_rng("k"), **DRAWN)
    whole = draw_crop(4, torch_rng("k"), 0.0)
    assert torch.equal(apply_geometry(drawn, image, crop=whole), apply_geometry(drawn, image))
    still = draw_geometry(4, torch_rng("k"), rotate=0, scale=0, flip=False)
    assert torch.equal(apply_geometry(still, image, crop=whole), image)


def test_crops_lie_inside_and_fill_their_range():
    drawn = draw_crop(4000, torch_rng("c"), 0.4)
    assert 0.6 <= drawn.side.min() < 0.61
    assert 0.99 < drawn.side.max() <= 1
    for start in (drawn.left, drawn.top):
        assert start.min() >= 0
        assert (start + drawn.side).max() <= 1 + 1e-6


def test_blur_against_scipy():
    image = pictures(2, 3, 24, 20).double()
    sigma = [0.8, 1.7]
    blurred = apply_blur(Blur(torch.tensor(sigma)), image)
    for row, wide in enumerate(sigma):
        radius = int(3 * np.float32(wide))
        expected = ndimage.gaussian_filter(
            image[row].numpy(), (0, wide, wide), mode="mirror", radius=(0, radius, radius)
        )
        np.testing.assert_allclose(blurred[row].numpy(), expected, atol=1e-6)


def test_no_blur_is_exactly_the_identity_also_beside_blurred_samples():
    image = pictures(3, 3, 16, 16)
    assert torch.equal(apply_blur(draw_blur(3, torch_rng("b"), 0.0), image), image)
    blurred = apply_blur(Blur(torch.tensor([0.0, 2.0, 0.0])), image)
    assert torch.equal(blurred[::2], image[::2])
    alone = apply_blur(Blur(torch.tensor([2.0])), image[1:2])
    torch.testing.assert_close(blurred[1:2], alone)
    assert not torch.equal(alone, image[1:2])


def test_a_blur_wider_than_the_image():
    assert apply_blur(Blur(torch.tensor([9.0])), pictures(1, 1, 4, 4)).shape == (1, 1, 4, 4)


def test_with_everything_drawn_an_image_as_its_own_mask_stays_identical():
    drawn = draw_augmentation(8, torch_rng("a"), **EVERYTHING)
    mask = (pictures(8, 1, 32, 32) > 0.5).float()
    moved = drawn.masks(mask)
    assert torch.equal(drawn.masks(mask.repeat(1, 3, 1, 1)), moved.repeat(1, 3, 1, 1))
    assert not torch.equal(moved, mask)


def test_image_counterpart_and_depth_move_alike_and_only_images_change_otherwise():
    drawn = draw_augmentation(8, torch_rng("a"), **EVERYTHING)
    picture = pictures(8, 3, 32, 32)
    real, synthetic = drawn.images(picture), drawn.images(picture.clone())
    assert torch.equal(real, synthetic)
    assert torch.equal(drawn.depths(picture), apply_geometry(drawn.geometry, picture, crop=drawn.crop))
    assert not torch.allclose(drawn.depths(picture), real, atol=0.01)
    flipped = draw_augmentation(8, torch_rng("a"), rotate=0, scale=0, flip=True, colour=0)
    mask = (picture > 0.5).float()
    assert torch.equal(flipped.images(mask), flipped.masks(mask))
    assert torch.equal(flipped.depths(mask), flipped.masks(mask))


def test_a_whole_augmentation_replays_exactly_from_json():
    picture = pictures(8, 3, 32, 32)
    drawn = draw_augmentation(8, torch_rng("a"), **EVERYTHING)
    again = Augmentation.from_json(json.loads(json.dumps(drawn.as_json())))
    assert again.geometry.hflip.dtype == torch.bool
    assert torch.equal(again.images(picture), drawn.images(picture))
    assert torch.equal(again.masks(picture), drawn.masks(picture))


def test_crop_and_blur_change_no_draw_of_before():
    rng = torch_rng("d")
    moves, tones = draw_geometry(8, rng, **DRAWN), draw_colour(8, rng, 0.5)
    for settings in (EVERYTHING, {**DRAWN, "colour": 0.5}):
        drawn = draw_augmentation(8, torch_rng("d"), **settings)
        assert all(torch.equal(value, vars(moves)[name]) for name, value in vars(drawn.geometry).items())
        assert all(torch.equal(value, vars(tones)[name]) for name, value in vars(drawn.colour).items())
    picture = pictures(8, 3, 16, 16)
    assert torch.equal(drawn.images(picture), apply_colour(tones, apply_geometry(moves, picture)))
