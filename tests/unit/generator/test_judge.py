import numpy as np
import pytest
import torch
from torch import nn

from mcpmix.config import JudgeConfig
from mcpmix.core.errors import DataError, ModelError
from mcpmix.data.index import Arrays
from mcpmix.generator.judge import (
    Judge,
    chance_dice,
    deal_folds,
    dice_of,
    load_judge,
    train_judge,
    vary_colour,
)

SIZE = 32


class Bright(nn.Module):
    """Finds what is bright in one channel."""

    def __init__(self, channel):
        super().__init__()
        self.channel = channel

    def forward(self, images):
        return 20 * images[:, self.channel : self.channel + 1]


def squares(colours):
    """Black images with a square of a colour; and the masks of the squares."""
    images = np.zeros((len(colours), SIZE, SIZE, 3), np.uint8)
    masks = np.zeros((len(colours), SIZE, SIZE), np.uint8)
    for place, colour in enumerate(colours):
        images[place, 4:12, 8:16] = colour
        masks[place, 4:12, 8:16] = 1
    return images, masks


def test_dice_by_hand():
    found = np.zeros((3, 2, 2), bool)
    masks = np.zeros((3, 2, 2), np.uint8)
    found[0, 0] = True
    masks[0, :, 0] = 1  # two pixels each, one in common
    masks[1, 0, 0] = 1
    assert dice_of(found, masks).tolist() == [0.5, 0.0, 1.0]


def test_chance_is_the_dice_against_masks_of_other_groups():
    masks = np.zeros((3, 1, 4), np.uint8)
    masks[0, 0, :2] = 1
    masks[1, 0, 1:3] = 1
    masks[2, 0, 2:] = 1
    found = masks.astype(bool)
    # a with c: nothing in common; b with c: one of two. Neither image is compared with its own group.
    assert chance_dice(found, masks, ["x", "x", "y"]) == pytest.approx(0.25)
    assert chance_dice(found, masks, ["x", "x", "x"]) == 0.0


def test_folds_keep_groups_whole_and_are_of_like_size():
    groups = ["a"] * 5 + ["b"] * 3 + ["c"] * 2 + ["d"] * 1
    fold_of = deal_folds(groups, 2, seed=0)
    sizes = [sum(fold_of[group] == fold for group in groups) for fold in (0, 1)]
    assert sorted(sizes) == [5, 6]
    assert deal_folds(["a", "b"], 5, 0).keys() == {"a", "b"}
    assert set(deal_folds(["a", "b"], 5, 0).values()) == {0, 1}


def test_one_group_cannot_be_held_out():
    with pytest.raises(DataError, match=r"two groups.*\['a'\].*admission.enabled=false"):
        deal_folds(["a", "a"], 2, 0)


def test_an_image_is_judged_by_the_network_that_did_not_see_its_group():
    images, masks = squares([(255, 0, 0), (255, 0, 0), (255, 0, 0)])
    judge = Judge([Bright(0), Bright(2)], {"seen-by-1": 0, "seen-by-0": 1}, {})
    assert judge.dice(images[:2], masks[:2], ["seen-by-1", "seen-by-0"]).tolist() == [1.0, 0.0]
    # Strangers are judged by all: 1 and 0 average to 0.5, which is no lesion.
    assert judge.probabilities(images[2:], ["stranger"])[0, 5, 9] == pytest.approx(0.5, abs=1e-3)
    assert np.array_equal(judge.probabilities(images[2:]), judge.probabilities(images[2:], ["stranger"]))


def test_contrast_is_the_difference_of_probabilities():
    images, masks = squares([(255, 255, 255)])
    judge = Judge([Bright(0)], {}, {})
    for mask, dice, contrast in ((masks, 1.0, 1.0), (1 - masks, 0.0, -1.0), (0 * masks, 0.0, 0.0)):
        found = judge.scores(images, mask)
        assert found[0].tolist() == judge.dice(images, mask).tolist() == [dice]
        assert found[1][0] == pytest.approx(contrast, abs=1e-3)


