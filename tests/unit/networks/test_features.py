import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import resnet50

from mcpmix.core.errors import ModelError
from mcpmix.networks.features import SmallFeatures, load_features, load_small_features, save_features
from mcpmix.networks.weight_files import resnet_file


def test_saved_features_are_frozen_and_pass_gradients_to_the_image(tmp_path):
    save_features(SmallFeatures((8, 16)), tmp_path)
    phi = load_features(str(tmp_path))
    assert not any(parameter.requires_grad for parameter in phi.parameters())
    images = torch.rand(2, 3, 32, 32, requires_grad=True)
    phi(images).sum().backward()
    assert images.grad.abs().sum() > 0


def test_each_image_is_treated_alone(tmp_path):
    phi = SmallFeatures((8, 16))
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(phi(images)[1:2], phi(images[1:2]))


def test_resnet_file_gives_pooled_features_before_the_classifier(tmp_path):
    network = resnet50().eval()
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, tmp_path / "r.safetensors")
    phi = load_features(str(tmp_path / "r.safetensors"))
    images = torch.rand(2, 3, 64, 64)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(network.fc(phi(images)), network(normalised))


def test_missing_weights_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="98 MB"):
        load_features("resnet50")
    with pytest.raises(ModelError, match="none of embedded, resnet50"):
        load_features(str(tmp_path / "nothing.safetensors"))
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        load_small_features(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", b"{"), ("config.json", b"{}"), ("model.safetensors", b"half")]
)
def test_damaged_features_are_named(tmp_path, name, content):
    save_features(SmallFeatures((8,)), tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"The feature network in {tmp_path} is damaged"):
        load_features(str(tmp_path))


def test_damaged_resnet_files_are_named(tmp_path, monkeypatch):
    file = tmp_path / "resnet.safetensors"
    file.write_bytes(b"half")
    with pytest.raises(ModelError, match="has no ResNet-50"):
        load_features(str(file))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    resnet_file().parent.mkdir(parents=True)
    resnet_file().write_bytes(b"half")
    with pytest.raises(ModelError, match=r"is damaged: (.|\n)* Fetch https://"):
        load_features("resnet50")
