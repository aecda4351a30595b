"""Pictures, contours and mixtures."""

import base64
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mcpmix.report.pictures import Contour, contour_path, make_tile, mixtures, photo_uri, shares


def rings(path):
    return [
        [tuple(map(float, point.split())) for point in ring.split("L")]
        for ring in re.findall(r"M([^Z]+)Z", path)
    ]


def filled(path, size, scale=8):
    """Fill a path with Pillow on a fine grid and read off the pixel centres."""
    canvas = Image.new("1", (size * scale, size * scale))
    for ring in rings(path):
        one = Image.new("1", canvas.size)
        ImageDraw.Draw(one).polygon([(x * scale, y * scale) for x, y in ring], fill=1)
        canvas = Image.fromarray(np.array(canvas) ^ np.array(one))  # even-odd: holes
    return np.array(canvas)[scale // 2 :: scale, scale // 2 :: scale]


def disc(size, radius, centre):
    y, x = np.mgrid[:size, :size]
    return ((x - centre[0]) ** 2 + (y - centre[1]) ** 2 <= radius**2).astype(np.uint8)


@pytest.mark.parametrize(
    "mask",
    [
        disc(24, 7, (11, 13)),
        disc(24, 9, (2, 20)),  # touches two sides
        disc(24, 9, (12, 12)) - disc(24, 4, (12, 12)),  # a ring
        disc(24, 3, (5, 5)) | disc(24, 3, (17, 16)),  # two lesions
        np.ones((24, 24), np.uint8),
    ],
)
def test_a_filled_contour_is_the_mask_again(mask):
    assert np.mean(filled(contour_path(mask * 255), 24) != (mask > 0)) < 0.01


def test_the_contour_of_one_pixel_surrounds_its_centre():
    mask = np.zeros((5, 9), bool)
    mask[3, 7] = True
    (ring,) = rings(contour_path(mask))
    assert np.mean(ring, axis=0) == pytest.approx((7.5, 3.5))


def test_an_empty_mask_has_no_contour():
    assert contour_path(np.zeros((4, 4), np.uint8)) == ""


def decoded(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))))


def test_photographs_shrink_and_never_grow():
    image = np.full((40, 80, 3), (200, 90, 60), np.uint8)
    small = decoded(photo_uri(image, 20))
    assert small.shape == (10, 20, 3)
    assert np.abs(small.astype(int) - (200, 90, 60)).max() <= 3
    assert decoded(photo_uri(image, 500)).shape == (40, 80, 3)


def test_a_tile_keeps_the_size_that_contours_refer_to():
    contour = Contour("M0 0Z", "#ffffff")
    tile = make_tile(np.zeros((60, 90, 3), np.uint8), [contour], "below", "instead", side=30)
    assert (tile.width, tile.height) == (90, 60)
    assert tile.contours == (contour,)
    assert decoded(tile.uri).shape == (20, 30, 3)


def test_shares_of_the_paper():
    assert shares(0.7) == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert shares(0.25) == [0, 0.1, 0.2, 0.25]
    assert shares(0.05) == [0, 0.05]


@given(st.floats(0.01, 1))
def test_shares_rise_from_nothing_to_the_largest(largest):
    found = shares(largest)
    assert found[0] == 0
    assert found[-1] == pytest.approx(largest)
    steps = np.diff(found)
    assert (steps > 0).all()
    assert steps.max() <= 0.1 + 1e-6


def test_mixtures_are_weighted_means():
    rng = np.random.default_rng(0)
    real, synthetic = rng.integers(0, 256, (2, 6, 6, 3), dtype=np.uint8)
    first, half, last = mixtures(real, synthetic, [0, 0.5, 1])
    assert (first == real).all()
    assert (last == synthetic).all()
    assert np.abs(half - (real.astype(float) + synthetic) / 2).max() <= 0.5
