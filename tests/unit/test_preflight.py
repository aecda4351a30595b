import re

import numpy as np
import pytest
from PIL import Image

from mcpmix.config_file import keep_settings, resolve_config
from mcpmix.core.errors import ConfigError, DataError, ModelError, StorageError
from mcpmix.core.progress import SILENT
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.data import dataset
from mcpmix.data.convert import write_groups
from mcpmix.data.phantom_set import write_phantom_set
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
    assert any("1 id in" in text and "stranger" in text for text in result.warnings)


def test_a_judge_without_a_second_group_stops_a_check(tmp_path, random_models):
    table = tmp_path / "groups.csv"
    paired = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}", "finetune.start=null")
    settings = ("synthesis.admission.enabled=true", "data.size=64", f"depth.model={random_models / 'depth'}")
    config = folder_config(tmp_path, 1, *paired, *settings, groups=table)
    names = [path.stem for path in sorted(config.data.images.iterdir())]
    write_groups(table, {name: f"p{min(n, 2)}" for n, name in enumerate(names)}, guessed=False)
    problems = [str(problem) for problem in check(config).problems]
    assert any("the judge of synthetic images needs two" in text for text in problems), problems


def test_all_that_does_not_know_several_classes_is_told_at_once(tmp_path, random_models):
    settings = (
        "data.classes=[flat,raised]",
        f"data.unlabelled={tmp_path}",
        "finetune.start=pseudo",
        "evaluation.threshold=0.4",
        "train.arms=[full-sup, mixup, mean-teacher, pseudo-label, pseudo-label-mcpmix, gensrrfi, satsynth]",
    )
    with pytest.raises(ConfigError) as caught:
        require_settings(phantom_config(tmp_path, *settings))
    text = str(caught.value)
    assert text.count("With several classes (flat, raised) this does not work:") == 1
    refused = re.findall(r"train\.arms: (\S+) trains on masks that are lesion or background", text)
    assert refused == ["pseudo-label", "pseudo-label-mcpmix", "gensrrfi", "satsynth"]
    assert "finetune.start: pseudo-masks are" in text
    assert "evaluation.threshold: the likeliest class is taken; leave it at 0.5" in text


def labelled_config(tmp_path, *overrides):
    """A folder of phantom frames with two kinds of lesion, of which the masks hold the labels."""
    samples, _ = write_phantom_set(
        tmp_path / "frames",
        train_patients=4,
        validation_patients=2,
        test_patients=2,
        frames_per_patient=2,
        test_frames_per_patient=2,
        seed=1,
        size=32,
        labels=3,
    )
    write_groups(tmp_path / "groups.csv", {item.id: item.group for item in samples}, guessed=False)
    tree = {"preset": "tiny", "output": str(tmp_path / "runs"), "train": {"arms": ["full-sup"]}}
    places = {name: str(tmp_path / "frames" / name) for name in ("images", "masks")}
    tree["data"] = {"source": "folder", "groups": str(tmp_path / "groups.csv"), "size": 32, **places}
    return resolve_config(tree, overrides)


def test_a_folder_with_several_classes_is_in_order(tmp_path):
    result = check(labelled_config(tmp_path, "data.classes=[flat,raised]"))
    assert not result.problems
    assert result.facts["classes"] == "0 background, 1 flat, 2 raised"
    assert re.search(r"flat in \d for train; raised in \d for train", result.facts["data"])
    for item in result.audit.facts:
        assert len(item.shares) == 2
        assert item.area == pytest.approx(sum(item.shares))
        assert sum(share > 0 for share in item.shares) == 1
    assert not any("more than two levels" in finding.title for finding in result.audit.findings)


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        ("flat,raised,other", "No mask of the training part has other (3), so no network can learn it"),
        ("", "If the levels are class numbers, name the classes in data.classes"),
    ],
)
def test_labels_that_do_not_fit_the_classes_get_one_message_from_check_and_from_run(tmp_path, classes, told):
    config = labelled_config(tmp_path, f"data.classes=[{classes}]")
    (problem,) = check(config).problems
    assert told in str(problem)
    with pytest.raises(DataError) as caught:
        dataset.run(config, config.folder / "dataset")
    assert told in str(caught.value)


def test_a_label_above_the_classes_names_the_file_and_what_it_holds(tmp_path):
    config = labelled_config(tmp_path, "data.classes=[flat,raised]")
    path = sorted((tmp_path / "frames/masks").iterdir())[0]
    Image.fromarray(np.full((32, 32), 7, np.uint8)).save(path)
    for examine in (
        lambda: check(config).problems[0],
        lambda: dataset.run(config, config.folder / "dataset"),
    ):
        try:
            error = examine()
        except DataError as raised:
            error = raised
        assert f"{path}: expected the labels 0 to 2" in str(error)
        assert "it holds 7." in str(error)
        assert str(error).count(path.name) == 1
