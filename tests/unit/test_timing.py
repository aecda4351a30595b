import math

import pytest
import torch
from tests.unit.test_preflight import phantom_config

from mcpmix.core.device import setup
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.timing import _per_step, seconds_left, time_text

COUNTS = {"train": 24, "validation": 12, "test": 48, "known": 48}


@pytest.fixture(scope="module")
def runtime():
    return setup("cpu", "float32", 1, deterministic=True)


@pytest.fixture
def paired(tmp_path, random_models):
    def make(*more):
        return phantom_config(
            tmp_path,
            "train.arms=[full-sup, mcpmix-rla]",
            "data.size=32",
            "train.batch_size=2",
            "finetune.batch_size=2",
            "finetune.start=null",
            "segmenter.weights=null",
            "synthesis.admission.judge.weights=null",
            f"generator.base={random_models / 'pipeline'}",
            f"depth.model={random_models / 'depth'}",
            f"rla.features={random_models / 'features'}",
            *more,
        )

    return make


def test_time_is_measured_for_every_stage_that_the_run_will_make(paired, runtime):
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    found = seconds_left(paired("synthesis.admission.enabled=true"), COUNTS, runtime)
    assert list(found) == ["depth", "judge", "generator", "pairs", "segmenter", "evaluation"]
    assert {name: value for name, value in found.items() if not value > 0} == {}
    assert torch.equal(state, torch.random.get_rng_state())  # the run draws what it would have drawn
    assert torch.get_num_threads() == threads


def test_an_adapted_base_is_timed_with_its_own_denoiser(paired, runtime):
    adapted = ("adapt.steps=10", "adapt.batch_size=2", "adapt.unet=tiny", "train.arms=[mcpmix]")
    found = seconds_left(paired(*adapted), COUNTS, runtime)
    assert list(found) == ["depth", "base", "generator", "pairs", "segmenter", "evaluation"]
    assert found["base"] > 0


def test_finished_stages_take_no_time(paired, runtime):
    config = paired()
    for name in ("depth", "generator", "pairs", "segmenter/mcpmix-rla/seed-0", "evaluation/full-sup/seed-0"):
        with workspace(config.folder / name, StageKey(name, {})) as space:
            space.finish()
    left = seconds_left(config, COUNTS, runtime)
    assert list(left) == ["segmenter", "evaluation"]
    twice = seconds_left(config, COUNTS | {"train": 96}, runtime)
    assert twice["segmenter"] > 1.2 * left["segmenter"]


def test_stages_of_other_settings_do_not_count_as_finished(paired, runtime):
    config = paired()
    for name in ("depth", "generator", "pairs", "segmenter/mcpmix-rla/seed-0"):
        with workspace(config.folder / name, StageKey(name, {})) as space:
            space.finish()
    left = seconds_left(config, COUNTS, runtime, reuses=False)
    assert list(left) == list(seconds_left(paired("name=elsewhere"), COUNTS, runtime))


def test_a_run_of_few_steps_is_not_timed(tmp_path, runtime):
    assert seconds_left(phantom_config(tmp_path, "train.epochs=2"), COUNTS, runtime) == {}


def test_sets_of_generative_baselines_cannot_be_timed(paired, runtime):
    found = seconds_left(paired("train.arms=[full-sup, satsynth]"), COUNTS, runtime)
    assert math.isnan(found["synthetic/satsynth"])
    assert "(segmenter " in time_text(found)
    assert ", and synthetic/satsynth, which cannot be timed here" in time_text(found)


def test_a_step_takes_time_even_if_the_machine_was_busy_at_first():
    assert _per_step(one=2.0, three=6.0) == 2.0
    assert _per_step(one=5.0, three=3.0) == 1.0


def test_time_in_words():
    text = time_text({"generator": 300.0, "pairs": 45.0, "segmenter": 7200.0})
    assert text.startswith(
        "about 2.1 h in all (generator 5 min, pairs 45 s, segmenter 2.0 h), by a few steps"
    )
