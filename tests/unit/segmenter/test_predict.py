import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mcpmix
from mcpmix.core.errors import ConfigError, DataError, ModelError, StorageError
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.segmenter.predict import Predictor, outlined, predict_files, segmenter_folder


class Lopsided(nn.Module):
    """Logits that depend on where a pixel is: 1 in the left upper quarter, 0 elsewhere."""

    def forward(self, images):
        logits = torch.zeros_like(images[:, :1])
        logits[..., : images.shape[2] // 2, : images.shape[3] // 2] = 1
        return logits


def make(folder, score, seed=0):
    torch.manual_seed(seed)
    description = {"name": "segformer", "variant": "nano", "size": 32, "validation_dsc": score}
    save_segmenter(build_segmenter("segformer", "nano"), folder, description)
    return folder


def test_flips_average_over_the_four_mirror_images():
    image = np.zeros((6, 8, 3), np.uint8)
    predictor = Predictor(Lopsided(), {"size": 8})
    plain, averaged = predictor.predict(image), predictor.predict(image, flips=True)
    high, low = 1 / (1 + np.exp(-1)), 0.5
    assert plain[0, 0] == pytest.approx(high)
    assert plain[-1, -1] == pytest.approx(low)
    # Each corner is the left upper one of one mirror image.
    corners = averaged[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners == pytest.approx([(high + 3 * low) / 4] * 4)


def test_flips_of_a_network_commute_with_flips_of_the_image(tmp_path):
    predictor = mcpmix.load_segmenter(make(tmp_path / "s", 1.0))
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    averaged = predictor.predict(image, flips=True)
    mirrored = predictor.predict(np.ascontiguousarray(image[:, ::-1]), flips=True)[:, ::-1]
    assert np.abs(averaged - mirrored).max() < 1e-5
    assert np.abs(averaged - predictor.predict(image)).max() > 1e-4


@pytest.mark.parametrize("shape", [(1, 1), (5, 300), (33, 32), (200, 7)])
def test_any_size(shape, tmp_path):
    predictor = Predictor(Lopsided(), {"size": 8})
    probability = predictor.predict(np.zeros((*shape, 3), np.uint8))
    assert probability.shape == shape
    assert probability.dtype == np.float32


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            np.zeros((4, 5, 4), np.uint8),
            r"got uint8 \(4, 5, 4\)\. It has four channels: .*image\[\.\.\., :3\]",
        ),
        (np.zeros((4, 5, 3), np.uint16), r"got uint16 \(4, 5, 3\)\. It has 16 bits: choose the range"),
        (np.zeros((4, 5), np.uint8), r"It is grey: repeat it"),
        (np.zeros((4, 5, 3), np.float32), r"got float32 .*\(image \* 255\)\.round\(\)"),
        (np.zeros((0, 5, 3), np.uint8), r"got uint8 \(0, 5, 3\)"),
    ],
)
def test_images_of_another_form(image, message):
    with pytest.raises(DataError, match=message):
        Predictor(Lopsided(), {"size": 8}).predict(image)


def test_a_run_stands_for_its_best_segmenter(tmp_path):
    place = tmp_path / "segmenter" / "full-sup"
    make(place / "seed-0", 40.0)
    best = make(place / "seed-1", 60.0)
    make(place / "seed-2.partial", 90.0)
    assert segmenter_folder(tmp_path) == best
    assert segmenter_folder(place / "seed-0") == place / "seed-0"


def test_a_copied_folder_is_the_same_segmenter(tmp_path):
    here = make(tmp_path / "here", 1.0)
    there = shutil.copytree(here, tmp_path / "other" / "there")
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    first, second = mcpmix.load_segmenter(here), mcpmix.load_segmenter(there)
    assert first.fingerprint() == second.fingerprint()
    assert np.array_equal(first.predict(image), second.predict(image))


# --- folders that are none ---------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    with pytest.raises(ModelError, match=r"missing does not exist\. Expected a folder with config\.json and"):
        mcpmix.load_segmenter(tmp_path / "missing")
    with pytest.raises(ModelError, match=r"has no segmenter: no config\.json and no model\.safetensors"):
        mcpmix.load_segmenter(tmp_path)


def test_a_truncated_file(tmp_path):
    weights = make(tmp_path, 1.0) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(
        ModelError, match=r"model\.safetensors \(\d+ bytes\) is damaged or cut off: .*Copy it"
    ):
        mcpmix.load_segmenter(tmp_path)
    weights.write_bytes(b"")
    with pytest.raises(ModelError, match=r"\(0 bytes\) is damaged or cut off"):
        mcpmix.load_segmenter(tmp_path)


def test_pickles_are_named_and_not_opened(tmp_path):
    folder = make(tmp_path / "s", 1.0)
    torch.save({"weight": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(
        ModelError, match=r"model\.pt is a pickle, which can run code .* is not read\. Expected"
    ):
        mcpmix.load_segmenter(tmp_path / "model.pt")
    torch.save({"weight": torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="is a pickle under another name"):
        mcpmix.load_segmenter(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors\. pytorch_model\.bin there is a pickle"):
        mcpmix.load_segmenter(folder)


def test_weights_of_another_architecture(tmp_path):
    torch.manual_seed(0)
    description = {"name": "segformer", "variant": "nano", "size": 32}
    save_segmenter(build_segmenter("segnet", "small"), tmp_path, description)
    with pytest.raises(
        ModelError, match=r"is not of a segformer nano, which config\.json next to it names:\n  - \d+ tensors"
    ):
        mcpmix.load_segmenter(tmp_path)


UNET = {"name": "unet", "variant": "resnet18", "size": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "does not say name, variant, size: it is not of a segmenter"),
        (json.dumps({"name": "unet", "variant": "resnet18"}), "does not say size"),
        ("{", r"config\.json is damaged"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"name": 1, "variant": [], "size": 64}), r"name is '1', expected a text\n  - variant is"),
        (json.dumps({"name": "unet", "variant": "resnet18", "size": 10**9}), "expected whole pixels up to"),
        (json.dumps({"name": "unet", "variant": "resnet18", "size": True}), "expected whole pixels up to"),
        (json.dumps({**UNET, "options": {"decoder_channels": 3}}), "variant|does not describe a network"),
        (json.dumps({**UNET, "options": {"decoder_channels": [2**17] * 5}}), "is not of a unet resnet18"),
        (json.dumps({"name": "os:abort", "variant": "", "size": 8}), "os:abort, which would be imported"),
    ],
)
def test_configurations_that_are_none(text, message, tmp_path):
    (make(tmp_path, 1.0) / "config.json").write_text(text)
    with pytest.raises((ModelError, ConfigError), match=message):
        mcpmix.load_segmenter(tmp_path)


