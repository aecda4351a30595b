import os

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import ConfigError, DataError, StorageError
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.segmenter.predict import load_segmenter
from mcpmix.segmenter.predict_folder import outlined, predict_files


def make_segmenter(folder):
    save_segmenter(
        build_segmenter("segformer", "nano"), folder, {"name": "segformer", "variant": "nano", "size": 32}
    )
    return folder


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return make_segmenter(tmp_path_factory.mktemp("segmenter"))


def make_image(path, height=24, width=40, seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def read(path):
    return np.asarray(Image.open(path))


def test_results_are_those_of_the_segmenter_at_the_images_own_size(segmenter, tmp_path):
    pixels = make_image(tmp_path / "in" / "sub" / "a.png")
    made = predict_files(
        segmenter, tmp_path / "in", tmp_path / "out", threshold=0.45, probabilities=True, device="cpu"
    )
    assert (made.made, made.kept) == (1, 0)
    expected = load_segmenter(segmenter).predict(pixels)
    assert np.array_equal(
        read(tmp_path / "out" / "masks" / "sub" / "a.png"),
        np.where(expected >= 0.45, 255, 0).astype(np.uint8),
    )
    stored = read(tmp_path / "out" / "probabilities" / "sub" / "a.png")
    assert stored.dtype == np.uint16
    assert np.abs(stored / 65535 - expected).max() <= 0.5 / 65535 + 1e-7
    assert not (tmp_path / "out" / "overlays").exists()


def test_nothing_of_the_source_but_its_pixels_is_written(segmenter, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    exif[0x010E] = "patient name"
    make_image(tmp_path / "in" / "a.jpg", height=24, width=40, exif=exif.tobytes(), comment=b"patient name")
    predict_files(
        segmenter, tmp_path / "in", tmp_path / "out", probabilities=True, overlay=True, device="cpu"
    )
    for kind in ("masks", "probabilities", "overlays"):
        path = tmp_path / "out" / kind / "a.png"
        with Image.open(path) as image:
            assert image.info == {}
            assert image.size == (24, 40)  # upright
        assert b"patient" not in path.read_bytes()


def test_only_new_and_changed_images_are_segmented_again(segmenter, tmp_path):
    for name in "abc":
        make_image(tmp_path / "in" / f"{name}.png")
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu").made == 3
    make_image(tmp_path / "in" / "d.png")
    later = (tmp_path / "out" / "masks" / "b.png").stat().st_mtime_ns + 10**9
    os.utime(tmp_path / "in" / "b.png", ns=(later, later))
    again = predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    assert (again.made, again.kept) == (2, 2)


def test_further_results_are_added(segmenter, tmp_path):
    make_image(tmp_path / "in" / "a.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", overlay=True, device="cpu").made == 1
    assert (tmp_path / "out" / "overlays" / "a.png").exists()


def test_results_of_two_segmenters_or_thresholds_are_not_mixed(segmenter, tmp_path):
    make_image(tmp_path / "in" / "a.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    with pytest.raises(StorageError, match=r"not the same: threshold"):
        predict_files(segmenter, tmp_path / "in", tmp_path / "out", threshold=0.6, device="cpu")
    other = make_segmenter(tmp_path / "other")
    with pytest.raises(StorageError, match=r"not the same: weights"):
        predict_files(other, tmp_path / "in", tmp_path / "out", device="cpu")


def test_flips_are_other_results(segmenter, tmp_path):
    pixels = make_image(tmp_path / "in" / "a.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", flips=True, probabilities=True, device="cpu")
    stored = read(tmp_path / "out" / "probabilities" / "a.png") / 65535
    assert np.abs(stored - load_segmenter(segmenter).predict(pixels, flips=True)).max() <= 1e-5
    with pytest.raises(StorageError, match=r"not the same: flips"):
        predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")


def test_four_channels_and_sixteen_bits(segmenter, tmp_path):
    pixels = make_image(tmp_path / "in" / "a.png")
    Image.fromarray(pixels).convert("RGBA").save(tmp_path / "in" / "opaque.png")
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "in" / "inks.tif")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(tmp_path / "in" / "deep.png")
    with pytest.raises(DataError, match="2 of 4 images were not segmented") as caught:
        predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    assert "inks.tif has 4 colour channels (CMYK). Expected RGB or grey" in str(caught.value)
    assert "deep.png has more than 8 bits per channel" in str(caught.value)
    masks = tmp_path / "out" / "masks"
    assert (masks / "opaque.png").read_bytes() == (masks / "a.png").read_bytes()


def test_bad_images_do_not_keep_the_others_back(segmenter, tmp_path):
    make_image(tmp_path / "in" / "a.png")
    make_image(tmp_path / "in" / "c.png")
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    (tmp_path / "in" / ".hidden.png").write_bytes(b"no image")
    (tmp_path / "in" / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"1 of 3 images were not segmented") as caught:
        predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    assert "b.png cannot be read" in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "out" / "masks").iterdir()) == ["a.png", "c.png"]


def test_two_images_for_one_result(segmenter, tmp_path):
    make_image(tmp_path / "in" / "a.png")
    make_image(tmp_path / "in" / "a.jpg")
    with pytest.raises(DataError, match=r"a\.jpg and a\.png"):
        predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")


@pytest.mark.parametrize("threshold", [0, 1, -0.5, float("nan")])
def test_threshold_out_of_range(segmenter, tmp_path, threshold):
    with pytest.raises(ConfigError, match="threshold"):
        predict_files(segmenter, tmp_path, tmp_path / "out", threshold=threshold)


def test_folder_without_images(segmenter, tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        predict_files(segmenter, tmp_path, tmp_path / "out")


def test_outline_is_just_outside_the_lesion():
    image = np.full((9, 9, 3), 7, np.uint8)
    mask = np.zeros((9, 9), np.uint8)
    mask[3:6, 3:6] = 255
    drawn = (outlined(image, mask) != 7).any(axis=2)
    expected = np.zeros((9, 9), bool)
    expected[2:7, 2:7] = True
    expected[3:6, 3:6] = False
    assert np.array_equal(drawn, expected)
    assert (image == 7).all()
