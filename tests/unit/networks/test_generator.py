import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.lora import query_of, write_lora

from mcpmix.core.errors import DependencyError, ModelError
from mcpmix.networks.diffusion import (
    decode_latents,
    embed_prompts,
    encode_images,
    load_base,
    noise_schedule,
    predict_controlled,
)
from mcpmix.networks.generator import (
    LORA_FILE,
    Generator,
    SamplingSettings,
    control_from_base,
    control_from_start,
    decoder_of,
    load_control,
    load_lora,
    save_decoder,
)


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


def test_few_steps_worked_by_hand(generator, condition):
    """LCM: the end that is named, noised again to the next timestep by the image's own stream."""
    settings = SamplingSettings(steps=2, guidance=1.0, mask_guidance=1.0, strength=1.0, learnt_steps=4)
    schedule, text = noise_schedule(generator.base.scheduler), generator.embed(PROMPTS)
    shape = (generator.base.unet.config.in_channels, 8, 8)
    streams = [torch.Generator().manual_seed(seed) for seed in (1, 2, 3)]
    latents = torch.stack([torch.randn(shape, generator=stream) for stream in streams])

    @torch.no_grad()
    def end(noisy, t):
        t = torch.full((3,), t)
        answer = predict_controlled(generator.base.unet, generator.control, noisy, t, text, condition)
        return schedule.clean(answer, noisy, t)

    first = end(latents, 999)
    noise = torch.stack([torch.randn(shape, generator=stream) for stream in streams])
    by_hand = end(schedule.add_noise(first, noise, torch.full((3,), 499)), 499)
    timesteps, passed = generator.path(condition, PROMPTS, [1, 2, 3], settings)
    assert timesteps.tolist() == [999, 499]
    torch.testing.assert_close(passed[-1], by_hand, atol=2e-3, rtol=1e-3)
    alone = generator.sample_latents(condition[1:2], PROMPTS[1:2], [2], settings)
    torch.testing.assert_close(alone[0], passed[-1][1], atol=1e-3, rtol=1e-3)


def test_few_steps_of_low_strength_stay_near_the_source(generator, condition):
    sources = torch.rand(3, 3, 64, 64)
    few = replace(SETTINGS, guidance=1.0, steps=4, learnt_steps=8)
    timesteps, passed = generator.path(condition, PROMPTS, [1, 2, 3], replace(few, strength=0.5), sources)
    assert timesteps.tolist() == [499, 249]
    clean = encode_images(generator.base.vae, sources * 2 - 1)
    noise = torch.stack(
        [torch.randn(clean.shape[1:], generator=torch.Generator().manual_seed(seed)) for seed in (1, 2, 3)]
    )
    start = noise_schedule(generator.base.scheduler).add_noise(clean, noise, torch.full((3,), 499))
    torch.testing.assert_close(passed[0], start)


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


# --- what a ControlNet starts from -------------------------------------------------------------------------


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


# --- LoRA --------------------------------------------------------------------------------------------------


def test_a_lora_is_added_to_the_weights(random_models, tmp_path):
    pytest.importorskip("peft")
    plain, unet = (load_base(random_models / "pipeline").unet for _ in range(2))
    added = write_lora(tmp_path, query_of(unet))
    load_lora(unet, tmp_path)
    torch.testing.assert_close(query_of(unet).weight, query_of(plain).weight + added)
    assert unet.state_dict().keys() == plain.state_dict().keys()
    changed = [n for n, value in unet.state_dict().items() if not torch.equal(value, plain.state_dict()[n])]
    assert changed == ["down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q.weight"]


@pytest.mark.parametrize("damage", ["shape", "other network", "cut off", "missing"])
def test_a_lora_that_cannot_be_added(random_models, tmp_path, damage):
    pytest.importorskip("peft")
    unet = load_base(random_models / "pipeline").unet
    write_lora(tmp_path, torch.nn.Linear(3, 5) if damage == "shape" else query_of(unet))
    if damage == "other network":
        save_file({"text_encoder.a.lora_A.weight": torch.zeros(2, 2)}, tmp_path / LORA_FILE)
    elif damage == "cut off":
        (tmp_path / LORA_FILE).write_bytes((tmp_path / LORA_FILE).read_bytes()[:-9])
    elif damage == "missing":
        (tmp_path / LORA_FILE).unlink()
    with pytest.raises(ModelError, match=r"few_steps\.lora: .*cannot be added to this base"):
        load_lora(unet, tmp_path)


def test_a_lora_without_its_package_says_what_to_install(random_models, monkeypatch, tmp_path):
    monkeypatch.setattr("mcpmix.networks.diffusion.find_spec", lambda _: None)
    with pytest.raises(DependencyError, match=r"few_steps\.lora.*peft.*mcpmix\[adapt\]"):
        load_lora(load_base(random_models / "pipeline").unet, tmp_path)
