import numpy as np
import pytest

from mcpmix.data.cache import Arrays
from mcpmix.generator.bank import place_of, write_synthetic
from mcpmix.generator.sheet import contact_sheet, draw_histogram

RED = (214, 39, 40)


@pytest.fixture
def bank(tmp_path):
    """Two masks: one with two counterparts, one with a counterpart and a rejected image."""
    images = np.full((2, 32, 32, 3), 128, np.uint8)
    masks = np.zeros((2, 32, 32), np.uint8)
    masks[:, 8:24, 8:24] = 1
    rows = []
    made = (("a", 0, 0, True), ("a", 1, 0, True), ("b", 0, 0, True), ("b", 1, 0, False))
    for name, replica, attempt, admitted in made:
        file = place_of(name, replica, attempt, admitted=admitted)
        write_synthetic(tmp_path / file, np.full((32, 32, 3), 60, np.uint8), run="r", seed=1)
        reasons = [] if admitted else ["alignment: 0.10 < 0.50"]
        rows.append(
            {
                "parent": name,
                "replica": replica,
                "try": attempt,
                "file": file.as_posix(),
                "scores": {"alignment": 0.8 if admitted else 0.1},
                "admitted": admitted,
                "reasons": reasons,
            }
        )
    return tmp_path, rows, Arrays(("a", "b"), images, masks)


def red_pixels(sheet):
    return int((np.asarray(sheet) == RED).all(axis=2).sum())


def test_only_rejected_images_are_crossed_out(bank):
    folder, rows, arrays = bank
    sheet = contact_sheet(folder, rows, arrays)
    assert red_pixels(sheet) > 300  # two diagonals of 104 pixels, two wide, and a caption
    assert red_pixels(contact_sheet(folder, rows[:3], arrays)) == 0


def test_the_contour_of_the_mask_is_drawn(bank):
    folder, rows, arrays = bank
    without = Arrays(arrays.ids, arrays.images, np.zeros_like(arrays.masks))
    one, two = (np.asarray(contact_sheet(folder, rows[:3], each)) for each in (arrays, without))
    assert one.shape == two.shape
    assert (one != two).any(axis=2).sum() > 4 * 4 * 40


def test_a_bank_that_was_not_judged_is_drawn_too(bank):
    folder, rows, arrays = bank
    plain = [{**row, "scores": {}} for row in rows[:3]]
    assert contact_sheet(folder, plain, arrays).size == contact_sheet(folder, rows[:3], arrays).size


def test_the_histogram_is_written(bank):
    folder, rows, _ = bank
    draw_histogram(folder / "alignment.png", rows, [0.5, 0.9], 0.4)
    assert (folder / "alignment.png").exists()
