"""The autoencoder: saved whole, kept where it cannot be trained, its decoder sharpened against a critic."""

import pytest
import torch
from diffusers import AutoencoderKL
from tools.pretrain.blueprints import build_autoencoder
from tools.pretrain.corpus import phantom_corpus

from mcpmix.core import training as resumable
from mcpmix.core.errors import ModelError
from mcpmix.generator import autoencoder as training
from mcpmix.generator.autoencoder import (
    PatchCritic,
    critic_loss,
    image_batch,
    reconstruction_loss,
    sharpen_decoder,
    train_autoencoder,
)
from mcpmix.networks.diffusion import encode_images, load_autoencoder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return phantom_corpus(tmp_path_factory.mktemp("corpus"), 4, 64).images


def autoencoder():
    torch.manual_seed(1)
    return build_autoencoder()


def test_latents_of_a_trained_autoencoder_have_unit_scale(images, tmp_path):
    vae = train_autoencoder(images, autoencoder(), tmp_path, steps=1, batch_size=2)
    stored = load_autoencoder(tmp_path / "vae")
    assert stored.config.scaling_factor == vae.config.scaling_factor
    batch = torch.cat([image_batch(images, index, 8) for index in range(4)])
    assert float(encode_images(stored, batch).std()) == pytest.approx(1, abs=0.2)


def test_no_steps_keep_the_start(images, tmp_path):
    start = autoencoder()
    start.register_to_config(scaling_factor=3.0)
    vae = train_autoencoder(images, start, tmp_path, steps=0)
    assert vae.config.scaling_factor == 3.0
    for name, value in start.state_dict().items():
        assert torch.equal(vae.state_dict()[name], value.half().float()), name


def test_an_autoencoder_of_another_kind_is_kept_not_trained(images, tmp_path):
    other = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
    with pytest.raises(ModelError, match=r"AutoencoderKL is not trained here.*no steps for autoencoder"):
        train_autoencoder(images, other, tmp_path, steps=1)
    with pytest.raises(
        ModelError, match=r"AutoencoderKL is not trained here.*no steps for autoencoder and decoder"
    ):
        sharpen_decoder(images, other, tmp_path, steps=1)


def test_batches_belong_to_their_step(images):
    assert torch.equal(image_batch(images, 3, 4), image_batch(images, 3, 4))
    assert not torch.equal(image_batch(images, 3, 4), image_batch(images, 5, 4))


def test_reconstruction_loss_by_hand():
    target = torch.zeros(1, 1, 8, 8)
    assert reconstruction_loss(target, target) == 0
    # a constant error of 0.5: pixels 0.5, no edges, local means 0.5
    assert float(reconstruction_loss(target + 0.5, target)) == pytest.approx(1.0)


def test_only_the_decoder_changes(images, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_CRITIC_ALONE", 0)
    vae, before = autoencoder(), autoencoder().state_dict()
    sharpen_decoder(images, vae, tmp_path, steps=2, batch_size=2)
    changed = {name for name, value in vae.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("decoder.") for name in changed)


def test_the_critic_is_not_listened_to_before_it_has_learnt(images, tmp_path, monkeypatch):
    results = []
    for weight in (0.05, 50.0):
        monkeypatch.setattr(training, "_ADVERSARIAL", weight)
        folder = tmp_path / str(weight)
        folder.mkdir()
        vae = autoencoder()
        sharpen_decoder(images, vae, folder, steps=2, batch_size=2)
        results.append(vae.decoder.state_dict())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_a_stopped_training_resumes_to_the_same_decoder(images, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_CRITIC_ALONE", 1)
    whole, stopped = autoencoder(), autoencoder()
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    sharpen_decoder(images, whole, tmp_path / "whole", steps=3, batch_size=2)

    def stop(*arguments, **settings):
        def after_save(done):
            if done == 2:
                raise KeyboardInterrupt

        resumable.run_steps(*arguments, **settings | {"save_every": 1, "after_save": after_save})

    with monkeypatch.context() as patch:
        patch.setattr(training, "run_steps", stop)
        with pytest.raises(KeyboardInterrupt):
            sharpen_decoder(images, stopped, tmp_path / "stopped", steps=3, batch_size=2)
    again = autoencoder()
    sharpen_decoder(images, again, tmp_path / "stopped", steps=3, batch_size=2)
    for name, value in whole.decoder.state_dict().items():
        assert torch.equal(value, again.decoder.state_dict()[name]), name


def test_a_critic_learns_to_tell_sharp_from_blurred():
    torch.manual_seed(0)
    critic = PatchCritic(8)
    optimiser = torch.optim.Adam(critic.parameters(), 1e-2)
    real = torch.rand(4, 3, 32, 32).round() * 2 - 1
    blurred = torch.nn.functional.avg_pool2d(real, 3, 1, 1)
    first = critic_loss(critic, blurred, real).item()
    for _ in range(30):
        optimiser.zero_grad()
        critic_loss(critic, blurred, real).backward()
        optimiser.step()
    assert critic_loss(critic, blurred, real).item() < 0.5 * first
    assert critic(real)[0].shape == (4, 1, 4, 4)
    assert critic(real)[0].mean() > critic(blurred)[0].mean()
