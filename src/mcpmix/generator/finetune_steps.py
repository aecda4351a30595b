"""The optimiser steps of the fine-tuning."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.config import Config, FinetuneConfig
from mcpmix.core.checkpoint import run_steps
from mcpmix.core.device import Runtime
from mcpmix.core.errors import TrainingError
from mcpmix.core.jsonl import JsonLines
from mcpmix.core.optimisers import build_adamw, warm_up
from mcpmix.core.pixels import as_images
from mcpmix.core.processes import Processes
from mcpmix.core.progress import Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.data.augment import apply_colour, draw_colour
from mcpmix.data.cache import Arrays
from mcpmix.generator.conditions import condition
from mcpmix.networks.controlnet import control_from_base, control_from_start
from mcpmix.networks.diffusion import (
    Autoencoder,
    Batch,
    ControlNet,
    DiffusionBase,
    NoiseSchedule,
    UNet,
    decoder_of,
    embed_prompts,
    encode_images,
    lower_frozen,
    noise_schedule,
    save_decoder,
    training_loss,
    with_decoder,
)
from mcpmix.networks.weight_files import resolve

_TURNS = 8  # the symmetries of a square: quarter turns and their mirror images
_TINTS = 3  # colour variants of each view that are encoded
_ENCODED = 8  # images that go through the autoencoder at once


@dataclass(frozen=True)
class TrainingSet:
    """All that a step reads, in memory: neither VAE nor text encoder is needed any more.

    Attributes:
        latents: V,U,N,C,h,w, one per view (symmetry of the square) and tint.
        conditions: N,2,H,W mask and depth.
        masks: N,H,W, also where the condition leaves them out.
        text: 2,L,C embeddings of the empty and of the full prompt.
    """

    latents: Tensor
    conditions: Tensor
    masks: Tensor
    text: Tensor

    def __len__(self) -> int:
        return self.conditions.shape[0]


@dataclass(frozen=True)
class Draws:
    """What chance chose for one optimiser step, for the examples of all processes and passes together.

    Attributes:
        view: the symmetry of the square that the whole step is shown in.
        chosen: (B,) examples.
        tint: (B,) colour variants.
        keep: (B, 2) whether mask and depth are shown.
        worded: (B,) 1 with the prompt, 0 without.
        t: (B,) timesteps.
        noise: B,C,h,w.
    """

    view: int
    chosen: npt.NDArray[np.int64]
    tint: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_]
    worded: npt.NDArray[np.int64]
    t: npt.NDArray[np.int64]
    noise: Tensor

    def batch(self, data: TrainingSet, rows: slice, device: torch.device) -> Batch:
        """The examples of some of the draws."""
        chosen = self.chosen[rows]
        kept = torch.from_numpy(self.keep[rows]).float()[:, :, None, None]
        return Batch(
            clean=data.latents[self.view, self.tint[rows], chosen],
            noise=self.noise[rows],
            t=torch.from_numpy(self.t[rows]),
            shown=turn(data.conditions[chosen], self.view) * kept,
            masks=turn(data.masks[chosen], self.view),
            text=data.text[self.worded[rows]],
        ).to(device)


def draw(
    data: TrainingSet, settings: FinetuneConfig, timesteps: int, count: int, identity: tuple[int, int]
) -> Draws:
    """The draws of the step that belongs to (seed, step).

    Args:
        data: the training set.
        settings: shares of dropped masks, depths and prompts.
        timesteps: of the noise schedule.
        count: examples of the step.
        identity: seed and number of the step.
    """
    rng = numpy_rng("finetune", *identity)
    chosen = rng.integers(len(data), size=count)
    view = int(rng.integers(data.latents.shape[0]))
    tint = rng.integers(data.latents.shape[1], size=count)
    keep = rng.random((count, 2)) >= (settings.mask_dropout, settings.depth_dropout)
    worded = (rng.random(count) >= settings.prompt_dropout).astype(np.int64)
    t = rng.integers(timesteps, size=count)
    shape = (count, *data.latents.shape[3:])
    noise = torch.randn(shape, generator=torch_rng("finetune noise", *identity))
    return Draws(view, chosen, tint, keep, worded, t, noise)


def prepare(
    base: DiffusionBase, arrays: Arrays, depths: npt.NDArray[np.float32], config: Config
) -> TrainingSet:
    """Encode every view of every image and both prompts, once.

    Args:
        base: on its device.
        arrays: images and masks of the training part.
        depths: N,S,S in [0, 1].
        config: sections `generator.prompt` and `finetune`.
    """
    images = as_images(arrays.images)
    turns = range(_TURNS) if config.finetune.augment else range(1)
    tints = range(_TINTS) if config.finetune.colour > 0 else range(1)
    latents = []
    for view, tint in product(turns, tints):
        colour = draw_colour(len(images), torch_rng("tint", config.seed, view, tint), config.finetune.colour)
        latents.append(encode_all(base.vae, turn(apply_colour(colour, images), view)))
    masks = torch.from_numpy(arrays.masks).float()
    return TrainingSet(
        latents=torch.stack(latents).unflatten(0, (len(turns), len(tints))),
        conditions=condition(
            masks,
            torch.from_numpy(depths),
            config.finetune.condition,
            config.finetune.depth_under_mask,
        ),
        masks=masks,
        text=embed_prompts(base, ["", config.generator.prompt.text]),
    )


def encode_all(vae: Autoencoder, images: Tensor) -> Tensor:
    """N,3,H,W images in [0, 1] to N,C,h,w latents on the CPU, a few at a time."""
    parts = (images * 2 - 1).split(_ENCODED)
    return torch.cat([encode_images(vae, part.to(vae.device)).cpu() for part in parts])


def turn(images: Tensor, view: int) -> Tensor:
    """One of the eight symmetries of the square, applied to the last two axes."""
    turned = torch.rot90(images, view % 4, dims=(-2, -1))
    return turned.flip(-1) if view >= 4 else turned


_WEIGHT_DECAY = 1e-2
_LARGEST_GRADIENT = 1.0  # norm over all trained weights
_LOG_EVERY = 10
CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"


@dataclass(frozen=True)
class Networks:
    """The networks of the fine-tuning, on one device.

    Attributes:
        unet: of the base; frozen but for an unlocked decoder.
        trained: what learns: "control", and "decoder" if it is unlocked, shared with `unet`.
        average: moving average of `trained`, which is the result.
        schedule: the base's forward process.
    """

    unet: UNet
    trained: nn.ModuleDict
    average: AveragedModel
    schedule: NoiseSchedule

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

    Args:
        base: on its device; its UNet becomes part of the result.
        settings: section `finetune`.
        runtime: the precision in which frozen weights are kept.
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
    """Optimiser steps, one at a time.

    Args:
        networks: what is trained.
        data: the training set.
        config: sections `finetune` and `seed`.
        runtime: device and precision.
        processes: those that share the steps.
    """

    def __init__(
        self, networks: Networks, data: TrainingSet, config: Config, runtime: Runtime, processes: Processes
    ) -> None:
        settings = config.finetune
        rates = {"control": settings.learning_rate, "decoder": settings.decoder_learning_rate}
        groups: list[dict[str, Any]] = [
            {"params": list(part.parameters()), "lr": rates[name]} for name, part in networks.trained.items()
        ]
        self.networks = networks
        self.data = data
        self.settings = settings
        self.seed = config.seed
        self.runtime = runtime
        self.processes = processes
        self.optimiser = build_adamw(groups, _WEIGHT_DECAY, settings.optimiser)
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
        """One optimiser step; the loss and the norm of the gradient, both over all processes.

        The draws are made for the whole step and then shared out, so that the step is the same, up to
        rounding, however many processes and passes it is cut into.
        """
        trained = self.networks.trained
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.processes.mean(self._gradients(index))
        self.processes.average_gradients(trained.parameters())
        self.scaler.unscale_(self.optimiser)
        norm = nn.utils.clip_grad_norm_(trained.parameters(), _LARGEST_GRADIENT)
        warm_up(self.optimiser, index, self.settings.warmup_steps)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.networks.average.update_parameters(trained)
        return loss, float(norm)

    def _gradients(self, index: int) -> float:
        """Add up the gradients of this process's share of the step; its mean loss."""
        size, passes = self.settings.batch_size, self.settings.accumulation
        total = size * passes * self.processes.count
        draws = draw(self.data, self.settings, self.networks.schedule.timesteps, total, (self.seed, index))
        start = self.processes.rank * size * passes
        losses = []
        for first in range(start, start + size * passes, size):
            batch = draws.batch(self.data, slice(first, first + size), self.runtime.device)
            with self.runtime.autocast():
                loss = training_loss(
                    self.networks.unet,
                    self.networks.trained["control"],
                    batch,
                    self.networks.schedule,
                    lesion_weight=self.settings.lesion_weight,
                    min_snr_gamma=self.settings.min_snr_gamma,
                )
            self.scaler.scale(loss / passes).backward()
            losses.append(loss.item())
        return sum(losses) / passes


def train(
    trainer: Trainer, folder: Path, progress: Progress, validate: Callable[[int], None] | None = None
) -> None:
    """All steps, from where the last checkpoint stands.

    Args:
        trainer: does the steps.
        folder: of the checkpoint and the log; the leader writes there, all others read.
        progress: where to report.
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
