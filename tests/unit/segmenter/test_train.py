import dataclasses
import math
import shutil
import threading

import numpy as np
import pytest
import torch
from tests.helpers.unlabelled import store_frames

from mcpmix.core.device import setup
from mcpmix.core.errors import DataError, TrainingError
from mcpmix.core.progress import SILENT
from mcpmix.core.seeds import seed_everything
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.augment import denormalise
from mcpmix.data.index import Arrays
from mcpmix.metrics import RegionAccumulator
from mcpmix.mixing.registry import STRATEGIES, strategy_needs_pairs
from mcpmix.networks.features import SmallFeatures, save_features
from mcpmix.networks.weight_files import folder_digest
from mcpmix.run import run
from mcpmix.segmenter import train
from mcpmix.segmenter.arms import Inputs, check_arms, needs_pairs
from mcpmix.segmenter.train import recent_mean


@pytest.fixture
def prepared(make_config, tmp_path):
    """A configuration with its data set and without pairs."""
    config = make_config(tmp_path, "train.epochs=4", "train.arms=[full-sup]")
    return config, Inputs(run(config, until="dataset").dataset), setup("cpu", "float32", 1, True)


def test_stopped_after_two_epochs_and_resumed_equals_uninterrupted(prepared, tmp_path):
    config, inputs, runtime = prepared
    whole = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    whole.fit(SILENT)
    assert [row["epoch"] for row in whole.log.rows()] == [1, 2, 3, 4]

    folder = tmp_path / "stopped"
    folder.mkdir()
    stopped = train.Trainer(config, inputs, "full-sup", 0, folder, runtime)
    stopped.epochs = 2  # as if killed after the second epoch's checkpoint
    stopped.fit(SILENT)
    stopped.log.append(epoch=3, loss=0.1)  # the row was written, its checkpoint was not
    resumed = train.Trainer(config, inputs, "full-sup", 0, folder, runtime)
    resumed.fit(SILENT)
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name]), name
    assert whole.log.rows() == resumed.log.rows()
    assert whole.best_dsc == resumed.best_dsc


def test_recent_mean_by_hand():
    assert recent_mean([7.0], 0.6) == 7.0
    assert recent_mean([1.0, 9.0], 0.0) == 9.0
    assert recent_mean([1.0, 4.0], 0.5) == pytest.approx((0.5 * 1 + 4) / 1.5)
    assert recent_mean([2.0, 1.0, 4.0], 0.5) == pytest.approx((0.25 * 2 + 0.5 * 1 + 4) / 1.75)


def test_one_lucky_validation_does_not_choose_the_checkpoint(prepared, tmp_path, monkeypatch):
    config, inputs, runtime = prepared
    scores = iter([10.0, 46.0, 12.0, 36.0, 37.0, 38.0])
    monkeypatch.setattr(RegionAccumulator, "compute", lambda _: {"dsc": next(scores)})
    trainer = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    for epoch in range(1, 7):
        trainer.log.append(epoch=epoch, validation=trainer._validate(epoch))
    assert trainer.best_epoch == 6


def test_a_loss_that_is_not_finite_names_the_samples(prepared, tmp_path):
    config, inputs, runtime = prepared
    trainer = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    with torch.no_grad():
        next(iter(trainer.network.parameters())).fill_(math.nan)
    with pytest.raises(TrainingError, match="samples p0"):
        trainer._run_epoch(1)


