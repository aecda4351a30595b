"""Training of a base: from scratch, from a pipeline, by LoRA, after a stop; latents and views."""

import numpy as np
import pytest
import torch

from mcpmix.core.device import setup
from mcpmix.generator.base import BaseSettings, latent_cache, train_base, view, view_count
from mcpmix.networks.diffusion import load_base, save_base

TEXTS = [["pale mucosa"] * 4, ["A polyp."] * 4]
RUNTIME = setup("cpu", "float32", 1, deterministic=True)


@pytest.fixture
def start(random_models):
    return load_base(random_models / "pipeline")


@pytest.fixture
def latents(start):
    channels = start.unet.config.in_channels
    return np.random.default_rng(0).standard_normal((2, 4, channels, 8, 8)).astype(np.float16)


def trained(start, latents, checkpoint, *, steps=4, rank=0, rate=1e-3, **options):
    settings = BaseSettings(steps=steps, learning_rate=rate, batch_size=2, lora_rank=rank, save_every=2)
    return train_base(latents, TEXTS, start, settings, checkpoint, RUNTIME, **options)


def weights(base):
    return {**base.unet.state_dict(), **base.text_encoder.state_dict()}


def test_the_start_stays_as_it_is_and_its_copy_learns(start, latents, tmp_path):
    before = {name: value.clone() for name, value in weights(start).items()}
    result = trained(start, latents, tmp_path / "base.checkpoint")
    assert all(torch.equal(value, before[name]) for name, value in weights(start).items())
    assert any(not torch.equal(value, before[name]) for name, value in weights(result).items())
    save_base(result, tmp_path / "pipeline")
    again = load_base(tmp_path / "pipeline")
    for name, value in weights(result).items():  # saved as float16
        torch.testing.assert_close(weights(again)[name], value.float(), atol=1e-3, rtol=1e-2)


def test_lora_moves_attention_only_and_leaves_a_plain_unet(start, latents, tmp_path):
    pytest.importorskip("peft")
    before = weights(start)
    result = trained(start, latents, tmp_path / "base.checkpoint", rank=2, rate=0.1)
    after = weights(result)
    assert after.keys() == before.keys()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved
    assert all(".to_" in name and "attn" in name for name in moved)


def test_a_stopped_training_ends_in_the_same_bits(start, latents, tmp_path):
    whole = trained(start, latents, tmp_path / "whole.checkpoint")

    def stop(step, _):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(start, latents, tmp_path / "base.checkpoint", look=stop)
    resumed = trained(start, latents, tmp_path / "base.checkpoint")
    for name, value in weights(whole).items():
        assert torch.equal(weights(resumed)[name], value), name


def test_images_are_drawn_by_their_chances(start, latents, tmp_path):
    other = latents.copy()
    other[:, :3] = 0  # never drawn
    chances = np.array([0.0, 0.0, 0.0, 1.0])
    one = trained(start, latents, tmp_path / "one.checkpoint", chances=chances)
    two = trained(start, other, tmp_path / "two.checkpoint", chances=chances)
    for name, value in weights(one).items():
        assert torch.equal(weights(two)[name], value), name


def test_latents_are_those_of_the_encoder_and_a_killed_call_goes_on(start, tmp_path, monkeypatch):
    images = np.random.default_rng(1).integers(0, 255, (40, 64, 64, 3), dtype=np.uint8)
    monkeypatch.setattr("mcpmix.generator.base.view_count", lambda _: 2)
    whole = np.array(latent_cache(start.vae, images, tmp_path, RUNTIME))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    scale = start.vae.config.scaling_factor
    with torch.no_grad():
        for shown, found in zip((pixels, pixels.flip(-1)), whole, strict=True):
            wanted = start.vae.encode(shown).latents * scale
            torch.testing.assert_close(torch.from_numpy(found).float(), wanted, atol=2e-3, rtol=2e-3)
    (stored,) = tmp_path.glob("latents-*.npy")
    row = 2 * whole[:, 0].size
    cut = np.ascontiguousarray(whole.swapaxes(0, 1)).tobytes()[: 20 * row + 7]  # a kill cut image 20
    stored.with_suffix(".raw").write_bytes(cut)
    stored.unlink()
    assert np.array_equal(latent_cache(start.vae, images, tmp_path, RUNTIME), whole)


def test_views_are_the_image_its_mirror_image_and_crops():
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    assert torch.equal(view(images, 0, 0), images)
    assert torch.equal(view(images, 1, 0), images.flip(-1))
    third = view(images, 2, 5)
    assert third.shape == images.shape
    assert torch.equal(third[1], view(images[1:], 2, 6)[0])  # belongs to the place, not to the batch
    assert not torch.equal(third, view(images, 3, 5))


@pytest.mark.parametrize(("images", "views"), [(12_000, 2), (512, 8), (10, 16)])
def test_few_images_get_more_views(images, views):
    assert view_count(images) == views


def test_latents_that_are_there_leave_the_autoencoder_as_making_them_does(random_models, tmp_path):
    """A resumed run draws its previews with it, and other layouts in memory round differently."""
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    layouts = []
    for _ in range(2):
        vae = load_base(random_models / "pipeline").vae
        latent_cache(vae, images, tmp_path, RUNTIME)
        layouts.append({name: weight.stride() for name, weight in vae.named_parameters()})
    assert layouts[0] == layouts[1]
