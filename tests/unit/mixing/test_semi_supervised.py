"""Strategies with unlabelled images: their terms, and the teacher, worked by hand."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.helpers.batches import make_batch, share_batch
from torch import nn

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.semi_supervised import MeanTeacher, PseudoLabel, PseudoLabelMix


@pytest.fixture
def batch():
    """Four labelled samples whose counterparts are 1, and four others without masks, one without a lesion."""
    more = make_batch(4, 4, 4, ids=tuple("wxyz"))
    masks = more.masks.clone()
    masks[0] = 0
    return replace(share_batch(4), unlabelled=more.images, pseudo_masks=masks)


def network():
    """One weight, one bias and a buffer of batch norm; small enough to work by hand."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 1, 1), nn.BatchNorm2d(1))


def taught(**settings):
    """A mean teacher in its first epoch, and the student it follows."""
    strategy, student = MeanTeacher(**settings), network()
    strategy.attach(lambda images, targets: images, student)
    strategy.set_epoch(1)
    return strategy, student


# --- pseudo-labels -----------------------------------------------------------------------------------------


def test_pseudo_labelled_images_train_like_labelled_ones(batch):
    (term,) = PseudoLabel().terms(batch, torch_rng("a"))
    assert torch.equal(term.images, torch.cat([batch.images, batch.unlabelled]))
    assert torch.equal(term.targets, torch.cat([batch.masks, batch.pseudo_masks]))
    assert (term.weight, term.name) == (1.0, "real")


def test_with_mcpmix_labelled_images_are_mixed_and_the_others_are_not(batch):
    strategy = PseudoLabelMix(s_max=0.6, rho=0.2)
    real, mixed = strategy.terms(batch, torch_rng("a"))
    share = 0.6 * torch.rand(4, generator=torch_rng("a"))
    assert torch.equal(real.images, torch.cat([batch.images, batch.unlabelled]))
    assert torch.equal(real.targets, torch.cat([batch.masks, batch.pseudo_masks]))
    # Real images are 0 and counterparts 1: a mixed pixel is the share of the counterpart.
    torch.testing.assert_close(mixed.images, share.view(4, 1, 1, 1).expand_as(mixed.images))
    assert torch.equal(mixed.targets, batch.masks)
    losses = [torch.tensor(1.0), torch.tensor(3.0)]
    assert float(strategy.combine(losses, batch, [real, mixed])) == pytest.approx(0.8 * 1 + 0.2 * 3)
    assert strategy.log() == pytest.approx({"s": float(share.mean()), "rho": 0.2})


def test_empty_masks_are_trained_on_as_they_are(batch):
    empty = replace(batch, masks=torch.zeros_like(batch.masks), pseudo_masks=torch.zeros_like(batch.masks))
    for strategy in (PseudoLabel(), PseudoLabelMix()):
        assert all(not term.targets.any() for term in strategy.terms(empty, torch_rng("a")))


@pytest.mark.parametrize("missing", ["unlabelled", "pseudo_masks"])
def test_a_batch_without_what_is_needed(batch, missing):
    with pytest.raises(DataError, match=missing.replace("_", "-")):
        PseudoLabel().terms(replace(batch, **{missing: None}), torch_rng("a"))


def test_settings_out_of_range_are_told_together():
    with pytest.raises(ConfigError) as caught:
        MeanTeacher(epochs=0, decay=1.0, weight=-1.0, ramp=2.0, colour=3.0)
    for problem in ("epochs is 0", "decay is 1.0", "weight is -1.0", "ramp is 2.0", "colour is 3.0"):
        assert problem in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        PseudoLabelMix(s_max=0.0, rho=2.0)
    assert "s_max is 0.0" in str(caught.value)
    assert "rho is 2.0" in str(caught.value)


# --- the mean teacher --------------------------------------------------------------------------------------


