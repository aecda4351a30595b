import pytest
import torch
from torch import nn

from mcpmix.core.errors import ModelError
from mcpmix.mixing.frozen_features import FrozenFeatures


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_weights_and_statistics_stay_and_gradients_reach_the_images():
    phi = network()
    frozen = FrozenFeatures(phi)
    before = {name: value.clone() for name, value in phi.state_dict().items()}
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    phi.train()  # as happens when phi is part of a larger model
    frozen(images).sum().backward()
    assert not phi.training
    assert images.grad.abs().sum() > 0
    assert not any(weight.requires_grad for weight in phi.parameters())
    assert all(torch.equal(value, before[name]) for name, value in phi.state_dict().items())


def test_a_plain_function_will_do():
    assert FrozenFeatures(lambda images: images.mean((2, 3)))(torch.ones(2, 3, 4, 4)).shape == (2, 3)


def test_feature_maps_are_refused_with_the_way_out():
    with pytest.raises(ModelError, match=r"\(2, F\).*gave \(2, 3, 4, 4\).*Average feature maps"):
        FrozenFeatures(nn.Identity())(torch.ones(2, 3, 4, 4))
