import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import mcpmix
from mcpmix.core.errors import DataError, ModelError
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.segmenter.predict import Predictor, segmenter_folder


class Lopsided(nn.Module):
    """Logits that depend on where a pixel is: 1 in the left upper quarter, 0 elsewhere."""

    def forward(self, images):
        logits = torch.zeros_like(images[:, :1])
        logits[..., : images.shape[2] // 2, : images.shape[3] // 2] = 1
        return logits


def make(folder, score):
    torch.manual_seed(0)
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
        ModelError, match=r"is not of a segformer nano, which config\.json beside it names:\n  - \d+ tensors"
    ):
        mcpmix.load_segmenter(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "does not say name, variant, size: it is not of a segmenter"),
        (json.dumps({"name": "unet", "variant": "resnet18"}), "does not say size"),
        ("{", r"config\.json is damaged"),
    ],
)
def test_configurations_that_are_none(text, message, tmp_path):
    (make(tmp_path, 1.0) / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        mcpmix.load_segmenter(tmp_path)
