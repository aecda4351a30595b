import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import RLA, STRATEGIES, Batch, build_strategy
from mcpmix.mixing.registry import strategy_needs_pairs
from mcpmix.mixing.strategy import weighted_sum


def make_batch(batch=64, synthetic=True):
    real = torch.zeros(batch, 3, 4, 4)
    masks = (torch.rand(batch, 1, 4, 4, generator=torch_rng("masks")) > 0.5).float()
    ids = tuple(f"case-{i}" for i in range(batch))
    return Batch(real, masks, torch.ones_like(real) if synthetic else None, ids)


def learnable_batch(synthetic):
    """Lesions are brighter: a little in the real images, more in the synthetic ones."""
    plain = make_batch(8)
    noise = torch.randn(8, 3, 4, 4, generator=torch_rng("noise"))
    brighter = plain.masks + 0.3 * noise
    return Batch(0.5 * brighter, plain.masks, 0.8 * brighter + 0.1 if synthetic else None, plain.ids)


def settings_for(name):
    if name == "mcpmix-rla":
        torch.manual_seed(0)
        return {"epochs": 400, "features": nn.Sequential(nn.Conv2d(3, 4, 2), nn.Tanh(), Pool())}
    return {"epochs": 400} if name in ("mcpmix-stepwise", "mcpmix-cosine") else {}


class Pool(nn.Module):
    def forward(self, maps):
        return maps.mean((2, 3))


def shares(strategy, epoch, batch=None):
    """The real image is 0 and the synthetic 1, so a mixed pixel is the share itself."""
    strategy.set_epoch(epoch)
    real, mixed = strategy.terms(batch or make_batch(), torch_rng("shares", epoch))
    assert real.name == "real"
    return mixed.images[:, 0, 0, 0].detach()


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

    strategy.attach(gradient)
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
    batch = learnable_batch(strategy.needs_pairs)
    totals = loop(strategy, batch, torch_rng("loop"))
    assert totals[-1] < totals[0]
    again = build_strategy(name, **settings_for(name))
    assert loop(again, batch, torch_rng("loop")) == totals
    assert all(isinstance(value, float) for value in strategy.log().values())
    assert strategy.warnings() == []


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name.startswith(("full-sup", "mcpmix"))])
def test_targets_are_the_hard_masks_and_weights_sum_to_one(name):
    strategy = build_strategy(name, **settings_for(name))
    strategy.set_epoch(1)
    batch = make_batch(4)
    terms = strategy.terms(batch, torch_rng("a"))
    assert all(torch.equal(term.targets, batch.masks) for term in terms)
    assert torch.equal(terms[0].images, batch.images)
    assert sum(float(torch.as_tensor(term.weight).detach()) for term in terms) == pytest.approx(1.0)


def test_full_sup_is_plain_supervision():
    strategy = build_strategy("full-sup")
    batch = make_batch(4, synthetic=False)
    (term,) = strategy.terms(batch, torch_rng("a"))
    assert term.images is batch.images
    assert float(strategy.combine([torch.tensor(0.7)], batch, [term])) == pytest.approx(0.7)


def test_paired_uniform_draws_one_share_per_sample_up_to_the_bound():
    strategy = build_strategy("mcpmix", s_max=0.6, rho=0.3)
    drawn = shares(strategy, 1, make_batch(2000))
    assert len(drawn.unique()) > 1900
    assert float(drawn.min()) >= 0
    assert 0.59 < float(drawn.max()) <= 0.6
    assert float(drawn.mean()) == pytest.approx(0.3, abs=0.015)
    assert strategy.log() == pytest.approx({"s": float(drawn.mean()), "rho": 0.3})


def test_draws_come_from_the_given_stream_only():
    strategy, batch = build_strategy("mcpmix"), make_batch()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = strategy.terms(batch, torch_rng("x"))[1].images
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, strategy.terms(batch, torch_rng("x"))[1].images)
    assert not torch.equal(first, strategy.terms(batch, torch_rng("y"))[1].images)


@pytest.mark.parametrize(
    ("epoch", "top"), [(1, 1.0), (149, 1.0), (150, 5 / 6), (399, 1 / 6), (400, 0), (450, 0)]
)
def test_stepwise_shares(epoch, top):
    drawn = shares(build_strategy("mcpmix-stepwise", epochs=400), epoch, make_batch(2000))
    assert float(drawn.max()) == pytest.approx(top, rel=0.01)
    assert float(drawn.mean()) == pytest.approx(top / 2, rel=0.05)


