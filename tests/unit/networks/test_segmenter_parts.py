"""Images of any size, and state files that cannot be used."""

import pytest
import torch
from torch import nn

from mcpmix.core.errors import ModelError
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.networks.segmenter_parts import AnySize


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


def test_weight_files_that_are_none(tmp_path):
    def build(path):
        return build_segmenter("unet", "resnet18", str(path))

    with pytest.raises(ModelError, match="there is no file"):
        build(tmp_path / "missing.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    with pytest.raises(ModelError, match="cannot be read: damaged"):
        build(tmp_path / "cut.safetensors")
    torch.save(nn.Conv2d(3, 1, 1), tmp_path / "code.pth")
    with pytest.raises(ModelError, match="not a file of plain tensors"):
        build(tmp_path / "code.pth")
    torch.save({"epoch": 3}, tmp_path / "checkpoint.pth")
    with pytest.raises(ModelError, match=r"Save network\.state_dict\(\) alone"):
        build(tmp_path / "checkpoint.pth")
