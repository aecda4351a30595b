from dataclasses import replace

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EulerAncestralDiscreteScheduler,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)

from mcpmix.core.errors import ModelError
from mcpmix.networks.controlnet import control_from_base, load_control
from mcpmix.networks.diffusion import decode_latents, encode_images, load_base
from mcpmix.networks.generator import Generator, InstructEditor, SamplingSettings
from tools.pretrain import blueprints


@pytest.fixture(scope="module")
def generator(random_models):
    base = load_base(random_models / "pipeline")
    torch.manual_seed(1)
    control = control_from_base(base, 2, (4, 8, 8, 8))
    for name, parameter in control.named_parameters():
        if "controlnet" in name:  # the zero convolutions: without this, the condition would change nothing
            torch.nn.init.normal_(parameter, std=0.2)
    return Generator(base, control)


@pytest.fixture(scope="module")
def condition():
    return torch.rand(3, 2, 64, 64, generator=torch.Generator().manual_seed(0))


PROMPTS = ["a polyp", "a lesion", "a polyp"]
SETTINGS = SamplingSettings(steps=2, guidance=2.0, mask_guidance=1.0, strength=1.0)


def test_same_call_same_bits(generator, condition):
    first = generator.sample(condition, PROMPTS, [1, 2, 3], SETTINGS)
    assert torch.equal(first, generator.sample(condition, PROMPTS, [1, 2, 3], SETTINGS))
    assert first.shape == (3, 3, 64, 64)
    assert first.min() >= 0
    assert first.max() <= 1


def test_an_image_can_be_made_again_alone(generator, condition):
    batch = generator.sample(condition, PROMPTS, [1, 2, 3], SETTINGS)
    alone = generator.sample(condition[1:2], PROMPTS[1:2], [2], SETTINGS)
    torch.testing.assert_close(alone[0], batch[1], atol=2e-4, rtol=0)


def test_the_condition_is_embedded_once_whatever_the_number_of_steps(generator, condition):
    embedding = generator.control.controlnet_cond_embedding
    calls = []
    hook = embedding.register_forward_hook(lambda *_: calls.append(1))
    try:
        generator.sample(condition, PROMPTS, [1, 2, 3], replace(SETTINGS, steps=3))
    finally:
        hook.remove()
    assert len(calls) == 1
    assert generator.control.controlnet_cond_embedding is embedding


def test_seed_mask_and_text_matter(generator, condition):
    one = generator.sample(condition[:1], ["a polyp"], [1], SETTINGS)
    assert not torch.allclose(one, generator.sample(condition[:1], ["a polyp"], [2], SETTINGS), atol=1e-3)
    assert not torch.allclose(one, generator.sample(condition[1:2], ["a polyp"], [1], SETTINGS), atol=1e-6)
    assert not torch.equal(one, generator.sample(condition[:1], ["a lesion"], [1], SETTINGS))


def test_guidance_of_text_and_mask_worked_by_hand(generator, condition):
    side = 64 // generator.base.latent_factor
    shape = (3, generator.base.unet.config.in_channels, side, side)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    t = torch.tensor(500)

    @torch.no_grad()
    def answer(prompts, shown, guidance=1.0, mask_guidance=1.0):
        return generator._predict(latents, t, *generator._guides(prompts, shown, guidance, mask_guidance))

    blank = condition.clone()
    blank[:, 0] = 0
    full, textless, maskless = answer(PROMPTS, condition), answer([""] * 3, condition), answer(PROMPTS, blank)
    both = answer(PROMPTS, condition, guidance=2.5, mask_guidance=4.0)
    by_hand = textless + 2.5 * (full - textless) + 3.0 * (full - maskless)
    torch.testing.assert_close(both, by_hand, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both, full, atol=1e-2)
    without_text = answer(PROMPTS, condition, mask_guidance=2.0)
    torch.testing.assert_close(without_text, 2 * full - maskless, atol=1e-4, rtol=1e-4)


def test_low_strength_stays_near_the_source(generator, condition):
    sources = torch.rand(3, 3, 64, 64)
    weak = replace(SETTINGS, steps=8, guidance=1.0, strength=0.13)
    strong = replace(SETTINGS, steps=8, guidance=1.0, strength=0.9)
    vae = generator.base.vae
    nothing = (decode_latents(vae, encode_images(vae, sources * 2 - 1)) + 1) / 2
    near = generator.sample(condition, PROMPTS, [1, 2, 3], weak, sources)
    far = generator.sample(condition, PROMPTS, [1, 2, 3], strong, sources)
    assert (near - nothing).abs().mean() < (far - nothing).abs().mean()


def test_low_strength_without_sources_says_what_to_do(generator, condition):
    with pytest.raises(ModelError, match="pass them as `sources`"):
        generator.sample(condition, PROMPTS, [1, 2, 3], replace(SETTINGS, strength=0.5))


def test_wrong_size_proposes_the_right_one(generator):
    with pytest.raises(ModelError, match=r"multiples of 32, got 70x70\. Set data.size to 64"):
        generator.sample(torch.rand(1, 2, 70, 70), ["x"], [0], SETTINGS)


def test_missing_control_is_named(tmp_path):
    with pytest.raises(ModelError, match="ControlNet"):
        load_control(tmp_path / "nowhere")


# --- the editor, with a tiny random pipeline that was saved to disk -----------------------------------------

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