def test_in_half_precision_the_loss_is_scaled_and_the_scale_survives_a_stop(prepared, tmp_path):
    config, inputs, _ = prepared
    runtime = setup("cpu", "float16", 1, True)
    seen = []
    trainer = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    trainer.observer = lambda *step: seen.append(step)
    trainer.scaler.load_state_dict({**trainer.scaler.state_dict(), "scale": 2.0**12})
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    trainer.network.eval()  # the same logits once more
    with torch.no_grad(), runtime.autocast():
        logits = trainer.network(next(trainer._batches(1)).images).float()
    trainer._step(next(trainer._batches(1)), 1, 0)

    batch, _, (gradient,) = seen[0]
    expected = (logits.sigmoid() - batch.masks) / batch.masks.numel()
    # Between 8 and 16 neighbouring float16 logits are 0.008 apart, and so are their gradients, relatively.
    torch.testing.assert_close(gradient, expected, rtol=2e-2, atol=0)
    assert any(not torch.equal(value, before[name]) for name, value in trainer.network.state_dict().items())
    trainer._save(1)
    resumed = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    resumed._restore()
    assert resumed.scaler.get_scale() == trainer.scaler.get_scale() == 2.0**12


def test_a_validation_part_without_lesions_is_refused_before_training(prepared, tmp_path, monkeypatch):
    config, inputs, runtime = prepared
    real = train.load_arrays

    def without_lesions(*given):
        arrays = real(*given)
        return dataclasses.replace(arrays, masks=np.zeros_like(arrays.masks))

    monkeypatch.setattr(train, "load_arrays", without_lesions)
    with pytest.raises(DataError, match="No mask of the validation part has a lesion"):
        train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)


def test_pairs_are_asked_for(prepared):
    config, inputs, _ = prepared
    with pytest.raises(DataError, match="mcpmix synthesize"):
        train.key(config, inputs, "mcpmix-rla", 0)


@pytest.mark.parametrize(("arm", "paired"), [("full-sup", False), ("mixup", False), ("append", True)])
def test_whether_an_arm_needs_pairs_is_up_to_its_strategy(prepared, arm, paired):
    config, inputs, _ = prepared
    assert needs_pairs(arm) is paired
    if not paired:
        assert set(train.key(config, inputs, arm, 0).inputs) == {"dataset"}


PAIRED = tuple(name for name in STRATEGIES if strategy_needs_pairs(name))


@pytest.mark.parametrize(
    ("change", "trained_again"),
    [
        ("rla.mu=0.5", {"mcpmix-rla"}),
        ("rla.rho_max=0.4", {"mcpmix-rla"}),
        ("rla.s_max=0.5", {"mcpmix", "mcpmix-rla", "pseudo-label-mcpmix"}),
        ("rla.fixed_rho=0.5", {"mcpmix", "mcpmix-stepwise", "mcpmix-cosine", "pseudo-label-mcpmix"}),
        ("train.strategies={append: {ratio: 0.5}}", {"append"}),
        ("train.tail_epochs=1", set(PAIRED)),
    ],
)
def test_an_arm_is_trained_again_only_if_it_uses_what_changed(make_config, tmp_path, change, trained_again):
    artifact = Artifact(tmp_path, {"digest": "d"})
    inputs = Inputs(artifact, artifact, artifact, artifact, None, artifact, artifact)
    before, after = make_config(tmp_path), make_config(tmp_path, change)
    changed = {arm for arm in PAIRED if train.key(before, inputs, arm, 0) != train.key(after, inputs, arm, 0)}
    assert changed == trained_again


@pytest.mark.parametrize(
    ("arm", "reads"),
    [
        ("full-sup", set()),
        ("mean-teacher", {"unlabelled"}),
        ("pseudo-label", {"pseudo"}),
        ("pseudo-label-mcpmix", {"pseudo", "pairs"}),
        ("satsynth", {"labelled_set"}),
    ],
)
def test_an_arm_depends_on_the_artefacts_that_it_reads(make_config, tmp_path, arm, reads):
    config, parts = make_config(tmp_path), ("dataset", "pairs", "unlabelled", "pseudo", "labelled_set")
    made = {part: Artifact(tmp_path, {"digest": part}) for part in parts}
    key, other = train.key(config, Inputs(**made), arm, 0), Artifact(tmp_path, {"digest": "other"})
    changed = {part for part in parts if train.key(config, Inputs(**{**made, part: other}), arm, 0) != key}
    assert changed == {"dataset"} | reads
    for part in reads - {"pairs"}:
        remedy = "mcpmix run" if part == "labelled_set" else r"data\.unlabelled"
        with pytest.raises(DataError, match=rf"{arm} .*{remedy}"):
            train.key(config, Inputs(**{**made, part: None}), arm, 0)


