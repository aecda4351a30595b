import sys
import types

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from mcpmix.core.errors import ConfigError, ModelError, TrainingError
from mcpmix.networks.segmenter import (
    SEGMENTERS,
    AnySize,
    build_segmenter,
    load_network,
    save_segmenter,
)


class Tiny(nn.Module):
    """A user's network: half resolution, two tied layers."""

    size_multiple = 4

    def __init__(self, variant="plain"):
        super().__init__()
        self.variant = variant
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = self.first
        self.last = nn.Conv2d(3, 1, 2, stride=2)

    def forward(self, images):
        assert all(side % 4 == 0 for side in images.shape[2:])
        return self.last(self.second(self.first(images)))


class TwoClasses(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 2, 1)


class Counted(nn.Conv2d):
    """A user's network that takes the number of channels."""

    def __init__(self, classes=1):
        super().__init__(3, classes, 1)


class Demanding(nn.Module):
    def __init__(self, width):
        super().__init__()


@pytest.fixture
def own(monkeypatch):
    module = types.ModuleType("own_networks")
    module.Tiny, module.TwoClasses, module.Demanding = Tiny, TwoClasses, Demanding
    module.Counted = Counted
    module.NUMBER, module.text = 3, lambda: "text"
    monkeypatch.setitem(sys.modules, "own_networks", module)


SMALL = {
    "segformer": "nano",
    "unet": "resnet18",
    "deeplabv3plus": "resnet18",
    "segnet": "small",
    "own_networks:Tiny": "plain",
    "segmentation_models_pytorch:FPN": "resnet18",
}


def test_each_name_is_tested_below():
    assert set(SEGMENTERS) <= set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_at_sizes_that_are_no_multiple_of_32(name, own):
    torch.manual_seed(0)
    network = build_segmenter(name, SMALL[name])
    images = torch.randn(2, 3, 70, 45)
    logits = network(images)
    assert logits.shape == (2, 1, 70, 45)
    F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_saved_and_loaded_networks_agree(name, own, tmp_path):
    torch.manual_seed(0)
    network = build_segmenter(name, SMALL[name])
    network.train()(torch.randn(2, 3, 64, 64))  # running statistics other than at the start
    save_segmenter(network.eval(), tmp_path, {"name": name, "variant": SMALL[name], "size": 64})
    loaded, description = load_network(tmp_path, trust=name)
    images = torch.randn(1, 3, 64, 50)
    assert torch.equal(loaded(images), network(images))
    assert description["size"] == 64
    assert not loaded.training


@pytest.mark.parametrize("name", SEGMENTERS)
def test_shapes_are_known_without_memory(name):
    with torch.device("meta"):
        network = build_segmenter(name, SMALL[name])
    assert sum(p.numel() for p in network.parameters()) > 1e5


@pytest.mark.parametrize(
    ("name", "variant", "millions"),
    [
        ("segformer", "b0", 3.7),
        ("segformer", "b2", 27.3),
        ("segnet", "vgg16", 29.4),
        ("unet", "resnet18", 14.3),
    ],
)
def test_parameter_counts_of_published_sizes(name, variant, millions):
    with torch.device("meta"):
        network = build_segmenter(name, variant)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


# --- own networks ------------------------------------------------------------------------------------------


def test_own_network_gets_its_variant_and_its_weights(own, tmp_path):
    network = build_segmenter("own_networks:Tiny", "wide")
    assert network.network.network.variant == "wide"
    inner = network.network.network
    torch.save(inner.state_dict(), tmp_path / "tiny.pt")
    loaded = build_segmenter("own_networks:Tiny", "wide", str(tmp_path / "tiny.pt"))
    images = torch.randn(1, 3, 9, 9)
    assert torch.equal(loaded(images), network(images))
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ModelError, match="does not fit own_networks:Tiny"):
        build_segmenter("own_networks:Tiny", "wide", str(tmp_path / "other.pt"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_networks:Missing", "cannot import 'own_networks:Missing'"),
        ("no_such_package.networks:Net", "something installed or on PYTHONPATH"),
        ("own_networks:NUMBER", "is int; expected a class of nn.Module"),
        ("own_networks:text", "gave str; expected an nn.Module"),
        (
            "own_networks:Demanding",
            "cannot be called with no arguments: missing a required argument: 'width'",
        ),
    ],
)
def test_paths_that_are_no_network(path, message, own):
    with pytest.raises(ConfigError, match=message):
        build_segmenter(path, "b0")


