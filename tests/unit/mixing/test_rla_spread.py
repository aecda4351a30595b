import pytest
import torch

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.registry import build_strategy
from mcpmix.mixing.rla import RLA
from mcpmix.mixing.strategy import Batch


def batch(count):
    """Black real images, white counterparts: a mixed pixel is the share."""
    return Batch(
        torch.zeros(count, 3, 2, 2),
        torch.zeros(count, 1, 2, 2),
        torch.ones(count, 3, 2, 2),
        tuple(map(str, range(count))),
    )


def shares(spread, count=4000):
    strategy = build_strategy("mcpmix-rla", epochs=10, mu=0.0, spread=spread)
    strategy.set_epoch(1)
    _, mixed = strategy.terms(batch(count), torch.Generator().manual_seed(0))
    return mixed.images[:, 0, 0, 0].detach()


def test_without_spread_all_samples_take_s():
    torch.testing.assert_close(shares(0.0, 10), torch.full((10,), 0.35))


def test_full_spread_starts_as_the_uniform_arm():
    drawn = shares(1.0)
    assert drawn.min() >= 0
    assert drawn.max() <= 0.7
    assert float(drawn.mean()) == pytest.approx(0.35, abs=0.01)
    assert float(drawn.var()) == pytest.approx(0.7**2 / 12, rel=0.05)


def test_half_spread_stays_around_s():
    drawn = shares(0.5)
    assert 0.1749 <= drawn.min() < 0.18
    assert 0.52 < drawn.max() <= 0.5251


def test_share_never_exceeds_its_bound():
    rla = RLA(10, mu=0.0, controller="scalar")
    with torch.no_grad():
        for parameter in rla.gate_parameters():
            parameter.fill_(5.0)  # s is near s_max
    rla.set_epoch(1)
    mixed = rla.mix(torch.zeros(1, 3, 2, 2), torch.ones(1, 3, 2, 2), torch.tensor([2.0]))
    assert float(mixed.detach().max()) == pytest.approx(0.7)


def test_gradient_to_s_is_weighted_by_the_relative_share():
    rla = RLA(10, mu=0.0, controller="scalar")
    rla.set_epoch(1)
    mixed = rla.mix(torch.zeros(2, 3, 1, 1), torch.ones(2, 3, 1, 1), torch.tensor([0.5, 1.5]))
    mixed[1].sum().backward()
    gradients = [parameter.grad for parameter in rla.gate_parameters() if parameter.grad is not None]
    slope = 0.7 * 0.25  # s_max sigmoid'(0)
    assert sum(float(gradient.abs().sum()) for gradient in gradients) == pytest.approx(3 * 1.5 * slope)


def test_spread_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"spread is 1\.5"):
        build_strategy("mcpmix-rla", epochs=10, mu=0.0, spread=1.5)