def test_replaced_weights_are_noticed_and_moved_ones_are_not(make_config, tmp_path):
    artifact = Artifact(tmp_path, {"digest": "d"})
    inputs = Inputs(artifact, artifact, artifact, artifact, None, artifact, artifact)
    for name in ("a", "b"):
        save_features(SmallFeatures((8, 8)), tmp_path / name)  # random weights, so two networks
    shutil.copytree(tmp_path / "a", tmp_path / "a-moved")

    def keys(name):
        folder_digest.cache_clear()  # as in another process
        config = make_config(tmp_path, f"rla.features={tmp_path / name}")
        return {arm: train.key(config, inputs, arm, 0).digest for arm in PAIRED}

    before = keys("a")
    assert keys("a-moved") == before
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "b", tmp_path / "a")
    assert {arm for arm, digest in keys("a").items() if digest != before[arm]} == {"mcpmix-rla"}


@pytest.mark.parametrize("arm", ["mcpmix", "mcpmix-cosine", "append", "mcpmix-rla"])
def test_calibration_batches_are_made_for_arms_that_calibrate_only(make_config, tmp_path, monkeypatch, arm):
    config = make_config(tmp_path, "train.epochs=1", f"train.arms=[{arm}]")
    made = run(config, until="inputs")
    epochs, real = [], train.Trainer._batches
    monkeypatch.setattr(
        train.Trainer, "_batches", lambda self, epoch: epochs.append(epoch) or real(self, epoch)
    )
    trainer = train.Trainer(config, made.inputs(config, arm), arm, 0, tmp_path, made.runtime)
    trainer.fit(SILENT)
    assert epochs == ([1, 1] if arm == "mcpmix-rla" else [1])


@pytest.mark.parametrize(("epochs", "most", "batches"), [(1, 50, 2), (12, 50, 20), (12, 7, 7)])
def test_a_strategy_prepares_on_an_epoch_within_bounds(
    make_config, tmp_path, monkeypatch, epochs, most, batches
):
    config = make_config(tmp_path, f"train.epochs={epochs}", "train.arms=[mcpmix-rla]")
    made = run(config, until="inputs")
    inputs = made.inputs(config, "mcpmix-rla")
    fitted = train.Trainer(config, inputs, "mcpmix-rla", 0, tmp_path, made.runtime)
    monkeypatch.setattr(train, "_MOST_PREPARED", most)
    seen = []

    def prepare(given):
        seen.extend(given)
        raise KeyboardInterrupt  # the training itself is not of interest

    monkeypatch.setattr(fitted.strategy, "prepare", prepare)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(SILENT)
    assert len(seen) == batches
    for step, batch in enumerate(fitted._batches(1)):  # those of the first epoch come first
        assert torch.equal(seen[step].synthetic, batch.synthetic)
    assert len({tuple(batch.ids) for batch in seen}) > 1


