import pytest
import torch
from tests.helpers.batches import make_batch

from mcpmix.core.errors import ConfigError, DataError, TrainingError
from mcpmix.mixing.mcpmix import StepwiseMix
from mcpmix.mixing.strategy import Batch, FullSup, Strategy, Term, require


def test_a_batch_that_does_not_fit_lists_everything():
    with pytest.raises(DataError) as caught:
        Batch(torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4), torch.zeros(2, 3, 8, 8), ("a",))
    message = str(caught.value)
    for part in ("(2, 1, 4, 4)", "masks are (2, 4, 4)", "synthetic is (2, 3, 8, 8)", "1 ids for 2 images"):
        assert part in message


def test_missing_pairs_say_what_to_do():
    batch = Batch(torch.zeros(1, 3, 4, 4), torch.zeros(1, 1, 4, 4), None, ("case-7",))
    with pytest.raises(DataError, match=r"case-7.*mcpmix synthesize.*full-sup"):
        batch.pairs()


def test_weighted_sum_by_hand_and_with_gradients():
    image = torch.zeros(1, 3, 2, 2)
    weight = torch.tensor(0.25, requires_grad=True)
    terms = [Term(image, image[:, :1], 0.75, "real"), Term(image, image[:, :1], weight, "mixed")]
    total = FullSup().combine([torch.tensor(2.0), torch.tensor(4.0)], make_batch(1), terms)
    total.backward()
    assert float(total.detach()) == 2.5
    assert float(weight.grad) == 4.0


def test_one_loss_per_term():
    image = torch.zeros(1, 3, 2, 2)
    with pytest.raises(ValueError, match="zip"):
        FullSup().combine(
            [torch.tensor(1.0), torch.tensor(2.0)], make_batch(1), [Term(image, image[:, :1], 1.0, "real")]
        )


def test_the_interface_cannot_be_built():
    with pytest.raises(TypeError, match="abstract"):
        Strategy()


def test_a_schedule_needs_its_epoch():
    batch = Batch(torch.zeros(1, 3, 4, 4), torch.zeros(1, 1, 4, 4), torch.zeros(1, 3, 4, 4), ("a",))
    with pytest.raises(TrainingError, match="before set_epoch"):
        StepwiseMix(10).terms(batch, torch.Generator())


def test_a_fixed_strategy_has_nothing_to_learn_save_or_tell():
    strategy = FullSup()
    assert strategy.parameter_groups(100) == []
    assert strategy.state_dict() == {}
    assert strategy.warnings() == []
    assert strategy.log() == {}
    strategy.load_state_dict({})


def test_no_consistency_term_by_default():
    image = torch.zeros(1, 3, 2, 2)
    penalty = FullSup().consistency([image[:, :1].bfloat16()], [Term(image, image[:, :1], 1.0, "real")])
    assert (penalty.ndim, penalty.dtype, float(penalty)) == (0, torch.float32, 0.0)


def test_strategies_may_ignore_the_network_and_batches_may_lack_originals():
    assert FullSup().attach(lambda images, targets: images, torch.nn.Identity()) is None
    assert Batch(torch.zeros(1, 3, 4, 4), torch.zeros(1, 1, 4, 4), None, ("a",)).originals is None


def test_require_lists_every_problem():
    with pytest.raises(ConfigError) as caught:
        require("Some", {"a is 1; expected 0": False, "b is fine": True, "c is odd": False})
    assert "Some cannot be built" in str(caught.value)
    assert "a is 1" in str(caught.value)
    assert "c is odd" in str(caught.value)
    assert "b is fine" not in str(caught.value)
    require("Some", {"b is fine": True})
