import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from mcpmix.cli.app import main
from mcpmix.core.errors import ConfigError, DataError, DependencyError, ModelError
from mcpmix.core.pixels import IMAGENET_MEAN, IMAGENET_STD
from mcpmix.core.progress import SILENT
from mcpmix.data.augment import normalise
from mcpmix.data.sample import read_image, resize_image
from mcpmix.networks.loss import segmentation_loss
from mcpmix.networks.segmenter import SEGMENTERS, build_segmenter, save_segmenter
from mcpmix.segmenter import onnx
from mcpmix.segmenter.onnx import WholeSegmenter, compare, export_segmenter, images_of, resize_levels
from mcpmix.segmenter.predict import Predictor, load_segmenter

BACKBONES = {"segformer": "nano", "unet": "mobilenet_v2", "deeplabv3plus": "mobilenet_v2", "segnet": "small"}
SIZE = 50  # no multiple of 32
MASKS = ("predicted/masks", "onnx")  # of the command and of the example


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Smooth images of several sizes: as photographs, and other than noise, they have outlines."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number, (height, width) in enumerate([(50, 50), (90, 61), (31, 128)]):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return folder


def trained_segmenter(folder, images, name):
    """Knows red from green after some steps: like any trained one, it is unsure about few pixels only."""
    torch.manual_seed(0)
    network = build_segmenter(name, BACKBONES[name]).train()
    pixels = np.stack([resize_image(read_image(path), SIZE) for path in sorted(images.iterdir())])
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    targets = (batch[:, :1] > batch[:, 1:2]).float()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.5  # so that its running statistics keep up with so few steps
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(16):
        optimiser.zero_grad()
        segmentation_loss(network(normalise(batch)), targets).backward()
        optimiser.step()
    description = {"name": name, "variant": BACKBONES[name], "size": SIZE, "arm": "mcpmix", "seed": 3}
    save_segmenter(network, folder, description)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory, images):
    """A segmenter of each backbone with its file, made when asked for."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            segmenter = trained_segmenter(folder / "segmenter", images, name)
            _, agreement = export_segmenter(segmenter, folder / "model.onnx", verify=images)
            made[name] = segmenter, folder / "model.onnx", agreement
        return made[name]

    return make


def test_every_backbone_is_tested():
    assert set(BACKBONES) == set(SEGMENTERS)


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_agree_with_torch_at_any_size(name, exported, images):
    _, _, agreement = exported(name)
    assert agreement.images == 3
    assert agreement.pixels == 50 * 50 + 90 * 61 + 31 * 128
    assert 0 <= agreement.difference < 1e-5
    assert agreement.flipped == 0


def test_facts_travel_with_the_file_and_no_path_of_this_machine(exported):
    segmenter, file, _ = exported("segformer")
    content = file.read_bytes()
    for text in (str(Path(torch.__file__).parent), str(Path(onnx.__file__).parent), "site-packages", ".py"):
        assert text.encode() not in content
    session = onnxruntime.InferenceSession(file)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["mcpmix"])
    assert (facts["name"], facts["variant"]) == ("segformer", "nano")
    assert (facts["size"], facts["arm"], facts["seed"], facts["input"]) == (SIZE, "mcpmix", 3, "uint8")
    assert facts["weights_sha256"] == load_segmenter(segmenter).fingerprint()
    (image,), (probability,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("image", "tensor(uint8)", ["height", "width", 3])
    assert (probability.name, probability.type) == ("probability", "tensor(float)")


def test_fractions_give_the_same_as_levels(exported, images, tmp_path):
    segmenter, _, _ = exported("segformer")
    file = tmp_path / "f.onnx"
    folder, agreement = export_segmenter(segmenter, file, verify=images, input_type="float32")
    assert folder == segmenter
    assert agreement.difference < 1e-5
    assert onnxruntime.InferenceSession(file).get_inputs()[0].type == "tensor(float)"


def run_command(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == 0


@pytest.mark.parametrize("name", BACKBONES)
def test_elsewhere_all_ways_give_the_same_masks(name, exported, images, tmp_path, examples, monkeypatch):
    """Another machine has the folder or the file, and none of what lay around it."""
    segmenter, original, _ = exported(name)
    here = load_segmenter(segmenter)
    moved = shutil.copytree(segmenter, tmp_path / "copy")
    file = shutil.copy(original, tmp_path / "copy.onnx")
    hidden = segmenter.parent.rename(segmenter.parent.with_name(f"{name}-hidden"))
    monkeypatch.chdir(tmp_path)
    try:
        run_command("predict", moved, images, "--out", "predicted", "--device", "cpu")
        assert examples("onnx_predict").main([str(file), str(images), "--out", "onnx"]) == 0
        there = load_segmenter(moved)
    finally:
        hidden.rename(segmenter.parent)
    shares = []
    for path in images.iterdir():
        probability, loaded = (predictor.predict(read_image(path)) for predictor in (here, there))
        masks = [np.asarray(Image.open(tmp_path / kind / f"{path.stem}.png")) for kind in MASKS]
        shares.append((probability >= 0.5).mean())
        clear = np.abs(probability - 0.5) > 1e-4
        assert clear.mean() > 0.99
        for lesion in (loaded >= 0.5, *(mask == 255 for mask in masks)):
            assert np.array_equal(lesion[clear], (probability >= 0.5)[clear])
    assert 0.05 < np.mean(shares) < 0.95  # something to get wrong


# --- comparing ---------------------------------------------------------------------------------------------


class Fake:
    """A session that is wrong by a known amount."""

    def __init__(self, predictor, error):
        self.predictor, self.error = predictor, error

    def get_inputs(self):
        return [type("Input", (), {"name": "image"})]

    def run(self, _, inputs):
        return [self.predictor.predict(inputs["image"]) + np.float32(self.error)]


@pytest.mark.parametrize(("error", "seen"), [(0.25, 0.25), (float("nan"), 1.0), (0.0, 0.0)])
def test_differences_are_found(error, seen, images):
    predictor = Predictor(nn.Conv2d(3, 1, 1), {"size": 8})
    files = sorted(images.iterdir())
    found = compare(Fake(predictor, error), predictor, files, floating=False, progress=SILENT)
    assert found.difference == pytest.approx(seen)
    assert (found.flipped == 0) == (error == 0)


def test_a_file_that_does_not_agree_is_not_kept(exported, images, tmp_path, monkeypatch):
    class Wrong(onnx.WholeSegmenter):
        def forward(self, image):
            return super().forward(image) * 0.9

    monkeypatch.setattr(onnx, "WholeSegmenter", Wrong)
    with pytest.raises(ModelError, match=r"differ by up to 0\.\d+ on 3 images .*It was not kept"):
        export_segmenter(exported("segformer")[0], tmp_path / "m.onnx", verify=images)
    assert list(tmp_path.iterdir()) == []


def test_images_are_those_of_the_run_and_at_most_sixteen(make_config, tmp_path):
    from mcpmix.run import run

    config = make_config(tmp_path, "data.phantom.test_frames_per_patient=20")
    dataset = run(config, until="dataset").dataset
    found = images_of(dataset.folder.parent / "segmenter" / "full-sup" / "seed-0", None)
    assert len(found) == len(set(found)) == 16
    assert all(path.is_file() for path in found)
    with pytest.raises(DataError, match="--verify FOLDER"):
        images_of(tmp_path / "alone", None)


# --- mistakes ----------------------------------------------------------------------------------------------


def test_another_ending(tmp_path):
    with pytest.raises(ConfigError, match=r"m\.pt; expected a file name that ends in \.onnx"):
        export_segmenter(tmp_path, tmp_path / "m.pt")


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "_PACKAGES", ("json", "onnx_is_not_here"))
    with pytest.raises(DependencyError, match=r"needs onnx_is_not_here, .*pip install 'mcpmix\[export\]'"):
        export_segmenter(tmp_path, tmp_path / "m.onnx")


class Branching(nn.Module):
    """A network that ONNX cannot express."""

    def forward(self, images):
        return images[:, :1] if images.sum().item() > 0 else images[:, 1:2]


def test_a_network_that_cannot_be_expressed(images, tmp_path, monkeypatch):
    monkeypatch.setattr(
        onnx,
        "load_segmenter",
        lambda *_, **__: Predictor(Branching(), {"size": 8, "name": "own:Branching", "variant": "x"}),
    )
    with pytest.raises(ModelError, match=r"own:Branching x cannot be expressed in ONNX: .*branches on the"):
        export_segmenter(tmp_path, tmp_path / "m.onnx", verify=images)


# --- the graph ------------------------------------------------------------------------------------------


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_levels(image):
    return torch.from_numpy(image).permute(2, 0, 1).double()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 130), st.integers(0, 9))
def test_resizing_is_that_of_the_data_bit_for_bit(height, width, size, seed):
    image = noise(height, width, seed)
    resized = resize_levels(as_levels(image), size).permute(1, 2, 0).numpy()
    assert np.array_equal(resized, resize_image(image, size))


def test_resizing_two_pixels_by_hand():
    levels = torch.tensor([[[0.0, 100.0]]], dtype=torch.float64)
    # Centres of four pixels lie at 1/4, 3/4, 5/4, 7/4 of the old grid, whose own are at 1/2 and 3/2.
    assert resize_levels(levels, 4)[0].tolist() == [[0.0, 25.0, 75.0, 100.0]] * 4
    assert resize_levels(levels, 1).tolist() == [[[50.0]]]


class Slope(nn.Module):
    """Logits from the first channel, undoing its normalisation: grey level / 255 - 0.5."""

    def forward(self, images):
        return images[:, :1] * IMAGENET_STD[0] + IMAGENET_MEAN[0] - 0.5


@pytest.mark.parametrize("shape", [(40, 64), (7, 5), (16, 16)])
def test_the_graph_is_what_the_predictor_does(shape):
    image = noise(*shape)
    whole = WholeSegmenter(Slope(), 16)
    expected = Predictor(Slope(), {"size": 16}).predict(image)
    assert np.array_equal(whole(torch.from_numpy(image)).numpy(), expected)
    fractions = torch.from_numpy(image.astype(np.float32) / 255)
    assert np.array_equal(whole(fractions).numpy(), expected)
