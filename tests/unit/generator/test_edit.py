"""Edits by instruction instead of counterparts: stage, run and training of DiffuseMix."""

import numpy as np
import pytest
import torch
from PIL import Image

from mcpmix.core.errors import ConfigError
from mcpmix.data.index import DatasetIndex
from mcpmix.generator import edit
from mcpmix.run import run
from mcpmix.segmenter import train
from mcpmix.segmenter.arms import needs_generator

SETTINGS = ("train.arms=[diffusemix]", "editor.instructions=[autumn, snowy]")


class StandIn:
    """Darkens images by their instruction; the real editor has tests of its own."""

    calls = 0

    def __init__(self, *_):
        pass

    def edit(self, images, instructions, seeds, **settings):
        StandIn.calls += len(images)
        assert len(set(seeds)) == len(seeds) == len(instructions)
        factors = torch.tensor([0.5 if text == "autumn" else 0.25 for text in instructions])
        return images * factors[:, None, None, None]


@pytest.fixture
def config(make_config, random_models, tmp_path, monkeypatch):
    monkeypatch.setattr(edit, "InstructEditor", StandIn)
    StandIn.calls = 0
    return make_config(tmp_path, *SETTINGS, f"editor.model={random_models / 'pipeline'}")


def test_each_training_image_is_edited_under_each_instruction(config):
    made = run(config, until="inputs")
    edits = made.edits
    records = DatasetIndex.read(made.dataset).part("train")
    assert edits.manifest["counts"]["edits"] == 2 * len(records) == StandIn.calls
    original = np.asarray(Image.open(records[0].image)) / 255
    for number, factor in enumerate((0.5, 0.25)):
        edited = np.asarray(Image.open(edits / "images" / records[0].id / f"{number}.png")) / 255
        np.testing.assert_allclose(edited, factor * original, atol=0.01)


def test_what_was_made_before_a_stop_is_not_made_again(config, monkeypatch):
    class StoppedError(Exception):
        pass

    def stop(self, images, *rest, **settings):
        if StandIn.calls:
            raise StoppedError
        return whole(self, images, *rest, **settings)

    whole = StandIn.edit
    monkeypatch.setattr(StandIn, "edit", stop)
    with pytest.raises(StoppedError):
        run(config, until="inputs")
    monkeypatch.setattr(StandIn, "edit", whole)
    done, StandIn.calls = StandIn.calls, 0
    counts = run(config, until="inputs").edits.manifest["counts"]
    assert done > 0
    assert StandIn.calls == counts["edits"] - done


def test_diffusemix_trains_on_edits_and_asks_for_no_generator(config, tmp_path):
    made = run(config, until="inputs")
    inputs = made.inputs(config, "diffusemix")
    assert inputs.generator is None
    assert not needs_generator(config, "diffusemix")
    assert set(train.key(config, inputs, "diffusemix", 0).inputs) == {"dataset", "edits"}
    folder = tmp_path / "training"
    folder.mkdir()
    trainer = train.Trainer(config, inputs, "diffusemix", 0, folder, made.runtime)
    row = trainer._run_epoch(1)
    assert row["loss_mixed"] > 0
    assert not (config.folder / "generator").exists()


def test_without_an_editor_the_counterparts_are_taken(make_config, tmp_path):
    config = make_config(tmp_path, "train.arms=[diffusemix]")
    assert needs_generator(config, "diffusemix")
    with pytest.raises(ConfigError, match=r"editor\.model"):
        edit.key(config, run(config, until="dataset").dataset)
