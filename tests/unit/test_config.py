"""What the sections refuse, and what they say about themselves."""

import pytest
from pydantic import ValidationError

from mcpmix.config import Config
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError

FOLDER = {"data": {"images": "images", "masks": "masks"}}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.masks=null"], "source: folder needs both `images` and `masks`"),
        (["data.source=nnunet"], "source: nnunet needs `root`"),
        (["data.split.validation=0.5", "data.split.test=0.5"], "validation + test must stay below 1"),
        (["data.split.folds=3", "data.split.fold=3"], "fold must be below folds"),
        (["generator.prompt.template='a {site}'"], "template may use only {position} and {target}"),
        (["finetune.validation.use=best"], "use: best needs `every`"),
        (["finetune.start=pseudo"], "finetune.start: pseudo needs unlabelled images"),
        (["data.source=phantom", "data.labelled=4"], "labelled is for real images"),
        (
            ["synthesis.admission.enabled=true", "synthesis.refresh=0.5"],
            "admission judges the images",
        ),
        (["synthesis.source=on-the-fly", "synthesis.refresh=0.5"], "refresh is for source: bank"),
        (["synthesis.budget=true"], "budget is for pairs made in training"),
        (["name='has space'"], "name: String should match pattern"),
    ],
)
def test_settings_that_do_not_go_together(overrides, message):
    with pytest.raises(ConfigError) as caught:
        resolve_config(FOLDER, overrides)
    assert message in str(caught.value)


def test_configurations_are_frozen():
    config = resolve_config(FOLDER)
    with pytest.raises(ValidationError, match="frozen"):
        config.train.epochs = 3


def test_the_prompt_is_filled_in():
    prompt = resolve_config(FOLDER, ["generator.prompt.position=gastric"]).generator.prompt
    assert prompt.text.startswith("A clinical gastric endoscopic image showing a polyp lesion,")
    assert "{" not in prompt.text


@pytest.mark.parametrize(
    ("override", "made"), [("source=bank", False), ("refresh=0.1", True), ("source=on-the-fly", True)]
)
def test_whether_pairs_are_made_in_training(override, made):
    assert resolve_config(FOLDER, [f"synthesis.{override}"]).synthesis.makes_in_training is made


@pytest.mark.parametrize(
    ("overrides", "found"),
    [([], False), (["data.unlabelled=more"], True), (["data.labelled=4"], True)],
)
def test_whether_there_are_unlabelled_images(overrides, found):
    assert resolve_config(FOLDER, overrides).data.has_unlabelled is found


def test_pseudo_masks_are_a_start_without_weights_and_with_steps_of_its_own():
    settings = ["data.unlabelled=more", "finetune.start=pseudo", "finetune.pseudo_steps=7"]
    pseudo, folder = resolve_config(FOLDER, settings), resolve_config(FOLDER, ["finetune.start=some/folder"])
    assert (pseudo.finetune.start_weights, pseudo.finetune.first_steps) == (None, 7)
    assert (folder.finetune.start_weights, folder.finetune.first_steps) == ("some/folder", 0)


def test_every_section_says_what_it_is():
    sections = [
        info.annotation for info in Config.model_fields.values() if hasattr(info.annotation, "model_fields")
    ]
    assert len(sections) >= 10
    assert all((section.__doc__ or "").strip() for section in sections)


def test_trackers_are_named_if_they_are_turned_on():
    assert resolve_config(FOLDER).track.chosen == []
    assert resolve_config(FOLDER, ["track.wandb=true", "track.mlflow=true"]).track.chosen == [
        "mlflow",
        "wandb",
    ]
