from functools import partial

import pytest
from tests.helpers.progress import Recorder

from mcpmix.core.device import setup
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.segmenter.arms import (
    arm_strategy,
    check_arms,
    make_cells,
    needs_base,
    needs_generator,
    needs_judge,
    needs_set,
    takes_pairs,
)


@pytest.mark.parametrize(
    ("arm", "needs"),
    [
        ("full-sup", set()),
        ("full-sup-strong", set()),
        ("append", {takes_pairs, needs_generator, needs_base}),
        ("gensrrfi", {needs_generator, needs_base, needs_set}),
        ("satsynth", {needs_base, needs_set}),
        ("controlpolypnet", {needs_base, needs_set, needs_judge}),
        ("pseudo-label", set()),
    ],
)
def test_what_an_arm_needs(make_config, tmp_path, arm, needs):
    config = make_config(tmp_path, f"data.unlabelled={tmp_path}")
    asked = (takes_pairs, needs_generator, needs_base, needs_judge)
    found = {ask for ask in asked if ask(config, arm)} | ({needs_set} if needs_set(arm) else set())
    assert found == needs
    assert not needs_judge(make_config(tmp_path), arm)  # without unlabelled images


def test_settings_of_the_section_rla_reach_the_gates(make_config, tmp_path):
    config = make_config(
        tmp_path,
        "rla.s_prior_max=0.3",
        "rla.rho_prior_max=0.2",
        "rla.root=true",
        "rla.bandwidths=[0.5, 1, 2]",
        "rla.spread=0.5",
        "rla.gate_learning_rate=0.01",
        "train.tail_epochs=3",
    )
    strategy = arm_strategy(config, "mcpmix-rla")
    rla = strategy.rla
    assert (rla.s_prior_max, rla.rho_prior_max, rla.root, rla.bandwidths) == (0.3, 0.2, True, (0.5, 1.0, 2.0))
    assert (strategy.spread, strategy.gate_lr, rla.tail_epochs) == (0.5, 0.01, 3)


def test_the_fixed_arms_take_their_weight_from_the_section_rla(make_config, tmp_path):
    config = make_config(tmp_path, "rla.fixed_rho=0.4", "rla.s_max=0.6")
    for arm in ("mcpmix", "mcpmix-stepwise", "mcpmix-cosine", "pseudo-label-mcpmix"):
        assert arm_strategy(config, arm).rho == 0.4
    for arm in ("mcpmix", "pseudo-label-mcpmix"):
        assert arm_strategy(config, arm).s_max == 0.6


def test_settings_of_other_strategies_come_from_the_section_train(make_config, tmp_path):
    config = make_config(tmp_path, "train.strategies.mixup.alpha=0.4")
    assert arm_strategy(config, "mixup").alpha == 0.4
    assert check_arms((), {"mixup": {"alpha": -1}})[0].startswith("train.strategies.mixup: ")


def test_the_weight_of_the_mean_teacher_rises_over_the_epochs_of_the_training(make_config, tmp_path):
    settings = "train.strategies={mean-teacher: {ramp: 0.5, decay: 0.9}}"
    strategy = arm_strategy(make_config(tmp_path, "train.epochs=8", settings), "mean-teacher")
    assert (strategy.epochs, strategy.ramp, strategy.decay) == (8, 0.5, 0.9)


def make(key, out, *, runtime, progress):
    progress.say(f"made {out.parent.name} {out.name}")
    with workspace(out, key) as space:
        return space.finish()


def test_what_is_finished_is_reused_and_only_the_rest_is_made(make_config, tmp_path):
    config, runtime = make_config(tmp_path, "runtime.jobs=1"), setup("cpu", "float32", 1, True)
    cells = [("full-sup", 0), ("mcpmix", 0), ("full-sup", 1)]
    keys = {cell: StageKey("toy", {"cell": list(cell)}) for cell in cells}
    work = {cell: (key, partial(make, key)) for cell, key in keys.items()}

    first = Recorder()
    make_cells(config, "evaluation", {cells[0]: work[cells[0]]}, runtime, first)
    assert first.lines == ["made full-sup seed-0"]

    second = Recorder()
    made = make_cells(config, "evaluation", work, runtime, second)
    assert second.lines == ["made mcpmix seed-0", "made full-sup seed-1"]
    assert list(made) == cells
    assert {cell: artifact.digest for cell, artifact in made.items()} == {
        c: k.digest for c, k in keys.items()
    }


def test_one_bar_counts_all_trainings(make_config, tmp_path):
    config, runtime = make_config(tmp_path, "runtime.jobs=1"), setup("cpu", "float32", 1, True)
    work = {("a", seed): (key := StageKey("toy", {"seed": seed}), partial(make, key)) for seed in (0, 1)}
    recorder = Recorder()
    make_cells(config, "segmenter", work, runtime, recorder)
    assert recorder.titles == ["trainings"]
