import pytest
import torch

from mcpmix.generator.examples import TrainingSet, draw, turn


def test_turns_are_the_eight_symmetries_of_the_square():
    image = torch.arange(9.0).view(3, 3)
    views = [turn(image, view) for view in range(8)]
    assert len({tuple(view.flatten().tolist()) for view in views}) == 8
    assert torch.equal(views[0], image)


@pytest.mark.parametrize("view", range(8))
def test_image_and_mask_turn_alike(view):
    image = torch.rand(2, 3, 6, 6)
    mask = image[:, 0] > 0.5
    assert torch.equal(turn(image, view)[:, 0] > 0.5, turn(mask, view))


@pytest.fixture
def data():
    """Five examples with two views and two tints, of random content."""
    rng = torch.Generator().manual_seed(0)
    masks = (torch.rand(5, 32, 32, generator=rng) < 0.3).float()
    return TrainingSet(
        latents=torch.randn(2, 2, 5, 3, 4, 4, generator=rng),
        conditions=torch.stack([masks, torch.rand(5, 32, 32, generator=rng)], dim=1),
        masks=masks,
        text=torch.randn(2, 3, 6, generator=rng),
    )


def test_draws_belong_to_the_step_and_drop_what_they_should(data, make_config, tmp_path):
    settings = make_config(
        tmp_path, "finetune.mask_dropout=0.2", "finetune.depth_dropout=0.5", "finetune.prompt_dropout=0.3"
    ).finetune
    every = slice(0, 4000)
    one, again, other = (draw(data, settings, 1000, 4000, (0, step))(every) for step in (7, 7, 8))

    assert torch.equal(one.noise, again.noise)
    assert torch.equal(one.t, again.t)
    assert not torch.equal(one.t, other.t)
    dropped = (one.shown == 0).flatten(2).all(dim=2).numpy()
    assert dropped.mean(axis=0) == pytest.approx([0.2, 0.5], abs=0.03)
    assert dropped.all(axis=1).mean() == pytest.approx(0.1, abs=0.02)  # 0.2 * 0.5: one knows not of the other
    prompted = (one.text == data.text[1]).flatten(1).all(dim=1).float()
    assert prompted.mean().item() == pytest.approx(0.7, abs=0.03)


def test_a_batch_shows_image_mask_and_depth_in_one_view(data, make_config, tmp_path):
    settings = make_config(tmp_path, "finetune.mask_dropout=0", "finetune.depth_dropout=0").finetune
    drawn = draw(data, settings, 1000, 6, (0, 1))
    whole, part = drawn(slice(0, 6)), drawn(slice(2, 5))

    assert part.clean.shape[0] == part.text.shape[0] == 3
    assert torch.equal(part.shown[:, 0], part.masks)
    for name, value in vars(part).items():
        assert torch.equal(value, vars(whole)[name][2:5]), name
