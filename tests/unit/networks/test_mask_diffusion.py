import pytest
import torch

from mcpmix.networks.diffusion import load_base
from mcpmix.networks.mask_diffusion import decode_masks, draw_masks, encode_masks, new_mask_unet, widen_unet


@pytest.fixture(scope="module")
def disc():
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    return ((rows - 30) ** 2 + (columns - 25) ** 2 < 12**2)[None]


def test_a_code_gives_back_the_mask_but_for_its_rim(disc):
    code = encode_masks(disc, 8, 2)
    assert code.shape == (1, 4, 8, 8)
    assert (code.min(), code.max()) == (-1, 1)
    assert (decode_masks(code, 64, 2) != disc).float().mean() < 0.01
    assert torch.equal(decode_masks(3 * code, 64, 2), decode_masks(code, 64, 2))


def test_the_code_of_an_empty_mask_is_empty():
    code = encode_masks(torch.zeros(2, 32, 32), 4, 2)
    assert (code == -1).all()
    assert not decode_masks(code, 32, 2).any()


def test_a_wider_unet_starts_as_the_base(random_models):
    base = load_base(random_models / "pipeline")
    wide, before = widen_unet(base.unet, 4), base.unet.conv_in.weight.clone()
    latents, more = torch.randn(2, 8, 8, 8), torch.randn(2, 4, 8, 8)
    text, t = torch.randn(2, 5, base.unet.config.cross_attention_dim), torch.tensor([10, 500])
    with torch.no_grad():
        answer = wide(torch.cat([latents, more], dim=1), t, text).sample
        torch.testing.assert_close(answer[:, :8], base.unet(latents, t, text).sample)
    assert not answer[:, 8:].any()
    assert (wide.config.in_channels, wide.config.out_channels) == (12, 12)
    assert torch.equal(base.unet.conv_in.weight, before)
    assert all(parameter.requires_grad for parameter in wide.parameters())


def test_a_mask_depends_on_its_own_seed():
    unet = new_mask_unet(16, seed=1).eval()
    drawn = draw_masks(unet, [3, 4, 5], steps=3)
    assert drawn.shape == (3, 1, 16, 16)
    torch.testing.assert_close(draw_masks(unet, [9, 4, 9], steps=3)[1], drawn[1])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(new_mask_unet(16, seed=1).conv_in.weight, unet.conv_in.weight)
