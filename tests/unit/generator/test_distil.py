"""A copy of the generator that draws in few steps: what it learns from, that it learns, where it is used."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers.progress import Kill

from mcpmix.core.device import Runtime
from mcpmix.core.progress import SILENT
from mcpmix.data.leakage import read_seen
from mcpmix.generator.counterparts import CONTROLNET
from mcpmix.generator.distil import distil, walk
from mcpmix.generator.few_steps import FEW_STEPS
from mcpmix.generator.ledger import read_rows
from mcpmix.networks.diffusion import load_base, noise_schedule, predict_controlled
from mcpmix.networks.generator import (
    DECODER_FILE,
    Generator,
    SamplingSettings,
    control_from_base,
    load_generator,
)
from mcpmix.replay import remake
from mcpmix.run import run

CPU = torch.device("cpu")
FEW = ("few_steps.steps=1", "few_steps.paths=5", "few_steps.distil_steps=3")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def made(make_config, tmp_path_factory):
    """A run that draws in one step, up to its pairs, and its configuration."""
    config = make_config(tmp_path_factory.mktemp("few"), *FEW)
    return run(config, until="pairs"), config


def weights_of(folder):
    return {name: load_file(folder / FEW_STEPS / name) for name in (WEIGHTS, DECODER_FILE)}


def assert_same(one, other):
    for name, part in one.items():
        assert part.keys() == other[name].keys()
        for key, value in part.items():
            assert torch.equal(value, other[name][key]), (name, key)


def test_the_copy_is_part_of_the_generator_and_draws_the_pairs(made, make_config, tmp_path):
    done, config = made
    folder = done.generator.folder
    plain = run(make_config(tmp_path), until="generator").generator
    assert_same(
        {WEIGHTS: load_file(folder / CONTROLNET / WEIGHTS)},
        {WEIGHTS: load_file(plain.folder / CONTROLNET / WEIGHTS)},
    )
    assert {image.sha256 for image in read_seen(folder / FEW_STEPS)} == {
        image.sha256 for image in read_seen(folder)
    }
    assert not list(folder.glob("few-steps*"))  # paths and checkpoint have served
    rows = read_rows(done.pairs.folder)
    assert {row["few_steps"]["steps"] for row in rows} == {1}
    assert (remake(config, rows[0]["parent"], rows[0]["replica"]).difference) == 0
    moved = load_file(folder / FEW_STEPS / WEIGHTS)
    assert any(
        not torch.equal(value, moved[name]) for name, value in load_file(plain / CONTROLNET / WEIGHTS).items()
    )


@pytest.mark.parametrize("title", ["few-steps paths", "few-steps"])
def test_it_is_stopped_and_ends_in_the_same_bits(made, make_config, tmp_path, title):
    config = make_config(tmp_path, *FEW)
    with pytest.raises(KeyboardInterrupt):
        run(config, Kill(title), until="generator")
    assert_same(
        weights_of(made[0].generator.folder), weights_of(run(config, until="generator").generator.folder)
    )


@pytest.fixture
def teacher(random_models):
    """A generator whose condition matters."""
    base = load_base(random_models / "pipeline")
    torch.manual_seed(1)
    control = control_from_base(base, 2, (4, 8, 8, 8))
    for name, parameter in control.named_parameters():
        if "controlnet" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return Generator(base, control)


GUIDED = ("synthesis.steps=3", "synthesis.guidance=2", "synthesis.mask_guidance=1.5", "few_steps.steps=2")


def test_paths_are_those_that_the_synthesis_walks(teacher, make_config, tmp_path):
    config = make_config(tmp_path, *GUIDED, "few_steps.paths=5", "finetune.augment=true")
    shown = torch.rand(2, 2, 64, 64)
    paths = walk(config, teacher, shown, None, tmp_path / "paths", SILENT)
    assert paths.timesteps.tolist() == [999, 666, 332]  # a thousand in three, from the last one
    assert paths.latents.shape[:2] == (5, 4)
    settings = SamplingSettings(3, 2.0, 1.5, 1.0)
    prompts = [config.generator.prompt.text] * 2
    again = walk(config, teacher, shown, None, tmp_path / "paths", SILENT)
    assert torch.equal(paths.latents, again.latents)
    timesteps, passed = teacher.path(paths.conditions[:2], prompts, [1, 2], settings)
    assert torch.equal(timesteps, paths.timesteps)
    assert torch.equal(passed[-1], teacher.sample_latents(paths.conditions[:2], prompts, [1, 2], settings))
    turned = {tuple(shown[i].rot90(k, (1, 2)).flatten().tolist()) for i in range(2) for k in range(4)}
    mirrored = {
        tuple(shown[i].rot90(k, (1, 2)).flip(-1).flatten().tolist()) for i in range(2) for k in range(4)
    }
    assert {tuple(each.flatten().tolist()) for each in paths.conditions} <= turned | mirrored


def test_it_learns_where_the_paths_end(teacher, make_config, tmp_path):
    config = make_config(
        tmp_path,
        *GUIDED,
        "few_steps.paths=4",
        "few_steps.distil_steps=40",
        "finetune.batch_size=8",
        "finetune.learning_rate=2e-3",
        "finetune.ema_decay=0.5",
    )
    shown = torch.rand(2, 2, 64, 64)
    teacher.control.save_pretrained(tmp_path / CONTROLNET)
    distil(config, shown, tmp_path, Runtime(CPU, torch.float32, "test"))
    paths = walk(config, teacher, shown, None, tmp_path / "few-steps-paths", SILENT)
    student = load_generator(load_base(Path(config.generator.base)), tmp_path / FEW_STEPS)

    @torch.no_grad()
    def error(generator):
        schedule, found = noise_schedule(generator.base.scheduler), []
        for place, t in enumerate(paths.timesteps):
            noisy, t = paths.latents[:, place], t.repeat(4)
            answer = predict_controlled(
                generator.base.unet, generator.control, noisy, t, paths.text, paths.conditions
            )
            found.append((schedule.clean(answer, noisy, t) - paths.latents[:, -1]).abs().mean())
        return torch.stack(found)

    # From the last point the teacher's own step leads to the end; there is nothing to learn.
    assert (error(student) < 0.7 * error(teacher))[:2].all()
    for name, value in student.base.unet.state_dict().items():  # the encoder is that of the base
        same = torch.equal(value, teacher.base.unet.state_dict()[name])
        assert same or name.startswith(("up_blocks", "conv_norm_out", "conv_out")), name
