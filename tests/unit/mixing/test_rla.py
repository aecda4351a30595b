import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import cdist
from tests.helpers.batches import share_batch
from torch import nn

from mcpmix.core.errors import ConfigError, DataError, TrainingError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.mmd import median_bandwidth, mmd
from mcpmix.mixing.registry import build_strategy
from mcpmix.mixing.rla import RLA


def small_phi(dtype=torch.float64):
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Conv2d(6, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers).to(dtype)


def small_segmenter(dtype=torch.float64):
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 1)).to(dtype)


def pairs(dtype=torch.float64, batch=4):
    generator = torch.Generator().manual_seed(3)
    real = torch.randn(batch, 3, 10, 10, generator=generator, dtype=dtype)
    synthetic = 0.6 * torch.randn(batch, 3, 10, 10, generator=generator, dtype=dtype) + 0.5
    masks = (torch.rand(batch, 1, 10, 10, generator=generator) > 0.6).to(dtype)
    return real, synthetic, masks


def step(rla, segmenter, real, synthetic, masks):
    mixed = rla.mix(real, synthetic)
    loss_real = F.binary_cross_entropy_with_logits(segmenter(real), masks)
    loss_mix = F.binary_cross_entropy_with_logits(segmenter(mixed), masks)
    return loss_real, loss_mix, rla.loss(loss_real, loss_mix, real, mixed)


def move_gates(rla, psi, zeta):
    """Put the logits somewhere else than 0; every softmax of hidden units sums to 1."""
    with torch.no_grad():
        if rla.controller.travel == 1.0:
            rla.controller.psi.fill_(psi)
            rla.controller.zeta.fill_(zeta)
        else:
            rla.controller.output.weight.copy_(torch.tensor([[psi], [zeta]]).expand(2, 8))


def logit_gradients(rla):
    if rla.controller.travel == 1.0:
        return rla.controller.psi.grad, rla.controller.zeta.grad
    # d psi / d w_j is the softmax h_j, so the row sums of the last layer are the gradients of the logits.
    return rla.controller.output.weight.grad.sum(dim=1)


# --- start and schedules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("controller", ["network", "scalar"])
def test_start_values_are_exact(controller):
    rla = RLA(400, small_phi(), controller=controller)
    assert float(rla.psi.detach()) == 0.0
    assert float(rla.zeta.detach()) == 0.0
    assert torch.equal(rla.s.detach(), torch.tensor(0.35))
    assert torch.equal(rla.rho.detach(), torch.tensor(0.25))
    assert rla.s.requires_grad
    assert rla.rho.requires_grad


@pytest.mark.parametrize(("epoch", "factor"), [(1, None), (200, 0.5), (400, 0.0), (450, 0.0), (700, 0.0)])
def test_margin_and_priors_follow_the_cosine_and_clamp_in_the_tail(epoch, factor):
    rla = RLA(400, small_phi(), tau0=0.05, tail_epochs=300)
    rla.set_epoch(epoch)
    factor = (1 + math.cos(math.pi / 400)) / 2 if factor is None else factor
    assert float(rla.tau) == pytest.approx(0.05 * factor, abs=1e-8)
    assert float(rla.s_prior) == pytest.approx(0.7 * factor, abs=1e-7)
    assert float(rla.rho_prior) == pytest.approx(0.5 * factor, abs=1e-7)


def test_before_the_first_epoch_the_schedules_are_at_their_start():
    rla = RLA(400, small_phi(), tau0=0.05)
    assert (float(rla.tau), float(rla.s_prior)) == pytest.approx((0.05, 0.7))


def test_prior_amplitudes_are_settings():
    rla = RLA(10, small_phi(), s_prior_max=0.3, rho_prior_max=0.1)
    rla.set_epoch(5)
    assert (float(rla.s_prior), float(rla.rho_prior)) == pytest.approx((0.15, 0.05))


@pytest.mark.parametrize("epoch", [-1, 0, 13])
def test_epochs_outside_the_run_are_refused(epoch):
    rla = RLA(10, small_phi(), tail_epochs=2)
    with pytest.raises(ConfigError, match=f"set_epoch\\({epoch}\\): expected an epoch from 1 to 12"):
        rla.set_epoch(epoch)


