import numpy as np
import pytest
import torch

from mcpmix.mixing.pictures import PAINTERS, attractor, fractal_picture, mixing_picture, random_maps


def test_the_attractor_of_three_half_maps_is_the_sierpinski_gasket():
    """In coordinates along two sides of the triangle, no binary digit of x and y is 1 in both."""
    corners = ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5))
    maps = np.array([[[0.5, 0, x], [0, 0.5, y]] for x, y in corners])
    points = attractor(maps, np.random.default_rng(0))
    columns, rows = (points * 2**10).astype(int).T
    assert not (columns & rows).any()
    # Equal areas, equal chances: a third of the points lie in each of the three copies.
    share = np.mean(points[:, 0] >= 0.5)
    assert share == pytest.approx(1 / 3, abs=0.01)


def test_chances_follow_the_areas():
    maps = np.array([[[0.2, 0, 0.0], [0, 0.2, 0.0]], [[0.6, 0, 0.4], [0, 0.6, 0.4]]])
    points = attractor(maps, np.random.default_rng(0))
    assert np.mean(points[:, 0] >= 0.4) == pytest.approx(0.37 / 0.42, abs=0.01)  # each area + 0.01


def test_random_systems_contract_and_keep_to_the_band():
    counts = set()
    for seed in range(60):
        maps = random_maps(np.random.default_rng(seed))
        scales = np.linalg.svd(maps[:, :, :2], compute_uv=False)
        assert 0 <= scales.min() <= scales.max() < 1
        assert (5 + len(maps)) / 2 - 1e-9 <= (scales @ [1, 2]).sum() <= (6 + len(maps)) / 2 + 1e-9
        assert np.abs(maps[:, :, 2]).max() <= 1
        counts.add(len(maps))
    assert counts == {2, 3, 4}


@pytest.mark.parametrize("painter", PAINTERS)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (17, 40), (1, 1)])
def test_painters_fill_any_size_with_colours(painter, height, width):
    picture = painter(np.random.default_rng(1), height, width)
    assert picture.shape == (height, width, 3)
    assert picture.min() >= -1e-9
    assert picture.max() <= 1 + 1e-9


@pytest.mark.parametrize("painter", PAINTERS)
def test_painters_make_rich_and_different_pictures(painter):
    first, second = (painter(np.random.default_rng(seed), 48, 48) for seed in (1, 2))
    assert first.std((0, 1)).max() > 0.05
    assert np.abs(first - second).mean() > 0.05


@pytest.mark.parametrize("painter", PAINTERS[1:])
def test_the_design_does_not_depend_on_the_size(painter):
    """Averaged over blocks, the large picture is about the small one; a picture of another seed is not."""
    small, large, other = (
        painter(np.random.default_rng(seed), side, side) for seed, side in ((3, 32), (3, 96), (4, 32))
    )
    reduced = large.reshape(32, 3, 32, 3, 3).mean((1, 3))
    assert np.abs(reduced - small).mean() < 0.5 * np.abs(other - small).mean()


def test_pictures_belong_to_seed_and_index():
    first = mixing_picture(0, 3, 24, 20)
    assert (first.shape, first.dtype) == ((3, 24, 20), torch.uint8)
    assert mixing_picture(0, 3, 24, 20) is first  # kept
    mixing_picture.cache_clear()
    assert torch.equal(mixing_picture(0, 3, 24, 20), first)
    assert not torch.equal(mixing_picture(1, 3, 24, 20), first)
    assert not torch.equal(mixing_picture(0, 4, 24, 20), first)


def test_fractals_are_structures_that_belong_to_their_seed_and_index():
    pictures = [fractal_picture(0, index, 64, 48) for index in range(6)]
    assert all(picture.shape == (3, 64, 48) and picture.dtype == torch.uint8 for picture in pictures)
    cover = [float((picture.amax(0) > 0).float().mean()) for picture in pictures]
    assert all(0.02 < share <= 1 for share in cover)
    assert not torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], fractal_picture(1, 0, 64, 48))
    fractal_picture.cache_clear()
    assert torch.equal(pictures[0], fractal_picture(0, 0, 64, 48))
