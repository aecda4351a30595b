"""What SegFormer may start from, and what it refuses."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from transformers import SegformerConfig

from mcpmix.core.errors import ModelError
from mcpmix.networks.segformer import require_segformer
from mcpmix.networks.segmenter import build_segmenter, save_segmenter


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "nano"
    build_segmenter("segformer", "nano").network.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(pretrained, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(pretrained, tmp_path / "nano")


def refused(source, variant="nano"):
    with pytest.raises(ModelError) as caught:
        build_segmenter("segformer", variant, str(source))
    return str(caught.value)


def test_what_transformers_saved_is_taken_and_loaded(pretrained):
    torch.manual_seed(1)
    loaded, other = (build_segmenter("segformer", "nano", weights) for weights in (str(pretrained), None))
    name = "network.segformer.stages.0.patch_embeddings.proj.weight"
    again = build_segmenter("segformer", "nano", str(pretrained))
    assert torch.equal(loaded.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(loaded.state_dict()[name], other.state_dict()[name])


def test_another_variant(pretrained):
    message = refused(pretrained, "b0")
    assert "is not of a SegFormer b0: its depths are [1, 1, 1, 1], expected [2, 2, 2, 2]" in message
    assert "Set segmenter.variant" in message


def test_a_config_that_leaves_out_its_defaults_is_a_b0(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "segformer"}))
    assert require_segformer(str(folder), "b0", SegformerConfig()) == folder
    assert "is not of a SegFormer nano" in refused(folder)


def test_other_networks(folder, tmp_path):
    description = {"name": "segnet", "variant": "small", "size": 32}
    save_segmenter(build_segmenter("segnet", "small"), tmp_path / "own", description)
    text = f"{tmp_path / 'own'} is a segmenter that mcpmix trained (segnet small); SegFormer cannot start"
    assert text in refused(tmp_path / "own")
    (folder / "config.json").write_text(json.dumps({"model_type": "dpt"}))
    assert f"{folder} is of another kind of network (dpt); SegFormer cannot start" in refused(folder)
    (folder / "config.json").write_text("[]")
    assert "another kind of network (unnamed)" in refused(folder)


def test_tensors_of_another_network(folder):
    save_file({"conv1.weight": torch.zeros(1)}, folder / "model.safetensors")
    assert "holds no tensors of a SegFormer, but others (conv1.weight ...)" in refused(folder)


@pytest.mark.parametrize("length", [0, 3, 5000])
def test_a_truncated_file(folder, length):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert f"{path} ({length} bytes) is damaged or cut off" in refused(folder)


def test_pickles(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert "holds weights as pickles only (pytorch_model.bin)" in refused(folder)
    assert "pytorch_model.bin is a file. Expected a folder with" in refused(folder / "pytorch_model.bin")


def test_folders_without_their_files(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json. Expected a folder with" in refused(tmp_path / "empty")
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(folder)
    (folder / "config.json").write_text("{")
    assert "config.json is damaged" in refused(folder)