# --- the objective and its gradients ---------------------------------------------------------------------


@pytest.mark.parametrize("controller", ["network", "scalar"])
@pytest.mark.parametrize("tau0", [1e-4, 10.0])
@pytest.mark.parametrize(("psi", "zeta"), [(0.0, 0.0), (-1.2, 0.8)])
def test_gradients_are_the_closed_forms_of_the_paper(controller, tau0, psi, zeta):
    real, synthetic, masks = pairs()
    segmenter, phi = small_segmenter(), small_phi()
    settings = {"lambda_s": 0.05, "lambda_rho": 0.03, "mu": 1.7}
    rla = RLA(20, phi, tau0=tau0, controller=controller, **settings).double()
    rla.set_epoch(7)
    move_gates(rla, psi, zeta)
    s, rho = 0.7 / (1 + math.exp(-zeta)), 0.5 / (1 + math.exp(-psi))
    loss_real, loss_mix, out = step(rla, segmenter, real, synthetic, masks)
    assert bool(out.discrepancy > rla.tau) == (tau0 < 1)
    out.total.backward()

    # The right-hand sides, with I_mix as a leaf of its own.
    leaf = ((1 - s) * real + s * synthetic).requires_grad_()
    (d_loss,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(segmenter(leaf), masks), leaf)
    (d_mmd,) = torch.autograd.grad(mmd(phi(leaf), phi(real)), leaf)
    prior = (1 + math.cos(math.pi * 7 / 20)) / 2
    to_rho = float((loss_mix - loss_real).detach()) + 2 * 0.03 * (rho - 0.5 * prior)
    to_s = rho * float((d_loss * (synthetic - real)).sum()) + 2 * 0.05 * (s - 0.7 * prior)
    if tau0 < 1:
        to_s += 1.7 * float((d_mmd * (synthetic - real)).sum())
    expected = (to_rho * rho * (1 - rho / 0.5), to_s * s * (1 - s / 0.7))
    assert [float(g) for g in logit_gradients(rla)] == pytest.approx(expected, rel=1e-6)


def test_gradient_of_zeta_against_finite_differences_of_an_independent_objective():
    real, synthetic, masks = pairs()
    segmenter, phi = small_segmenter(), small_phi()
    rla = RLA(20, phi, tau0=1e-4, controller="scalar").double()
    rla.set_epoch(7)
    _, _, out = step(rla, segmenter, real, synthetic, masks)
    out.total.backward()
    with torch.no_grad():
        sigma = float(median_bandwidth(phi(rla.mix(real, synthetic)), phi(real)))
    decay = (1 + math.cos(math.pi * 7 / 20)) / 2

    @torch.no_grad()
    def objective(zeta):
        s = 0.7 / (1 + math.exp(-zeta))
        mixed = (1 - s) * real + s * synthetic
        logits = segmenter(mixed).numpy()
        bce = np.mean(np.logaddexp(0, logits) - logits * masks.numpy())
        a, b = phi(mixed).numpy(), phi(real).numpy()
        k = [np.exp(-cdist(p, q, "sqeuclidean") / (2 * sigma**2)).mean() for p, q in ((a, a), (b, b), (a, b))]
        margin = max(0.0, k[0] + k[1] - 2 * k[2] - 1e-4 * decay)
        return 0.25 * bce + margin + 1e-3 * (s - 0.7 * decay) ** 2

    numeric = (objective(1e-4) - objective(-1e-4)) / 2e-4
    assert float(rla.controller.zeta.grad) == pytest.approx(numeric, rel=1e-5)


@pytest.mark.parametrize("tau0", [1e-4, 10.0])
def test_the_parts_add_up(tau0):
    real, synthetic, masks = pairs()
    rla = RLA(20, small_phi(), tau0=tau0, mu=2.0).double()
    rla.set_epoch(3)
    loss_real, loss_mix, out = step(rla, small_segmenter(), real, synthetic, masks)
    distance = float(mmd(small_phi()(rla.mix(real, synthetic)), small_phi()(real)).detach())
    assert float(out.discrepancy.detach()) == pytest.approx(distance, rel=1e-9)
    assert float(out.distribution.detach()) == pytest.approx(
        2 * max(0.0, distance - float(rla.tau)), rel=1e-9
    )
    prior = 1e-3 * (0.25 - float(rla.rho_prior)) ** 2 + 1e-3 * (0.35 - float(rla.s_prior)) ** 2
    assert float(out.prior.detach()) == pytest.approx(prior, rel=1e-6)
    expected = 0.75 * loss_real + 0.25 * loss_mix + out.distribution + out.prior
    assert float(out.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)


