import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist
from torch import nn

from mcpmix.core.errors import ConfigError, DataError, ModelError
from mcpmix.mixing.mmd import FrozenFeatures, median_bandwidth, mmd


def sample(seed, n, features=5, shift=0.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=generator, dtype=dtype) + shift


def slow_mmd(x, y, sigma, estimator):
    """Double loops over Python floats, nothing shared with the source."""

    def k(a, b):
        return math.exp(-sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / (2 * sigma**2))

    def mean(first, second, skip_same):
        pairs = [
            k(a, b) for i, a in enumerate(first) for j, b in enumerate(second) if not (skip_same and i == j)
        ]
        return sum(pairs) / len(pairs)

    x, y = x.tolist(), y.tolist()
    skip = estimator == "unbiased"
    return mean(x, x, skip) + mean(y, y, skip) - 2 * mean(x, y, False)


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize(("n", "m"), [(2, 2), (4, 7), (9, 3)])
def test_against_double_loops(estimator, n, m):
    x, y = sample(1, n), sample(2, m, shift=0.4)
    value = mmd(x, y, 1.3, estimator=estimator)
    assert value.shape == ()
    assert float(value) == pytest.approx(slow_mmd(x, y, 1.3, estimator), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (5, 8)])
def test_median_heuristic_against_scipy(n, m):
    x, y = sample(1, n), sample(2, m, shift=0.5)
    distances = np.sort(pdist(np.concatenate([x.numpy(), y.numpy()])))
    sigma = distances[(len(distances) - 1) // 2]
    assert float(median_bandwidth(x, y)) == pytest.approx(sigma, rel=1e-12)

    def gram(a, b):
        return np.exp(-cdist(a.numpy(), b.numpy(), "sqeuclidean") / (2 * sigma**2))

    expected = gram(x, x).mean() + gram(y, y).mean() - 2 * gram(x, y).mean()
    assert float(mmd(x, y)) == pytest.approx(expected, rel=1e-10)


def test_one_vector_each_by_hand():
    # d = 5, sigma = 5: 1 + 1 - 2 exp(-1/2)
    x, y = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    assert float(mmd(x, y, 5.0)) == pytest.approx(2 - 2 * math.exp(-0.5), rel=1e-6)
    assert float(mmd(x, y)) == pytest.approx(2 - 2 * math.exp(-0.5), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_exactly_zero_for_equal_inputs(dtype, n, offset):
    x = sample(3, n, features=257, shift=offset, dtype=dtype)
    assert float(mmd(x, x)) == 0.0
    assert float(mmd(x, x.clone())) == 0.0
    assert float(mmd(x, x.clone(), root=True)) == 0.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    step=st.sampled_from([0.0, 1e-7, 1e-4, 1.0]),
    double=st.booleans(),
)
def test_biased_stays_in_its_range(seed, n, m, step, double):
    dtype = torch.float64 if double else torch.float32
    x = sample(seed, n, dtype=dtype)
    y = x.repeat(9, 1)[:m] + step * sample(seed + 1, m, dtype=dtype)
    assert 0.0 <= float(mmd(x, y)) <= 2.0


def test_rounding_never_makes_it_negative():
    # The same vectors in another order: 0 up to rounding, which falls on either side.
    values = []
    for seed in range(40):
        x = sample(seed, 33, 65, dtype=torch.float32)
        values.append(float(mmd(x, x[torch.randperm(33, generator=torch.Generator().manual_seed(seed))])))
    assert min(values) == 0.0
    assert max(values) < 1e-5


def test_unbiased_is_centred_and_biased_is_not():
    biased, unbiased = [], []
    for seed in range(60):
        x, y = sample(2 * seed, 16, 20), sample(2 * seed + 1, 16, 20)
        biased.append(float(mmd(x, y)))
        unbiased.append(float(mmd(x, y, estimator="unbiased")))
    assert min(unbiased) < 0 < min(biased)
    assert abs(np.mean(unbiased)) < 3 * np.std(unbiased) / math.sqrt(60)


def test_float32_far_from_the_origin():
    x, y = sample(1, 16, 64), sample(2, 16, 64, shift=0.3)
    exact = float(mmd(x, y))
    for offset in (0.0, 100.0, 10_000.0):
        moved = float(mmd((x + offset).float(), (y + offset).float()))
        assert moved == pytest.approx(exact, rel=2e-3)


def test_half_precision_and_autocast_are_computed_in_float32():
    x, y = sample(1, 8, 64, dtype=torch.float32), sample(2, 8, 64, shift=0.3, dtype=torch.float32)
    plain = mmd(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mmd(x, y), plain)
    half = mmd(x.bfloat16(), y.bfloat16())
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(plain), rel=0.05)


