"""Few steps: a copy of the generator learns to name in one pass where the generator itself would arrive.

From a seed the generator walks to an image in `synthesis.steps` steps, each with all passes that guidance
takes. A consistency model answers at any point of such a path with its end, so it can draw in two to four
passes. Latent consistency distillation knows the end from one step of the teacher and a moving average of the
student. These paths are short enough to be walked to their true ends, once, which are kept: no step of the
training asks the teacher or an average, and guidance is part of what is learnt.
"""

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.core.training import cosine, fit, load_state, save_state
from mcpmix.generator.conditions import Conditions
from mcpmix.generator.counterparts import CONTROLNET, Looks, draw_text
from mcpmix.generator.few_steps import FEW_STEPS
from mcpmix.generator.finetune_trainer import Networks, turn
from mcpmix.networks.diffusion import load_base, noise_schedule, predict_controlled
from mcpmix.networks.generator import (
    Generator,
    SamplingSettings,
    decoder_of,
    load_generator,
    lower_frozen,
    with_decoder,
)
from mcpmix.networks.weight_files import resolve

SCRATCH = _CHECKPOINT, _PATHS = "few-steps.checkpoint", "few-steps-paths"
"""What is kept until the stage is finished."""


class Paths(NamedTuple):
    """Ways of the generator from noise to image."""

    timesteps: Tensor  # (K,) of the points before the end
    latents: Tensor  # N,K+1,C,h,w, the end last
    conditions: Tensor  # N,2,H,W
    text: Tensor  # N,L,C embeddings


def distil_key(config: Config) -> dict[str, Any]:
    """What the key of a generator gets where a copy of it learns to draw in few steps; else nothing."""
    if not config.few_steps.distils:
        return {}
    drawn = {"steps", "guidance", "mask_guidance", "batch_size", "appearance"}
    learnt = config.few_steps.model_dump(mode="json", exclude={"steps", "lora"})
    return {"few_steps": learnt | config.synthesis.model_dump(mode="json", include=drawn)}


def distil(
    config: Config,
    conditions: Conditions | Tensor,
    folder: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> list[Path]:
    """Train ControlNet and decoder of a copy, if it is asked for; the folder of their averaged weights.

    Args:
        conditions: N,2,H,W of the training part.
        folder: of the generator, which has learnt its ControlNet; gets paths, checkpoint and result.
    """
    if not config.few_steps.distils:
        return []
    few, tuned, base = config.few_steps, config.finetune, resolve(config.generator.base, "pipeline")
    teacher = load_generator(load_base(base).to(runtime.device), folder / CONTROLNET)
    paths = walk(config, teacher, conditions, Looks.read(base), folder / _PATHS, progress)
    networks = _student(teacher, tuned.gradient_checkpointing, tuned.ema_decay, runtime)
    control, points = networks.trained["control"], len(paths.timesteps)
    optimiser = torch.optim.AdamW(networks.trained.parameters(), tuned.learning_rate)

    def loss(index: int) -> Tensor:
        rng = numpy_rng("distil", config.seed, index)
        chosen = rng.integers(len(paths.latents), size=tuned.batch_size)
        place = rng.integers(points, size=tuned.batch_size)
        tensors = (
            *(paths.latents[chosen, place], paths.timesteps[place], paths.latents[chosen, -1]),
            *(paths.text[chosen], paths.conditions[chosen].contiguous(memory_format=torch.channels_last)),
        )
        noisy, t, end, text, shown = (tensor.to(runtime.device) for tensor in tensors)
        with runtime.autocast():
            prediction = predict_controlled(networks.unet, control, noisy, t, text, shown)
        # The Huber loss of latent consistency models, whose bend is at a thousandth.
        return F.smooth_l1_loss(networks.schedule.clean(prediction.float(), noisy, t), end, beta=1e-3)

    fit(
        loss,
        networks.trained,
        optimiser,
        cosine,
        few.distil_steps,
        folder / _CHECKPOINT,
        average=networks.average,
        save_every=tuned.save_every,
        progress=progress,
    )
    networks.save(folder / FEW_STEPS)
    return [folder / FEW_STEPS]


def walk(
    config: Config,
    teacher: Generator,
    conditions: Conditions | Tensor,
    looks: Looks | None,
    folder: Path,
    progress: Progress,
) -> Paths:
    """The paths of the generator under masks and prompts as the synthesis has them, from pure noise.

    Batches are kept in `folder`, so that a killed stage need not walk them again.
    """
    drawn, wanted, size = config.synthesis, config.few_steps.paths, config.synthesis.batch_size
    settings = SamplingSettings(drawn.steps, drawn.guidance, drawn.mask_guidance, strength=1.0)
    latents: list[Tensor] = []
    shown: list[Tensor] = []
    texts: list[str] = []
    folder.mkdir(exist_ok=True)
    with progress.track("few-steps paths", wanted) as advance:
        for start in range(0, wanted, size):
            rng = numpy_rng("distil paths", config.seed, start)
            masks = rng.integers(len(conditions), size=size)
            views = rng.integers(8 if config.finetune.augment else 1, size=size)
            seeds = [seed_for("distil paths", config.seed, start + number) for number in range(size)]
            prompts = [draw_text(config, looks, seed) for seed in seeds]
            turned = [turn(own, int(view)) for own, view in zip(conditions[masks], views, strict=True)]
            shown, texts = [*shown, *turned], [*texts, *prompts]
            file = folder / f"{start}.safetensors"
            if not file.exists():
                timesteps, passed = teacher.path(torch.stack(turned), prompts, seeds, settings)
                save_state(file, [timesteps, torch.stack(passed, dim=1)])
            timesteps, found = load_state(file)
            latents.append(found)
            advance(min(size, wanted - start))
    text = teacher.embed(texts[:wanted]).cpu()
    return Paths(timesteps, torch.cat(latents)[:wanted], torch.stack(shown[:wanted]), text)


def _student(teacher: Generator, checkpointing: bool, decay: float, runtime: Runtime) -> Networks:
    """Trainable copies of ControlNet and decoder on the teacher's frozen encoder."""
    decoder, control = copy.deepcopy(decoder_of(teacher.base.unet)), copy.deepcopy(teacher.control)
    assert control is not None  # of a generator that was fine-tuned
    trained = nn.ModuleDict({"control": control, "decoder": decoder})
    trained.train().requires_grad_(True)
    unet = with_decoder(teacher.base.unet, decoder)
    if checkpointing:
        control.enable_gradient_checkpointing()
        unet.enable_gradient_checkpointing()
    lower_frozen(unet, runtime.precision)
    average = AveragedModel(trained, multi_avg_fn=get_ema_multi_avg_fn(decay))
    return Networks(unet, trained, average, noise_schedule(teacher.base.scheduler))
