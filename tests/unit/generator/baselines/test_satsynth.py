import numpy as np
import pytest
from tests.helpers.progress import Kill, Recorder

from mcpmix.generator.baselines import satsynth
from mcpmix.generator.baselines.labelled_set import read_set


@pytest.mark.usefixtures("any_area")
def test_a_killed_training_resumes_to_the_same_images_and_masks(prepared, tmp_path):
    config, sources, runtime = prepared
    whole = satsynth.run(config, sources, tmp_path / "whole", runtime)
    with pytest.raises(KeyboardInterrupt):
        satsynth.run(config, sources, tmp_path / "killed", runtime, Kill("satsynth"))
    listener = Recorder()
    resumed = satsynth.run(config, sources, tmp_path / "killed", runtime, listener)
    assert ("satsynth", 2, 1) in listener.tasks
    one, other = read_set(whole), read_set(resumed)
    assert np.array_equal(one.images, other.images)
    assert np.array_equal(one.masks, other.masks)
    assert len(one) == 8


def test_what_the_joint_model_learns_from(prepared, real, monkeypatch, tmp_path):
    config, sources, runtime = prepared
    given = {}

    def train_base(latents, texts, start, *_, **__):
        given.update(latents=latents, texts=texts, channels=start.unet.config.in_channels)
        return start

    monkeypatch.setattr(satsynth, "train_base", train_base)
    satsynth.train_jointly(config, sources, real, tmp_path, runtime, Recorder())
    views, count, channels, *side = given["latents"].shape
    assert (views, count, side) == (1, 4, [8, 8])  # the small run does not turn images
    assert given["channels"] == channels == 8 + 4
    assert given["texts"] == [[config.generator.prompt.text] * 4]
    codes = given["latents"][0, :, 8:]
    assert codes.min() == -3
    shares = (codes.mean(axis=(1, 2, 3)) + 3) / 6
    assert shares == pytest.approx(real.arrays.masks.mean(axis=(1, 2)), abs=1e-5)


def test_the_generator_of_the_run_is_not_read(prepared):
    config, sources, _ = prepared
    assert set(satsynth.key(config, sources).inputs) == {"dataset"}
