"""The networks of the fine-tuning and their optimiser steps."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.config import Config, FinetuneConfig
from mcpmix.core.checkpoint import run_steps
from mcpmix.core.device import Runtime
from mcpmix.core.errors import TrainingError
from mcpmix.core.jsonl import JsonLines
from mcpmix.core.optimisers import build_adamw, warm_up
from mcpmix.core.processes import Processes
from mcpmix.core.progress import Progress
from mcpmix.generator.examples import TrainingSet, draw
from mcpmix.networks.controlnet import control_from_base, control_from_start
from mcpmix.networks.diffusion import (
    ControlNet,
    DiffusionBase,
    NoiseSchedule,
    UNet,
    decoder_of,
    lower_frozen,
    noise_schedule,
    save_decoder,
    training_loss,
    with_decoder,
)
from mcpmix.networks.weight_files import resolve

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
_WEIGHT_DECAY = 1e-2
_LARGEST_GRADIENT = 1.0  # norm over all trained weights
_LOG_EVERY = 10


@dataclass(frozen=True)
class Networks:
    """The networks of the fine-tuning, on one device."""

    unet: UNet  # of the base; frozen but for an unlocked decoder
    trained: nn.ModuleDict  # what learns: "control", and "decoder" if it is unlocked, shared with `unet`
    average: AveragedModel  # moving average of `trained`, which is the result
    schedule: NoiseSchedule  # the base's forward process

    @property
    def averaged_control(self) -> ControlNet:
        """The ControlNet of the result."""
        averaged: Any = self.average.module
        return averaged["control"]

    @property
    def averaged_unet(self) -> UNet:
        """The UNet of the result; what is frozen is shared with `unet`."""
        averaged: Any = self.average.module
        return with_decoder(self.unet, averaged["decoder"]) if "decoder" in averaged else self.unet

    def save(self, folder: Path) -> None:
        """Write the averaged ControlNet, and the decoder if it was trained, to one folder."""
        averaged: Any = self.average.module
        averaged["control"].save_pretrained(folder)
        if "decoder" in averaged:
            save_decoder(averaged["decoder"], folder)


def build_networks(base: DiffusionBase, settings: FinetuneConfig, runtime: Runtime) -> Networks:
    """A ControlNet for the base, and what is to be trained of the base itself.

    The base's UNet becomes part of the result; what is frozen of it is kept in the runtime's precision.
    """
    control = (
        control_from_base(base)
        if settings.start is None
        else control_from_start(base, resolve(settings.start, "control"))
    ).to(runtime.device)
    trained = nn.ModuleDict({"control": control})
    if settings.unlock_decoder:
        trained["decoder"] = decoder_of(base.unet).requires_grad_(True)
    if settings.gradient_checkpointing:
        control.enable_gradient_checkpointing()
        base.unet.enable_gradient_checkpointing()
    lower_frozen(base.unet, runtime.precision)
    average = AveragedModel(trained, multi_avg_fn=get_ema_multi_avg_fn(settings.ema_decay))
    return Networks(base.unet, trained, average, noise_schedule(base.scheduler))


class Trainer:
    """Optimiser steps, one at a time, shared by all processes."""

    def __init__(
        self, networks: Networks, data: TrainingSet, config: Config, runtime: Runtime, processes: Processes
    ) -> None:
        self.networks, self.data, self.runtime, self.processes = networks, data, runtime, processes
        self.settings, self.seed = config.finetune, config.seed
        rates = {"control": self.settings.learning_rate, "decoder": self.settings.decoder_learning_rate}
        groups: list[dict[str, Any]] = [
            {"params": list(part.parameters()), "lr": rates[name]} for name, part in networks.trained.items()
        ]
        self.optimiser = build_adamw(groups, _WEIGHT_DECAY, self.settings.optimiser)
        # Small gradients vanish in float16 unless the loss is scaled up; other formats need no scaling.
        self.scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.precision == torch.float16)
        processes.copy_from_leader(networks.trained)

    @property
    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, by name."""
        parts = {"trained": self.networks.trained, "average": self.networks.average}
        scaling = {"scaler": self.scaler} if self.scaler.is_enabled() else {}
        return {**parts, "optimiser": self.optimiser, **scaling}

    def step(self, index: int) -> tuple[float, float]:
        """One optimiser step; returns the loss and the norm of the gradient, both over all processes.

        The draws are made for the whole step and then shared out, so that the step is the same, up to
        rounding, however many processes and passes it is cut into.
        """
        settings, networks, trained = self.settings, self.networks, self.networks.trained
        size, passes, losses = settings.batch_size, settings.accumulation, []
        total = size * passes * self.processes.count
        drawn = draw(self.data, settings, networks.schedule.timesteps, total, (self.seed, index))
        start = self.processes.rank * size * passes
        self.optimiser.zero_grad(set_to_none=True)
        for first in range(start, start + size * passes, size):
            batch = drawn(slice(first, first + size)).to(self.runtime.device)
            with self.runtime.autocast():
                loss = training_loss(
                    networks.unet,
                    trained["control"],
                    batch,
                    networks.schedule,
                    lesion_weight=settings.lesion_weight,
                    min_snr_gamma=settings.min_snr_gamma,
                )
            self.scaler.scale(loss / passes).backward()
            losses.append(loss.item())
        mean = self.processes.mean(sum(losses) / passes)
        self.processes.average_gradients(trained.parameters())
        self.scaler.unscale_(self.optimiser)
        norm = nn.utils.clip_grad_norm_(trained.parameters(), _LARGEST_GRADIENT)
        warm_up(self.optimiser, index, settings.warmup_steps)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        networks.average.update_parameters(trained)
        return mean, float(norm)


def train(
    trainer: Trainer, folder: Path, progress: Progress, validate: Callable[[int], None] | None = None
) -> None:
    """All steps, from where the last checkpoint stands.

    Args:
        folder: of the checkpoint and the log; the leader writes there, all others read.
        validate: called by the leader with the number of finished steps after each checkpoint.
    """
    log, settings = JsonLines(folder / LOG), trainer.settings
    leads = trainer.processes.leads

    def step(index: int) -> float:
        loss, gradient = trainer.step(index)
        if leads and (index + 1) % _LOG_EVERY == 0:
            log.append(step=index + 1, loss=loss, gradient=gradient)
        return loss

    def on_resume(done: int) -> None:
        if trainer.processes.mean(done) != done:  # also waits: nobody changes a file before all have read it
            raise TrainingError(
                f"finetune: the processes do not start from the same step (this one: {done}). The run's "
                f"folder {folder} must be on a file system that all of them see."
            )
        if leads:
            log.rewrite(row for row in log.rows() if row["step"] <= done)

    run_steps(
        step,
        steps=settings.steps,
        state=trainer.state,
        checkpoint=folder / CHECKPOINT,
        save_every=settings.save_every,
        also_save_every=settings.validation.every,
        title="finetune",
        progress=progress,
        after_save=validate,
        on_resume=on_resume,
        write=leads,
    )
