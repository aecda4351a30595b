from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.helpers.progress import Kill, Recorder

from mcpmix.core.errors import ConfigError
from mcpmix.core.progress import SILENT
from mcpmix.generator.baselines import gensrrfi
from mcpmix.generator.baselines.labelled_set import read_set


def maps_of(seeds):
    """Maps 16 x 16 that are inside in the upper rows; how many says the seed, and none for odd ones."""
    rows = torch.arange(16)[None, None, :, None]
    inside = torch.tensor([0 if seed % 2 else 4 for seed in seeds])[:, None, None, None]
    return torch.where(rows < inside, 1.0, -1.0).expand(-1, 1, -1, 16)


def test_degenerate_masks_are_drawn_again(prepared, real, monkeypatch):
    config, sources, runtime = prepared
    drawn = []

    def draw_masks(_, seeds, steps):
        drawn.append(list(seeds))
        return maps_of(seeds)

    monkeypatch.setattr(gensrrfi, "draw_masks", draw_masks)
    monkeypatch.setattr(gensrrfi, "train_masks", lambda *_: None)
    limited = replace(real, areas=(0.1, 0.5))
    draw = gensrrfi.train_masks_first(config, sources, limited, config.folder, runtime, SILENT)
    made = draw([5, 8], ["", ""])
    assert len(drawn) > 1
    assert all(len(seeds) == 2 for seeds in drawn)  # always the whole batch
    assert made.images.shape == (2, 64, 64, 3)
    share = made.masks.mean(axis=(1, 2))
    assert share == pytest.approx([0.25, 0.25], abs=0.02)  # enlarged smoothly: 4 of 16 rows
    assert made.masks.dtype == np.uint8
    alone = draw([8, 8], ["", ""])
    assert np.array_equal(alone.masks[0], made.masks[1])


def test_a_generator_that_sees_no_masks_is_refused(prepared, make_config, tmp_path):
    _, sources, runtime = prepared
    config = make_config(tmp_path, "finetune.condition=depth")
    with pytest.raises(ConfigError, match="gensrrfi draws images under masks"):
        gensrrfi.run(config, sources, tmp_path / "set", runtime)


def test_the_model_learns_where_masks_are(prepared, make_config, tmp_path):
    _, _, runtime = prepared
    masks = np.zeros((2, 64, 64), np.uint8)
    masks[:, 16:48, 16:48] = 1  # the same in all views
    config = make_config(tmp_path, "finetune.steps=40", "finetune.batch_size=4", "finetune.ema_decay=0.9")
    config = config.model_copy(update={"data": config.data.model_copy(update={"size": 32})})
    unet = gensrrfi.train_masks(config, masks, tmp_path / "masks.checkpoint", runtime, SILENT)
    drawn = gensrrfi.enlarged(gensrrfi.draw_masks(unet, [1, 2, 3], 8), 64).numpy()
    assert (drawn == masks[0]).mean() > 0.85


@pytest.mark.usefixtures("any_area")
def test_a_killed_training_resumes_to_the_same_images(prepared, tmp_path):
    config, sources, runtime = prepared
    whole = gensrrfi.run(config, sources, tmp_path / "whole", runtime)
    with pytest.raises(KeyboardInterrupt):
        gensrrfi.run(config, sources, tmp_path / "killed", runtime, Kill("gensrrfi masks"))
    listener = Recorder()
    resumed = gensrrfi.run(config, sources, tmp_path / "killed", runtime, listener)
    assert ("gensrrfi masks", 2, 1) in listener.tasks
    assert np.array_equal(read_set(whole).images, read_set(resumed).images)
    assert gensrrfi.key(config, sources).inputs["generator"] == sources.generator.digest