def test_no_discrepancy_without_a_difference():
    real, _, masks = pairs(torch.float32)
    rla = RLA(20, small_phi(torch.float32), tau0=0.0)
    rla.set_epoch(20)
    _, _, out = step(rla, small_segmenter(torch.float32), real, real.clone(), masks)
    out.total.backward()
    assert float(out.discrepancy.detach()) == 0.0
    assert float(out.distribution.detach()) == 0.0
    assert all(torch.isfinite(p.grad).all() for p in rla.gate_parameters())


def test_the_segmenter_learns_nothing_from_the_distribution_term():
    real, synthetic, masks = pairs()
    segmenter, rla = small_segmenter(), RLA(20, small_phi(), tau0=0.0, mu=5.0).double()
    rla.set_epoch(20)
    _, _, out = step(rla, segmenter, real, synthetic, masks)
    gradients = torch.autograd.grad(out.distribution, list(segmenter.parameters()), allow_unused=True)
    assert gradients == (None,) * len(gradients)


def test_root_and_bandwidths_reach_the_discrepancy():
    real, synthetic, masks = pairs()
    phi = small_phi()
    rla = RLA(20, phi, tau0=0.1, root=True, bandwidths=(0.5, 2.0)).double()
    rla.set_epoch(1)
    _, _, out = step(rla, small_segmenter(), real, synthetic, masks)
    expected = mmd(phi(rla.mix(real, synthetic)), phi(real), root=True, bandwidths=(0.5, 2.0))
    assert float(out.discrepancy.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)


# --- the margin and the running mean of D -----------------------------------------------------------------


def uneven_steps(rla, strengths):
    """One step for each strength of the difference between real and synthetic; their results and true D."""
    real, synthetic, masks = pairs()
    segmenter, phi, results = small_segmenter(), small_phi(), []
    for strength in strengths:
        fake = torch.lerp(real, synthetic, strength)
        with torch.no_grad():
            distance = float(mmd(phi(rla.mix(real, fake)), phi(real)))
        results.append((distance, step(rla, segmenter, real, fake, masks)[2]))
    return results


def test_the_margin_is_compared_with_the_running_mean():
    rla = RLA(20, small_phi(), tau0=1e-4, mu=3.0, momentum=0.5).double()
    rla.set_epoch(10)
    (a, first), (b, second), (c, third), (d, fourth) = uneven_steps(rla, (1.0, 0.2, 0.6, 0.1))
    means = [a, (a + b) / 2, (a + b) / 4 + c / 2, (a + b) / 8 + c / 4 + d / 2]
    results = (first, second, third, fourth)
    assert [float(out.discrepancy.detach()) for out in results] == pytest.approx([a, b, c, d])
    expected = [3.0 * (mean - 0.5e-4) for mean in means]
    assert [float(out.distribution.detach()) for out in results] == pytest.approx(expected, rel=1e-9)
    assert float(rla.mean_discrepancy.value) == pytest.approx(means[-1], rel=1e-9)


@pytest.mark.parametrize("mmd_every", [1, 2])
def test_the_gradient_of_the_margin_is_that_of_the_batch(mmd_every):
    rla = RLA(20, small_phi(), tau0=1e-4, mu=3.0, controller="scalar", mmd_every=mmd_every).double()
    rla.set_epoch(10)
    uneven_steps(rla, (1.0, 0.2, 0.6, 0.1))
    real, synthetic, _ = pairs()
    fake = torch.lerp(real, synthetic, 0.3)
    _, out = uneven_steps(rla, [0.3])[0]
    (found,) = torch.autograd.grad(out.distribution, rla.controller.zeta)
    (slope,) = torch.autograd.grad(
        mmd(small_phi()(rla.mix(real, fake)), small_phi()(real)), rla.controller.zeta
    )
    assert float(slope) > 0
    assert float(found) == pytest.approx(3.0 * mmd_every * float(slope), rel=1e-9)


