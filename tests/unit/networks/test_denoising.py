import torch

from mcpmix.networks.denoising import lesion_emphasis


def test_emphasis_by_hand():
    masks = torch.zeros(1, 4, 4)
    masks[0, :2, :2] = 1  # one of four latent places is wholly covered
    weights = lesion_emphasis(masks, (2, 2), 5.0)
    # 5, 1, 1, 1 brought to a mean of 1
    torch.testing.assert_close(weights, torch.tensor([[[5.0, 1.0], [1.0, 1.0]]]) / 2)


def test_weight_of_one_and_an_empty_mask_change_nothing():
    masks = (torch.rand(2, 8, 8) < 0.3).float()
    torch.testing.assert_close(lesion_emphasis(masks, (2, 2), 1.0), torch.ones(2, 2, 2))
    torch.testing.assert_close(lesion_emphasis(torch.zeros(1, 8, 8), (2, 2), 9.0), torch.ones(1, 2, 2))
