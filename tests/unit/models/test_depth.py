import numpy as np
import pytest
import torch

from mcpmix.core.errors import ModelError
from mcpmix.models.depth import DepthNetwork, normalise_depth


def test_near_is_one_for_both_conventions():
    metres = torch.tensor([[[1.0, 2.0], [4.0, 4.0]]])
    from_metric = normalise_depth(metres, near="small")
    from_inverse = normalise_depth(1 / metres, near="large")
    torch.testing.assert_close(from_metric, from_inverse)
    assert from_metric[0, 0, 0] == 1
    assert from_metric[0, 1, 1] == 0
    assert from_metric[0, 0, 1] == pytest.approx((1 / 2 - 1 / 4) / (1 - 1 / 4))


def test_each_image_is_stretched_alone_and_a_constant_map_is_zero():
    raw = torch.stack([torch.full((2, 2), 3.0), torch.tensor([[0.0, 10.0], [5.0, 5.0]])])
    result = normalise_depth(raw, near="large")
    assert torch.equal(result[0], torch.zeros(2, 2))
    assert result[1].min() == 0
    assert result[1].max() == 1


def test_network_keeps_the_size_of_the_image(random_models):
    network = DepthNetwork(random_models / "depth")
    maps = network(np.random.default_rng(0).integers(0, 255, (2, 50, 70, 3), dtype=np.uint8))
    assert maps.shape == (2, 50, 70)
    assert maps.dtype == np.float32
    assert maps.min() >= 0
    assert maps.max() <= 1


def test_folder_without_network_is_named(tmp_path):
    with pytest.raises(ModelError, match="depth network"):
        DepthNetwork(tmp_path)