def test_threshold_is_a_quantile_of_real_dice_but_not_below_the_floor():
    judge = Judge([Bright(0)], {}, {"a": 0.2, "b": 0.4, "c": 0.8})
    assert judge.threshold(0.5) == pytest.approx(0.4)
    assert judge.threshold(0.0) == pytest.approx(0.2)
    assert Judge([Bright(0)], {}, {"a": 0.2}, chance=0.35).threshold(0.5) == pytest.approx(0.35)
    assert judge.real_dice.tolist() == [0.2, 0.4, 0.8]


def test_colour_variation_changes_hue_and_nothing_at_strength_0():
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(vary_colour(images, torch.Generator().manual_seed(1), 0.0), images)
    varied = vary_colour(images, torch.Generator().manual_seed(1), 1.0)
    assert varied.min() >= 0
    assert varied.max() <= 1
    shares = varied.mean((2, 3)) / varied.mean((1, 2, 3))[:, None]
    assert (shares.amax(0) - shares.amin(0)).min() > 0.2  # each channel leads and lags


def train_set():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 60, (4, SIZE, SIZE, 3), dtype=np.uint8)
    masks = np.zeros((4, SIZE, SIZE), np.uint8)
    for place in range(4):
        y, x = rng.integers(2, SIZE - 14, 2)
        images[place, y : y + 12, x : x + 12] = 230
        masks[place, y : y + 12, x : x + 12] = 1
    return Arrays(("a0", "a1", "b0", "b1"), images, masks), ["a", "a", "b", "b"]


SETTINGS = JudgeConfig(steps=40, batch_size=4, colour=0.3)


def test_it_learns_from_one_group_to_find_lesions_of_another_and_is_read_again(tmp_path):
    arrays, groups = train_set()
    judge = train_judge(arrays, groups, SETTINGS, seed=1, folder=tmp_path)
    assert judge.real_dice.mean() > 0.6
    moved = np.roll(arrays.masks, SIZE // 2, axis=(1, 2))
    assert judge.dice(arrays.images, moved, groups).mean() < judge.real_dice.mean() - 0.4
    again = train_judge(arrays, groups, SETTINGS, seed=1, folder=tmp_path)
    assert again.real == judge.real
    assert again.chance == judge.chance < judge.real_dice.mean()
    assert np.array_equal(again.probabilities(arrays.images), judge.probabilities(arrays.images))
    assert not list(tmp_path.rglob("checkpoint*"))


def test_a_judge_cut_short_goes_on_to_the_same_weights(tmp_path):
    arrays, groups = train_set()
    settings = JudgeConfig(steps=4, batch_size=2)
    whole = train_judge(arrays, groups, settings, seed=1, folder=tmp_path / "whole")

    class Kill:
        """Stops the second network after its checkpoint of step 2."""

        def track(self, title, total, done=0):
            from contextlib import contextmanager

            @contextmanager
            def task():
                steps = 0

                def advance(count=1, note=""):
                    nonlocal steps
                    steps += count
                    if title.endswith("1") and steps == 3:
                        raise KeyboardInterrupt

                yield advance

            return task()

        def say(self, message):
            pass

    with pytest.raises(KeyboardInterrupt):
        train_judge(arrays, groups, settings, seed=1, folder=tmp_path / "cut", progress=Kill())
    assert not (tmp_path / "cut" / "judge.json").exists()
    resumed = train_judge(arrays, groups, settings, seed=1, folder=tmp_path / "cut")
    for one, two in zip(whole.networks, resumed.networks, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[name]), name


def test_a_folder_without_a_judge_is_named(tmp_path):
    with pytest.raises(ModelError, match="has no judge"):
        load_judge(tmp_path)


def test_several_classes_are_judged_as_lesions_alike(tmp_path):
    images, masks = squares([(250, 0, 0), (200, 0, 0), (0, 250, 0), (0, 200, 0)])
    labels = masks * np.array([1, 2, 1, 2], np.uint8)[:, None, None]
    settings = JudgeConfig(network="segnet", variant="small", steps=2, batch_size=2)
    judges = [
        train_judge(
            Arrays(tuple("abcd"), images, chosen), list("abcd"), settings, seed=0, folder=tmp_path / name
        )
        for name, chosen in (("lesion", masks), ("labels", labels))
    ]
    assert judges[0].real == judges[1].real
    assert judges[0].chance == judges[1].chance
    np.testing.assert_array_equal(judges[0].scores(images, masks), judges[1].scores(images, labels))
