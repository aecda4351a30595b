"""What a ControlNet starts from."""

import json

import pytest
import torch

from mcpmix.core.errors import ModelError
from mcpmix.networks.controlnet import control_from_base, control_from_start
from mcpmix.networks.diffusion import decoder_of, embed_prompts, load_base, save_decoder


@pytest.fixture(scope="module")
def base(random_models):
    return load_base(random_models / "pipeline")


def awake(base, channels):
    """A ControlNet whose zero convolutions are not zero, so that its condition matters."""
    torch.manual_seed(3)
    control = control_from_base(base, channels, (4, 8, 8, 8))
    for name, parameter in control.named_parameters():
        if "controlnet" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return control


def answer(base, control, shown):
    noisy = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        text = embed_prompts(base, ["a polyp"] * 2)
        return control.eval()(noisy, torch.tensor(10), text, shown, return_dict=False)[1]


def test_a_start_is_read_as_it_was_saved_and_can_be_trained(base, tmp_path):
    awake(base, 2).save_pretrained(tmp_path)
    started = control_from_start(base, tmp_path)
    shown = torch.rand(2, 2, 64, 64)
    assert torch.equal(answer(base, started, shown), answer(base, awake(base, 2), shown))
    assert all(parameter.requires_grad for parameter in started.parameters())
    assert control_from_start(base, tmp_path).training


def test_a_control_for_grey_images_answers_to_depth_as_before_and_learns_the_mask(base, tmp_path):
    grey = awake(base, 3)
    grey.save_pretrained(tmp_path)
    started = control_from_start(base, tmp_path)
    mask, depth = torch.rand(2, 1, 64, 64), torch.rand(2, 1, 64, 64)
    before = answer(base, grey, depth.expand(-1, 3, -1, -1))
    after = answer(base, started, torch.cat([mask, depth], dim=1))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert started.config.conditioning_channels == 2
    weight = started.controlnet_cond_embedding.conv_in.weight
    text = embed_prompts(base, ["a polyp"] * 2)
    shown = torch.cat([mask, depth], dim=1)
    started(torch.randn(2, 8, 8, 8), torch.tensor(10), text, shown, return_dict=False)[1].sum().backward()
    assert weight.grad[:, 0].abs().max() > 0  # the mask's weights are zero, and do not stay so


def test_an_old_configuration_without_the_number_of_channels_is_one_for_grey_images(base, tmp_path):
    awake(base, 3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["conditioning_channels"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert control_from_start(base, tmp_path).config.conditioning_channels == 2


def test_a_start_forgets_where_it_came_from(base, tmp_path):
    awake(base, 2).save_pretrained(tmp_path / "private-name")
    control_from_start(base, tmp_path / "private-name").save_pretrained(tmp_path / "result")
    assert "private-name" not in (tmp_path / "result" / "config.json").read_text()


def test_other_conditions_are_refused(base, tmp_path):
    awake(base, 4).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"4 there; expected 2 \(mask, depth\) or 3 \(depth in grey\)"):
        control_from_start(base, tmp_path)


def test_a_control_for_another_base_is_refused_with_all_differences(base, tmp_path):
    small = type(awake(base, 2)).from_config(
        {
            **awake(base, 2).config,
            "block_out_channels": (32, 64),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "cross_attention_dim": 48,
            "conditioning_embedding_out_channels": (4, 8, 8),
        }
    )
    small.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is not made for this base") as caught:
        control_from_start(base, tmp_path)
    assert "block_out_channels: [32, 64] there" in str(caught.value)
    assert "cross_attention_dim: 48 there, 96 in the base" in str(caught.value)
    assert "down-sampling of the condition: 4 there, 8 in the base" in str(caught.value)
    assert "finetune.start" in str(caught.value)


def test_another_network_is_named(base, random_models):
    with pytest.raises(
        ModelError, match="does not hold a ControlNet but a network of class UNet2DConditionModel"
    ):
        control_from_start(base, random_models / "pipeline" / "unet")


def test_a_start_with_an_unlocked_decoder_is_refused(base, tmp_path):
    awake(base, 2).save_pretrained(tmp_path)
    save_decoder(decoder_of(base.unet), tmp_path)
    with pytest.raises(ModelError, match="unlocked decoder"):
        control_from_start(base, tmp_path)


def test_a_missing_folder_is_named(base, tmp_path):
    with pytest.raises(ModelError, match="Cannot load the ControlNet"):
        control_from_start(base, tmp_path / "nowhere")
