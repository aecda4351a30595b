"""Stable Diffusion 1.5 at its true size, without its weights."""

import json

import pytest
import torch
from diffusers import ControlNetModel, UNet2DConditionModel

from mcpmix.core.errors import ModelError
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.memory import (
    SD15,
    STABLE_DIFFUSION,
    Footprint,
    build_meta,
    finetune_plan,
    parameter_count,
    pipeline_configs,
    synthesis_plan,
    training_plan,
)


@pytest.fixture(scope="module")
def sd15():
    return build_meta(pipeline_configs(STABLE_DIFFUSION))


def test_parameter_counts_are_those_of_the_published_weights(sd15):
    assert parameter_count(sd15.unet) == 859_520_964
    assert parameter_count(sd15.vae) == 83_653_863
    assert parameter_count(sd15.text_encoder) == 123_060_480
    # 361,279,120 with a condition of three channels; the first layer has 16 kernels of 3x3 per channel
    assert parameter_count(sd15.control) == 361_279_120 - 16 * 9


def test_shapes_are_those_of_the_published_weights(sd15):
    unet, control, text = (part.state_dict() for part in (sd15.unet, sd15.control, sd15.text_encoder))
    assert unet["conv_in.weight"].shape == (320, 4, 3, 3)
    assert unet["conv_out.weight"].shape == (4, 320, 3, 3)
    cross = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight"
    assert unet[cross].shape == (320, 768)
    assert unet["mid_block.resnets.0.conv1.weight"].shape == (1280, 1280, 3, 3)
    assert unet["up_blocks.3.resnets.2.conv1.weight"].shape == (320, 640, 3, 3)
    assert control["controlnet_cond_embedding.conv_in.weight"].shape == (16, 2, 3, 3)
    assert control["controlnet_cond_embedding.conv_out.weight"].shape == (320, 256, 3, 3)
    assert control["controlnet_mid_block.weight"].shape == (1280, 1280, 1, 1)
    assert sum(name.startswith("controlnet_down_blocks") for name in control) == 2 * 12
    words = next(value for name, value in text.items() if name.endswith("token_embedding.weight"))
    assert words.shape == (49408, 768)
    assert sd15.vae.state_dict()["encoder.conv_out.weight"].shape == (8, 512, 3, 3)


def test_nothing_of_it_is_in_memory(sd15):
    assert {parameter.device.type for parameter in sd15.unet.parameters()} == {"meta"}


def test_the_configuration_of_a_folder_is_read_from_it(random_models):
    configs = pipeline_configs(str(random_models / "pipeline"))
    built = build_meta(configs)
    base = load_base(random_models / "pipeline")
    assert parameter_count(built.unet) == parameter_count(base.unet)
    assert parameter_count(built.vae) == parameter_count(base.vae)
    assert parameter_count(built.text_encoder) == parameter_count(base.text_encoder)


def test_damaged_and_unknown_configurations(tmp_path):
    with pytest.raises(ModelError, match="Cannot read the configuration"):
        pipeline_configs(str(tmp_path))
    for part in ("unet", "vae", "text_encoder"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps({"_class_name": "Other"}))
    with pytest.raises(ModelError, match="Unknown autoencoder 'Other'"):
        build_meta(pipeline_configs(str(tmp_path)))


# --- memory ----------------------------------------------------------------------------------------------


def test_footprint_by_hand():
    kilobyte = torch.empty(256, device="meta")
    with Footprint() as footprint:
        first = kilobyte * 2
        assert footprint.now == 1024
        second = first + 1
        view = second[:10]  # shares its memory
        second += 1  # in place
        assert footprint.now == 2048
        del first
        assert footprint.now == 1024
        del second
        assert footprint.now == 1024  # the view still holds it
        del view
        assert footprint.now == 0
    assert footprint.peak == 2048


def test_footprint_sees_what_a_backward_pass_keeps():
    weight = torch.empty(100, 100, device="meta", requires_grad=True)
    with Footprint() as footprint:
        hidden = (torch.empty(50, 100, device="meta") @ weight).relu()  # input, product and its relu
        assert footprint.now >= 2 * 50 * 100 * 4
        hidden.sum().backward()
        assert weight.grad.shape == weight.shape
    assert footprint.peak >= (2 * 50 * 100 + 100 * 100) * 4