def test_the_log_of_rla_has_means_over_the_epoch(make_config, tmp_path):
    config = make_config(
        tmp_path, "train.epochs=1", "train.arms=[mcpmix-rla]", "rla.mmd_every=2", "rla.tau0=1e-6"
    )
    made = run(config, until="inputs")
    inputs = made.inputs(config, "mcpmix-rla")
    trainer = train.Trainer(config, inputs, "mcpmix-rla", 0, tmp_path, made.runtime)
    rla, steps = trainer.strategy.rla, []
    real = rla.loss
    rla.loss = lambda *parts: steps.append((rla.s.item(), rla.rho.item(), real(*parts))) or steps[-1][-1]
    trainer.fit(SILENT)

    (row,) = trainer.log.rows()
    assert len(steps) == trainer.steps_per_epoch == 2
    measured = [loss for _, _, loss in steps][::2]
    assert steps[-1][-1].distribution.item() == 0  # the last step does not measure
    assert row["s"] == pytest.approx(np.mean([s for s, _, _ in steps]))
    assert row["rho"] == pytest.approx(np.mean([rho for _, rho, _ in steps]))
    assert row["s_end"] == pytest.approx(rla.s.item())
    assert row["rho_end"] == pytest.approx(rla.rho.item())
    assert row["prior"] == pytest.approx(np.mean([loss.prior.item() for _, _, loss in steps]))
    assert row["discrepancy"] == pytest.approx(np.mean([loss.discrepancy.item() for loss in measured]))
    assert row["distribution"] == pytest.approx(np.mean([loss.distribution.item() / 2 for loss in measured]))
    assert row["distribution"] > 0
    assert row["loss"] == pytest.approx(np.mean([loss.total.item() for _, _, loss in steps]))
    assert (row["mu"], row["tau0"]) == pytest.approx((config.rla.mu, 1e-6))
    assert trainer.gates == [row["s_end"] * row["rho_end"]]


def test_consistency_is_part_of_the_objective(prepared, tmp_path):
    config, inputs, runtime = prepared
    trainer = train.Trainer(config, inputs, "augmix", 0, tmp_path, runtime)
    trainer.strategy.set_epoch(1)
    values = trainer._step(next(trainer._batches(1)), 1, 0)
    divergence = trainer.strategy.log()["jsd"]
    assert divergence > 0
    assert values["loss"] == pytest.approx(values["loss_real"] + 12 * divergence, rel=1e-5)


def test_originals_lead_to_the_augmented_batch(prepared, tmp_path):
    config, inputs, runtime = prepared
    trainer = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    batch = next(trainer._batches(1))
    places = [trainer.train.ids.index(name) for name in batch.ids]
    masks = torch.from_numpy(trainer.train.masks[places])[:, None].float()
    assert torch.equal(batch.originals.warp(masks), batch.masks)
    assert not torch.equal(masks, batch.masks)
    pixels = torch.from_numpy(trainer.train.images[places]).permute(0, 3, 1, 2)
    torch.testing.assert_close(denormalise(batch.originals.images()), pixels / 255)


@pytest.mark.parametrize(("arm", "terms"), [("puzzlemix", {"mixed"}), ("hsmix", {"hard", "soft"})])
def test_strategies_that_look_at_network_or_originals_take_a_step(prepared, tmp_path, arm, terms):
    config, inputs, runtime = prepared
    trainer = train.Trainer(config, inputs, arm, 0, tmp_path, runtime)
    trainer.strategy.set_epoch(1)
    before = [parameter.detach().clone() for parameter in trainer.network.parameters()]
    values = trainer._step(next(trainer._batches(1)), 1, 0)
    assert set(values) == {"loss"} | {f"loss_{name}" for name in terms}
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.network.parameters(), strict=True))


def test_last_batch_is_filled_up_and_every_sample_is_seen(prepared, tmp_path):
    config, inputs, runtime = prepared
    config = config.model_copy(update={"train": config.train.model_copy(update={"batch_size": 3})})
    trainer = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    batches = list(trainer._batches(1))
    assert [len(batch.ids) for batch in batches] == [3, 3]
    assert {name for batch in batches for name in batch.ids} == set(trainer.train.ids)


def test_masks_stay_hard_under_augmentation(prepared, tmp_path):
    config, inputs, runtime = prepared
    trainer = train.Trainer(config, inputs, "full-sup", 0, tmp_path, runtime)
    for batch in trainer._batches(3):
        assert set(batch.masks.unique().tolist()) <= {0.0, 1.0}


def test_unknown_arms_are_listed():
    assert check_arms(("full-sup", "mixup?"), {}) == [
        f"train.arms: no strategy 'mixup?'; known: {', '.join(STRATEGIES)}"
    ]


# --- terms made ahead, unlabelled images, observers ---------------------------------------------------------


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
