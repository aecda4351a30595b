"""Optimisers by name, and the courses of their rates."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from mcpmix.core import optimisers
from mcpmix.core.errors import DependencyError
from mcpmix.core.optimisers import build_adamw, cosine, one_cycle, plateau, warm_up


def groups():
    return [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 0.1)]


def test_each_group_rises_to_its_own_rate_whatever_was_called_before():
    optimiser = build_adamw(groups(), 0.01, "adamw")
    for step, factor in ((0, 0.25), (2, 0.75), (3, 1.0), (50, 1.0), (1, 0.5)):
        warm_up(optimiser, step, 3)
        assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([factor, 0.1 * factor])
    warm_up(optimiser, 0, 0)
    assert optimiser.param_groups[0]["lr"] == 1.0


def test_a_resumed_optimiser_keeps_its_full_rates():
    first = build_adamw(groups(), 0.01, "adamw")
    warm_up(first, 0, 3)
    second = build_adamw(groups(), 0.01, "adamw")
    second.load_state_dict(first.state_dict())
    warm_up(second, 3, 3)
    assert [group["lr"] for group in second.param_groups] == [1.0, 0.1]


def rates_of(course, *, rate, steps):
    """Rates of all groups in each step."""
    optimiser = torch.optim.AdamW(
        [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate}, {"params": [nn.Parameter(torch.zeros(1))]}]
    )
    schedule = course(optimiser)
    rates = []
    for _ in range(steps):
        rates.append([group["lr"] for group in optimiser.param_groups])
        optimiser.step()
        schedule.step()
    return list(zip(*rates, strict=True))


def test_a_cosine_rises_and_falls_for_the_first_group_alone():
    first, second = rates_of(lambda optimiser: cosine(optimiser, 200), rate=0.5, steps=201)
    assert first[:10] == pytest.approx([0.05 * n for n in range(1, 11)])
    assert first[105] == pytest.approx(0.25)  # half of the fall
    assert list(first[10:]) == sorted(first[10:], reverse=True)
    assert first[-1] == pytest.approx(0, abs=1e-12)
    assert set(second) == {1e-3}


def test_a_cosine_over_a_single_step_starts_at_the_full_rate():
    assert rates_of(lambda optimiser: cosine(optimiser, 1), rate=0.5, steps=1)[0] == (0.5,)


def test_a_plateau_rises_stays_and_falls():
    rates, _ = rates_of(lambda optimiser: plateau(optimiser, 1000), rate=0.5, steps=1000)
    assert rates[0] == pytest.approx(0.5 / 100)
    assert rates[99:801] == pytest.approx([0.5] * 702)
    assert rates[900] == pytest.approx(0.25)
    assert rates[-1] == pytest.approx(0.5 / 200)


def test_one_cycle_peaks_at_the_rate_of_each_group():
    first, second = rates_of(lambda optimiser: one_cycle(optimiser, 200, 0.1), rate=0.5, steps=200)
    assert first.index(max(first)) == second.index(max(second)) == 19
    assert (max(first), max(second)) == (0.5, 1e-3)
    assert first[-1] < 1e-4 * first[0]


def test_missing_8_bit_optimiser_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(optimisers, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"bitsandbytes.*mcpmix\[8bit\].*finetune.optimiser=adamw"):
        build_adamw(groups(), 0.01, "adamw-8bit")


def test_the_8_bit_optimiser_is_taken_where_it_is_installed(monkeypatch):
    class AdamW8bit(torch.optim.SGD):
        """Stands for the real one, which needs a GPU."""

    package, module = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.optim")
    module.AdamW8bit = AdamW8bit
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", module)
    monkeypatch.setattr(optimisers, "find_spec", lambda name: object())
    optimiser = build_adamw(groups(), 0.25, "adamw-8bit")
    assert isinstance(optimiser, AdamW8bit)
    assert [(g["lr"], g["weight_decay"]) for g in optimiser.param_groups] == [(1.0, 0.25), (0.1, 0.25)]
