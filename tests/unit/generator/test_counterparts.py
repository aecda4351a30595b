import numpy as np
import pytest
import torch
from tests.helpers.light_makers import Light, picture

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ModelError
from mcpmix.core.seeds import seed_for
from mcpmix.data.index import Arrays
from mcpmix.generator.counterparts import (
    CounterpartMaker,
    Looks,
    as_levels,
    condition,
    fill_depth,
    make_filled,
    swapped_conditions,
)
from mcpmix.generator.workers import Request
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import Generator, control_from_base

SIZE = 64


def make_maker(models, appearance=(), looks=None):
    """Three samples, a random base and an untrained ControlNet."""
    rng = np.random.default_rng(0)
    arrays = Arrays(
        ids=("a", "b", "c"),
        images=rng.integers(0, 255, (3, SIZE, SIZE, 3), dtype=np.uint8),
        masks=rng.integers(0, 2, (3, SIZE, SIZE), dtype=np.uint8),
    )
    base = load_base(models / "pipeline")
    config = resolve_config(
        {
            "preset": "tiny",
            "seed": 5,
            "generator": {"prompt": {"template": "a polyp."}},
            "synthesis": {"steps": 1, "guidance": 1.0, "mask_guidance": 1.0, "appearance": appearance},
        }
    )
    generator = Generator(base, control_from_base(base, 2, (4, 4, 4, 4)))
    return CounterpartMaker(generator, arrays, rng.random((3, SIZE, SIZE), dtype=np.float32), config, looks)


def test_seeds_belong_to_run_sample_and_replica(random_models):
    maker = make_maker(random_models)
    assert maker.seed(Request(1, 2)) == seed_for(5, "b", 2)


def test_appearance_is_drawn_by_identity_and_varies(random_models):
    maker = make_maker(random_models, appearance=("pale", "red", "dim"))
    texts = [maker.text(Request(0, replica)) for replica in range(20)]
    assert texts == [maker.text(Request(0, replica)) for replica in range(20)]
    assert set(texts) == {"a polyp. pale", "a polyp. red", "a polyp. dim"}
    assert make_maker(random_models).text(Request(0, 0)) == "a polyp."


def test_an_image_made_again_alone_is_the_same_to_the_bit(random_models):
    maker = make_maker(random_models)
    batch = maker.make([Request(0, 0), Request(1, 4), Request(2, 1)])
    again = make_filled(maker, [Request(1, 4)], 3)
    assert np.array_equal(again[0], batch[1])
    elsewhere = maker.make([Request(1, 4), Request(0, 7), Request(0, 8)])  # another place, other neighbours
    assert np.array_equal(elsewhere[0], batch[1])


def test_at_another_batch_size_an_image_is_the_same_up_to_rounding(random_models):
    maker = make_maker(random_models)
    batch = maker.make([Request(0, 0), Request(1, 4), Request(2, 1)])
    alone = maker.make([Request(1, 4)])
    assert np.abs(alone[0].astype(int) - batch[1].astype(int)).max() <= 1


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


# --- looks of an adapted base ------------------------------------------------------------------------------


LOOKS = Looks(("look 0 0", "look 0 1", "look 0 2"), {"p": 0, "q": 1, "r": 2}, (0.75, 0.25, 0.0))


def test_looks_travel_with_their_base(tmp_path):
    assert Looks.read(tmp_path) is None
    LOOKS.write(tmp_path)
    assert Looks.read(tmp_path) == LOOKS
    assert (LOOKS.words("q"), LOOKS.words("stranger")) == ("look 0 1", None)


@pytest.mark.parametrize("content", ["", "[]", '{"texts": ["look"]}', '{"texts": 1, "look_of": {}}'])
def test_damaged_looks_are_named(tmp_path, content):
    (tmp_path / "looks.json").write_text(content)
    with pytest.raises(ModelError, match=r"looks\.json is damaged.*[Aa]dapt"):
        Looks.read(tmp_path)


def test_counterparts_are_drawn_in_the_looks_of_the_base_by_their_shares(random_models):
    maker = make_maker(random_models, appearance=("pale",), looks=LOOKS)
    texts = [maker.text(Request(0, replica)) for replica in range(400)]
    assert texts == [maker.text(Request(0, replica)) for replica in range(400)]
    # In place of the configured appearance, and never in a look that no training image has.
    assert set(texts) == {"a polyp. look 0 0", "a polyp. look 0 1"}
    assert np.mean([text.endswith("0 1") for text in texts]) == pytest.approx(0.25, abs=0.06)


def test_a_short_batch_is_made_at_full_size():
    images = make_filled(Light(), [Request(3, 1)], 5)
    assert len(images) == 1
    assert images[0, 0, 0, 0] == picture(3, 1)[0, 0, 0]
    assert images[0, -1, -1, 0] == 5


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
