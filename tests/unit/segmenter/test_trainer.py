"""Terms made ahead in a background thread: the same training, and exactly resumed."""

import threading

import pytest
import torch

from mcpmix.core.progress import SILENT
from mcpmix.core.seeds import seed_everything
from mcpmix.run import run
from mcpmix.segmenter import train
from mcpmix.segmenter.arms import check_arms
from mcpmix.segmenter.trainer import one_ahead


@pytest.fixture
def trainer_in(make_config, tmp_path):
    config = make_config(tmp_path, "train.batch_size=2", "train.epochs=3")
    made = run(config, until="inputs")

    def make(name, arm="augmix"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return train.Trainer(config, made.inputs(config, arm), arm, 0, folder, made.runtime)

    return make


def weights(trainer):
    return trainer.network.state_dict()


def assert_same(first, second):
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name]), name
    assert first.log.rows() == second.log.rows()


@pytest.mark.parametrize("arm", ["augmix", "pixmix", "hsmix"])
def test_terms_are_made_in_another_thread_and_change_nothing(trainer_in, monkeypatch, arm):
    ahead = trainer_in("ahead", arm)
    assert ahead.strategy.ahead
    threads = set()
    terms = ahead.strategy.terms

    def watched(batch, rng):
        threads.add(threading.get_ident())
        return terms(batch, rng)

    monkeypatch.setattr(ahead.strategy, "terms", watched)
    ahead.fit(SILENT)
    assert len(threads) >= 1
    assert threading.get_ident() not in threads
    plain = trainer_in("plain", arm)
    monkeypatch.setattr(type(plain.strategy), "ahead", False)
    plain.fit(SILENT)
    assert_same(ahead, plain)


def test_stopped_and_resumed_equals_uninterrupted(trainer_in):
    whole = trainer_in("whole", "pixmix")
    whole.fit(SILENT)
    stopped = trainer_in("stopped", "pixmix")
    stopped.epochs = 1
    stopped.fit(SILENT)
    resumed = trainer_in("stopped", "pixmix")
    resumed.fit(SILENT)
    assert_same(whole, resumed)


def test_an_observer_sees_terms_and_gradients(trainer_in):
    trainer = trainer_in("observed", "mixup")
    seen = []
    trainer.observer = lambda *step: seen.append(step)
    trainer._run_epoch(1)
    assert len(seen) == trainer.steps_per_epoch
    _, terms, gradients = seen[0]
    fresh = trainer_in("fresh", "mixup").network.train()
    seed_everything(trainer.config.seed, "epoch", trainer.seed, 1)  # the dropout of the epoch
    expected = (fresh(terms[0].images).detach().sigmoid() - terms[0].targets) / terms[0].targets.numel()
    torch.testing.assert_close(gradients[0], expected)


def test_settings_of_a_strategy_come_from_the_configuration(make_config, tmp_path):
    config = make_config(tmp_path, "train.strategies={mixup: {alpha: 0.4}}")
    made = run(config, until="inputs")
    inputs = made.inputs(config, "mixup")
    trainer = train.Trainer(config, inputs, "mixup", 0, tmp_path, made.runtime)
    assert trainer.strategy.alpha == 0.4
    plain = make_config(tmp_path)
    assert train.key(config, inputs, "mixup", 0) != train.key(plain, inputs, "mixup", 0)
    assert train.key(config, inputs, "cutmix", 0) == train.key(plain, inputs, "cutmix", 0)
    wrong = check_arms((), {"mixup": {"alpa": 1}, "cutmix": {}})
    assert wrong == ["train.strategies.mixup.alpa: no such setting; did you mean alpha?"]


def test_same_items_in_the_same_order():
    assert list(one_ahead(iter(range(20)))) == list(range(20))
    assert list(one_ahead(iter([]))) == []


def test_items_are_made_by_one_other_thread_while_the_one_before_is_in_use():
    makers, made = set(), threading.Event()

    def items():
        yield "first"
        makers.add(threading.get_ident())
        made.set()
        yield "second"

    coming = one_ahead(items())
    assert next(coming) == "first"
    assert made.wait(5)  # nobody has asked for the second yet
    assert next(coming) == "second"
    assert threading.get_ident() not in makers


def test_no_more_than_one_is_made_ahead():
    started = []

    def items():
        for number in range(5):
            started.append(number)
            yield number

    coming = one_ahead(items())
    next(coming)
    coming.close()  # waits for what is in the making
    assert started == [0, 1]


def test_none_is_an_item():
    assert list(one_ahead(iter([None, 1, None]))) == [None, 1, None]


def test_an_error_comes_where_its_item_would():
    def items():
        yield 1
        raise ValueError("broken")

    coming = one_ahead(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="broken"):
        next(coming)


def test_stopping_early_leaves_no_thread():
    before = threading.active_count()
    coming = one_ahead(iter(range(5)))
    next(coming)
    coming.close()
    assert threading.active_count() == before
