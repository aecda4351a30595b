"""Optimiser steps of the fine-tuning: however a step is cut or computed, it is the same step."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch

from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError
from mcpmix.core.processes import Processes
from mcpmix.data.cache import load_arrays
from mcpmix.data.index import DatasetIndex
from mcpmix.generator import finetune
from mcpmix.generator.conditions import read_depths
from mcpmix.generator.counterparts import build_maker
from mcpmix.generator.finetune_steps import Trainer, TrainingSet, build_networks, draw, prepare
from mcpmix.networks.diffusion import load_base, lower_frozen
from mcpmix.networks.weight_files import folder_digest
from mcpmix.run import run

CPU = torch.device("cpu")
FLOAT32 = Runtime(CPU, torch.float32, "test")


@pytest.fixture(scope="module")
def base(random_models):
    return load_base(random_models / "done")


@pytest.fixture(scope="module")
def data(base):
    """Five examples of 32 px with two views and two tints, of random content."""
    rng = torch.Generator().manual_seed(0)
    masks = (torch.rand(5, 32, 32, generator=rng) < 0.3).float()
    return TrainingSet(
        latents=torch.randn(2, 2, 5, base.unet.config.in_channels, 4, 4, generator=rng),
        conditions=torch.stack([masks, torch.rand(5, 32, 32, generator=rng)], dim=1),
        masks=masks,
        text=torch.randn(2, 3, base.unet.config.cross_attention_dim, generator=rng),
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
            examples = TrainingSet(
                data.latents.double(), data.conditions.double(), data.masks, data.text.double()
            )
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


def test_draws_belong_to_the_step_and_drop_what_they_should(data, make_config, tmp_path):
    settings = make_config(
        tmp_path, "finetune.mask_dropout=0.2", "finetune.depth_dropout=0.5", "finetune.prompt_dropout=0.3"
    ).finetune
    one = draw(data, settings, 1000, 4000, (0, 7))
    again, other = draw(data, settings, 1000, 4000, (0, 7)), draw(data, settings, 1000, 4000, (0, 8))

    assert torch.equal(one.noise, again.noise)
    assert np.array_equal(one.t, again.t)
    assert not np.array_equal(one.t, other.t)
    dropped = ~one.keep
    assert dropped.mean(axis=0) == pytest.approx([0.2, 0.5], abs=0.03)
    assert dropped.all(axis=1).mean() == pytest.approx(0.1, abs=0.02)  # 0.2 * 0.5: one knows not of the other
    assert one.worded.mean() == pytest.approx(0.7, abs=0.03)


def test_a_batch_shows_image_mask_and_depth_in_one_view(data, make_config, tmp_path):
    settings = make_config(tmp_path, "finetune.mask_dropout=0", "finetune.depth_dropout=0").finetune
    draws = draw(data, settings, 1000, 6, (0, 1))
    batch = draws.batch(data, slice(2, 5), CPU)

    assert batch.clean.shape[0] == batch.text.shape[0] == 3
    assert torch.equal(batch.shown[:, 0], batch.masks)
    assert torch.equal(batch.noise, draws.noise[2:5])
    assert batch.t.tolist() == draws.t[2:5].tolist()


def test_autoencoder_and_text_encoder_have_left_memory_when_training_starts(
    make_config, tmp_path, monkeypatch
):
    load, parts, alive = finetune.load_base, {}, {}

    def watched(*arguments, **options):
        loaded = load(*arguments, **options)
        parts.update({name: weakref.ref(getattr(loaded, name)) for name in ("vae", "text_encoder", "unet")})
        return loaded

    class Enough(Exception):  # noqa: N818
        """Nothing more is of interest."""

    def train(*arguments):
        gc.collect()
        alive.update({name: part() is not None for name, part in parts.items()})
        raise Enough

    monkeypatch.setattr(finetune, "load_base", watched)
    monkeypatch.setattr(finetune, "train", train)
    with pytest.raises(Enough):
        _ = run(make_config(tmp_path), until="generator")
    assert alive == {"vae": False, "text_encoder": False, "unet": True}


def test_a_missing_second_process_is_refused_before_any_work(make_config, tmp_path):
    config = make_config(tmp_path, "finetune.processes=2")
    with pytest.raises(ConfigError, match=r"processes is 2, but 1 process was started"):
        finetune.run(config, None, None, tmp_path / "generator", FLOAT32)
    assert not (tmp_path / "generator.partial").exists()


def test_a_start_is_where_training_starts_from_and_part_of_its_key(steps, base, data, make_config, tmp_path):
    place = tmp_path / "start"
    losses, _, trainer = steps("finetune.batch_size=2", exact=False, count=3)
    trainer.networks.trained["control"].save_pretrained(place)
    config = make_config(tmp_path, f"finetune.start={place}", "finetune.batch_size=2")
    networks = build_networks(copy.deepcopy(base), config.finetune, FLOAT32)
    assert_same(([], networks.trained.state_dict()), ([], trainer.networks.trained.state_dict()))
    again = Trainer(networks, data, config, FLOAT32, Processes())
    assert again.step(0)[0] != pytest.approx(losses[0], rel=1e-6)

    done = run(config, until="depth")
    stages = done.dataset, done.depth
    before = finetune.key(config, *stages)
    assert before.settings["start"] != finetune.key(make_config(tmp_path), *stages).settings.get("start")
    (place / "config.json").write_text((place / "config.json").read_text() + "\n")
    folder_digest.cache_clear()
    assert finetune.key(config, *stages).settings["start"] != before.settings["start"]


@pytest.mark.parametrize("way", ["keep", "fill"])
def test_training_and_synthesis_show_the_same_depth(base, make_config, tmp_path, way):
    config = make_config(tmp_path, f"finetune.depth_under_mask={way}")
    done = run(config, until="generator")
    arrays = load_arrays(DatasetIndex.read(done.dataset).part("train"), config.data.size)
    depths = read_depths(done.depth.folder, arrays.ids)
    trained = prepare(base, arrays, depths, config).conditions
    made = build_maker(config, done.generator / "controlnet", arrays, depths, CPU).conditions
    assert torch.equal(trained, made)
    assert torch.equal(trained[:, 1], torch.from_numpy(depths)) == (way == "keep")
