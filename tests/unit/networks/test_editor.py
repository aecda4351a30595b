"""The editor, with a tiny random pipeline that was saved to disk."""

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EulerAncestralDiscreteScheduler,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)

from mcpmix.core.errors import ModelError
from mcpmix.networks.editor import InstructEditor
from tools.pretrain import blueprints

FEW = {"steps": 2, "guidance": 4.0, "image_guidance": 1.5}


def tiny_pipeline(channels_factor=2):
    torch.manual_seed(0)
    tokenizer = blueprints.build_tokenizer(["a transformed version of the image into autumn snowy"], 400)
    text_encoder = blueprints.build_text_encoder(tokenizer)
    vae = blueprints.build_autoencoder()
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=channels_factor * vae.config.latent_channels,
        out_channels=vae.config.latent_channels,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=text_encoder.config.hidden_size,
    )
    return StableDiffusionInstructPix2PixPipeline(
        vae, text_encoder, tokenizer, unet, DDIMScheduler(), None, None, requires_safety_checker=False
    )


@pytest.fixture(scope="module")
def editor_folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("editor")
    tiny_pipeline().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def editor(editor_folder):
    return InstructEditor(editor_folder)


def pictures(count):
    return torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def test_edits_have_the_shape_and_range_of_images(editor):
    edited = editor.edit(pictures(2), ["autumn", "snowy"], [3, 4], **FEW)
    assert edited.shape == (2, 3, 64, 64)
    assert edited.dtype == torch.float32
    assert 0 <= edited.min() <= edited.max() <= 1
    assert edited.std() > 0
    assert isinstance(editor.pipeline.scheduler, EulerAncestralDiscreteScheduler)


def test_an_edit_depends_on_its_own_seed_image_and_instruction_only(editor):
    given = pictures(2)
    both = editor.edit(given, ["autumn", "snowy"], [3, 4], **FEW)
    alone = editor.edit(given[1:], ["snowy"], [4], **FEW)
    torch.testing.assert_close(both[1:], alone, atol=1e-4, rtol=0)
    other = editor.edit(given[1:], ["snowy"], [5], **FEW)
    assert (other - alone).abs().max() > 1e-3


def test_sides_that_do_not_fit_are_refused(editor):
    with pytest.raises(ModelError, match="multiples of"):
        editor.edit(torch.zeros(1, 3, 60, 64), ["autumn"], [0], **FEW)


def test_another_kind_of_pipeline_is_refused(tmp_path):
    tiny_pipeline(channels_factor=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="not an InstructPix2Pix pipeline"):
        InstructEditor(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match="nothing-here"):
        InstructEditor(tmp_path / "nothing-here")
