"""Optimiser steps of the fine-tuning: however a step is cut or computed, it is the same step."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from mcpmix.core.device import Runtime
from mcpmix.core.pixels import as_images
from mcpmix.core.processes import Processes
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import apply_colour, draw_colour
from mcpmix.data.index import Arrays
from mcpmix.generator import finetune_trainer
from mcpmix.generator.finetune_trainer import Trainer, TrainingSet, build_networks, draw, prepare, turn
from mcpmix.networks.diffusion import embed_prompts, load_base
from mcpmix.networks.generator import lower_frozen

CPU = torch.device("cpu")
FLOAT32 = Runtime(CPU, torch.float32, "test")


@pytest.fixture(scope="module")
def base(random_models):
    return load_base(random_models / "pipeline")


@pytest.fixture(scope="module")
def data(base):
    """Five examples of 32 px with two views and two tints, of random content."""
    rng = torch.Generator().manual_seed(0)
    masks = (torch.rand(5, 32, 32, generator=rng) < 0.3).float()
    return TrainingSet(
        latents=torch.randn(2, 2, 5, base.unet.config.in_channels, 4, 4, generator=rng).numpy(),
        conditions=torch.stack([masks, torch.rand(5, 32, 32, generator=rng)], dim=1),
        masks=masks.byte().numpy(),
        text=torch.randn(2, 3, base.unet.config.cross_attention_dim, generator=rng),
        text_of=np.ones(5, int),
        dropout=(0.0, 0.1),
    )


@pytest.fixture
def steps(base, data, make_config, tmp_path):
    """Two steps with some settings: losses and weights. In double precision if `exact`."""

    def run(*overrides, runtime=FLOAT32, exact=True, count=2, processes=None):
        config = make_config(
            tmp_path,
            "finetune.warmup_steps=0",
            *overrides,
        )
        torch.manual_seed(0)
        networks = build_networks(copy.deepcopy(base), config.finetune, runtime)
        examples = data
        if exact:
            networks.unet.double(), networks.trained.double(), networks.average.double()
            exact_parts = {name: getattr(data, name).double() for name in ("conditions", "text")}
            examples = dataclasses.replace(data, latents=data.latents.astype(np.float64), **exact_parts)
        trainer = Trainer(networks, examples, config, runtime, processes or Processes())
        losses = [trainer.step(index)[0] for index in range(count)]
        return losses, networks.trained.state_dict(), trainer

    return run


def assert_same(one, other, tolerance=1e-9):
    assert one[0] == pytest.approx(other[0], rel=1e-6)
    for name, value in one[1].items():
        torch.testing.assert_close(value, other[1][name], atol=tolerance, rtol=0)


def test_passes_add_up_to_the_large_batch(steps):
    whole = steps("finetune.batch_size=4")
    assert_same(whole, steps("finetune.batch_size=2", "finetune.accumulation=2"))
    assert_same(whole, steps("finetune.batch_size=1", "finetune.accumulation=4"))
    assert whole[0] != pytest.approx(steps("finetune.batch_size=2")[0], rel=1e-6)


def test_gradient_checkpointing_changes_nothing(steps):
    plain = steps("finetune.batch_size=2", "finetune.unlock_decoder=true")
    assert_same(
        plain,
        steps(
            "finetune.batch_size=2", "finetune.unlock_decoder=true", "finetune.gradient_checkpointing=true"
        ),
    )


def test_two_processes_do_what_one_does_with_the_doubled_batch(steps, monkeypatch):
    """Both shares in this process, one after the other; the launcher has a test of its own."""
    shares = []
    for rank in range(2):
        monkeypatch.setattr(Processes, "mean", lambda self, value: value)
        monkeypatch.setattr(Processes, "copy_from_leader", lambda self, network: None)
        gradients = []
        monkeypatch.setattr(
            Processes,
            "average_gradients",
            lambda self, parameters, kept=gradients: kept.extend(p.grad.clone() for p in parameters),
        )
        loss, _, _ = steps("finetune.batch_size=2", count=1, processes=Processes(rank, 2))
        shares.append((loss[0], gradients))
    whole = []
    monkeypatch.setattr(
        Processes,
        "average_gradients",
        lambda self, parameters: whole.extend(p.grad.clone() for p in parameters),
    )
    loss, _, _ = steps("finetune.batch_size=4", count=1)

    assert np.mean([share[0] for share in shares]) == pytest.approx(loss[0], rel=1e-9)
    for first, second, both in zip(shares[0][1], shares[1][1], whole, strict=True):
        torch.testing.assert_close((first + second) / 2, both, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_learns_and_keeps_its_scale(steps, name):
    runtime = Runtime(CPU, getattr(torch, name), "test")
    losses, weights, trainer = steps("finetune.batch_size=2", runtime=runtime, exact=False)
    reference, _, _ = steps("finetune.batch_size=2", exact=False)

    assert losses == pytest.approx(reference, rel=0.05)
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert ("scaler" in trainer.state) == (name == "float16")
    assert trainer.networks.unet.mid_block.resnets[0].conv1.weight.dtype == runtime.precision


def test_frozen_weights_in_half_precision_give_the_same_bits(base):
    plain, lowered = copy.deepcopy(base.unet), copy.deepcopy(base.unet)
    lower_frozen(lowered, torch.bfloat16)
    latents = torch.randn(1, plain.config.in_channels, 4, 4)
    text = torch.randn(1, 3, plain.config.cross_attention_dim)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(plain(latents, 7, text).sample, lowered(latents, 7, text).sample)

    def size(unet):
        return sum(p.numel() * p.element_size() for p in unet.parameters())

    assert size(lowered) < 0.6 * size(plain)
    assert lowered.dtype == torch.float32


def test_an_unlocked_decoder_stays_in_full_precision(base):
    unet = copy.deepcopy(base.unet)
    unet.up_blocks.requires_grad_(True)
    lower_frozen(unet, torch.float16)
    assert unet.up_blocks[0].resnets[0].conv1.weight.dtype == torch.float32
    assert unet.down_blocks[0].resnets[0].conv1.weight.dtype == torch.float16


def test_a_start_is_where_training_starts_from(steps, base, data, make_config, tmp_path):
    place = tmp_path / "start"
    losses, _, trainer = steps("finetune.batch_size=2", exact=False, count=3)
    trainer.networks.trained["control"].save_pretrained(place)
    config = make_config(tmp_path, f"finetune.start={place}", "finetune.batch_size=2")
    networks = build_networks(copy.deepcopy(base), config.finetune, FLOAT32)
    assert_same(([], networks.trained.state_dict()), ([], trainer.networks.trained.state_dict()))
    again = Trainer(networks, data, config, FLOAT32, Processes())
    assert again.step(0)[0] != pytest.approx(losses[0], rel=1e-6)


def test_first_steps_learn_from_pseudo_masks_and_later_ones_from_labels(
    base, data, make_config, tmp_path, monkeypatch
):
    pseudo = ("data.unlabelled=more", "finetune.start=pseudo", "finetune.pseudo_steps=2")
    settings = make_config(tmp_path, *pseudo, "finetune.batch_size=2")
    first = dataclasses.replace(data, latents=data.latents + 1)
    drawn = []
    monkeypatch.setattr(
        finetune_trainer, "draw", lambda chosen, *given: drawn.append(chosen) or draw(chosen, *given)
    )
    networks = build_networks(copy.deepcopy(base), settings.finetune, FLOAT32)
    trainer = Trainer(networks, data, settings, FLOAT32, Processes(), first)
    for index in range(4):
        trainer.step(index)
    assert [chosen is first for chosen in drawn] == [True, True, False, False]
    assert drawn[3] is data


def test_the_prompt_of_an_image_names_its_look(base, make_config, tmp_path):
    config = make_config(tmp_path)
    arrays = Arrays(tuple("abcd"), np.zeros((4, 32, 32, 3), np.uint8), np.zeros((4, 32, 32), np.uint8))
    depths, prompt = np.zeros((4, 32, 32), np.float32), config.generator.prompt.text
    looks = prepare(base, arrays, depths, config, ["look 1", None, "look 0", "look 1"])
    texts = ["", prompt, f"{prompt} look 0", f"{prompt} look 1"]
    assert looks.text_of.tolist() == [3, 1, 2, 3]
    torch.testing.assert_close(looks.text, embed_prompts(base, texts))
    plain = prepare(base, arrays, depths, config)
    assert plain.dropout == (config.finetune.mask_dropout, config.finetune.depth_dropout)
    assert plain.text_of.tolist() == [1, 1, 1, 1]
    assert torch.equal(plain.text, looks.text[:2])
    settings = make_config(tmp_path, "finetune.prompt_dropout=0").finetune
    batch = draw(looks, settings, 1000, 200, (0, 1))(slice(0, 200))
    shown = {tuple(text.flatten()[:50].tolist()) for text in batch.text}
    assert shown == {tuple(text.flatten()[:50].tolist()) for text in looks.text[1:]}


def test_turns_are_the_eight_symmetries_of_the_square():
    image = torch.arange(9.0).view(3, 3)
    views = [turn(image, view) for view in range(8)]
    assert len({tuple(view.flatten().tolist()) for view in views}) == 8
    assert torch.equal(views[0], image)


@pytest.mark.parametrize("view", range(8))
def test_image_and_mask_turn_alike(view):
    image = torch.rand(2, 3, 6, 6)
    mask = image[:, 0] > 0.5
    assert torch.equal(turn(image, view)[:, 0] > 0.5, turn(mask, view))


def test_draws_belong_to_the_step_and_drop_what_they_should(data, make_config, tmp_path):
    settings = make_config(tmp_path, "finetune.prompt_dropout=0.3").finetune
    every, dropping = slice(0, 4000), dataclasses.replace(data, dropout=(0.2, 0.5))
    one, again, other = (draw(dropping, settings, 1000, 4000, (0, step))(every) for step in (7, 7, 8))

    assert torch.equal(one.noise, again.noise)
    assert torch.equal(one.t, again.t)
    assert not torch.equal(one.t, other.t)
    dropped = (one.shown == 0).flatten(2).all(dim=2).numpy()
    assert dropped.mean(axis=0) == pytest.approx([0.2, 0.5], abs=0.03)
    assert dropped.all(axis=1).mean() == pytest.approx(0.1, abs=0.02)  # 0.2 * 0.5: one knows not of the other
    prompted = (one.text == data.text[1]).flatten(1).all(dim=1).float()
    assert prompted.mean().item() == pytest.approx(0.7, abs=0.03)


def test_a_batch_shows_image_mask_and_depth_in_one_view(data, make_config, tmp_path):
    settings = make_config(tmp_path).finetune
    drawn = draw(dataclasses.replace(data, dropout=(0.0, 0.0)), settings, 1000, 6, (0, 1))
    whole, part = drawn(slice(0, 6)), drawn(slice(2, 5))

    assert part.clean.shape[0] == part.text.shape[0] == 3
    assert torch.equal(part.shown[:, 0], part.masks)
    for name, value in vars(part).items():
        assert torch.equal(value, vars(whole)[name][2:5]), name


def test_latents_on_disk_are_those_of_each_view_and_a_killed_call_goes_on(base, make_config, tmp_path):
    config = make_config(tmp_path, "finetune.augment=true", "finetune.colour=1")
    images = np.random.default_rng(0).integers(0, 255, (11, 32, 32, 3), np.uint8)
    arrays = Arrays(tuple("abcdefghijk"), images, np.zeros((11, 32, 32), np.uint8))
    depths, kept = np.zeros((11, 32, 32), np.float32), tmp_path / "latents.f32"
    whole = prepare(base, arrays, depths, config, kept=kept).latents
    assert whole.shape[:3] == (8, 3, 11)
    colour = draw_colour(11, torch_rng("tint", config.seed, 5, 1), 1.0)
    shown = turn(apply_colour(colour, as_images(images)), 5)
    assert np.array_equal(whole[5, 1], finetune_trainer.encode_all(base.vae, shown).numpy())
    content = kept.read_bytes()
    for share in (0.0, 0.3, 0.51, 1.0):
        kept.write_bytes(content[: round(share * len(content))])
        assert np.array_equal(prepare(base, arrays, depths, config, kept=kept).latents, whole)
    assert np.array_equal(prepare(base, arrays, depths, config).latents, whole)