def test_the_zero_median_is_guarded():
    x = torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(6, 3, dtype=torch.float64)
    assert float(median_bandwidth(x, y)) == 1.0
    value = mmd(x, y)
    value.backward()
    assert float(value.detach()) == 0.0
    assert torch.equal(x.grad, torch.zeros_like(x))
    y[0] = 2.0  # one vector apart from eleven: the median is still 0, the mean square 11 * 12 / 66 = 2
    assert float(median_bandwidth(x, y)) == pytest.approx(math.sqrt(2.0))
    assert float(mmd(x.detach(), y)) > 0


def test_several_bandwidths_average_the_kernel():
    x, y = sample(1, 5), sample(2, 6, shift=1.0)
    separate = [float(mmd(x, y, 1.5 * factor)) for factor in (0.5, 1.0, 3.0)]
    assert float(mmd(x, y, 1.5, bandwidths=(0.5, 1.0, 3.0))) == pytest.approx(np.mean(separate), rel=1e-12)


def test_root_is_the_root_and_has_a_finite_gradient_at_zero():
    x, y = sample(1, 5).requires_grad_(), sample(2, 6, shift=1.0)
    assert float(mmd(x, y, root=True).detach()) == pytest.approx(math.sqrt(float(mmd(x, y).detach())))
    mmd(x, x.detach().clone(), root=True).backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("root", [False, True])
def test_gradcheck(estimator, root):
    x, y = sample(1, 4, 3).requires_grad_(), sample(2, 5, 3, shift=1.5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: mmd(a, b, 1.4, estimator=estimator, root=root, bandwidths=(1.0, 2.0)), (x, y)
    )


def test_the_median_bandwidth_is_a_constant_for_the_gradient():
    x, y = sample(1, 4).requires_grad_(), sample(2, 5, shift=0.5)
    (free,) = torch.autograd.grad(mmd(x, y), x)
    (fixed,) = torch.autograd.grad(mmd(x, y, median_bandwidth(x, y)), x)
    torch.testing.assert_close(free, fixed)
    assert not median_bandwidth(x, y).requires_grad


@pytest.mark.parametrize("shapes", [((4, 3), (4, 2)), ((4, 3, 2), (4, 3, 2)), ((0, 3), (4, 3)), ((4,), (4,))])
def test_shapes_that_do_not_fit(shapes):
    x, y = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(DataError, match="feature vectors") as caught:
        mmd(x, y)
    assert str(shapes[0]) in str(caught.value)


def test_options_that_do_not_exist():
    x = sample(1, 3)
    with pytest.raises(ConfigError, match="'linear'; expected 'biased' or 'unbiased'"):
        mmd(x, x, estimator="linear")
    with pytest.raises(DataError, match="two vectors or more on each side, got 1 and 3"):
        mmd(x[:1], x, estimator="unbiased")
    for wrong in ({"bandwidth": 0.0}, {"bandwidth": -1.0}, {"bandwidths": ()}, {"bandwidths": (1.0, 0.0)}):
        with pytest.raises(ConfigError, match="above 0"):
            mmd(x, x, **wrong)


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
