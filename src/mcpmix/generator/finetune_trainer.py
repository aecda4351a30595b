"""Fine-tuning: what a step reads, the networks that learn, and the optimiser steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.config import Config, FinetuneConfig
from mcpmix.core.device import Runtime
from mcpmix.core.errors import TrainingError
from mcpmix.core.pixels import Pixels, as_images
from mcpmix.core.processes import Processes
from mcpmix.core.progress import SILENT, Advance, Progress
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.core.training import JsonLines, build_adamw, run_steps, warm_up
from mcpmix.data.augment import apply_colour, draw_colour
from mcpmix.data.index import Arrays
from mcpmix.generator.conditions import Conditions, Depths
from mcpmix.networks.diffusion import (
    Autoencoder,
    Batch,
    ControlNet,
    DiffusionBase,
    NoiseSchedule,
    UNet,
    embed_prompts,
    encode_images,
    noise_schedule,
    training_loss,
)
from mcpmix.networks.generator import (
    CONDITIONS,
    control_from_base,
    control_from_start,
    decoder_of,
    lower_frozen,
    save_decoder,
    with_decoder,
)
from mcpmix.networks.weight_files import resolve

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
_TURNS = 8  # the symmetries of a square: quarter turns and their mirror images
_TINTS = 3  # colour variants of each view that are encoded
_MANY = 200  # images above which each is encoded twice only, upright and turned: there is variety enough
_ENCODED = 8  # images that go through the autoencoder at once
_WEIGHT_DECAY = 1e-2
_LARGEST_GRADIENT = 1.0  # norm over all trained weights
_LOG_EVERY = 10


@dataclass(frozen=True)
class TrainingSet:
    """All that a step reads: neither VAE nor text encoder is needed any more."""

    latents: npt.NDArray[np.float32]  # V,U,N,C,h,w, by view (symmetry of the square) and tint; mapped
    conditions: Conditions | Tensor  # N,2,H,W mask and depth; a baseline may have other channels
    masks: Pixels  # N,H,W, 0 is background, also where the condition leaves them out
    text: Tensor  # T,L,C embeddings of the empty prompt, of the full one, and of the full one with each look
    text_of: np.ndarray  # (N,) which of them is that of an image
    dropout: tuple[float, ...]  # how often each channel of the condition is blank


def draw(
    data: TrainingSet, settings: FinetuneConfig, timesteps: int, count: int, identity: tuple[int, int]
) -> Callable[[slice], Batch]:
    """What chance chooses for the step that belongs to (seed, step): a function that gives rows of it.

    The draws are for the `count` examples of all processes and passes together; each of them then reads its
    own rows. The whole step is shown in one view.
    """
    rng = numpy_rng("finetune", *identity)
    chosen = rng.integers(len(data.masks), size=count)
    view = int(rng.integers(data.latents.shape[0]))
    tint = rng.integers(data.latents.shape[1], size=count)
    keep = rng.random((count, len(data.dropout))) >= data.dropout
    prompted = np.where(rng.random(count) >= settings.prompt_dropout, data.text_of[chosen], 0)
    t = rng.integers(timesteps, size=count)
    shape = (count, *data.latents.shape[3:])
    noise = torch.randn(shape, generator=torch_rng("finetune noise", *identity))

    def batch(rows: slice) -> Batch:
        kept = torch.from_numpy(keep[rows]).float()[:, :, None, None]
        return Batch(
            clean=torch.from_numpy(data.latents[view, tint[rows], chosen[rows]]),
            noise=noise[rows],
            t=torch.from_numpy(t[rows]),
            shown=turn(data.conditions[chosen[rows]], view) * kept,
            masks=turn(torch.from_numpy(data.masks[chosen[rows]] > 0).float(), view),
            text=data.text[prompted[rows]],
        )

    return batch


def prepare(
    base: DiffusionBase,
    arrays: Arrays,
    depths: Depths,
    config: Config,
    looks: Sequence[str | None] = (),
    progress: Progress = SILENT,
    kept: Path | None = None,
) -> TrainingSet:
    """Encode every view of every image and all prompts, once.

    Args:
        looks: words that the prompt of each image gets; empty: none gets any.
        kept: file for the latents, so that a killed stage goes on after the last images that it encoded.
    """
    settings, prompt = config.finetune, config.generator.prompt.text
    words = sorted({look for look in looks if look})
    rows = [2 + words.index(look) if look else 1 for look in looks] or [1] * len(arrays)
    return TrainingSet(
        latents=_encode_views(base.vae, arrays.images, settings, config.seed, kept, progress),
        conditions=Conditions(arrays.masks, depths, settings, config.data.labels),
        masks=arrays.masks,
        text=embed_prompts(base, ["", prompt, *(f"{prompt} {look}" for look in words)]),
        text_of=np.array(rows),
        dropout=(settings.mask_dropout, settings.depth_dropout),
    )


def _encode_views(
    vae: Autoencoder,
    images: Pixels,
    settings: FinetuneConfig,
    seed: int,
    kept: Path | None,
    progress: Progress,
) -> npt.NDArray[np.float32]:
    """Latents of all views, V,U,N,C,h,w, on disk: one view after the other, a few images at a time."""
    count, (turns, tints) = len(images), view_counts(settings, len(images))
    latent = encode_all(vae, as_images(images[:1]))[0]
    row, total = 4 * latent.numel(), turns * tints * count
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile() if kept is None else kept.open("a+b") as file:
        views, rest = divmod(file.seek(0, 2) // row, count)
        done = views * count + rest // _ENCODED * _ENCODED
        file.truncate(done * row)
        with progress.track(f"encoding {count} images in {turns * tints} views", total, done) as advance:
            while done < total:
                view, tint = divmod(done // count, tints)
                colour = draw_colour(count, torch_rng("tint", seed, view, tint), settings.colour)
                for start in range(done % count, count, _ENCODED):
                    part = slice(start, start + _ENCODED)
                    shown = turn(apply_colour(colour.part(part), as_images(images[part])), view)
                    file.write(encode_all(vae, shown, advance).numpy().tobytes())
                    file.flush()  # a kill leaves whole rows
                done += count - done % count
        shape = (turns, tints, count, *latent.shape)
        return np.asarray(np.memmap(file, np.float32, "r", shape=shape))


def encode_all(vae: Autoencoder, images: Tensor, advance: Advance | None = None) -> Tensor:
    """N,3,H,W images in [0, 1] to N,C,h,w latents on the CPU, a few at a time; `advance` counts them."""
    encoded = []
    for part in (images * 2 - 1).split(_ENCODED):
        encoded.append(encode_images(vae, part.to(vae.device)).cpu())
        if advance is not None:
            advance(len(part))
    return torch.cat(encoded)


def view_counts(settings: FinetuneConfig, images: int) -> tuple[int, int]:
    """How many turns of each image are encoded, and how many tints of each turn."""
    turns, tints = (2, 1) if images > _MANY else (_TURNS, _TINTS)
    return turns if settings.augment else 1, tints if settings.colour > 0 else 1


def turn(images: Tensor, view: int) -> Tensor:
    """One of the eight symmetries of the square, applied to the last two axes."""
    turned = torch.rot90(images, view % 4, dims=(-2, -1))
    return turned.flip(-1) if view >= 4 else turned


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


def build_networks(
    base: DiffusionBase, settings: FinetuneConfig, runtime: Runtime, conditions: int = CONDITIONS
) -> Networks:
    """A ControlNet for the base, and what is to be trained of the base itself.

    The base's UNet becomes part of the result; what is frozen of it is kept in the runtime's precision.

    Args:
        conditions: channels of the condition, for a ControlNet that starts as a copy of the base's encoder.
    """
    control = (
        control_from_base(base, conditions)
        if settings.start_weights is None
        else control_from_start(base, resolve(settings.start_weights, "control"))
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
        self,
        networks: Networks,
        data: TrainingSet,
        config: Config,
        runtime: Runtime,
        processes: Processes,
        first: TrainingSet | None = None,
    ) -> None:
        self.networks, self.data, self.runtime, self.processes = networks, data, runtime, processes
        self.first = first  # what `finetune.first_steps` learn from
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
        data = self.first if self.first is not None and index < settings.first_steps else self.data
        drawn = draw(data, settings, networks.schedule.timesteps, total, (self.seed, index))
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
    trainer: Trainer,
    folder: Path,
    progress: Progress,
    validate: Callable[[int], None] | None = None,
    title: str = "finetune",
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
        steps=settings.first_steps + settings.steps,
        state=trainer.state,
        checkpoint=folder / CHECKPOINT,
        save_every=settings.save_every,
        also_save_every=settings.validation.every,
        title=title,
        progress=progress,
        after_save=validate,
        on_resume=on_resume,
        write=leads,
    )
