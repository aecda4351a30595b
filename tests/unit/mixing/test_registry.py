from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.helpers.batches import share_batch
from torch import nn

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.registry import (
    STRATEGIES,
    build_strategy,
    setting_problems,
    strategy_needs_pairs,
    strategy_needs_set,
    typed_settings,
    unlabelled_source,
)
from mcpmix.mixing.strategy import Batch


def learnable_batch(strategy):
    """Lesions are brighter: a little in the real images, more in the synthetic ones. Only what it needs."""
    plain = share_batch(8, 8, 8)
    noise = torch.randn(8, 3, 8, 8, generator=torch_rng("noise"))
    brighter = plain.masks + 0.3 * noise
    return Batch(
        0.5 * brighter,
        plain.masks,
        0.8 * brighter + 0.1 if strategy.needs_pairs else None,
        plain.ids,
        unlabelled=0.5 * brighter.flip(0) if strategy.source else None,
        pseudo_masks=plain.masks.flip(0) if strategy.source == "pseudo-masks" else None,
        labelled_set=(0.5 * brighter.flip(0), plain.masks.flip(0)) if strategy.needs_set else None,
    )


def settings_for(name):
    if name == "mcpmix-rla":
        torch.manual_seed(0)
        return {"epochs": 400, "features": nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), Pool())}
    return {"epochs": 400} if name in ("mcpmix-stepwise", "mcpmix-cosine") else {}


class Pool(nn.Module):
    def forward(self, maps):
        return maps.mean((2, 3))


def loop(strategy, batch, rng):
    """A training loop that does not know what it runs."""
    torch.manual_seed(3)
    network = nn.Conv2d(3, 1, 3, padding=1)
    groups = [{"params": network.parameters(), "lr": 0.05}, *strategy.parameter_groups(steps=6)]
    optimiser = torch.optim.AdamW(groups, lr=0.05)

    def gradient(images, targets):
        probe = images.detach().requires_grad_()
        loss = F.binary_cross_entropy_with_logits(network(probe), targets)
        return torch.autograd.grad(loss, probe)[0]

    strategy.attach(gradient, network)
    strategy.prepare([batch])
    totals = []
    for epoch in (1, 2, 3):
        strategy.set_epoch(epoch)
        for _ in range(2):
            terms = strategy.terms(batch, rng)
            logits = [network(t.images) for t in terms]
            pairs = zip(logits, terms, strict=True)
            losses = [F.binary_cross_entropy_with_logits(part, t.targets) for part, t in pairs]
            total = strategy.combine(losses, batch, terms) + strategy.consistency(logits, terms)
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            totals.append(float(total.detach()))
    return totals


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_runs_in_a_loop_that_does_not_know_it(name):
    strategy = build_strategy(name, **settings_for(name))
    batch = learnable_batch(strategy)
    totals = loop(strategy, batch, torch_rng("loop"))
    assert totals[-1] < totals[0]
    again = build_strategy(name, **settings_for(name))
    assert loop(again, batch, torch_rng("loop")) == totals
    assert all(isinstance(value, float) for value in strategy.log().values())
    assert strategy.warnings() == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_draws_come_from_the_given_stream_only(name):
    strategy = build_strategy(name, **settings_for(name))
    batch = learnable_batch(strategy)
    strategy.attach(lambda images, targets: images, nn.Conv2d(3, 1, 1))
    strategy.set_epoch(1)

    def images(stream):
        return strategy.terms(batch, torch_rng(stream))[-1].images.detach()

    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = [images(stream) for stream in range(6)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert all(torch.equal(images(stream), first[stream]) for stream in reversed(range(6)))
    if name not in ("full-sup", "pseudo-label", "mcpmix-rla"):  # without spread, RLA draws nothing
        assert any(not torch.equal(other, first[0]) for other in first[1:])


@pytest.mark.parametrize("name", ["full-sup", *(name for name in STRATEGIES if name.startswith("mcpmix"))])
def test_targets_are_the_hard_masks_and_weights_sum_to_one(name):
    strategy = build_strategy(name, **settings_for(name))
    strategy.set_epoch(1)
    batch = share_batch(4)
    terms = strategy.terms(batch, torch_rng("a"))
    assert all(torch.equal(term.targets, batch.masks) for term in terms)
    assert torch.equal(terms[0].images, batch.images)
    assert sum(float(torch.as_tensor(term.weight).detach()) for term in terms) == pytest.approx(1.0)


def test_full_sup_is_plain_supervision():
    strategy = build_strategy("full-sup")
    batch = share_batch(4)
    (term,) = strategy.terms(batch, torch_rng("a"))
    assert term.images is batch.images
    assert float(strategy.combine([torch.tensor(0.7)], batch, [term])) == pytest.approx(0.7)


@pytest.mark.parametrize(("name", "hint"), [("mcpmx-rla", "mcpmix-rla"), ("Full_Sup", "full-sup")])
def test_the_nearest_strategy_is_suggested_for_an_unknown_name(name, hint):
    with pytest.raises(ConfigError, match=rf"did you mean {hint}\?"):
        build_strategy(name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_name_tells_whether_pairs_are_needed(name):
    assert strategy_needs_pairs(name) is build_strategy(name, **settings_for(name)).needs_pairs


def test_a_name_tells_what_is_taken_of_unlabelled_images():
    sources = {name: unlabelled_source(name) for name in STRATEGIES if unlabelled_source(name)}
    assert sources == {
        "pseudo-label": "pseudo-masks",
        "pseudo-label-mcpmix": "pseudo-masks",
        "mean-teacher": "images",
    }


def test_a_name_tells_whether_a_labelled_set_is_needed():
    sets = {name for name in STRATEGIES if strategy_needs_set(name)}
    assert sets == {"controlpolypnet", "gensrrfi", "satsynth"}


@pytest.mark.parametrize("ask", [strategy_needs_pairs, strategy_needs_set, unlabelled_source])
def test_needs_of_an_unknown_name(ask):
    with pytest.raises(ConfigError, match="no strategy 'mixupp'"):
        ask("mixupp")


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ConfigError) as caught:
        build_strategy("zzzzzzz")
    assert all(option in str(caught.value) for option in STRATEGIES)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("full-sup", {"rho": 0.5}, ("unexpected keyword argument 'rho'", "settings are: none")),
        ("mcpmix", {"smax": 0.5}, ("unexpected keyword argument 'smax'", "s_max, rho")),
        ("mcpmix-cosine", {}, ("missing a required argument: 'epochs'",)),
        ("mcpmix-rla", {"epochs": 3, "tau": 1.0}, ("unexpected keyword argument 'tau'", "tau0")),
        ("mcpmix-rla", {"epochs": 3, "mu": 0.0, "gate_lr": 0.0}, ("gate_lr is 0.0",)),
        ("mcpmix", {"s_max": 0.0, "rho": 2.0}, ("s_max is 0.0", "rho is 2.0")),
        ("mcpmix-stepwise", {"epochs": 0, "rho": -1.0}, ("epochs is 0", "rho is -1.0")),
    ],
)
def test_settings_that_do_not_fit(name, settings, words):
    with pytest.raises(ConfigError) as caught:
        build_strategy(name, **settings)
    assert all(word in str(caught.value) for word in words)