@pytest.mark.parametrize(("epoch", "top"), [(1, 0.5), (200, 0.25), (400, 0.0), (450, 0.0)])
def test_cosine_shares(epoch, top):
    drawn = shares(build_strategy("mcpmix-cosine", epochs=400), epoch, make_batch(2000))
    assert float(drawn.max()) == pytest.approx(top, rel=0.01, abs=1e-12)
    assert float(drawn.mean()) == pytest.approx(top / 2, rel=0.05, abs=1e-12)


def test_rla_objective_is_the_weighted_sum_plus_its_two_terms():
    strategy, batch = build_strategy("mcpmix-rla", tau0=1e-6, **settings_for("mcpmix-rla")), make_batch(4)
    strategy.set_epoch(200)
    terms = strategy.terms(batch, torch_rng("a"))
    assert float(shares(strategy, 200)[0]) == pytest.approx(0.35)
    losses = [torch.tensor(0.5), torch.tensor(0.9)]
    total = float(strategy.combine(losses, batch, terms).detach())
    log = strategy.log()
    assert log["distribution"] > 0
    expected = float(weighted_sum(losses, terms).detach()) + log["distribution"] + log["prior"]
    assert total == pytest.approx(expected)
    assert (log["s"], log["rho"], log["s_prior"]) == pytest.approx((0.35, 0.25, 0.35))
    assert set(log) == {"s", "rho", "s_prior", "rho_prior", "tau", "discrepancy", "distribution", "prior"}


def test_rla_prepares_its_margin_once_and_keeps_it_in_its_state():
    strategy, batch = build_strategy("mcpmix-rla", **settings_for("mcpmix-rla")), make_batch(4)
    strategy.prepare([batch])
    margin = float(strategy.rla.tau0)
    assert margin > 0
    strategy.prepare([])  # nothing left to measure
    other = build_strategy("mcpmix-rla", **settings_for("mcpmix-rla"))
    other.load_state_dict(copy.deepcopy(strategy.state_dict()))
    assert float(other.rla.tau0) == margin
    fixed = build_strategy("mcpmix-rla", tau0=0.05, **settings_for("mcpmix-rla"))
    fixed.prepare([batch])
    assert float(fixed.rla.tau0) == pytest.approx(0.05)


def test_rla_gates_have_their_own_group():
    strategy = build_strategy("mcpmix-rla", controller="scalar", **settings_for("mcpmix-rla"))
    (group,) = strategy.parameter_groups(steps=1000)
    assert group["weight_decay"] == 0.0
    assert group["lr"] == pytest.approx(3.5 / 1000)
    assert len(group["params"]) == 2
    by_hand = build_strategy("mcpmix-rla", gate_lr=0.02, **settings_for("mcpmix-rla"))
    assert by_hand.parameter_groups(steps=1000)[0]["lr"] == 0.02


def test_a_collapsed_rho_is_told():
    strategy = build_strategy("mcpmix-rla", controller="scalar", **settings_for("mcpmix-rla"))
    strategy.set_epoch(120)
    assert strategy.warnings() == []
    with torch.no_grad():
        strategy.rla.controller.psi.fill_(-5.0)
    (warning,) = strategy.warnings()
    assert "0.0033 (bound 0.5) by epoch 120 of 400" in warning
    assert "gate_lr" in warning


@pytest.mark.parametrize(("name", "hint"), [("mcpmx-rla", "mcpmix-rla"), ("Full_Sup", "full-sup")])
def test_the_nearest_strategy_is_suggested_for_an_unknown_name(name, hint):
    with pytest.raises(ConfigError, match=rf"did you mean {hint}\?"):
        build_strategy(name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_name_tells_whether_pairs_are_needed(name):
    assert strategy_needs_pairs(name) is build_strategy(name, **settings_for(name)).needs_pairs


def test_needs_pairs_of_an_unknown_name():
    with pytest.raises(ConfigError, match="no strategy 'mixupp'"):
        strategy_needs_pairs("mixupp")


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


def test_rla_is_usable_without_the_registry():
    from mcpmix.mixing.rla_mix import RLAMix

    assert RLAMix(RLA(5, mu=0.0)).needs_pairs
