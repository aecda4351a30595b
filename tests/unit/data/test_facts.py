"""What one pair of files shows."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from mcpmix.data.facts import file_oddities, inspect, inspect_all
from mcpmix.data.sample import Sample


@pytest.fixture
def sample(tmp_path):
    def make(image, mask, name="a"):
        paths = tmp_path / f"{name}.png", tmp_path / f"{name}_mask.png"
        for path, pixels in zip(paths, (image, mask), strict=True):
            Image.fromarray(pixels).save(path)
        return Sample(name, *paths, name, "x")

    return make


def test_area_border_and_centre_by_hand(sample):
    mask = np.zeros((40, 80), np.uint8)
    mask[0:10, 60:80] = 255  # a corner: 20 of the pixels along the top, 10 of those on the right
    facts, small = inspect(sample(np.full((40, 80, 3), 90, np.uint8), mask))
    assert small.shape == (128, 128, 3)  # as a feature network sees it
    assert facts.area == pytest.approx(200 / 3200)
    assert facts.border == pytest.approx(30 / 240)
    assert facts.centre == pytest.approx((70 / 80, 5 / 40))
    assert (facts.width, facts.height, facts.levels) == (80, 40, 2)
    assert facts.thumbnail.shape == (48, 96, 3)
    assert (facts.thumbnail == (255, 220, 0)).all(axis=2).any()  # the outline


def test_text_in_a_corner_is_found_and_plain_tissue_is_not(sample):
    mask = np.pad(np.full((20, 20), 255, np.uint8), 90)
    plain = np.full((200, 200, 3), 90, np.uint8)
    written = Image.fromarray(plain.copy())
    ImageDraw.Draw(written).text((2, 2), "NAME\n1970", fill="white")
    assert "text" in inspect(sample(np.asarray(written), mask))[0].oddities
    assert "text" not in inspect(sample(plain, mask))[0].oddities


def test_headers_of_files_tell_their_oddities(tmp_path):
    pixels = Image.fromarray(np.full((8, 8, 3), 90, np.uint8))
    pixels.save(tmp_path / "wrong.png", format="JPEG")
    turned = Image.Exif()
    turned[0x0112] = 6
    pixels.save(tmp_path / "turned.jpg", exif=turned)
    pixels.convert("P").save(tmp_path / "palette.png")
    pixels.convert("RGBA").save(tmp_path / "alpha.png")
    found = {path.name: list(file_oddities(path, mask=True)) for path in tmp_path.iterdir()}
    assert found == {
        "wrong.png": ["ending", "lossy mask"],
        "turned.jpg": ["turned", "lossy mask"],
        "palette.png": ["palette"],
        "alpha.png": ["alpha"],
    }
    assert list(file_oddities(tmp_path / "missing.png")) == []


def test_features_go_to_the_images_that_could_be_read(sample):
    mask = np.pad(np.full((8, 8), 255, np.uint8), 16)
    samples = [sample(np.full((40, 40, 3), 5 * n, np.uint8), mask, f"s{n:02d}") for n in range(35)]
    samples[3].image.unlink()
    facts = inspect_all(samples[::-1], phi=lambda images: images.mean(axis=(1, 2)))
    assert [fact.sample.id for fact in facts] == [f"s{n:02d}" for n in range(35)]
    assert facts[3].features is None
    assert facts[3].errors
    assert all(fact.features[0] == pytest.approx(5 * n, abs=1) for n, fact in enumerate(facts) if n != 3)
