import itertools
import math

import pytest
import torch
from tests.helpers.batches import share_batch

from mcpmix.core.errors import DataError, McpmixError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.mcpmix import CosineMix, StepwiseMix, UniformMix, cosine_decay, mix


def images(seed, batch=4, dtype=torch.float64):
    return torch.randn(batch, 3, 5, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("s", [0.0, 0.2, 0.5, 0.7, 1.0])
def test_float_and_0d_tensor_give_the_formula(s):
    real, synthetic = images(1), images(2)
    expected = (1 - s) * real + s * synthetic
    torch.testing.assert_close(mix(real, synthetic, s), expected)
    torch.testing.assert_close(mix(real, synthetic, torch.tensor(s)), expected)


def test_one_share_per_sample():
    real, synthetic = images(1), images(2)
    shares = torch.tensor([0.0, 0.25, 0.6, 1.0])
    mixed = mix(real, synthetic, shares)
    for i, share in enumerate(shares.tolist()):
        torch.testing.assert_close(
            mixed[i], (1 - share) * real[i] + share * synthetic[i], rtol=1e-6, atol=1e-6
        )


def test_ends_and_agreement_are_bitwise():
    real, synthetic = images(1, dtype=torch.float32), images(2, dtype=torch.float32)
    assert torch.equal(mix(real, synthetic, 0.0), real)
    assert torch.equal(mix(real, synthetic, torch.tensor(1.0)), synthetic)
    assert torch.equal(mix(real, real.clone(), torch.tensor(0.37)), real)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_gradient_in_s_is_the_inner_product_with_the_difference(shape):
    real, synthetic, probe = images(1), images(2), images(3)
    s = torch.full(shape, 0.3, dtype=torch.float64, requires_grad=True)
    (mix(real, synthetic, s) * probe).sum().backward()
    expected = (probe * (synthetic - real)).flatten(1).sum(1)
    torch.testing.assert_close(s.grad, expected if shape else expected.sum())


def test_half_precision_images_keep_their_dtype():
    real, synthetic = images(1).bfloat16(), images(2).bfloat16()
    assert mix(real, synthetic, torch.tensor(0.3)).dtype == torch.bfloat16


def test_mixing_commutes_with_normalisation():
    real, synthetic = images(1), images(2)
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.1]).view(3, 1, 1)
    after = (mix(real, synthetic, 0.4) - mean) / std
    torch.testing.assert_close(mix((real - mean) / std, (synthetic - mean) / std, 0.4), after)


def test_every_problem_is_listed_at_once():
    with pytest.raises(DataError) as caught:
        mix(images(1), images(2, batch=3).float(), torch.ones(2))
    message = str(caught.value)
    assert "(4, 3, 5, 6)" in message
    assert "(3, 3, 5, 6)" in message
    assert "torch.float32" in message
    assert "s has shape (2,)" in message
    assert "(4,)" in message


@pytest.mark.parametrize("s", [-0.1, 1.01, float("nan")])
def test_a_share_outside_0_1_is_refused(s):
    with pytest.raises(McpmixError, match=r"expected a share in \[0, 1\]"):
        mix(images(1), images(2), s)


def test_byte_images_are_refused():
    byte = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(DataError, match="floating-point"):
        mix(byte, byte, 0.5)


# --- strategies -----------------------------------------------------------------------------------------


def shares(strategy, epoch, batch=None):
    """The real image is 0 and the synthetic 1, so a mixed pixel is the share itself."""
    strategy.set_epoch(epoch)
    real, mixed = strategy.terms(batch or share_batch(), torch_rng("shares", epoch))
    assert real.name == "real"
    return mixed.images[:, 0, 0, 0].detach()


def test_paired_uniform_draws_one_share_per_sample_up_to_the_bound():
    strategy = UniformMix(s_max=0.6, rho=0.3)
    drawn = shares(strategy, 1, share_batch(2000))
    assert len(drawn.unique()) > 1900
    assert float(drawn.min()) >= 0
    assert 0.59 < float(drawn.max()) <= 0.6
    assert float(drawn.mean()) == pytest.approx(0.3, abs=0.015)
    assert strategy.log() == pytest.approx({"s": float(drawn.mean()), "rho": 0.3})


@pytest.mark.parametrize(
    ("epoch", "top"), [(1, 1.0), (149, 1.0), (150, 5 / 6), (399, 1 / 6), (400, 0), (450, 0)]
)
def test_stepwise_shares(epoch, top):
    drawn = shares(StepwiseMix(epochs=400), epoch, share_batch(2000))
    assert float(drawn.max()) == pytest.approx(top, rel=0.01)
    assert float(drawn.mean()) == pytest.approx(top / 2, rel=0.05)


@pytest.mark.parametrize(("epoch", "top"), [(1, 0.5), (200, 0.25), (400, 0.0), (450, 0.0)])
def test_cosine_shares(epoch, top):
    drawn = shares(CosineMix(epochs=400), epoch, share_batch(2000))
    assert float(drawn.max()) == pytest.approx(top, rel=0.01, abs=1e-12)
    assert float(drawn.mean()) == pytest.approx(top / 2, rel=0.05, abs=1e-12)


def ceiling(kind, epoch, epochs):
    strategy = kind(epochs=epochs)
    strategy.set_epoch(epoch)
    return strategy.ceiling()


@pytest.mark.parametrize(("epoch", "value"), [(0, 1.0), (200, 0.5), (400, 0.0), (450, 0.0), (700, 0.0)])
def test_cosine_decay_and_its_clamp(epoch, value):
    assert cosine_decay(epoch, 400) == pytest.approx(value, abs=1e-15)


def test_cosine_decay_never_rises():
    values = [cosine_decay(t, 37) for t in range(60)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert values[37:] == [0.0] * 23


@pytest.mark.parametrize("epoch", [1, 100, 399, 400])
def test_cosine_share_is_the_formula_of_the_paper(epoch):
    assert ceiling(CosineMix, epoch, 400) == pytest.approx(
        0.25 * (1 + math.cos(math.pi * epoch / 400)), abs=1e-15
    )


def test_stepwise_share_as_the_paper_tells_it():
    assert {ceiling(StepwiseMix, t, 400) for t in range(1, 150)} == {1.0}
    changes = [t for t in range(2, 451) if ceiling(StepwiseMix, t, 400) != ceiling(StepwiseMix, t - 1, 400)]
    assert changes == [150, 200, 250, 300, 350, 400]
    assert [ceiling(StepwiseMix, t, 400) for t in (150, 250, 350)] == pytest.approx([5 / 6, 3 / 6, 1 / 6])
    assert ceiling(StepwiseMix, 399, 400) > 0
    assert ceiling(StepwiseMix, 400, 400) == 0.0
    assert ceiling(StepwiseMix, 450, 400) == 0.0


@pytest.mark.parametrize("epochs", [1, 3, 8, 40, 57, 1000])
def test_stepwise_share_scales_with_the_run(epochs):
    for t in range(1, epochs + 3):
        position = min(t / epochs, 1.0)  # in runs; steps at 3/8, 4/8, ... 8/8
        passed = sum(8 * t >= k * epochs for k in range(3, 9)) if position < 1 else 6
        assert ceiling(StepwiseMix, t, epochs) == pytest.approx(1 - passed / 6)
