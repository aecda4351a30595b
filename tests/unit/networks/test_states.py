import pytest
import torch
from torch import nn

from mcpmix.core.errors import ModelError
from mcpmix.networks.states import load_matching


def test_a_state_of_another_network_is_refused_with_all_differences():
    other = {"weight": torch.zeros(2, 5), "extra": torch.zeros(1)}
    with pytest.raises(ModelError) as caught:
        load_matching(nn.Linear(3, 2), other, "does not fit:")
    assert "1 tensors missing: bias" in str(caught.value)
    assert "1 tensors unknown: extra" in str(caught.value)
    assert "weight is (2, 5), expected (2, 3)" in str(caught.value)
