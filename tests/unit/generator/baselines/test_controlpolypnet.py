from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.helpers.progress import Kill, Recorder
from tests.helpers.unlabelled import store_unlabelled

from mcpmix.core.stage_folder import Artifact
from mcpmix.generator.baselines import controlpolypnet
from mcpmix.generator.baselines.controlpolypnet import find_surroundings, paint, place_lesion
from mcpmix.generator.baselines.labelled_set import read_set
from mcpmix.generator.judge import Judge


class Finds(torch.nn.Module):
    """Finds a lesion wherever red is above one half."""

    def forward(self, images):
        return 20 * (images[:, :1] - 0.1)


def places_of(real, sources, runtime, progress=None):
    return find_surroundings(sources, real, runtime, progress or Recorder())


def with_masks(real, masks):
    return replace(real, arrays=replace(real.arrays, masks=masks, place=None))


def test_the_mask_is_painted_white():
    images, masks = torch.full((2, 3, 4, 4), 0.3), torch.zeros(2, 4, 4)
    masks[0, 1, 2] = 1
    painted = paint(images, masks)
    assert painted[0, :, 1, 2].tolist() == [1, 1, 1]
    assert (painted == 1).sum() == 3
    assert torch.equal(painted[1], images[1])


def test_a_lesion_is_painted_over_the_one_that_is_there(prepared, real):
    _, sources, runtime = prepared
    places, shapes = places_of(real, sources, runtime), set()
    assert places.rows == (0, 1, 2, 3)
    for seed in range(20):
        row, mask, origin = place_lesion(real, places, seed)
        own = real.arrays.masks[row]
        assert mask[own > 0].all()
        assert set(np.unique(mask)) == {0, 1}
        assert origin["surroundings"] == real.arrays.ids[row]
        assert not origin["mask"].startswith(f"{real.arrays.ids[row]},")
        shapes.add(mask.tobytes())
    assert len(shapes) > 10
    again = [place_lesion(real, places, 7)[1] for _ in range(2)]
    assert np.array_equal(*again)


def test_lesion_free_training_images_are_surroundings_and_get_the_mask_of_another(prepared, real):
    _, sources, runtime = prepared
    masks = real.arrays.masks.copy()
    masks[1] = 0
    some = with_masks(real, masks)
    listener = Recorder()
    places = places_of(some, sources, runtime, listener)
    assert places.rows == (0, 1, 2, 3)
    assert "1 training images and 0 unlabelled ones without a lesion, and 3 training" in listener.lines[-1]
    free = [place_lesion(some, places, seed) for seed in range(30)]
    areas = {int(masks[row].sum()) for row in (0, 2, 3)}
    painted = {int(mask.sum()) for row, mask, _ in free if row == 1}
    assert painted
    assert painted <= areas  # turned, not moved or joined


def test_unlabelled_images_without_a_lesion_are_enough(prepared, real, tmp_path, monkeypatch):
    _, sources, runtime = prepared
    images = np.zeros((7, 64, 64, 3), np.uint8)
    images[2, :9, :9] = images[5, 30:, 30:] = 255
    pool = store_unlabelled(tmp_path / "unlabelled", images, [f"frame-{number}" for number in range(7)])
    monkeypatch.setattr(controlpolypnet, "load_judge", lambda *_: Judge([Finds(), Finds()], {}, {}))
    monkeypatch.setattr(controlpolypnet, "_JUDGED", 3)
    given = replace(sources, unlabelled=pool, judge=Artifact(tmp_path, {"digest": "judge"}))
    places = places_of(real, given, runtime)
    assert [places.ids[row] for row in places.rows] == [f"frame-{number}" for number in (0, 1, 3, 4, 6)]
    assert {places.groups[row] for row in places.rows} == {""}
    assert places.images[np.array(places.rows)].max() == 0
    row, mask, _ = place_lesion(real, places, 1)
    assert row >= 4
    assert int(mask.sum()) in {int(each.sum()) for each in real.arrays.masks}


def test_only_what_is_read_is_in_the_key(prepared, make_config, tmp_path):
    config, sources, _ = prepared
    other = Artifact(tmp_path, {"digest": "other"})

    def digest(changed=config, **parts):
        return controlpolypnet.key(changed, replace(sources, **parts)).digest

    assert digest() == digest(generator=None) == digest(judge=other) == digest(unlabelled=other)
    assert digest(unlabelled=other, judge=other) != digest()
    assert digest(make_config(tmp_path, "finetune.lesion_weight=2")) == digest()
    assert digest(make_config(tmp_path, "finetune.steps=3")) != digest()
    assert digest(make_config(tmp_path, "synthesis.replicas=3")) != digest()


@pytest.mark.usefixtures("any_area")
def test_a_killed_training_resumes_to_the_same_images(prepared, tmp_path):
    config, sources, runtime = prepared
    whole = controlpolypnet.run(config, sources, tmp_path / "whole", runtime)
    with pytest.raises(KeyboardInterrupt):
        controlpolypnet.run(config, sources, tmp_path / "killed", runtime, Kill("controlpolypnet"))
    listener = Recorder()
    resumed = controlpolypnet.run(config, sources, tmp_path / "killed", runtime, listener)
    assert ("controlpolypnet", 2, 1) in listener.tasks
    one, other = read_set(whole), read_set(resumed)
    assert np.array_equal(one.images, other.images)
    assert np.array_equal(one.masks, other.masks)
