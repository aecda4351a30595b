"""Pictures with contours, and which of them are shown."""

import base64
import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from mcpmix.report.arms import arms_of
from mcpmix.report.pictures import (
    bank_tiles,
    case_tiles,
    contour_path,
    make_tile,
    pick_cases,
    shares,
    spread_over_groups,
    strip,
)


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
    contour = ("M0 0Z", "#ffffff")
    tile = make_tile(image, [contour], "below", "instead", side=20)
    assert decoded(tile.uri).shape == (10, 20, 3)
    assert np.abs(decoded(tile.uri).astype(int) - (200, 90, 60)).max() <= 3
    assert (tile.width, tile.height, tile.contours) == (
        80,
        40,
        [contour],
    )  # contours refer to the whole image
    assert decoded(make_tile(image, [], "", "", side=500).uri).shape == (40, 80, 3)


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


def test_a_strip_goes_from_the_real_image_to_the_largest_share():
    mask = disc(8, 2, (3, 3))
    real, first, second = (np.full((8, 8, 3), level, np.uint8) for level in (200, 100, 50))
    mixed, alone = strip("p1", real, mask, [first, second], 0.2)
    assert [tile.caption for tile in mixed] == ["real, s = 0", "s = 0.1", "s = 0.2"]
    assert [tile.caption for tile in alone] == ["synthetic 1", "synthetic 2"]
    levels = [decoded(tile.uri).mean() for tile in (*mixed, *alone)]
    assert levels == pytest.approx([200, 190, 180, 100, 50], abs=1)
    assert all(tile.contours == [(contour_path(mask), "#ffffff")] for tile in (*mixed, *alone))


def test_a_case_shows_truth_and_predictions():
    full, rla = arms_of(["full-sup", "mcpmix-rla"])
    truth = disc(8, 2, (3, 3))
    tiles = case_tiles(
        "p1", np.zeros((8, 8, 3), np.uint8), truth, [(full, truth, 100.0), (rla, 0 * truth, math.nan)]
    )
    captions = [tile.caption for tile in tiles]
    assert captions == ["truth", "Full-Sup: DSC 100.0", "+ MCPMix + RLA: DSC undefined, nothing found"]
    assert [colour for _, colour in tiles[1].contours] == ["#ffffff", full.colour]


def test_pictures_of_the_bank_keep_their_size_and_those_not_drawn_are_left_out(tmp_path):
    assert bank_tiles(tmp_path) == []
    Image.fromarray(np.zeros((700, 400, 3), np.uint8)).save(tmp_path / "sheet.png")
    (tile,) = bank_tiles(tmp_path)
    assert decoded(tile.uri).shape == (700, 400, 3)


def test_best_median_and_worst_by_hand():
    values = {f"i{k}": float(k) for k in range(9)} | {"undefined": math.nan}
    cases = pick_cases(values, 1)
    assert cases == [("best", "i8"), ("median", "i4"), ("worst", "i0")]
    assert [name for _, name in pick_cases(values, 2)] == ["i8", "i7", "i5", "i4", "i1", "i0"]


@given(st.dictionaries(st.text(max_size=3), st.floats(-100, 100), max_size=20), st.integers(1, 4))
def test_cases_are_extremes_and_come_once(values, each):
    cases = pick_cases(values, each)
    ids = [name for _, name in cases]
    assert len(ids) == len(set(ids))
    assert len(ids) == min(3 * min(each, math.ceil(len(values) / 3)), len(values))
    kinds = {k: [values[name] for kind, name in cases if kind == k] for k in ("best", "median", "worst")}
    ranked = sorted(values.values(), reverse=True)
    assert kinds["best"] == ranked[: len(kinds["best"])]
    assert kinds["worst"] == ranked[len(ranked) - len(kinds["worst"]) :]
    if kinds["median"]:
        assert min(kinds["best"]) >= max(kinds["median"])
        assert min(kinds["median"]) >= max(kinds["worst"])


def test_samples_of_as_many_groups_as_possible():
    group_of = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "c1": "c"}
    assert spread_over_groups(group_of, 5) == ["a1", "b1", "c1", "a2", "b2"]
    assert spread_over_groups(group_of, 2) == ["a1", "b1"]
    assert spread_over_groups({}, 2) == []
