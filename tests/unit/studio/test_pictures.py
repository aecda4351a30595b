import io
import time

import numpy as np
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.index import DatasetIndex
from mcpmix.data.sample import read_image, read_mask, resize_image, resize_mask
from mcpmix.studio.pictures import Thumbnails, read_depth, read_sample, small_sample, to_png

PIXELS = np.full((40, 20, 3), 90, np.uint8)


def test_a_png_holds_exactly_the_pixels_and_nothing_else():
    pixels = np.random.default_rng(0).integers(0, 255, (7, 5, 3), dtype=np.uint8)
    with Image.open(io.BytesIO(to_png(pixels))) as image:
        assert np.array_equal(np.asarray(image), pixels)
        assert not image.info


def test_samples_at_both_sizes(studio_run):
    record = DatasetIndex.read(studio_run.dataset).part("train")[0]
    assert np.array_equal(read_sample(record, "image"), read_image(record.image))
    assert np.array_equal(read_sample(record, "mask"), read_mask(record.mask) * 255)
    assert np.array_equal(small_sample(record, "image", 16), resize_image(read_image(record.image), 16))
    assert np.array_equal(
        small_sample(record, "mask", 16), resize_mask(read_mask(record.mask) * np.uint8(255), 16)
    )


def test_depth_has_its_full_range(studio_run):
    record = DatasetIndex.read(studio_run.dataset).part("train")[0]
    depth = read_depth(studio_run.config.folder / "depth", record.id)
    assert (depth[0, 0], depth[0, -1], depth.dtype) == (0, 255, np.uint8)


def test_thumbnails_are_made_once_and_kept(tmp_path):
    made = []
    read = lambda: made.append(1) or PIXELS  # noqa: E731
    thumbnails = Thumbnails(tmp_path / "cache")
    first = thumbnails.get("ab12", read)
    assert thumbnails.get("ab12", read) == Thumbnails(tmp_path / "cache").get("ab12", read) == first
    assert len(made) == 1
    with Image.open(io.BytesIO(first)) as image:
        assert (image.format, max(image.size)) == ("JPEG", 40)  # never enlarged
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0  # pictures of patients: nobody else's business


def test_the_background_makes_what_is_asked_for_and_survives_a_damaged_image(tmp_path):
    thumbnails = Thumbnails(tmp_path / "cache")

    def damaged():
        raise DataError("damaged")

    thumbnails.prepare([("aa", damaged), *((f"{n:04x}", lambda: PIXELS) for n in range(30))])
    end = time.monotonic() + 20
    while len(list((tmp_path / "cache").rglob("*.jpg"))) < 30 and time.monotonic() < end:
        time.sleep(0.02)
    assert len(list((tmp_path / "cache").rglob("*.jpg"))) == 30


def test_the_background_waits_while_a_page_asks(tmp_path, monkeypatch):
    monkeypatch.setattr("mcpmix.studio.pictures._QUIET", 0.3)
    thumbnails, made = Thumbnails(tmp_path / "cache"), []
    asked = time.monotonic()
    thumbnails.get("aa", lambda: PIXELS)
    thumbnails.prepare([("bb", lambda: made.append(time.monotonic()) or PIXELS)])
    while not made and time.monotonic() < asked + 20:
        time.sleep(0.02)
    assert made[0] - asked >= 0.3


def test_without_a_folder_nothing_is_written_and_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("mcpmix.studio.pictures._IN_MEMORY", 3)
    thumbnails = Thumbnails(None)
    thumbnails.prepare([("aa", lambda: PIXELS)])
    for number in range(10):
        thumbnails.get(f"{number:04x}", lambda: PIXELS)
    assert list(thumbnails._memory) == ["0007", "0008", "0009"]
