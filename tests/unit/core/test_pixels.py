"""Outlines by hand, listings, files that are whole or not there, and the way to tensors and back."""

import numpy as np
import pytest
import torch
from PIL import Image

from mcpmix.core.pixels import as_images, as_pixels, as_targets, list_images, outline, write_png


def test_outline_of_a_square_that_touches_the_border():
    mask = np.zeros((5, 6), np.uint8)
    mask[0:4, 1:5] = 255
    inner = np.zeros((5, 6), bool)
    inner[0:4, 1:5] = True
    inner[1:3, 2:4] = False
    np.testing.assert_array_equal(outline(mask), inner)
    outer = np.zeros((5, 6), bool)
    outer[0:4, [0, 5]] = True
    outer[4, 1:5] = True
    np.testing.assert_array_equal(outline(mask, outside=True), outer)


def test_empty_and_full_masks():
    assert not outline(np.zeros((3, 3))).any()
    assert not outline(np.ones((3, 3)), outside=True).any()
    assert outline(np.ones((3, 3))).sum() == 8


def test_listing_skips_hidden_and_other_files(tmp_path):
    for name in ("b.PNG", "a.tif", "sub/c.jpg", ".hidden.png", ".cache/d.png", "notes.txt", "e.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in list_images(tmp_path)] == ["a.tif", "b.PNG"]
    assert [path.name for path in list_images(tmp_path, deep=True)] == ["a.tif", "b.PNG", "c.jpg"]
    assert [path.name for path in list_images(tmp_path, endings=(".npy",))] == ["e.npy"]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_png_comes_back_and_is_whole_or_not_there(tmp_path, monkeypatch, kind):
    pixels = np.arange(12, dtype=kind).reshape(3, 4) * 20
    path = tmp_path / "new" / "a.png"
    write_png(path, pixels)
    with Image.open(path) as image:
        np.testing.assert_array_equal(np.asarray(image), pixels)

    def full_disk(self, file, **options):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_png(tmp_path / "b.png", pixels)
    assert not list(tmp_path.glob("b.png*"))


def test_pixels_to_images_and_back():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), dtype=np.uint8)
    images = as_images(pixels[:, ::-1])
    assert images.shape == (2, 3, 3, 4)
    assert images.dtype == torch.float32
    assert float(images.max()) <= 1
    np.testing.assert_array_equal(as_pixels(images), pixels[:, ::-1])


def test_targets_of_one_channel_and_of_several():
    masks = np.array([[[0, 1], [2, 0]]], np.uint8)
    assert as_targets(masks // 2, 1).tolist() == [[[[0, 0], [1, 0]]]]
    targets = as_targets(masks, 3)
    assert targets.dtype == torch.float32
    assert targets.tolist() == [[[[1, 0], [0, 1]], [[0, 1], [0, 0]], [[0, 0], [1, 0]]]]