def test_code_that_a_folder_names_runs_only_if_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "trojan.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    make(tmp_path / "s", 1.0)
    (tmp_path / "s" / "config.json").write_text(
        json.dumps({"name": "trojan:Horse", "variant": "", "size": 8})
    )
    for trust in (False, "mine:Own"):
        with pytest.raises(ModelError, match=r"trojan:Horse, which would be imported and run.*--trust"):
            mcpmix.load_segmenter(tmp_path / "s", trust=trust)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match="cannot import 'trojan:Horse'"):
        mcpmix.load_segmenter(tmp_path / "s", trust=True)
    assert (tmp_path / "ran").exists()


# --- whole folders ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    return make(tmp_path_factory.mktemp("segmenter"), 1.0)


def make_image(path, height=24, width=40, seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def read(path):
    return np.asarray(Image.open(path))


def test_results_are_those_of_the_segmenter_at_the_images_own_size(segmenter, tmp_path):
    pixels = make_image(tmp_path / "in" / "sub" / "a.png")
    counts = predict_files(
        segmenter, tmp_path / "in", tmp_path / "out", threshold=0.45, probabilities=True, device="cpu"
    )
    assert counts == (1, 0)
    expected = mcpmix.load_segmenter(segmenter).predict(pixels)
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
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu") == (3, 0)
    make_image(tmp_path / "in" / "d.png")
    os.utime(tmp_path / "in" / "b.png")  # newer, but the same
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu") == (1, 3)


def test_what_counts_is_the_content_of_images_and_results(segmenter, tmp_path):
    for name in "abcd":
        make_image(tmp_path / "in" / f"{name}.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    masks = tmp_path / "out" / "masks"
    before = {path.name: path.read_bytes() for path in masks.iterdir()}
    Image.fromarray(np.full((9, 7, 3), 90, np.uint8)).save(tmp_path / "in" / "a.png")
    os.utime(tmp_path / "in" / "a.png", (1, 1))  # another image, older than its result
    (masks / "b.png").write_bytes(b"")
    Image.new("L", (4, 4)).save(masks / "c.png")
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu") == (3, 1)
    assert read(masks / "a.png").shape == (9, 7)
    assert [(masks / f"{name}.png").read_bytes() == before[f"{name}.png"] for name in "bcd"] == [True] * 3
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu") == (0, 4)


def test_further_results_are_added(segmenter, tmp_path):
    make_image(tmp_path / "in" / "a.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    assert predict_files(segmenter, tmp_path / "in", tmp_path / "out", overlay=True, device="cpu") == (1, 0)
    assert (tmp_path / "out" / "overlays" / "a.png").exists()


def test_results_of_two_segmenters_or_thresholds_are_not_mixed(segmenter, tmp_path):
    make_image(tmp_path / "in" / "a.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", device="cpu")
    with pytest.raises(StorageError, match=r"not the same: threshold"):
        predict_files(segmenter, tmp_path / "in", tmp_path / "out", threshold=0.6, device="cpu")
    other = make(tmp_path / "other", 1.0, seed=1)
    with pytest.raises(StorageError, match=r"not the same: weights"):
        predict_files(other, tmp_path / "in", tmp_path / "out", device="cpu")


def test_flips_are_other_results(segmenter, tmp_path):
    pixels = make_image(tmp_path / "in" / "a.png")
    predict_files(segmenter, tmp_path / "in", tmp_path / "out", flips=True, probabilities=True, device="cpu")
    stored = read(tmp_path / "out" / "probabilities" / "a.png") / 65535
    assert np.abs(stored - mcpmix.load_segmenter(segmenter).predict(pixels, flips=True)).max() <= 1e-5
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
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no images"):
        predict_files(segmenter, empty, tmp_path / "out")


@pytest.mark.parametrize(("size", "width"), [(9, 1), (1024, 4)])
def test_outline_is_just_outside_the_lesion_and_wider_in_large_images(size, width):
    image = np.full((size, size, 3), 7, np.uint8)
    rows, columns = np.mgrid[:size, :size]
    distance = abs(rows - size // 2) + abs(columns - size // 2)
    drawn = (outlined(image, distance <= 2) != 7).any(axis=2)
    assert np.array_equal(drawn, (distance > 2) & (distance <= 2 + width))
    assert (image == 7).all()


@pytest.mark.parametrize("inside", ["", "results"])
def test_results_never_lie_among_the_images(tmp_path, inside):
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (32, 32)).save(images / "a.png")
    with pytest.raises(StorageError, match="a second call would segment its own masks"):
        predict_files(make(tmp_path / "s", 1.0), images, images / inside)
    assert [path.name for path in images.iterdir()] == ["a.png"]
