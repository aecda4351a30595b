"""What the sections refuse, and what they say about themselves."""

import pytest
from pydantic import ValidationError

from mcpmix.config import Config
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.mixing.registry import build_strategy

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
        (["rla.s_max=0"], "rla.s_max"),
        (["rla.bandwidths=[]"], "rla.bandwidths"),
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


def test_every_option_of_rla_can_be_configured():
    settings = ["rla.s_prior_max=0.3", "rla.rho_prior_max=0.2", "rla.root=true", "rla.bandwidths=[0.5, 2]"]
    rla = resolve_config(FOLDER, [*settings, "rla.mu=0"]).rla
    own = {"gate_learning_rate", "features", "fixed_rho"}
    built = build_strategy("mcpmix-rla", epochs=10, **rla.model_dump(exclude=own)).rla
    assert (built.s_prior_max, built.rho_prior_max, built.root) == (0.3, 0.2, True)
    assert built.bandwidths == (0.5, 2.0)


def test_every_section_says_what_it_is():
    sections = [
        info.annotation for info in Config.model_fields.values() if hasattr(info.annotation, "model_fields")
    ]
    assert len(sections) >= 10
    assert all((section.__doc__ or "").strip() for section in sections)


def test_one_arm_and_one_seed_need_no_list():
    from mcpmix.config_file import resolve_config

    config = resolve_config({"preset": "tiny"}, ["train.arms=full-sup, mcpmix", "train.seeds=3"])
    assert (config.train.arms, config.train.seeds) == (("full-sup", "mcpmix"), (3,))
