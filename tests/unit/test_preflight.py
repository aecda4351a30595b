import re

import pytest

from mcpmix.config_file import keep_settings, resolve_config
from mcpmix.core.errors import ConfigError, ModelError, StorageError
from mcpmix.core.progress import SILENT
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.data.convert import write_groups
from mcpmix.preflight import check, require_settings


def phantom_config(tmp_path, *overrides):
    tree = {"preset": "tiny", "output": str(tmp_path / "runs"), "train": {"arms": ["full-sup"]}}
    return resolve_config(tree, overrides)


def test_a_phantom_needs_no_files(tmp_path):
    result = check(phantom_config(tmp_path))
    assert result.problems == []
    assert result.exit_code == 0
    assert result.facts["data"].startswith("phantom; 4 patients for train")
    assert list(tmp_path.iterdir()) == []


def test_the_time_says_if_what_is_finished_was_made_with_other_settings(tmp_path):
    config = phantom_config(tmp_path)
    keep_settings(config, SILENT)
    with workspace(config.folder / "dataset", StageKey("dataset", {})) as space:
        space.finish()
    told = f"less if stages in {config.folder}, made with other settings, can be reused"
    assert told not in check(config).facts["time"]
    assert told in check(phantom_config(tmp_path, "train.epochs=3")).facts["time"]


def test_a_size_that_the_phantom_cannot_draw(tmp_path):
    result = check(phantom_config(tmp_path, "data.size=1"))
    assert [problem.exit_code for problem in result.problems] == [3]


def test_the_gravest_problem_decides(tmp_path):
    (tmp_path / "runs").write_text("a file")
    storage = check(phantom_config(tmp_path))
    assert [type(problem) for problem in storage.problems] == [StorageError]
    assert storage.exit_code == 5
    both = check(phantom_config(tmp_path, "train.arms=[nothing]", "depth.model=/nowhere"))
    assert {type(problem) for problem in both.problems} >= {StorageError, ModelError, ConfigError}
    assert both.exit_code == 2


def test_weights_are_looked_at_only_where_an_arm_needs_them(tmp_path):
    settings = ("depth.model=/nowhere", "generator.base=/no-base", "rla.features=/no-features")
    require_settings(phantom_config(tmp_path, *settings))
    with pytest.raises(ModelError) as caught:
        require_settings(phantom_config(tmp_path, *settings, "train.arms=[mcpmix]"))
    assert "depth.model: No weights for '/nowhere'" in str(caught.value)
    assert "generator.base: No weights for '/no-base'" in str(caught.value)
    assert "rla.features" not in str(caught.value)
    with pytest.raises(ModelError, match=r"rla\.features: .*/no-features"):
        require_settings(phantom_config(tmp_path, *settings, "train.arms=[mcpmix-rla]"))


def test_incomplete_weights_are_named(tmp_path):
    (tmp_path / "base" / "unet").mkdir(parents=True)
    settings = (f"generator.base={tmp_path / 'base'}", f"depth.model={tmp_path}", "train.arms=[mcpmix]")
    with pytest.raises(ModelError) as caught:
        require_settings(phantom_config(tmp_path, *settings))
    assert "is not a complete pipeline: vae, text_encoder, tokenizer, scheduler missing" in str(caught.value)
    assert "is not a complete depth: config.json missing" in str(caught.value)


def test_an_encoder_that_reads_numbers_while_it_is_built(tmp_path):
    settings = ("segmenter.name=unet", "segmenter.variant=mit_b0", "segmenter.weights=null")
    assert "5.5 million parameters" in check(phantom_config(tmp_path, *settings)).facts["segmenter"]


def test_segmenter_weights_must_be_here(tmp_path):
    with pytest.raises(ModelError, match=r"segmenter\.weights: No weights for .nobody/nothing"):
        require_settings(phantom_config(tmp_path, "segmenter.weights=nobody/nothing"))


def test_arms_that_need_unlabelled_images_say_so_before_anything_runs(tmp_path, random_models):
    arms = "train.arms=[full-sup, pseudo-label, mean-teacher]"
    with pytest.raises(ConfigError) as caught:
        require_settings(phantom_config(tmp_path, arms))
    named = re.findall(r"(\S+) trains on unlabelled images; name some in data\.unlabelled", str(caught.value))
    assert named == ["pseudo-label", "mean-teacher"]
    more = (f"data.unlabelled={tmp_path}", "finetune.start=pseudo", f"depth.model={random_models / 'depth'}")
    base = f"generator.base={random_models / 'pipeline'}"
    require_settings(phantom_config(tmp_path, *more, base, "train.arms=[mean-teacher, mcpmix]"))


def test_wrong_settings_are_said_once_and_not_as_unknown_memory(tmp_path):
    result = check(phantom_config(tmp_path, "segmenter.name=unet", "segmenter.variant=nano"))
    assert any("segmenter.variant" in str(problem) for problem in result.problems)
    assert "train" not in result.facts


