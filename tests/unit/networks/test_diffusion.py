import pytest
import torch
from diffusers import AutoencoderKL, DDPMScheduler
from tools.pretrain.blueprints import build_scheduler

from mcpmix.core.errors import DependencyError, ModelError
from mcpmix.networks.diffusion import (
    UNETS,
    NoiseSchedule,
    add_lora,
    decode_latents,
    embed_prompts,
    encode_images,
    lesion_emphasis,
    load_autoencoder,
    load_base,
    new_unet,
    noise_schedule,
)
from mcpmix.networks.generator import control_from_base


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction", "sample"])
def test_forward_process_equals_that_of_diffusers(prediction_type):
    reference = DDPMScheduler(beta_schedule="scaled_linear", prediction_type=prediction_type)
    schedule = noise_schedule(reference)
    clean, noise = torch.randn(4, 8, 4, 4), torch.randn(4, 8, 4, 4)
    t = torch.tensor([0, 10, 500, 999])
    torch.testing.assert_close(schedule.add_noise(clean, noise, t), reference.add_noise(clean, noise, t))
    expected = {"epsilon": noise, "sample": clean, "v_prediction": reference.get_velocity(clean, noise, t)}
    torch.testing.assert_close(schedule.target(clean, noise, t), expected[prediction_type])
    noisy = schedule.add_noise(clean, noise, t)
    torch.testing.assert_close(schedule.clean(expected[prediction_type], noisy, t), clean)


def test_unknown_prediction_type_is_named():
    schedule = NoiseSchedule(torch.tensor([0.5]), "banana")
    with pytest.raises(ModelError, match="banana"):
        schedule.target(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.tensor([0]))


@pytest.mark.parametrize(
    ("prediction_type", "expected"),
    # alpha = 0.9, 0.5: signal-to-noise ratios 9 and 1; gamma = 5 clips the first to 5
    [("epsilon", [5 / 9, 1.0]), ("v_prediction", [5 / 10, 1 / 2]), ("sample", [5.0, 1.0])],
)
def test_min_snr_weights_by_hand(prediction_type, expected):
    schedule = NoiseSchedule(torch.tensor([0.9, 0.5]), prediction_type)
    weights = schedule.min_snr_weight(torch.tensor([0, 1]), 5.0)
    torch.testing.assert_close(weights, torch.tensor(expected))
    torch.testing.assert_close(schedule.min_snr_weight(torch.tensor([0, 1]), 0.0), torch.ones(2))


def test_embedded_schedule_ends_without_signal():
    alphas = noise_schedule(build_scheduler()).alphas_cumprod
    assert alphas[-1] < 1e-6
    assert (alphas.diff() <= 0).all()


def test_latents_are_an_eighth_of_the_image_and_scaled(random_models):
    base = load_base(random_models / "pipeline")
    images = torch.rand(2, 3, 64, 64) * 2 - 1
    latents = encode_images(base.vae, images)
    assert latents.shape == (2, 8, 8, 8)
    torch.testing.assert_close(latents, base.vae.encode(images).latents * base.vae.config.scaling_factor)
    assert decode_latents(base.vae, latents).shape == images.shape
    assert decode_latents(base.vae, latents).abs().max() <= 1


def test_equal_prompts_give_equal_embeddings_in_order(random_models):
    base = load_base(random_models / "pipeline")
    text = embed_prompts(base, ["a polyp", "", "a polyp"])
    assert torch.equal(text[0], text[2])
    assert not torch.equal(text[0], text[1])


def test_control_starts_without_influence(random_models):
    base = load_base(random_models / "pipeline")
    control = control_from_base(base, 2, (4, 4, 4, 4))
    text = embed_prompts(base, ["a polyp"])
    shown = torch.rand(1, 2, 64, 64)
    down, middle = control(torch.randn(1, 8, 8, 8), torch.tensor(10), text, shown, return_dict=False)
    assert all(residual.abs().max() == 0 for residual in [*down, middle])


def test_missing_parts_are_listed(tmp_path):
    (tmp_path / "unet").mkdir()
    with pytest.raises(ModelError, match="vae, text_encoder, tokenizer, scheduler missing"):
        load_base(tmp_path)


def test_an_autoencoder_with_a_posterior_goes_through_the_same_functions():
    """As Stable Diffusion has it: the mode of the posterior, times the scale."""
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
    ).eval()
    images = torch.rand(1, 3, 16, 16) * 2 - 1
    latents = encode_images(vae, images)
    torch.testing.assert_close(latents, vae.encode(images).latent_dist.mode() * 0.18215)
    assert decode_latents(vae, latents).shape == images.shape


def test_unknown_autoencoder_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"_class_name": "VQModel"}')
    with pytest.raises(
        ModelError, match="unknown autoencoder 'VQModel'; known: AutoencoderKL, AutoencoderTiny"
    ):
        load_autoencoder(tmp_path)


def test_lesion_emphasis_by_hand():
    masks = torch.zeros(1, 4, 4)
    masks[0, :2, :2] = 1  # one of four latent places is wholly covered
    weights = lesion_emphasis(masks, (2, 2), 5.0)
    # 5, 1, 1, 1 brought to a mean of 1
    torch.testing.assert_close(weights, torch.tensor([[[5.0, 1.0], [1.0, 1.0]]]) / 2)


def test_a_lesion_weight_of_one_and_an_empty_mask_change_nothing():
    masks = (torch.rand(2, 8, 8) < 0.3).float()
    torch.testing.assert_close(lesion_emphasis(masks, (2, 2), 1.0), torch.ones(2, 2, 2))
    torch.testing.assert_close(lesion_emphasis(torch.zeros(1, 8, 8), (2, 2), 9.0), torch.ones(1, 2, 2))


def test_a_denoiser_from_scratch_belongs_to_its_seed():
    one, same, other = (
        new_unet("tiny", latent_channels=4, text_width=16, latent_side=8, seed=seed).state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(one["conv_in.weight"], other["conv_in.weight"])


def test_an_autoencoder_saved_elsewhere_does_not_tell_where_it_came_from(random_models, tmp_path):
    load_autoencoder(random_models / "pipeline" / "vae").save_pretrained(tmp_path / "vae")
    assert str(random_models) not in (tmp_path / "vae" / "config.json").read_text()


def test_lora_without_its_package_says_what_to_install(random_models, monkeypatch):
    monkeypatch.setattr("mcpmix.networks.diffusion.find_spec", lambda _: None)
    with pytest.raises(DependencyError, match=r"peft.*mcpmix\[adapt\].*adapt\.lora_rank=0"):
        add_lora(load_base(random_models / "pipeline").unet, 4)


def test_denoisers_have_the_sizes_that_the_documentation_gives():
    sizes = {
        name: new_unet(name, latent_channels=4, text_width=96, latent_side=16).num_parameters()
        for name in UNETS
    }
    assert {name: round(size / 1e6) for name, size in sizes.items()} == {"tiny": 6, "small": 11, "medium": 22}


def test_emphasis_is_the_same_for_all_classes():
    levels = torch.zeros(2, 8, 8)
    levels[0, :4, :4], levels[1, :4, :4] = 1.0, 0.5
    weights = lesion_emphasis(levels, (2, 2), 5.0)
    assert torch.equal(weights[0], weights[1])