# --- settings of a file ---------------------------------------------------------------------------------


OWN = [name for name in STRATEGIES if "mcpmix" not in name]


@pytest.mark.parametrize("name", OWN)
def test_defaults_and_all_of_the_search_range_are_accepted(name):
    assert setting_problems(name, {}) == []
    search = STRATEGIES[name].search
    for values in product(*search.values()):
        settings = dict(zip(search, values, strict=True))
        assert setting_problems(name, settings) == []
        assert build_strategy(name, **settings)


@pytest.mark.parametrize("name", OWN)
def test_defaults_lie_in_the_search_range(name):
    strategy = build_strategy(name)
    for setting, values in STRATEGIES[name].search.items():
        if hasattr(strategy, setting):
            assert getattr(strategy, setting) in values, setting


def test_lists_of_a_file_stand_for_tuples():
    assert setting_problems("smoothmix", {"sigma": [0.1, 0.25]}) == []
    assert setting_problems("mixup", {"alpha": "1e-1"}) == []  # as YAML reads it without a dot
    assert typed_settings("mixup", {"alpha": "1e-1"}) == {"alpha": 0.1}
    assert build_strategy("smoothmix", sigma=[0.1, 0.25]).sigma == (0.1, 0.25)


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("mixup", {"alfa": 0.4}, ["mixup.alfa", "did you mean alpha?"]),
        ("mixup", {"zzz": 1}, ["known: alpha, probability, per_sample"]),
        ("mixup", {"alpha": "much"}, ["mixup.alpha", "valid number", "'much'"]),
        ("mixup", {"alpha": -1}, ["alpha is -1", "0 or more"]),
        ("gridmix", {"mode": "rings"}, ["gridmix.mode", "'cells' or 'holes'"]),
        ("full-sup", {"alpha": 1}, ["known: none"]),
        ("mixupp", {}, ["mixupp: there is no such strategy", "did you mean mixup?"]),
        ("mcpmix", {"s_max": 0.5}, ["section rla"]),
        ("pseudo-label-mcpmix", {"s_max": 0.5}, ["section rla"]),
        ("mean-teacher", {"epochs": 3}, ["mean-teacher.epochs: no such setting"]),
        ("diffusemix", {"editor": "x"}, ["diffusemix.editor: no such setting"]),
    ],
)
def test_a_problem_says_where_and_what_to_do(name, settings, parts):
    problems = setting_problems(name, settings)
    assert len(problems) == 1
    assert problems[0].startswith(name)
    for part in parts:
        assert part in problems[0]


def test_all_problems_are_told_at_once():
    assert len(setting_problems("cutmix", {"betta": 1, "probability": "often"})) == 2
