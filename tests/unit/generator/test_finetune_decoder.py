"""The unlocked decoder: trains at its own rate, is averaged, saved and used again by the generator."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from mcpmix.core.errors import ModelError
from mcpmix.networks.diffusion import DECODER_FILE, decoder_of, load_base, load_decoder, with_decoder
from mcpmix.networks.generator import load_generator
from mcpmix.run import run


@pytest.fixture(scope="module")
def unlocked(make_config, tmp_path_factory):
    """Two steps with the decoder unlocked; rates that move both parts, and no averaging."""
    config = make_config(
        tmp_path_factory.mktemp("unlocked"),
        "finetune.unlock_decoder=true",
        "finetune.decoder_learning_rate=1e-4",
        "finetune.ema_decay=0",
    )
    return run(config, until="generator").generator


def test_the_decoder_alone_moves_and_by_its_own_rate(unlocked, random_models):
    base = load_base(random_models / "pipeline")
    before = {name: value.clone() for name, value in base.unet.state_dict().items()}
    saved = load_file(unlocked / "controlnet" / DECODER_FILE)

    assert {name.split(".")[0] for name in saved} == {"up_blocks", "conv_norm_out", "conv_out"}
    moves = {name: (value - before[name]).abs().max().item() for name, value in saved.items()}
    assert min(moves.values()) > 0
    # Two steps of Adam: half the rate in the warm-up step, the whole rate after it, and weight decay.
    assert max(moves.values()) < 1.6e-4


def test_the_generator_takes_the_saved_decoder(unlocked, random_models):
    saved = load_file(unlocked / "controlnet" / DECODER_FILE)
    generator = load_generator(load_base(random_models / "pipeline"), unlocked / "controlnet")
    unet = generator.base.unet.state_dict()
    original = load_base(random_models / "pipeline").unet.state_dict()

    for name, value in unet.items():
        assert torch.equal(value, saved.get(name, original[name])), name
    assert not any(parameter.requires_grad for parameter in generator.base.unet.parameters())


def test_a_locked_run_saves_no_decoder(make_config, tmp_path, random_models):
    artifact = run(make_config(tmp_path, "finetune.steps=1"), until="generator").generator
    assert not (artifact / "controlnet" / DECODER_FILE).exists()
    assert not load_decoder(load_base(random_models / "pipeline").unet, artifact / "controlnet")


@pytest.mark.parametrize("content", ["foreign", "damaged"])
def test_a_decoder_that_does_not_fit_is_refused(random_models, tmp_path, content):
    if content == "foreign":
        save_file({"conv_out.weight": torch.zeros(3)}, tmp_path / DECODER_FILE)
    else:
        (tmp_path / DECODER_FILE).write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"does not fit the decoder of the base.*fine-tune again"):
        load_decoder(load_base(random_models / "pipeline").unet, tmp_path)


def test_a_second_decoder_shares_all_else(random_models):
    unet = load_base(random_models / "pipeline").unet
    other = load_base(random_models / "pipeline").unet
    with torch.no_grad():
        other.conv_out.weight.zero_()
        other.conv_out.bias.fill_(3.0)
    view = with_decoder(unet, decoder_of(other))
    latents, text = torch.randn(1, unet.config.in_channels, 8, 8), torch.zeros(1, 2, 1)
    text = text.expand(1, 2, unet.config.cross_attention_dim)

    assert view.conv_in is unet.conv_in
    assert view.up_blocks is other.up_blocks
    with torch.no_grad():
        assert torch.equal(view(latents, 5, text).sample, torch.full_like(latents, 3.0))
        assert not torch.equal(unet(latents, 5, text).sample, torch.full_like(latents, 3.0))
