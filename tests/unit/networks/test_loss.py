import math

import pytest
import torch
from torch import nn

from mcpmix.networks.loss import (
    has_batch_norm,
    input_gradient,
    predict_terms,
    probabilities,
    segmentation_loss,
)


def with_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1)).train()


def without_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1)).train()


def test_mixed_images_leave_running_statistics_alone():
    real, mixed = torch.randn(4, 3, 8, 8), 5 + torch.randn(4, 3, 8, 8)
    network, reference = with_norm(), with_norm()
    predict_terms(network, [real, mixed], ["real", "mixed"])
    reference(real)
    for name, value in reference[1].state_dict().items():
        assert torch.equal(value, network[1].state_dict()[name]), name
    assert network[1].momentum == 0.1


@pytest.mark.parametrize("names", [["mixed"], ["hard", "soft"]])
def test_without_real_images_all_terms_move_the_statistics(names):
    images = [index + torch.randn(4, 3, 8, 8) for index in range(len(names))]
    network, reference = with_norm(), with_norm()
    predict_terms(network, images, names)
    for part in images:
        reference(part)
    for name, value in reference[1].state_dict().items():
        assert torch.equal(value, network[1].state_dict()[name]), name


def test_mixed_images_are_normalised_by_their_own_batch():
    real, mixed = torch.randn(4, 3, 8, 8), 5 + torch.randn(4, 3, 8, 8)
    _, logits = predict_terms(with_norm(), [real, mixed], ["real", "mixed"])
    torch.testing.assert_close(logits, with_norm()(mixed))


def test_one_pass_equals_two_without_batch_norm():
    network = without_norm()
    calls = []
    network.register_forward_hook(lambda *_: calls.append(1))
    real, mixed = torch.randn(4, 3, 8, 8), torch.randn(2, 3, 8, 8)
    first, second = predict_terms(network, [real, mixed], ["real", "mixed"])
    assert len(calls) == 1
    torch.testing.assert_close(first, network(real))
    torch.testing.assert_close(second, network(mixed))


def test_batch_norm_is_recognised():
    assert has_batch_norm(with_norm())
    assert not has_batch_norm(without_norm())


def test_loss_is_mean_binary_cross_entropy():
    logits, target = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    expected = (torch.log(torch.tensor(2.0)) + torch.log1p(torch.exp(torch.tensor(2.0)))) / 2
    torch.testing.assert_close(segmentation_loss(logits, target), expected)


def test_input_gradient_by_hand_touches_nothing_of_the_network():
    network = nn.Sequential(nn.Conv2d(3, 1, 1), nn.BatchNorm2d(1), nn.Dropout(0.5)).train()
    images, targets = torch.randn(2, 3, 4, 4), torch.ones(2, 1, 4, 4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    gradient = input_gradient(network, images, targets)
    # One pixel at a time: dBCE/dz = sigmoid(z) - y, and z is linear in the pixel.
    slope = network[0].weight[0, :, 0, 0] / (1 + network[1].eps) ** 0.5
    logits = (network[0](images) / (1 + network[1].eps) ** 0.5).sigmoid() - 1
    torch.testing.assert_close(gradient, (logits * slope[None, :, None, None]).detach())
    assert network.training
    assert not gradient.requires_grad
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_loss_of_several_classes_by_hand():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]])[:, :, None, None]
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.3, 0.7]])[:, :, None, None]  # hard and soft
    exponentials = [math.exp(2), 1.0, math.exp(-1)]
    first = -math.log(exponentials[0] / sum(exponentials))
    second = math.log(3)
    assert float(segmentation_loss(logits, targets)) == pytest.approx((first + second) / 2)


def test_probabilities_of_one_channel_and_of_several():
    logits = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(probabilities(logits[:, :1]), torch.sigmoid(logits[:, :1]))
    several = probabilities(logits)
    torch.testing.assert_close(several.sum(1), torch.ones(2, 4, 4))
    assert torch.equal(several.argmax(1), logits.argmax(1))


def test_gradient_at_the_input_with_several_classes_is_that_of_the_loss():
    network, images = without_norm(), torch.randn(2, 3, 8, 8)
    network[-1] = nn.Conv2d(4, 3, 1)
    targets = torch.nn.functional.one_hot(torch.randint(0, 3, (2, 8, 8)), 3).permute(0, 3, 1, 2).float()
    probe = images.clone().requires_grad_()
    logs = network.eval()(probe).log_softmax(1)
    expected = torch.autograd.grad(-(targets * logs).sum(), probe)[0]
    found = input_gradient(network, images, targets)
    torch.testing.assert_close(found / found.abs().sum(), expected / expected.abs().sum())
