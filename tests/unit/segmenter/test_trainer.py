"""Terms made ahead in a background thread: the same training, and exactly resumed."""

import threading

import pytest
import torch
from tests.helpers.unlabelled import store_frames

from mcpmix.core.errors import DataError
from mcpmix.core.progress import SILENT
from mcpmix.core.seeds import seed_everything
from mcpmix.data.augment import denormalise
from mcpmix.data.cache import Arrays
from mcpmix.run import run
from mcpmix.segmenter import train
from mcpmix.segmenter.arms import Inputs, check_arms
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


# --- unlabelled images --------------------------------------------------------------------------------------


@pytest.fixture
def semi_supervised(make_config, tmp_path):
    """Trainers of arms that take unlabelled images, three of four with a pseudo-mask that is used."""
    config = make_config(tmp_path, "train.epochs=3", "train.arms=[full-sup]")
    made = run(config, until="dataset")
    frames = store_frames(tmp_path, [True, False, True, True])

    def make(name, arm, marked=frames):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        inputs = Inputs(made.dataset, unlabelled=marked[0], pseudo=marked[1])
        return train.Trainer(config, inputs, arm, 0, folder, made.runtime)

    return make


@pytest.mark.parametrize("arm", ["pseudo-label", "mean-teacher"])
def test_an_arm_on_unlabelled_images_is_resumed_exactly(semi_supervised, arm):
    whole = semi_supervised("whole", arm)
    whole.fit(SILENT)
    stopped = semi_supervised("stopped", arm)
    stopped.epochs = 1
    stopped.fit(SILENT)
    resumed = semi_supervised("stopped", arm)
    resumed.fit(SILENT)
    assert_same(whole, resumed)
    assert whole.best.keys() == resumed.best.keys()
    for name, value in whole.best.items():
        assert torch.equal(value, resumed.best[name]), name


def test_the_weights_that_are_kept_are_those_of_the_teacher(semi_supervised):
    trainer = semi_supervised("kept", "mean-teacher")
    trainer._run_epoch(1)
    trainer._validate(1)
    for name, value in trainer.strategy.teacher.state_dict().items():
        assert torch.equal(trainer.best[name], value), name
    assert any(not torch.equal(trainer.best[name], value) for name, value in weights(trainer).items())


def test_batches_bring_images_with_the_masks_that_are_used(semi_supervised):
    trainer, plain = semi_supervised("pseudo", "pseudo-label"), semi_supervised("plain", "full-sup")
    assert trainer.more.ids == tuple(f"unlabelled/0/{number}.png" for number in (0, 2, 3))
    # An image that is its own mask stays so under the geometric transform, up to its edges.
    masks = trainer.more.masks
    trainer.more = Arrays(trainer.more.ids, masks[..., None].repeat(3, axis=3) * 255, masks)
    both = list(zip(trainer._batches(1), plain._batches(1), strict=True))
    assert len(both) == 2
    for batch, other in both:
        assert torch.equal(batch.images, other.images)  # seeds are matched: the labelled ones are the same
        assert torch.equal(batch.masks, other.masks)
        assert other.unlabelled is other.pseudo_masks is None
        assert set(batch.pseudo_masks.unique().tolist()) == {0.0, 1.0}
        shown = denormalise(batch.unlabelled).mean(1, keepdim=True) > 0.5
        assert (shown == batch.pseudo_masks.bool()).float().mean() > 0.97
    assert not torch.equal(both[0][0].unlabelled, both[1][0].unlabelled)


def test_a_teacher_gets_all_images_and_no_masks(semi_supervised):
    trainer = semi_supervised("teacher", "mean-teacher")
    assert len(trainer.more) == 4
    batch = next(trainer._batches(1))
    assert batch.unlabelled.shape == batch.images.shape
    assert batch.pseudo_masks is None


def test_unlabelled_images_are_listed_as_seen_by_those_who_take_them(semi_supervised):
    def seen(arm):
        return {image.id for image in semi_supervised(arm, arm).seen}

    more = {f"unlabelled/0/{number}.png" for number in range(4)}
    assert seen("pseudo-label") == seen("mean-teacher") == seen("full-sup") | more
    assert not seen("full-sup") & more


def test_no_pseudo_mask_that_is_used_is_an_error_with_a_remedy(semi_supervised, tmp_path):
    unused = store_frames(tmp_path / "unused", [False])
    with pytest.raises(DataError, match=r"pseudo-label has no unlabelled image.*pseudo\.agreement"):
        semi_supervised("none", "pseudo-label", unused)


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
