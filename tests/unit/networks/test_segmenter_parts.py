import pytest
import torch
from torch import nn

from mcpmix.core.errors import ModelError
from mcpmix.networks.segmenter_parts import AnySize, load_matching


def test_padding_continues_the_last_row_and_column_and_is_cut_off_again():
    seen = []

    class Spy(nn.Module):
        def forward(self, images):
            seen.append(images)
            return images[:, :1]

    images = torch.arange(2 * 3 * 3 * 6).reshape(2, 3, 3, 6).float()
    logits = AnySize(Spy(), 4)(images)
    padded = seen[0]
    assert padded.shape == (2, 3, 4, 8)
    assert torch.equal(padded[..., 3, :6], images[..., 2, :])
    assert torch.equal(padded[..., :3, 6], images[..., 5])
    assert torch.equal(padded[..., 3, 7], images[..., 2, 5])
    assert torch.equal(logits, images[:, :1])


def test_a_state_of_another_network_is_refused_with_all_differences():
    other = {"weight": torch.zeros(2, 5), "extra": torch.zeros(1)}
    with pytest.raises(ModelError) as caught:
        load_matching(nn.Linear(3, 2), other, "does not fit:")
    assert "1 tensors missing: bias" in str(caught.value)
    assert "1 tensors unknown: extra" in str(caught.value)
    assert "weight is (2, 5), expected (2, 3)" in str(caught.value)