def test_own_network_with_two_classes_is_refused_with_the_shape(own):
    with pytest.raises(ModelError, match=r"returned \(1, 2, 32, 32\).*expected logits \(B, 1, H, W\)"):
        build_segmenter("own_networks:TwoClasses", "b0")(torch.randn(1, 3, 20, 20))


# --- mistakes ----------------------------------------------------------------------------------------------


def test_unknown_names_suggest_or_list():
    with pytest.raises(ConfigError, match=r"ClassName.*did you mean segformer\?"):
        build_segmenter("segforma", "b0")
    with pytest.raises(ConfigError, match="known: segformer, unet, deeplabv3plus, segnet"):
        build_segmenter("transformer9000", "b0")


@pytest.mark.parametrize(
    ("name", "variant", "message"),
    [
        ("segformer", "b9", "nano, b0"),
        ("segnet", "vgg19", "vgg16, small"),
        ("unet", "resnet19", r"did you mean resnet\d+\?"),
        ("unet", "zzz", r"timm\.list_models.*known: resnet18, .*mit_b0"),
        ("unet", "tu-resnet19", r"timm\.list_models.*did you mean tu-\w*resnet"),
        ("deeplabv3plus", "vgg11", "'vgg11' does not work here: .*dilated"),
    ],
)
def test_unknown_variants_list_what_there_is(name, variant, message):
    with pytest.raises(ConfigError, match=message):
        build_segmenter(name, variant)


def test_weight_files_that_are_none(tmp_path):
    def build(path):
        return build_segmenter("unet", "resnet18", str(path))

    with pytest.raises(ModelError, match="there is no file"):
        build(tmp_path / "missing.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(ModelError, match="cannot be read: damaged"):
        build(tmp_path / "cut.safetensors")
    torch.save(nn.Conv2d(3, 1, 1), tmp_path / "code.pth")
    with pytest.raises(ModelError, match="not a file of plain tensors"):
        build(tmp_path / "code.pth")
    torch.save({"epoch": 3}, tmp_path / "checkpoint.pth")
    with pytest.raises(ModelError, match=r"Save network\.state_dict\(\) alone"):
        build(tmp_path / "checkpoint.pth")


# --- any size ----------------------------------------------------------------------------------------------


def test_padding_continues_the_last_row_and_column_and_is_cut_off_again():
    seen = []

    class Spy(nn.Module):
        def forward(self, images):
            seen.append(images)
            return images[:, :1]

    images = torch.arange(2 * 3 * 3 * 6).reshape(2, 3, 3, 6).float()
    logits = AnySize(Spy(), 4)(images)
    padded = seen[0]
    assert padded.shape == (2, 3, 4, 8)
    assert torch.equal(padded[..., 3, :6], images[..., 2, :])
    assert torch.equal(padded[..., :3, 6], images[..., 5])
    assert torch.equal(padded[..., 3, 7], images[..., 2, 5])
    assert torch.equal(logits, images[:, :1])


# --- encoders of segmentation-models-pytorch and timm, and their weights -----------------------------------


@pytest.mark.parametrize("kind", ["safetensors", "pth", "folder"])
def test_encoder_weights_from_a_file_with_a_classifier(kind, tmp_path):
    encoder = build_segmenter("unet", "resnet18").inner.network.encoder
    state = {**encoder.state_dict(), "fc.weight": torch.zeros(10, 512)}
    path = tmp_path / f"weights.{kind}"
    if kind == "pth":
        torch.save(state, path)
    elif kind == "folder":
        path.mkdir()
        save_file(state, path / "model.safetensors")
    else:
        save_file(state, path)
    loaded = build_segmenter("deeplabv3plus", "resnet18", str(path)).inner.network.encoder
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())