@pytest.mark.parametrize(("momentum", "penalised"), [(0.9, False), (0.0, True)])
def test_one_batch_that_scatters_does_not_trigger_the_term(momentum, penalised):
    rla = RLA(20, small_phi(), tau0=0.0, controller="scalar", momentum=momentum).double()
    rla.set_epoch(20)
    quiet = [distance for distance, _ in uneven_steps(rla, [0.1] * 9)]
    real, synthetic, _ = pairs()
    with torch.no_grad():
        wild = float(mmd(small_phi()(rla.mix(real, synthetic)), small_phi()(real)))
    rla.set_epoch(1)
    rla.tau0.fill_(wild / 2)
    assert quiet[0] * 0.9 + wild * 0.1 < float(rla.tau) < wild
    _, out = uneven_steps(rla, [1.0])[0]
    (gradient,) = torch.autograd.grad(out.distribution, rla.controller.zeta)
    assert (float(out.distribution.detach()) > 0) is penalised
    assert (float(gradient) > 0) is penalised


def test_a_quiet_batch_still_pulls_while_the_mean_is_above_the_margin():
    rla = RLA(20, small_phi(), tau0=0.0, controller="scalar").double()
    rla.set_epoch(1)
    loud, quiet = 1.0, 0.1
    uneven_steps(rla, [loud] * 3)
    with torch.no_grad():
        rla.tau0.copy_(rla.discrepancy / 4)
    distance, out = uneven_steps(rla, [quiet])[0]
    assert distance < float(rla.tau)
    (gradient,) = torch.autograd.grad(out.distribution, rla.controller.zeta)
    assert float(gradient) > 0


# --- measuring seldom ------------------------------------------------------------------------------------


def test_mmd_every_measures_seldom_with_the_same_mean_gradient():
    real, synthetic, masks = pairs()
    segmenter = small_segmenter()
    seen = []
    phi = small_phi()

    def counted(images):
        seen.append(torch.is_grad_enabled())
        return phi(images)

    often = RLA(20, small_phi(), tau0=1e-4, controller="scalar").double()
    seldom = RLA(20, counted, tau0=1e-4, controller="scalar", mmd_every=3).double()
    gradients = {}
    for name, rla in (("often", often), ("seldom", seldom)):
        rla.set_epoch(1)
        for _ in range(6):
            _, _, out = step(rla, segmenter, real, synthetic, masks)
            out.total.backward()
        gradients[name] = float(rla.controller.zeta.grad)
    assert seen == [False, True] * 2  # phi(I_r) without, phi(I_mix) with a graph, on 2 of 6 calls
    assert gradients["seldom"] == pytest.approx(gradients["often"], rel=1e-9)
    assert float(out.distribution) == 0.0
    assert float(out.discrepancy) == pytest.approx(float(seldom.discrepancy))
    assert (float(often.mean_discrepancy.count), float(seldom.mean_discrepancy.count)) == (6, 2)
    seldom.eval()
    with torch.no_grad():
        step(seldom, segmenter, real, synthetic, masks)
    assert len(seen) == 6


def test_without_mu_the_discrepancy_is_only_logged():
    real, synthetic, masks = pairs()
    rla = RLA(20, small_phi(), mu=0.0).double()
    rla.set_epoch(1)
    _, _, out = step(rla, small_segmenter(), real, synthetic, masks)
    assert float(out.discrepancy) > 0
    assert not out.discrepancy.requires_grad
    assert float(out.distribution) == 0.0
    bare = RLA(20, mu=0.0).double()
    bare.set_epoch(1)
    _, _, out = step(bare, small_segmenter(), real, synthetic, masks)
    assert math.isnan(float(out.discrepancy))
    assert torch.isfinite(out.total)


# --- the margin ------------------------------------------------------------------------------------------


