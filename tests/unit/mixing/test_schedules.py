import itertools
import math

import pytest

from mcpmix.mixing.schedules import cosine_decay, cosine_share, stepwise_share


@pytest.mark.parametrize(("epoch", "value"), [(0, 1.0), (200, 0.5), (400, 0.0), (450, 0.0), (700, 0.0)])
def test_cosine_decay_and_its_clamp(epoch, value):
    assert cosine_decay(epoch, 400) == pytest.approx(value, abs=1e-15)


def test_cosine_decay_never_rises():
    values = [cosine_decay(t, 37) for t in range(60)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert values[37:] == [0.0] * 23


@pytest.mark.parametrize("epoch", [0, 1, 100, 399, 400])
def test_cosine_share_is_the_formula_of_the_paper(epoch):
    assert cosine_share(epoch, 400) == pytest.approx(0.25 * (1 + math.cos(math.pi * epoch / 400)), abs=1e-15)


def test_stepwise_share_as_the_paper_tells_it():
    assert {stepwise_share(t, 400) for t in range(0, 150)} == {1.0}
    changes = [t for t in range(1, 451) if stepwise_share(t, 400) != stepwise_share(t - 1, 400)]
    assert changes == [150, 200, 250, 300, 350, 400]
    assert [stepwise_share(t, 400) for t in (150, 250, 350)] == pytest.approx([5 / 6, 3 / 6, 1 / 6])
    assert stepwise_share(399, 400) > 0
    assert stepwise_share(400, 400) == 0.0
    assert stepwise_share(450, 400) == 0.0


@pytest.mark.parametrize("epochs", [1, 3, 8, 40, 57, 1000])
def test_stepwise_share_scales_with_the_run(epochs):
    for t in range(epochs + 3):
        position = min(t / epochs, 1.0)  # in runs; steps at 3/8, 4/8, ... 8/8
        passed = sum(8 * t >= k * epochs for k in range(3, 9)) if position < 1 else 6
        assert stepwise_share(t, epochs) == pytest.approx(1 - passed / 6)
