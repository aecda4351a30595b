"""The decoder against its critic: the encoder stays, a stopped training goes on, the critic learns."""

import pytest
import torch
from diffusers import AutoencoderKL
from tools.pretrain.corpus import phantom_corpus
from tools.pretrain.sharpening import PatchCritic, critic_loss, sharpen_decoder

from mcpmix.core import checkpoint as resumable
from mcpmix.core.errors import ModelError
from mcpmix.networks.blueprints import build_autoencoder
from tools.pretrain import sharpening


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return phantom_corpus(tmp_path_factory.mktemp("corpus"), 4, 64)


def autoencoder():
    torch.manual_seed(1)
    return build_autoencoder()


def test_only_the_decoder_changes(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sharpening, "_CRITIC_ALONE", 0)
    vae, before = autoencoder(), autoencoder().state_dict()
    sharpen_decoder(corpus, vae, tmp_path, steps=2, batch_size=2)
    changed = {name for name, value in vae.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("decoder.") for name in changed)


def test_a_decoder_of_another_kind_is_refused(corpus, tmp_path):
    other = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)
    with pytest.raises(ModelError, match=r"AutoencoderKL is not trained here.*--decoder-steps 0"):
        sharpen_decoder(corpus, other, tmp_path, steps=1)


def test_the_critic_is_not_listened_to_before_it_has_learnt(corpus, tmp_path, monkeypatch):
    results = []
    for weight in (0.05, 50.0):
        monkeypatch.setattr(sharpening, "_ADVERSARIAL", weight)
        folder = tmp_path / str(weight)
        folder.mkdir()
        vae = autoencoder()
        sharpen_decoder(corpus, vae, folder, steps=2, batch_size=2)
        results.append(vae.decoder.state_dict())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_a_stopped_training_goes_on_to_the_same_decoder(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sharpening, "_CRITIC_ALONE", 1)
    whole, stopped = autoencoder(), autoencoder()
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    sharpen_decoder(corpus, whole, tmp_path / "whole", steps=3, batch_size=2)

    def stop(*arguments, **settings):
        def after_save(done):
            if done == 2:
                raise KeyboardInterrupt

        resumable.run_steps(*arguments, **settings | {"save_every": 1, "after_save": after_save})

    with monkeypatch.context() as patch:
        patch.setattr(sharpening, "run_steps", stop)
        with pytest.raises(KeyboardInterrupt):
            sharpen_decoder(corpus, stopped, tmp_path / "stopped", steps=3, batch_size=2)
    again = autoencoder()
    sharpen_decoder(corpus, again, tmp_path / "stopped", steps=3, batch_size=2)
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