def test_timm_encoders_get_the_input_they_were_trained_on_also_after_loading(tmp_path):
    name = "tf_efficientnet_lite0"
    scratch = build_segmenter("unet", f"tu-{name}")
    assert torch.equal(scratch.scale.flatten(), torch.ones(3))
    inner = scratch.inner.network.encoder
    state = {key.removeprefix("model."): value for key, value in inner.state_dict().items()}
    save_file(state, tmp_path / "lite.safetensors")
    network = build_segmenter("unet", f"tu-{name}", str(tmp_path / "lite.safetensors"))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = torch.tensor([0.1, 0.6, 1.0])
    seen = (pixels - mean) / std * network.scale.flatten() + network.shift.flatten()
    assert torch.allclose(seen, (pixels - 0.5) / 0.5)  # timm's numbers for this model
    save_segmenter(network, tmp_path / "saved", {"name": "unet", "variant": f"tu-{name}", "size": 64})
    assert torch.equal(load_network(tmp_path / "saved")[0].shift, network.shift)


def test_weights_of_another_encoder_are_refused(tmp_path):
    encoder = build_segmenter("unet", "resnet18").inner.network.encoder
    save_file(encoder.state_dict(), tmp_path / "r18.safetensors")
    with pytest.raises(
        ModelError, match=r"does not fit the encoder resnet50:\n  - \d+ tensors missing: .* \.\.\."
    ):
        build_segmenter("unet", "resnet50", str(tmp_path / "r18.safetensors"))


def test_deeplab_says_why_it_cannot_train_on_one_image():
    network = build_segmenter("deeplabv3plus", "resnet18")
    with pytest.raises(TrainingError, match=r"train\.batch_size to 2"):
        network(torch.randn(1, 3, 64, 64))
    assert network.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 1, 64, 64)


def test_multiples_pass_unchanged():
    network = build_segmenter("unet", "resnet18").eval()
    images = torch.randn(1, 3, 64, 32)
    assert torch.equal(network(images), network.inner.network(images))


SEVERAL = {name: variant for name, variant in SMALL.items() if name != "own_networks:Tiny"}


@pytest.mark.parametrize("name", [*SEVERAL, "own_networks:Counted"])
def test_a_channel_for_each_label_and_back_from_disk(name, own, tmp_path):
    torch.manual_seed(0)
    variant = SEVERAL.get(name, "plain")
    network = build_segmenter(name, variant, channels=3).eval()
    images = torch.randn(2, 3, 70, 45)
    assert network(images).shape == (2, 3, 70, 45)
    description = {"name": name, "variant": variant, "size": 64, "classes": ["adenoma", "cancer"]}
    save_segmenter(network, tmp_path, description)
    loaded, read = load_network(tmp_path, trust=True)
    assert read == description
    assert torch.equal(loaded(images), network(images))


def test_own_network_with_other_channels_than_labels_is_refused(own):
    with pytest.raises(ModelError, match=r"returned \(1, 1, 32, 32\).*logits \(B, 3, H, W\).*`classes`"):
        build_segmenter("own_networks:Tiny", "x", channels=3)(torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("classes", [["one"], "a,b", 3, ["a", "../b"], [f"{n}" for n in range(256)]])
def test_classes_that_no_training_wrote_are_refused(classes, tmp_path):
    network = build_segmenter("segnet", "small")
    save_segmenter(network, tmp_path, {"name": "segnet", "variant": "small", "size": 64, "classes": classes})
    with pytest.raises(ModelError, match=r"classes is .* expected 2 to 255 plain names"):
        load_network(tmp_path)
