import math

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.training import fit, one_cycle, plateau


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model, index):
    points = torch.randn(5, 3, generator=torch.Generator().manual_seed(index))
    return 100 * (model(points)[:, 0] - points.sum(dim=1)).square().mean()


@pytest.mark.parametrize("largest", [1.0, math.inf])
def test_fit_is_the_plain_loop(tmp_path, largest):
    plain = make_model()
    optimiser = torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=0.05)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, 40, pct_start=0.05)
    for index in range(40):
        loss = loss_of(plain, index)
        optimiser.zero_grad()
        loss.backward()
        if largest == 1.0:
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimiser.step()
        rates.step()

    model = make_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.05)
    fit(
        lambda n: loss_of(model, n),
        model,
        optimiser,
        one_cycle,
        40,
        tmp_path / "c",
        largest_gradient=largest,
    )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_the_average_goes_along_and_survives_a_stop(tmp_path):
    def train(checkpoint, stop_at=None):
        model = make_model()
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))

        def loss(index):
            if index == stop_at:
                raise KeyboardInterrupt
            return loss_of(model, index)

        optimiser = torch.optim.AdamW(model.parameters(), 0.1)
        fit(loss, model, optimiser, plateau, 10, checkpoint, average=average, save_every=3)
        return model, average.module

    whole, averaged = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", stop_at=8)
    resumed, resumed_average = train(tmp_path / "stopped")
    for left, right in ((whole, resumed), (averaged, resumed_average)):
        assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))
    assert not torch.equal(whole[0].weight, averaged[0].weight)


def test_a_plateau_rises_stays_and_falls():
    optimiser = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.5)
    course = plateau(optimiser, 1000)
    rates = []
    for _ in range(1000):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        course.step()
    assert rates[0] == pytest.approx(0.5 / 100)
    assert rates[99:801] == pytest.approx([0.5] * 702)
    assert rates[900] == pytest.approx(0.25)
    assert rates[-1] == pytest.approx(0.5 / 200)
