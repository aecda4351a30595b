"""Encoders of segmentation-models-pytorch and timm, and their weights."""

import pytest
import torch
from safetensors.torch import save_file

from mcpmix.core.errors import ModelError, TrainingError
from mcpmix.networks.segmenter import build_segmenter, load_network, save_segmenter


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