def test_calibrate_takes_the_mean_at_the_largest_share():
    real, synthetic, masks = pairs(batch=6)
    phi = small_phi()
    rla = RLA(20, phi).double()
    assert rla.needs_calibration
    batches = [(real[:3], synthetic[:3]), (real[3:], synthetic[3:])]
    value = rla.calibrate(batches)
    expected = np.mean([float(mmd(phi(0.3 * a + 0.7 * b), phi(a))) for a, b in batches])
    assert value == pytest.approx(expected, rel=1e-9)
    assert float(rla.tau0) == pytest.approx(expected, rel=1e-9)
    assert not rla.needs_calibration
    rla.set_epoch(1)
    _, _, out = step(rla, small_segmenter(), real, synthetic, masks)
    assert float(out.distribution.detach()) == 0.0  # s is below s_max, so D is within the margin at the start


def test_calibrate_takes_shares_that_are_drawn_for_each_sample():
    real, synthetic, _ = pairs(batch=6)
    phi = small_phi()
    rla = RLA(20, phi).double()
    factors = {4: torch.tensor([0.0, 0.5, 1.7, 0.25]), 2: torch.tensor([1.0, 0.1])}
    batches = [(real[:4], synthetic[:4]), (real[4:], synthetic[4:])]
    value = rla.calibrate(batches, factors.__getitem__)
    expected = []
    for one, other in batches:
        share = (0.7 * factors[len(one)].clamp(max=1)).double()[:, None, None, None]
        expected.append(float(mmd(phi((1 - share) * one + share * other), phi(one))))
    assert value == pytest.approx(np.mean(expected), rel=1e-6)  # shares are drawn in float32


def test_calibration_that_cannot_work_says_why():
    real, _, _ = pairs()
    with pytest.raises(DataError, match="nan over 0 batches"):
        RLA(20, small_phi()).calibrate([])
    with pytest.raises(DataError, match=r"mean of 0\.0 over 1 batches.*that differ"):
        RLA(20, small_phi()).calibrate([(real, real)])
    with pytest.raises(ConfigError, match="without features"):
        RLA(20, mu=0.0).calibrate([(real, real)])


def test_forgotten_calls_are_named():
    real, synthetic, masks = pairs()
    rla, segmenter = RLA(20, small_phi()).double(), small_segmenter()
    with pytest.raises(TrainingError, match="before set_epoch"):
        step(rla, segmenter, real, synthetic, masks)
    rla.set_epoch(1)
    with pytest.raises(TrainingError, match=r"tau0='auto'.*calibrate\(batches\)"):
        step(rla, segmenter, real, synthetic, masks)


def test_a_lost_graph_and_unreduced_losses_are_refused():
    real, synthetic, _ = pairs()
    rla = RLA(20, small_phi(), tau0=0.1).double()
    rla.set_epoch(1)
    loss = torch.tensor(0.5)
    with pytest.raises(TrainingError, match="carry no gradient"):
        rla.loss(loss, loss, real, rla.mix(real, synthetic).detach())
    with pytest.raises(TrainingError, match=r"0-d; got shapes \(4,\) and \(\)"):
        rla.loss(torch.ones(4), loss, real, rla.mix(real, synthetic))


# --- settings --------------------------------------------------------------------------------------------


def test_bad_settings_are_listed_together():
    with pytest.raises(ConfigError) as caught:
        RLA(
            0,
            s_max=1.2,
            rho_max=0.0,
            mu=-1,
            tau0=-0.1,
            momentum=1.0,
            lambda_s=float("nan"),
            mmd_every=0,
            controller="mlp",
        )
    message = str(caught.value)
    for part in (
        "epochs is 0",
        "s_max is 1.2",
        "rho_max is 0.0",
        "mu is -1",
        "tau0 is -0.1",
        "momentum is 1.0; expected a value in [0, 1)",
        "lambda_s is nan",
    ):
        assert part in message
    for part in ("mmd_every is 0", "controller is 'mlp'; expected network or scalar", "features is None"):
        assert part in message


def test_a_margin_needs_features():
    with pytest.raises(ConfigError, match="give a feature extractor, or set mu=0"):
        RLA(10)