def test_a_start_that_does_not_fit_is_told_before_anything_runs(tmp_path, random_models):
    paired = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}")
    assert check(phantom_config(tmp_path, *paired)).facts["control"].startswith("embedded; licence")
    missing = check(phantom_config(tmp_path, *paired, "finetune.start=/nowhere")).problems
    assert ["finetune.start: " in str(problem) for problem in missing] == [True]
    foreign = f"finetune.start={random_models / 'pipeline' / 'unet'}"
    (problem,) = check(phantom_config(tmp_path, *paired, foreign)).problems
    assert "finetune.start: " in str(problem)
    assert "a network of class UNet2DConditionModel" in str(problem)


def test_a_lora_is_looked_for_before_anything_runs(tmp_path, random_models):
    few = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}", "finetune.start=null")
    few = (*few, "few_steps.steps=4")
    assert "few steps" not in check(phantom_config(tmp_path, *few)).facts
    published = "few_steps.lora=latent-consistency/lcm-lora-sdv1-5"
    (problem,) = check(phantom_config(tmp_path, *few, published)).problems
    assert "135 MB; licence: CreativeML Open RAIL++-M" in str(problem)
    assert '--include "pytorch_lora_weights.safetensors"' in str(problem)
    place = tmp_path / "lora"
    place.mkdir()
    (problem,) = check(phantom_config(tmp_path, *few, f"few_steps.lora={place}")).problems
    assert "few_steps.lora: " in str(problem)
    assert "pytorch_lora_weights.safetensors" in str(problem)
    (place / "pytorch_lora_weights.safetensors").touch()
    assert "licence" in check(phantom_config(tmp_path, *few, f"few_steps.lora={place}")).facts["few steps"]
    (problem,) = check(phantom_config(tmp_path, *few, f"few_steps.lora={place}@sha256:{'0' * 64}")).problems
    assert "not the pinned ones" in str(problem)


def test_a_size_that_the_generator_cannot_draw(tmp_path, random_models):
    paired = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}", "finetune.start=null")
    (problem,) = check(phantom_config(tmp_path, *paired, "data.size=100")).problems
    assert "data.size: 100 is not a multiple of" in str(problem)
    assert "Set data.size=96" in str(problem)
    assert check(phantom_config(tmp_path, "data.size=100")).problems == []  # no generator, no limit


def test_an_output_that_is_a_file_stops_a_run_before_it_starts(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StorageError, match="runs is a file"):
        require_settings(phantom_config(tmp_path))


def folder_config(tmp_path, frames, *overrides, groups=None):
    """A folder of phantom frames, `frames` of each of six patients, named in their order."""
    from mcpmix.init import write_phantom_folder

    write_phantom_folder(tmp_path / "set", patients=6, frames=frames, seed=0, size=32)
    data = {"source": "folder", **{kind: str(tmp_path / "set" / kind) for kind in ("images", "masks")}}
    if groups is not None:
        data["groups"] = str(groups)
    tree = {"preset": "tiny", "output": str(tmp_path / "runs"), "data": data, "train": {"arms": ["full-sup"]}}
    return resolve_config(tree, overrides)


def test_frames_of_videos_without_groups_are_a_warning(tmp_path, monkeypatch):
    from mcpmix.data.groups import Runs

    monkeypatch.setattr(Runs, "ordered", property(lambda runs: True))
    result = check(folder_config(tmp_path, 4))
    assert any("frames of one video come into training and test" in text for text in result.warnings)
    assert result.warned >= 1


def test_guessed_groups_and_unknown_ids_are_repeated(tmp_path):
    table = tmp_path / "groups.csv"
    config = folder_config(tmp_path, 4, groups=table)
    names = [path.stem for path in sorted(config.data.images.iterdir())]
    write_groups(table, {name: name[:4] for name in names} | {"stranger": "p"}, guessed=True)
    result = check(config)
    assert "24 images of 6 guessed groups" in result.facts["data"]
    assert any("groups were guessed from pictures" in text for text in result.warnings)
    assert any("1 ids in" in text and "stranger" in text for text in result.warnings)


def test_a_judge_without_a_second_group_stops_a_check(tmp_path, random_models):
    table = tmp_path / "groups.csv"
    paired = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}", "finetune.start=null")
    settings = ("synthesis.admission.enabled=true", "data.size=64", f"depth.model={random_models / 'depth'}")
    config = folder_config(tmp_path, 1, *paired, *settings, groups=table)
    names = [path.stem for path in sorted(config.data.images.iterdir())]
    write_groups(table, {name: f"p{min(n, 2)}" for n, name in enumerate(names)}, guessed=False)
    problems = [str(problem) for problem in check(config).problems]
    assert any("the judge of synthetic images needs two" in text for text in problems), problems