SMALL = {
    "unet": {
        **SD15["unet"],
        "block_out_channels": [32, 64],
        "cross_attention_dim": 32,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "layers_per_block": 1,
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    },
    "vae": {**SD15["vae"], "block_out_channels": [32, 32, 32, 32]},
    "text_encoder": {
        **SD15["text_encoder"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 100,
    },
}


def plan(**changes):
    settings = {
        "image_size": 64,
        "batch_size": 2,
        "precision": torch.float32,
        "checkpointing": False,
        "optimiser": "adamw",
    }
    return finetune_plan(build_meta(SMALL), **settings | changes)


def test_the_plan_of_the_fine_tuning_follows_its_settings():
    pipeline = build_meta(SMALL)
    control, unet = parameter_count(pipeline.control), parameter_count(pipeline.unet)
    full = plan()
    assert full["weights"] == 4 * (control + unet)
    assert full["gradients"] == full["average"] == 4 * control
    assert full["optimiser"] == 8 * control
    assert plan(optimiser="adamw-8bit")["optimiser"] == 2 * control
    assert plan(checkpointing=True)["activations"] < 0.8 * full["activations"]
    assert plan(batch_size=4)["activations"] == pytest.approx(2 * full["activations"], rel=0.2)
    half = plan(precision=torch.bfloat16)
    assert half["activations"] == pytest.approx(full["activations"] / 2, rel=0.1)
    assert half["weights"] == 2 * unet + (4 + 2) * control
    assert plan(unlock_decoder=True)["gradients"] > full["gradients"]


def test_activations_are_those_of_a_real_step():
    """The same step with numbers and with the library's own attention, counted in the same way."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel.from_config(SMALL["unet"]).train().requires_grad_(False)
    control = ControlNetModel.from_unet(
        unet, conditioning_channels=2, conditioning_embedding_out_channels=(16, 32, 32, 32)
    ).train()
    for parameter in control.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    noisy, t, text = torch.randn(2, 4, 16, 16), torch.tensor([3, 5]), torch.randn(2, 77, 32)
    condition = torch.rand(2, 2, 128, 128)
    with Footprint() as footprint:
        down, middle = control(noisy, t, text, condition, return_dict=False)
        prediction = unet(
            noisy, t, text, down_block_additional_residuals=down, mid_block_additional_residual=middle
        ).sample
        del down, middle
        prediction.square().mean().backward()
    assert plan(image_size=128)["activations"] == pytest.approx(footprint.peak, rel=0.1)


def test_sampling_needs_all_networks_and_more_with_guidance():
    pipeline = build_meta(SMALL)
    networks = (pipeline.unet, pipeline.control, pipeline.vae, pipeline.text_encoder)
    alone = synthesis_plan(pipeline, image_size=64, batch_size=4, passes=1)
    assert alone["weights"] == 4 * sum(map(parameter_count, networks))
    guided = synthesis_plan(pipeline, image_size=64, batch_size=4, passes=64)
    assert guided["activations"] > alone["activations"]
    more = synthesis_plan(pipeline, image_size=64, batch_size=8, passes=1)  # decoding is what counts here
    assert more["activations"] == pytest.approx(2 * alone["activations"], rel=0.05)


def test_attention_never_holds_the_matrix_of_all_pairs():
    class Attention(torch.nn.Module):
        def forward(self, images):
            tokens = images.flatten(2).mT[:, None].contiguous()  # B, one head, 64 * 64 tokens, 3
            mixed = torch.nn.functional.scaled_dot_product_attention(tokens, tokens, value=tokens)
            return self.weight * mixed.sum()

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(1, device="meta"))

    parts = training_plan(Attention(), image_size=64, batch_size=1)
    assert parts["activations"] < 64**4 * 4  # bytes of one such matrix


def test_training_of_a_network_by_hand():
    network = torch.nn.Conv2d(3, 1, 1, device="meta")
    parts = training_plan(network, image_size=16, batch_size=2)
    assert parts["weights"] == parts["gradients"] == 4 * 4
    assert parts["optimiser"] == 2 * 4 * 4
    # at least the logits of two real and two mixed images, and their gradient
    assert parts["activations"] >= 2 * 4 * 16 * 16 * 4
    assert all(parameter.grad is None for parameter in network.parameters())
    half = training_plan(network, image_size=16, batch_size=2, precision=torch.bfloat16)
    assert half["weights"] == 4 * (4 + 2)
    assert half["activations"] == pytest.approx(parts["activations"] / 2, rel=0.1)