# --- state -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("controller", ["network", "scalar"])
def test_phi_belongs_to_nobody(controller):
    phi = small_phi(torch.float32)
    rla = RLA(10, phi, tau0=0.1, controller=controller)
    assert not {id(p) for p in rla.parameters()} & {id(p) for p in phi.parameters()}
    assert {id(p) for p in rla.parameters()} == {id(p) for p in rla.gate_parameters()}
    assert not any("features" in name for name in rla.state_dict())
    rla.train()
    assert not phi.training
    assert not any(p.requires_grad for p in phi.parameters())


def run(rla, optimiser, steps, start):
    real, synthetic, masks = pairs(torch.float32)
    segmenter = small_segmenter(torch.float32)
    trace = []
    for i in range(start, start + steps):
        rla.set_epoch(1 + i // 3)
        _, _, out = step(rla, segmenter, real, synthetic * (1 + 0.1 * i), masks)
        optimiser.zero_grad()
        out.total.backward()
        optimiser.step()
        trace.append((float(out.total.detach()), float(rla.s.detach()), float(rla.rho.detach())))
    return trace


@pytest.mark.parametrize("controller", ["network", "scalar"])
@pytest.mark.parametrize("mmd_every", [1, 2])
def test_a_resumed_run_continues_identically(controller, mmd_every):
    def fresh():
        settings = {"controller": controller, "mmd_every": mmd_every}
        rla = RLA(10, small_phi(torch.float32), **settings)
        return rla, torch.optim.Adam(rla.gate_parameters(), lr=0.05)

    real, synthetic, _ = pairs(torch.float32)
    rla, optimiser = fresh()
    rla.calibrate([(real, 0.2 * synthetic + 0.8 * real)])  # a margin that the mean exceeds
    run(rla, optimiser, 7, 0)
    assert float(rla.mean_discrepancy.value) > float(rla.tau)
    saved = copy.deepcopy((rla.state_dict(), optimiser.state_dict()))
    expected = run(rla, optimiser, 6, 7)

    other, other_optimiser = fresh()
    other.load_state_dict(saved[0])
    other_optimiser.load_state_dict(saved[1])
    assert int(other.epoch) == 3
    assert float(other.tau0) == float(rla.tau0)
    assert float(other.mean_discrepancy.value) == float(saved[0]["mean_discrepancy.value"])
    assert run(other, other_optimiser, 6, 7) == expected
    assert len({total for total, _, _ in expected}) == 6  # something did change from step to step


def test_evaluation_leaves_the_state_alone():
    real, synthetic, masks = pairs(torch.float32)
    rla = RLA(10, small_phi(torch.float32), tau0=0.1)
    rla.set_epoch(1)
    rla.eval()
    before = copy.deepcopy(rla.state_dict())
    with torch.no_grad():
        _, _, out = step(rla, small_segmenter(torch.float32), real, synthetic, masks)
    assert float(out.discrepancy) > 0
    torch.testing.assert_close(rla.state_dict(), before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("epoch", "psi", "collapsed"), [(1, 0.0, False), (75, -2.9, False), (75, -3.0, True), (76, -9.0, False)]
)
def test_collapse_is_a_small_rho_before_the_last_quarter(epoch, psi, collapsed):
    # sigmoid(-2.944) = 0.05
    rla = RLA(100, small_phi(), controller="scalar", tail_epochs=50)
    rla.set_epoch(epoch)
    move_gates(rla, psi, 0.0)
    assert rla.collapsed is collapsed


# --- the strategy ---------------------------------------------------------------------------------------


def built(**settings):
    phi = small_phi(torch.float32)[:2]  # images of 4 x 4 pixels leave room for one convolution
    phi = nn.Sequential(*phi, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return build_strategy("mcpmix-rla", epochs=400, features=phi, **settings)


def test_rla_objective_is_the_weighted_sum_plus_its_two_terms():
    strategy, batch = built(tau0=1e-6), share_batch(4)
    strategy.set_epoch(200)
    terms = strategy.terms(batch, torch_rng("a"))
    assert float(terms[1].images.detach().max()) == pytest.approx(0.35)
    losses = [torch.tensor(0.5), torch.tensor(0.9)]
    total = float(strategy.combine(losses, batch, terms).detach())
    log = strategy.log()
    assert log["distribution"] > 0
    assert log["discrepancy_mean"] == pytest.approx(log["discrepancy"])  # of one step
    expected = (1 - log["rho"]) * 0.5 + log["rho"] * 0.9 + log["distribution"] + log["prior"]
    assert total == pytest.approx(expected)
    assert (log["s"], log["rho"], log["s_prior"]) == pytest.approx((0.35, 0.25, 0.35))
    assert (log["s_end"], log["rho_end"]) == (log["s"], log["rho"])
    assert (log["tau0"], log["mu"]) == pytest.approx((1e-6, 1.0))


def test_rla_prepares_its_margin_once_and_keeps_it_in_its_state():
    strategy, batch = built(), share_batch(4)
    strategy.prepare([batch])
    margin = float(strategy.rla.tau0)
    assert margin > 0
    strategy.prepare([])  # nothing left to measure
    other = built()
    other.load_state_dict(copy.deepcopy(strategy.state_dict()))
    assert float(other.rla.tau0) == margin
    fixed = built(tau0=0.05)
    fixed.prepare([batch])
    assert float(fixed.rla.tau0) == pytest.approx(0.05)


@pytest.mark.parametrize(("spread", "smallest"), [(0.0, 0.7), (0.5, 0.35), (1.0, 0.0)])
def test_the_margin_is_measured_with_the_shares_of_training_at_an_open_gate(spread, smallest):
    """0.7 U[1 - spread, 1 + spread], cut off at 0.7: half of the samples take the bound."""
    seen = []
    strategy = build_strategy(
        "mcpmix-rla", epochs=10, features=lambda x: seen.append(x) or x.mean((2, 3)), spread=spread
    )
    strategy.prepare([share_batch(500)] * 2)
    mixed = [images[:, 0, 0, 0] for images in seen[1::2]]  # phi sees the real images first
    for shares in mixed:
        assert float(shares.min()) == pytest.approx(smallest, abs=0.01)
        at_bound = float((shares == shares.max()).float().mean())
        assert float(shares.max()) == pytest.approx(0.7)
        assert at_bound == (pytest.approx(0.5, abs=0.1) if spread else 1.0)
    assert torch.equal(*mixed) is (spread == 0)  # each batch draws its own
    again = build_strategy("mcpmix-rla", epochs=10, features=lambda x: x.mean((2, 3)), spread=spread)
    again.prepare([share_batch(500)] * 2)
    assert torch.equal(again.rla.tau0, strategy.rla.tau0)


def test_rla_gates_have_their_own_group():
    strategy = built(controller="scalar")
    (group,) = strategy.parameter_groups(steps=1000)
    assert group["weight_decay"] == 0.0
    assert group["lr"] == pytest.approx(3.5 / 1000)
    assert len(group["params"]) == 2
    by_hand = built(gate_lr=0.02)
    assert by_hand.parameter_groups(steps=1000)[0]["lr"] == 0.02


def test_a_collapsed_rho_is_told():
    strategy = built(controller="scalar")
    strategy.set_epoch(120)
    assert strategy.warnings() == []
    with torch.no_grad():
        strategy.rla.controller.psi.fill_(-5.0)
    (warning,) = strategy.warnings()
    assert "0.0033 (bound 0.5) by epoch 120 of 400" in warning
    assert "gate_lr" in warning


# --- shares around s ------------------------------------------------------------------------------------


def spread_shares(spread, count=4000):
    strategy = build_strategy("mcpmix-rla", epochs=10, mu=0.0, spread=spread)
    strategy.set_epoch(1)
    _, mixed = strategy.terms(share_batch(count), torch.Generator().manual_seed(0))
    return mixed.images[:, 0, 0, 0].detach()


def test_without_spread_all_samples_take_s():
    torch.testing.assert_close(spread_shares(0.0, 10), torch.full((10,), 0.35))


def test_full_spread_starts_as_the_uniform_arm():
    drawn = spread_shares(1.0)
    assert drawn.min() >= 0
    assert drawn.max() <= 0.7
    assert float(drawn.mean()) == pytest.approx(0.35, abs=0.01)
    assert float(drawn.var()) == pytest.approx(0.7**2 / 12, rel=0.05)


def test_half_spread_stays_around_s():
    drawn = spread_shares(0.5)
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
