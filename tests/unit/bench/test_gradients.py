import json
import math

import numpy as np
import pytest
import torch

from mcpmix.bench.gradients import (
    Boundary,
    Recorder,
    analyse,
    near_contour,
    sign_flips,
    still,
    to_markdown,
    transition_width,
)
from mcpmix.core.errors import ConfigError
from mcpmix.mixing.strategy import Batch, Term
from mcpmix.run import run


def square(size=8, low=3, high=6):
    mask = np.zeros((size, size), dtype=np.uint8)
    mask[low:high, low:high] = 1
    return mask


def test_pixels_near_a_contour_by_hand():
    near = near_contour(square(), 1.0)
    assert near[3, 3]
    assert near[3, 2]  # next to the square
    assert not near[4, 4]  # its middle is two away
    assert not near[2, 2]  # a corner is further than 1
    assert near.sum() == 8 + 12
    assert near_contour(square(), 2.0)[4, 4]


def test_a_mask_without_contour_has_no_such_pixels():
    assert not near_contour(np.zeros((4, 4))).any()
    assert not near_contour(np.ones((4, 4))).any()


def test_flips_by_hand():
    trace = np.array([[1.0, 1, 1, 1], [2, -1, 0, 0], [1, 1, 1, -1]])
    np.testing.assert_allclose(sign_flips(trace), [0, 1, 0, 0.5])


def test_width_of_a_transition_by_hand():
    ramp = np.tile(np.array([0.99, 0.95, 0.8, 0.6, 0.3, 0.05]), (6, 1))
    assert transition_width(ramp) == pytest.approx(3.0)  # three columns for one column of contour
    sharp = np.tile(np.array([0.99, 0.99, 0.99, 0.01, 0.01, 0.01]), (6, 1))
    assert transition_width(sharp) == 0
    assert math.isnan(transition_width(np.full((4, 4), 0.2)))


def step(recorder, mask, target, logit):
    """One sample, one term; returns what autograd gives."""
    masks = torch.from_numpy(mask).float()[None, None]
    logits = torch.full_like(masks, logit).requires_grad_()
    targets = torch.full_like(masks, target) if np.isscalar(target) else torch.from_numpy(target)[None, None]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    loss.backward()
    batch = Batch(torch.zeros(1, 3, *mask.shape), masks, None, ("a",))
    recorder(batch, [Term(batch.images, targets, 1.0, "mixed")], [logits.grad])


def test_recorded_gradient_is_prediction_minus_target():
    mask = square()
    recorder = Recorder({"a": mask})
    for target in (0.9, 0.1, 0.9, 0.1):
        step(recorder, mask, target, 0.0)
    flips, mean, variance = recorder.summary(epochs=4)
    trace = np.array([0.5 - 0.1, 0.5 - 0.9, 0.5 - 0.1])  # the first quarter is left out
    assert flips == pytest.approx(100.0)
    assert mean == pytest.approx(abs(trace.mean()), abs=1e-6)
    assert variance == pytest.approx(trace.var(ddof=1), abs=1e-6)
    near = near_contour(mask)
    expected = np.abs(0.9 - mask[near]).mean() / 2 + np.abs(0.1 - mask[near]).mean() / 2
    assert np.mean(recorder.drifts) == pytest.approx(expected, abs=1e-6)


def test_hard_targets_never_flip():
    mask = square()
    recorder = Recorder({"a": mask})
    for logit in (0.0, 2.0, -3.0, 1.0, 4.0):
        step(recorder, mask, mask.astype(np.float32), logit)
    assert recorder.summary(epochs=5)[0] == 0
    assert np.mean(recorder.drifts) == 0


@pytest.mark.parametrize("epoch", [[("a", "b", "c", "a", "b")], [("a", "b"), ("c", "a")]])
def test_a_sample_counts_once_in_an_epoch_whose_last_batch_is_filled_up(epoch):
    mask = square()
    recorder = Recorder(dict.fromkeys("abc", mask))
    for ids in epoch * 2:
        masks = torch.from_numpy(mask).float()[None, None].repeat(len(ids), 1, 1, 1)
        batch = Batch(torch.zeros(len(ids), 3, 8, 8), masks, None, ids)
        recorder(batch, [Term(batch.images, masks, 1.0, "real")], [torch.ones_like(masks)])
    assert {name: len(rows) for name, rows in recorder.gradients.items()} == {"a": 2, "b": 2, "c": 2}


def test_table_has_a_row_for_each_arm():
    row = Boundary(12.3, 0.1, 0.02, 1.4, 0.2, 3.21, 70.0)
    text = to_markdown({"mixup": row, "full-sup": row})
    assert "| Mixup | 12.3 | 0.100 | 0.0200 | 1.40 | 0.200 | 3.21 | 70.0 |" in text
    assert "| Full-Sup |" in text


def test_mixing_masks_flips_and_hard_masks_do_not(make_config, tmp_path):
    always = "train.strategies={cutmix: {probability: 1.0}}"  # six boxes, not three: some hit a boundary
    config = still(make_config(tmp_path, "train.batch_size=4", always), epochs=6)
    made = run(config, until="inputs")
    out = tmp_path / "out"
    found = analyse(config, ["full-sup", "cutmix"], lambda arm: made.inputs(config, arm), out, made.runtime)
    assert found["full-sup"].flips == 0
    assert found["full-sup"].drift == 0
    assert found["cutmix"].flips > 0
    assert found["cutmix"].drift > 0
    record = json.loads((out / "gradients.json").read_text())
    assert record["arms"]["cutmix"]["flips"] == found["cutmix"].flips
    assert (out / "gradients.png").read_bytes().startswith(b"\x89PNG")
    assert "CutMix" in (out / "gradients.md").read_text()


def test_several_classes_are_refused_before_anything_is_trained(make_config, tmp_path):
    with pytest.raises(ConfigError, match=r"leave data\.classes out"):
        still(make_config(tmp_path, "data.classes=[flat,raised]"), epochs=6)
