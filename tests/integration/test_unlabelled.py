"""A whole run on an own folder with unlabelled images: base, pseudo-masks, ControlNet and arms use them."""

from pathlib import Path

import pytest
import torch
from tests.helpers.progress import Recorder
from torch import nn

from mcpmix.core.pixels import write_png
from mcpmix.core.stage_folder import read_artifact
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import read_seen
from mcpmix.data.unlabelled import TRAINING_PART, Unlabelled
from mcpmix.generator import pseudo
from mcpmix.generator.judge import Judge
from mcpmix.init import write_phantom_folder
from mcpmix.networks.generator import SamplingSettings
from mcpmix.networks.weight_files import folder_digest
from mcpmix.phantom import render
from mcpmix.replay import remake
from mcpmix.run import run

ARMS = ("full-sup", "pseudo-label", "mean-teacher", "mcpmix")


class Corner(nn.Module):
    """Finds a lesion in the upper left quarter of every image."""

    def forward(self, images):
        found = torch.full_like(images[:, :1], -9.0)
        half = images.shape[-1] // 2
        found[:, :, 8:half, 8:half] = 9.0
        return found


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """The configuration of the run, and what it has made."""
    place = tmp_path_factory.mktemp("own")
    write_phantom_folder(place / "set", patients=6, frames=2, seed=0, size=64)
    for patient in range(3):
        write_png(place / "more" / f"{patient}.png", render(7, patient, 0, 64).image)
    config = make_config(
        place / "runs",
        "data.source=folder",
        *(f"data.{kind}={place / 'set' / kind}" for kind in ("images", "masks")),
        f"data.groups={place / 'set' / 'groups.csv'}",
        "data.labelled=4",
        f"data.unlabelled={place / 'more'}",
        *("adapt.steps=2", "adapt.batch_size=2", "adapt.validation_images=3", "adapt.looks=2"),
        *("finetune.start=pseudo", "finetune.pseudo_steps=1", "synthesis.admission.judge.steps=1"),
        f"train.arms=[{', '.join(ARMS)}]",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcpmix.generator.base.view_count", lambda _: 2)
        patch.setattr("mcpmix.generator.adapt._SAMPLING", SamplingSettings(1, 1.0, 1.0, 1.0))
        # A judge of one step finds nothing.
        patch.setattr(pseudo, "load_judge", lambda *_, **__: Judge([Corner(), Corner()], {}, {}))
        yield config, run(config)


def digests(images):
    return {image.sha256 for image in images}


def test_every_stage_is_there_and_is_reused(finished):
    config, made = finished
    assert made.report is not None
    stages = ("unlabelled", "base", "judge", "pseudo", "generator", "pairs")
    assert all(read_artifact(config.folder / stage) is not None for stage in stages)
    recorder = Recorder()
    run(config, recorder)
    assert recorder.titles == []


def test_masks_that_are_not_asked_for_leave_their_images_unlabelled(finished):
    _, made = finished
    labelled, pool = DatasetIndex.read(made.dataset).part("train"), Unlabelled.read(made.unlabelled)
    assert len(labelled) == 4
    assert sorted(pool.places) == ["more"] * 3 + [TRAINING_PART] * 4
    assert made.pseudo.manifest["counts"]["used"] == 7


def test_the_generator_stands_on_the_adapted_base_and_both_list_all_images(finished):
    _, made = finished
    index, pool = DatasetIndex.read(made.dataset), Unlabelled.read(made.unlabelled)
    expected = {record.image_sha256 for record in index.part("train")} | digests(pool.seen)
    assert digests(read_seen(made.base / "pipeline")) == expected
    assert digests(read_seen(made.generator.folder)) == expected
    assert made.generator.manifest["key"]["settings"]["weights"] == folder_digest(made.base / "pipeline")
    assert made.generator.manifest["counts"]["steps"] == 1 + 2


def test_a_counterpart_is_made_again_to_the_bit(finished):
    config, made = finished
    name = DatasetIndex.read(made.dataset).part("train")[0].id
    remade = remake(config, name, 1)
    assert remade.difference == 0
    assert "look 0" in remade.prompt


def test_the_report_shows_the_settings_that_were_asked_for(finished):
    config, made = finished
    page = (made.report / "report.html").read_text(encoding="utf-8")
    assert f"base: {Path(config.generator.base).name}\n" in page  # no place of this machine
    assert str(made.base.folder) not in page


@pytest.mark.parametrize("arm", ARMS)
def test_segmenters_say_whether_they_saw_unlabelled_images(finished, arm):
    _, made = finished
    seen = digests(read_seen(made.segmenters[arm, 0].folder))
    more = digests(Unlabelled.read(made.unlabelled).seen)
    assert (more <= seen) == (arm in ("pseudo-label", "mean-teacher"))
    tested = DatasetIndex.read(made.dataset).part("test")
    assert not seen & {record.image_sha256 for record in tested}
    assert made.evaluations[arm, 0].manifest["counts"]["images"] == len(tested)