def test_the_teacher_says_what_unlabelled_images_show_in_other_colours(batch):
    strategy, student = taught(epochs=1, ramp=0.0)
    real, consistent = strategy.terms(batch, torch_rng("a"))
    assert torch.equal(real.images, batch.images)
    assert torch.equal(real.targets, batch.masks)
    with torch.no_grad():
        wanted = torch.sigmoid(copy.deepcopy(student).eval()(batch.unlabelled))
    assert torch.equal(consistent.targets, wanted)
    assert not consistent.targets.requires_grad
    assert consistent.images.shape == batch.unlabelled.shape
    assert not torch.allclose(consistent.images, batch.unlabelled, atol=0.1)
    assert (real.name, consistent.name) == ("real", "consistent")  # only the first moves batch statistics


def test_without_a_change_of_colour_the_network_sees_what_the_teacher_sees(batch):
    strategy, _ = taught(colour=0.0)
    torch.testing.assert_close(strategy.terms(batch, torch_rng("a"))[1].images, batch.unlabelled)


def test_the_teacher_is_the_moving_average_of_its_student(batch):
    strategy, student = taught(decay=0.75)
    for _ in range(3):  # the first steps have shares of 1, 1/2 and 1/3
        strategy.terms(batch, torch_rng("a"))
    start = student[0].weight.detach().clone()
    with torch.no_grad():
        student[0].weight += 1
        student[1].running_mean.fill_(4)
    strategy.terms(batch, torch_rng("a"))
    torch.testing.assert_close(strategy.teacher[0].weight, start + 0.25)
    torch.testing.assert_close(strategy.teacher[1].running_mean, torch.ones(1))
    strategy.terms(batch, torch_rng("a"))
    torch.testing.assert_close(strategy.teacher[0].weight, start + 0.25 + 0.75 * 0.25)
    torch.testing.assert_close(student[0].weight.detach(), start + 1)  # the student is left alone
    assert not any(parameter.requires_grad for parameter in strategy.teacher.parameters())


def test_the_first_steps_are_averaged_alike_so_that_random_weights_are_soon_forgotten(batch):
    strategy, student = taught(decay=0.99)
    for value in (2.0, 4.0, 9.0):
        with torch.no_grad():
            student[0].weight.fill_(value)
        strategy.terms(batch, torch_rng("a"))
    torch.testing.assert_close(strategy.teacher[0].weight, torch.full((1, 3, 1, 1), 5.0))


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"epochs": 10, "ramp": 0.4, "weight": 2.0}, [0.5, 1.0, 1.5, 2.0, 2.0]),
        ({"epochs": 10, "ramp": 0.0}, [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_weight_rises_and_stays(batch, settings, weights):
    strategy, _ = taught(**settings)
    for epoch, weight in enumerate(weights, 1):
        strategy.set_epoch(epoch)
        terms = strategy.terms(batch, torch_rng("a"))
        total = strategy.combine([torch.tensor(3.0), torch.tensor(10.0)], batch, terms)
        assert float(total) == pytest.approx(3 + weight * 10)
        assert strategy.log() == pytest.approx({"weight": weight})


def test_the_result_is_the_teacher(batch):
    strategy, student = taught()
    assert strategy.result(student.train()) is strategy.teacher
    assert not strategy.teacher.training
    assert MeanTeacher().result(student) is student  # nobody has attached a network
    assert PseudoLabel().result(student) is student


def test_the_teacher_is_saved_and_the_student_is_not(batch):
    strategy, student = taught(decay=0.5)
    with torch.no_grad():
        student[0].weight += 1
    strategy.terms(batch, torch_rng("a"))
    saved = {name: value.clone() for name, value in strategy.state_dict().items()}
    assert saved.keys() == {"followed", *(f"teacher.{name}" for name in student.state_dict())}

    def resumed(state):
        again, other = taught(decay=0.5)
        other.load_state_dict(student.state_dict())
        again.load_state_dict(state)
        return again.terms(batch, torch_rng("b"))[1].targets

    new = saved | {f"teacher.{name}": value for name, value in network().state_dict().items()}
    targets = strategy.terms(batch, torch_rng("b"))[1].targets
    assert torch.equal(resumed(saved), targets)
    assert not torch.equal(resumed(new), targets)
