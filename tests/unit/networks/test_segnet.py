import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from mcpmix.core.errors import ModelError
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.networks.segnet import unpool


def test_unpooling_agrees_with_torch_and_runs_in_deterministic_mode():
    maps, places = F.max_pool2d(torch.randn(2, 3, 6, 10), 2, return_indices=True)
    expected = F.max_unpool2d(maps, places, 2)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(unpool(maps, places), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_segnet_from_a_state_file(tmp_path):
    source = build_segmenter("segnet", "small")
    save_file(source.network.state_dict(), tmp_path / "state.safetensors")
    loaded = build_segmenter("segnet", "small", str(tmp_path / "state.safetensors"))
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(loaded.eval()(images), source.eval()(images))
    with pytest.raises(ModelError, match="is not a SegNet vgg16"):
        build_segmenter("segnet", "vgg16", str(tmp_path / "state.safetensors"))
