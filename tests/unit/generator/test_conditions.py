"""Condition images: their channels, depth filled under masks, and maps that are read when they are needed."""

import numpy as np
import pytest
import torch
from PIL import Image

from mcpmix.config import FinetuneConfig
from mcpmix.generator.conditions import (
    Conditions,
    DepthMaps,
    as_levels,
    condition,
    fill_depth,
    swapped_conditions,
)


def slope_with_bump(size=64):
    """A wall that comes nearer to the right, a bump on it, and the mask of the bump."""
    wall = torch.linspace(0.2, 0.8, size).expand(size, size)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    mask = ((y - 24) ** 2 + (x - 40) ** 2 <= 36).float()
    return wall[None], mask[None], (wall + 0.15 * mask)[None]


@pytest.mark.parametrize(("use", "seen"), [("both", (1, 1)), ("mask", (1, 0)), ("depth", (0, 1))])
def test_channels_that_are_not_used_are_zero(use, seen):
    masks, depths = torch.ones(2, 4, 4), torch.full((2, 4, 4), 0.5)
    shown = condition(masks, depths, use, "keep")
    assert shown.shape == (2, 2, 4, 4)
    assert torch.equal(shown[:, 0], masks * seen[0])
    assert torch.equal(shown[:, 1], depths * seen[1])


def test_filled_depth_goes_on_as_the_wall_and_is_untouched_elsewhere():
    wall, mask, depth = slope_with_bump()
    filled = fill_depth(depth, mask)
    assert (depth - wall).abs().max() > 0.14
    assert (filled - wall).abs().max() < 0.03  # a fifth of the bump
    far = torch.nn.functional.max_pool2d(mask, 5, 1, 2) == 0
    assert torch.equal(filled[far], depth[far])


def test_filled_depth_does_not_tell_that_there_was_a_bump():
    _, mask, depth = slope_with_bump()
    kept, filled = (condition(mask, depth, "both", way)[0, 1] for way in ("keep", "fill"))
    inside, beside = mask[0] > 0, (mask.roll(16, dims=-2) > 0)[0]  # the wall is the same in both places
    assert kept[inside].mean() - kept[beside].mean() > 0.14
    assert (filled[inside].mean() - filled[beside].mean()).abs() < 0.01


def test_depth_alone_does_not_know_the_mask():
    _, mask, depth = slope_with_bump()
    assert torch.equal(condition(mask, depth, "depth", "fill")[:, 1], depth)


def test_an_image_is_filled_alone_as_in_a_batch():
    _, mask, depth = slope_with_bump()
    masks, depths = torch.cat([mask, torch.ones_like(mask)]), torch.cat([depth, depth])
    torch.testing.assert_close(fill_depth(depths, masks)[:1], fill_depth(depth, mask), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (33, 64)])
def test_all_sizes_empty_masks_and_full_ones(size):
    depth = torch.rand(1, *size)
    assert torch.equal(fill_depth(depth, torch.zeros_like(depth)), depth)
    nothing = fill_depth(depth, torch.ones_like(depth))  # no surroundings to go on from
    assert nothing.abs().max() == 0


@pytest.mark.parametrize("way", ["keep", "fill"])
@pytest.mark.parametrize("use", ["both", "mask", "depth"])
def test_swapped_conditions_differ_in_the_mask_alone(use, way):
    wall, mask, depth = slope_with_bump()
    elsewhere = mask.roll(20, dims=-2)
    own, other = swapped_conditions(mask, elsewhere, depth, use, way)
    assert torch.equal(own[:, 1], other[:, 1])  # nothing to read off the depth
    assert torch.equal(own[:, 0], mask if use != "depth" else torch.zeros_like(mask))
    assert torch.equal(other[:, 0], elsewhere if use != "depth" else torch.zeros_like(mask))
    if (use, way) == ("both", "fill"):
        assert (own[:, 1] - wall).abs().max() < 0.03


def test_conditions_made_one_by_one_from_files_are_those_of_all_together(tmp_path):
    levels = np.random.default_rng(0).integers(0, 65536, (3, 33, 33), np.uint16)
    for name, image in zip("abc", levels, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    masks = np.zeros((3, 33, 33), np.uint8)
    masks[:, 8:20, 5:9] = 1
    made = Conditions(masks, DepthMaps(tmp_path, "abc"), FinetuneConfig(depth_under_mask="fill"))
    together = condition(
        torch.from_numpy(masks).float(), torch.from_numpy(levels / np.float32(65535)), "both", "fill"
    )
    assert len(made) == 3
    assert torch.equal(made[[2, 0, 2]], together[[2, 0, 2]])


def test_labels_are_levels_of_the_mask_channel():
    masks = np.array([[[0, 1], [2, 3]]], np.uint8)
    assert as_levels(masks, 4).tolist() == [[[0, pytest.approx(1 / 3)], [pytest.approx(2 / 3), 1]]]
    assert torch.equal(as_levels(masks // 2, 2), torch.from_numpy(masks // 2).float())


def test_depth_is_filled_under_lesions_of_every_class():
    depths = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = np.zeros((1, 32, 32), np.uint8)
    labels[0, 4:10, 4:10], labels[0, 20:28, 12:20] = 1, 2
    lesions = torch.from_numpy(labels > 0).float()
    assert torch.equal(fill_depth(depths, as_levels(labels, 3)), fill_depth(depths, lesions))
