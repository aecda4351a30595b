import pytest
import torch

from mcpmix.generator.finetune_steps import turn


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
