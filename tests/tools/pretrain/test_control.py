"""The label-free ControlNet: what it sees, that it learns, that it goes on after a stop."""

import numpy as np
import pytest
import torch
from tools.pretrain.control import Examples, raised_region, raised_regions, train_control
from tools.pretrain.corpus import phantom_corpus

from mcpmix import phantom
from mcpmix.core import training
from mcpmix.core.errors import DataError
from mcpmix.data.phantom_set import PRETRAINING_SEED
from mcpmix.generator.conditions import condition
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import load_control
from tools.pretrain import control

FRAMES = 6
TEXTS = [["A polyp."] * FRAMES]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phantom_corpus(tmp_path_factory.mktemp("corpus"), FRAMES, 64)


@pytest.fixture
def base(random_models):
    return load_base(random_models / "pipeline")


@pytest.fixture
def all_are_clear(monkeypatch):
    monkeypatch.setattr(control, "_CLEAR", 0.0)


def train(corpus, base, folder, steps=2):
    folder.mkdir(exist_ok=True)
    train_control(corpus.images, corpus.depth, TEXTS, base, folder, steps=steps, batch_size=2)
    return load_control(folder / "control")


@pytest.mark.usefixtures("all_are_clear")
def test_the_base_stays_and_the_result_takes_mask_and_depth(corpus, base, tmp_path):
    before = {name: value.clone() for name, value in base.unet.state_dict().items()}
    result = train(corpus, base, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in base.unet.state_dict().items())
    assert result.config.conditioning_channels == 2
    assert any(v.abs().max() > 0 for n, v in result.state_dict().items() if "controlnet_down_blocks" in n)
    stored = (tmp_path / "control" / "config.json").read_text()
    assert str(tmp_path) not in stored


@pytest.mark.usefixtures("all_are_clear")
def test_a_stopped_training_goes_on_to_the_same_weights(corpus, base, tmp_path, monkeypatch):
    whole, run_steps = train(corpus, base, tmp_path / "whole", 3), training.run_steps

    def stop(step, **settings):
        def failing(index):
            if index == 2:
                raise KeyboardInterrupt
            return step(index)

        run_steps(failing, **settings | {"save_every": 1})

    monkeypatch.setattr(training, "run_steps", stop)
    with pytest.raises(KeyboardInterrupt):
        train(corpus, base, tmp_path / "stopped", 3)
    monkeypatch.setattr(training, "run_steps", run_steps)
    resumed = train(corpus, base, tmp_path / "stopped", 3)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.usefixtures("all_are_clear")
def test_a_batch_shows_masks_filled_depth_and_latents_of_the_same_images(corpus, base, tmp_path):
    examples = Examples(corpus.images, corpus.depth, TEXTS, base, tmp_path, control.SILENT)
    mirrored, kept, dropped = set(), np.zeros(2, int), np.zeros(2, int)
    for index in range(8):
        batch = examples.batch(index, 3, 1000)
        rng = control.numpy_rng("control batch", index)
        chosen, view = rng.choice(examples.usable, 3), int(rng.integers(2))
        mirrored.add(view)
        masks = torch.from_numpy(examples.masks[chosen]).float()
        assert torch.equal(batch.masks, masks.flip(-1) if view else masks)
        assert torch.equal(batch.clean, torch.from_numpy(examples.latents[view, chosen]).float())
        depths = torch.from_numpy(np.asarray(corpus.depth[chosen])).float()
        whole = condition(masks, depths, "both", "fill")
        whole = whole.flip(-1) if view else whole
        for row, shown in zip(whole, batch.shown, strict=True):
            for channel in range(2):
                kept[channel] += torch.equal(shown[channel], row[channel])
                dropped[channel] += not shown[channel].any()
    assert (kept + dropped == 8 * 3).all()  # as it is, or blank
    assert (kept > dropped).all()
    assert (dropped > 0).any()
    assert mirrored == {0, 1}


def test_regions_are_found_once(corpus, tmp_path, monkeypatch):
    path = tmp_path / "regions.npy"
    first = raised_regions(corpus.depth, path)
    monkeypatch.setattr(control, "raised_region", lambda _: pytest.fail("found again"))
    assert np.array_equal(raised_regions(corpus.depth, path), first)
    assert first.shape == (FRAMES, 64, 64)


def test_a_corpus_in_which_nothing_rises_is_refused(corpus, base, tmp_path, monkeypatch):
    monkeypatch.setattr(control, "_CLEAR", 1e9)
    with pytest.raises(DataError, match="Nothing rises clearly in any of the 6 images"):
        train(corpus, base, tmp_path)


# --- regions that stand out, on walls made by hand and on phantom frames whose masks are known ------------

SIZE = 96


def wall():
    """A wall that comes nearer to the right."""
    return np.tile(np.linspace(0.3, 0.7, SIZE), (SIZE, 1))


def ellipse(row, column, height, width):
    y, x = np.mgrid[:SIZE, :SIZE]
    return ((y - row) / height) ** 2 + ((x - column) / width) ** 2 <= 1


def overlap(found, mask):
    return (found & mask).sum() / (found | mask).sum()


def test_a_bump_is_found_where_it_is():
    bump = ellipse(40, 55, 12, 8)
    mask, _ = raised_region(wall() + 0.1 * bump)
    assert overlap(mask, bump) > 0.8


def test_of_two_bumps_the_clearer_one_is_taken():
    clear, faint = ellipse(30, 30, 9, 9), ellipse(65, 65, 9, 9)
    mask, rise = raised_region(wall() + 0.15 * clear + 0.05 * faint)
    assert overlap(mask, clear) > 0.8
    assert rise > raised_region(wall() + 0.05 * faint)[1]


@pytest.mark.parametrize(
    "depth",
    [
        wall(),
        wall() - 0.1 * ellipse(48, 48, 10, 10),  # a hollow
        wall() + 0.1 * (np.arange(SIZE) > 48)[:, None],  # a step right through the image
        wall() + 0.1 * (ellipse(48, 48, 30, 30) & ~ellipse(44, 40, 30, 30)),  # a fold
        wall() + 0.1 * ellipse(48, 48, 1.2, 1.2),  # a speck
        wall() + 0.1 * ellipse(0, 48, 12, 12),  # cut by the border
        np.zeros((SIZE, SIZE)),
    ],
    ids=["wall", "hollow", "step", "fold", "speck", "border", "nothing"],
)
def test_what_is_not_a_bump_is_not_clear(depth):
    assert raised_region(depth)[1] < 0.004


def test_the_rim_of_a_round_view_is_no_region():
    view = ellipse(48, 48, 40, 40)
    bump = ellipse(50, 50, 8, 8)
    mask, _ = raised_region((wall() + 0.1 * bump) * view)
    assert overlap(mask, bump) > 0.7


def test_clear_regions_of_phantom_frames_are_their_lesions():
    found = []
    for number in range(40):
        scene = phantom.render(PRETRAINING_SEED, number, 0, 128)
        mask, rise = raised_region(scene.depth)
        if rise >= 0.004:
            found.append(overlap(mask, scene.mask > 0))
    assert len(found) > 12
    assert np.mean(found) > 0.7
