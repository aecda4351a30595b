import itertools

import pytest
import torch

from mcpmix.core.errors import ConfigError
from mcpmix.mixing.controllers import CONTROLLERS, SIGNALS, RunningMean, Statistics
from mcpmix.mixing.rla import RLA


@pytest.mark.parametrize("name", ["network", "scalar"])
def test_logits_start_at_exactly_zero_whatever_the_signals(name):
    controller = CONTROLLERS[name]()
    for signals in (torch.zeros(SIGNALS), torch.ones(SIGNALS), torch.linspace(-1, 1, SIGNALS)):
        assert [float(logit.detach()) for logit in controller(signals)] == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_building_leaves_the_global_stream_alone_and_is_the_same_every_time(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = CONTROLLERS[name]()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    for one, other in zip(first.parameters(), CONTROLLERS[name]().parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_network_learns_to_tell_states_apart():
    controller = CONTROLLERS["network"]()
    optimiser = torch.optim.Adam(controller.parameters(), lr=0.05)
    early, late = -torch.ones(SIGNALS), torch.ones(SIGNALS)
    for _ in range(200):
        (controller(late)[0] - controller(early)[0]).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert float(controller(early)[0].detach()) > 1.0
    assert float(controller(late)[0].detach()) < -1.0


def travel(controller, steps, signs, losses, epochs=25):
    """Where the logits go in a run of Adam if their gradients never change sign."""
    rla = RLA(epochs, mu=0.0, controller=controller)
    optimiser = torch.optim.Adam(rla.gate_parameters(), lr=rla.gate_learning_rate(steps))
    blank = torch.zeros(1, 3, 2, 2)
    for step in range(steps):
        progress = step / steps
        rla.set_epoch(1 + int(progress * epochs))
        psi, zeta = rla.gates()
        (signs[0] * psi + signs[1] * zeta).backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            rla.loss(*(torch.tensor(loss) for loss in losses(progress)), blank, blank)
    return [-sign * float(logit.detach()) for sign, logit in zip(signs, rla.gates(), strict=True)]


LOSSES = {
    "falling": lambda p: (0.7 * 0.02**p, 0.75 * 0.05**p),
    "flat": lambda p: (0.7, 0.75),
    "rising": lambda p: (0.7 + 2 * p, 0.75 + 4 * p),
}


@pytest.mark.parametrize("controller", ["network", "scalar"])
@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("steps", [12, 120, 600])
def test_automatic_learning_rate_bounds_the_travel(controller, losses, steps):
    combinations = list(itertools.product((1, -1), repeat=2)) if steps < 600 else [(1, 1)]
    for signs in combinations:
        for distance in travel(controller, steps, signs, LOSSES[losses]):
            assert 2.5 <= distance <= 5.0


@pytest.mark.parametrize("controller", ["network", "scalar"])
def test_given_learning_rate_is_kept_and_steps_are_checked(controller):
    rla = RLA(10, mu=0.0, controller=controller)
    assert rla.gate_learning_rate(100, 0.02) == 0.02
    assert rla.gate_learning_rate(100) == pytest.approx(10 * rla.gate_learning_rate(1000))
    with pytest.raises(ConfigError, match="steps is 0"):
        rla.gate_learning_rate(0)


def test_statistics_are_a_plain_mean_then_an_exponential_one():
    statistics = Statistics().double()
    tau0 = torch.tensor(0.5, dtype=torch.float64)
    values = [2.0, 4.0, 6.0]
    for value in values:
        loss = torch.tensor(value, dtype=torch.float64)
        statistics.update(loss, 2 * loss, loss / 4, tau0)
    # Losses are over the first L_real (2), D over tau_0 (0.5): 4/2, 8/2 and 1/0.5.
    assert statistics.running.tolist() == pytest.approx([2.0, 4.0, 2.0])
    for _ in range(200):
        statistics.update(*(torch.tensor(4.0, dtype=torch.float64) for _ in range(2)), None, tau0)
    before = float(statistics.running[0])
    jump = torch.tensor(20.0, dtype=torch.float64)
    statistics.update(jump, jump, None, tau0)
    assert float(statistics.running[0]) == pytest.approx(0.98 * before + 0.02 * 10.0)
    assert float(statistics.running[2]) == pytest.approx(2.0)  # never measured again, never moved


@pytest.mark.parametrize("tau0", [0.0, float("nan")])
def test_statistics_without_a_margin(tau0):
    statistics = Statistics()
    statistics.update(torch.tensor(0.0), torch.tensor(0.3), torch.tensor(0.2), torch.tensor(tau0))
    assert statistics.running.tolist() == pytest.approx([0.0, 0.3, 0.2])


@pytest.mark.parametrize("loss", [0.0, 1e-9, 1.0, 1e9])
def test_signals_stay_between_minus_one_and_one(loss):
    statistics = Statistics()
    for value in (0.7, loss):
        statistics.update(
            torch.tensor(value), torch.tensor(value), torch.tensor(abs(value)), torch.tensor(0.1)
        )
    signals = statistics.signals(torch.tensor(0.0), torch.tensor(1.0))
    assert signals.shape == (SIGNALS,)
    assert signals[0] == -1.0
    assert signals[-1] == 1.0
    assert bool((signals.abs() <= 1.0).all())


# --- the running mean ---------------------------------------------------------------------------------------


def test_a_running_mean_is_plain_at_first_and_then_exponential():
    mean = RunningMean(momentum=0.7)
    assert mean.value.isnan()
    values = [4.0, 2.0, 6.0, 14.0, 0.0]
    # Weights of the newest: 1, 1/2, 1/3, and from then on 0.3 where 1/4 would be less.
    expected = [4.0, 3.0, 4.0, 7.0, 4.9]
    assert [float(mean(torch.tensor(value))) for value in values] == pytest.approx(expected)
    assert (float(mean.value), float(mean.count)) == pytest.approx((4.9, 5))
    mean.eval()
    assert float(mean(torch.tensor(14.9))) == pytest.approx(7.9)
    assert (float(mean.value), float(mean.count)) == pytest.approx((4.9, 5))


def test_without_momentum_the_mean_is_the_last_value_to_the_bit():
    mean = RunningMean(momentum=0.0).double()
    for value in torch.rand(5, dtype=torch.float64):
        assert torch.equal(mean(value), value)
