"""Stage 2: a ControlNet learns to put the lesion under the mask, on the training split only."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.core.artifacts import Artifact, StageKey, workspace
from mcpmix.core.config import Config, FinetuneConfig
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.runtime import Runtime
from mcpmix.core.seeding import numpy_rng, seed_everything, torch_rng
from mcpmix.core.tracking import JsonLines
from mcpmix.data.arrays import Arrays, load_arrays
from mcpmix.data.conditions import condition, read_depths
from mcpmix.data.index import DatasetIndex
from mcpmix.data.transforms import apply_colour, draw_colour
from mcpmix.models.diffusion import (
    DiffusionBase,
    NoiseSchedule,
    control_from_base,
    decoder_of,
    embed_prompts,
    encode_images,
    load_base,
    noise_schedule,
    save_decoder,
)
from mcpmix.models.sources import folder_digest, resolve
from mcpmix.training.resumable import run_steps

_TURNS = 8  # the symmetries of a square: quarter turns and their mirror images
_TINTS = 3  # colour variants of each view that are encoded


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


def key(config: Config, dataset: Artifact, depth: Artifact) -> StageKey:
    """What the ControlNet depends on."""
    settings = {
        "base": config.generator.base,
        "weights": folder_digest(resolve(config.generator.base, "pipeline")),
        "prompt": config.generator.prompt.text,
        "size": config.data.size,
        "finetune": config.finetune.model_dump(mode="json", exclude={"save_every"}),
    }
    return StageKey("finetune", settings, {"dataset": dataset.digest, "depth": depth.digest}, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Train the ControlNet; the averaged weights are the result.

    Args:
        config: sections `generator`, `finetune` and `data.size`.
        dataset: the data set's artefact; only its training part is read.
        depth: the depth maps of that part.
        out: folder of the result.
        runtime: device and precision.
        progress: where to report.
    """
    records = DatasetIndex.read(dataset / "index.json").part("train")
    settings = config.finetune
    with workspace(out, key(config, dataset, depth)) as space:
        seed_everything(config.seed, "finetune")
        base = load_base(resolve(config.generator.base, "pipeline")).to(runtime.device)
        arrays = load_arrays(records, config.data.size)
        data = _prepare(base, arrays, read_depths(depth.folder, arrays.ids), config)
        control = control_from_base(base, 2, settings.embedding_channels).to(runtime.device)
        trained = nn.ModuleDict({"control": control})
        if settings.unlock_decoder:
            trained["decoder"] = decoder_of(base.unet).requires_grad_(True)
        average = AveragedModel(trained, multi_avg_fn=get_ema_multi_avg_fn(settings.ema_decay))
        _train(base, trained, average, data, config, space.folder, runtime, progress)
        _save(average.module, space.folder / "controlnet")
        (space.folder / "checkpoint.safetensors").unlink()
        return space.finish(steps=settings.steps, images=sorted(record.image_sha256 for record in records))


def _prepare(base: DiffusionBase, arrays: Arrays, depths: np.ndarray, config: Config) -> TrainingSet:
    """Encode every view of every image and both prompts, once."""
    device = base.unet.device
    images = torch.from_numpy(arrays.images).permute(0, 3, 1, 2).float() / 255
    turns = range(_TURNS) if config.finetune.augment else range(1)
    tints = range(_TINTS) if config.finetune.colour > 0 else range(1)
    latents = []
    for view, tint in product(turns, tints):
        colour = draw_colour(len(images), torch_rng("tint", config.seed, view, tint), config.finetune.colour)
        seen = turn(apply_colour(colour, images), view) * 2 - 1
        latents.append(torch.cat([encode_images(base.vae, part.to(device)).cpu() for part in seen.split(8)]))
    masks = torch.from_numpy(arrays.masks).float()
    return TrainingSet(
        latents=torch.stack(latents).unflatten(0, (len(turns), len(tints))),
        conditions=condition(masks, torch.from_numpy(depths), config.finetune.condition),
        masks=masks,
        text=embed_prompts(base, ["", config.generator.prompt.text]),
    )


def _save(averaged: Any, folder: Path) -> None:
    """Write the averaged ControlNet, and the decoder if it was trained, to one folder."""
    averaged["control"].save_pretrained(folder)
    if "decoder" in averaged:
        save_decoder(averaged["decoder"], folder)


def turn(images: Tensor, view: int) -> Tensor:
    """One of the eight symmetries of the square, applied to the last two axes."""
    turned = torch.rot90(images, view % 4, dims=(-2, -1))
    return turned.flip(-1) if view >= 4 else turned


def _train(
    base: DiffusionBase,
    trained: nn.ModuleDict,
    average: AveragedModel,
    data: TrainingSet,
    config: Config,
    folder: Path,
    runtime: Runtime,
    progress: Progress,
) -> None:
    settings = config.finetune
    schedule = noise_schedule(base.scheduler)
    rates = {"control": settings.learning_rate, "decoder": settings.decoder_learning_rate}
    groups = [{"params": list(part.parameters()), "lr": rates[name]} for name, part in trained.items()]
    optimiser = torch.optim.AdamW(groups, weight_decay=1e-2)
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda n: min(1.0, (n + 1) / (settings.warmup_steps + 1))
    )
    log = JsonLines(folder / "log.jsonl")

    def step(index: int) -> float:
        with runtime.autocast():
            loss = _loss(base, trained["control"], data, schedule, settings, (config.seed, index))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        gradient = nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimiser.step()
        warmup.step()
        average.update_parameters(trained)
        if (index + 1) % 10 == 0:
            log.append(step=index + 1, loss=loss.item(), gradient=float(gradient))
        return loss.item()

    run_steps(
        step,
        steps=settings.steps,
        state={"trained": trained, "average": average, "optimiser": optimiser, "warmup": warmup},
        checkpoint=folder / "checkpoint.safetensors",
        save_every=settings.save_every,
        title="finetune",
        progress=progress,
        on_resume=lambda done: log.rewrite(row for row in log.rows() if row["step"] <= done),
    )


def _loss(
    base: DiffusionBase,
    control: nn.Module,
    data: TrainingSet,
    schedule: NoiseSchedule,
    settings: FinetuneConfig,
    identity: tuple[int, int],
) -> Tensor:
    """Weighted denoising error of the batch that belongs to (seed, step)."""
    device = base.unet.device
    count = settings.batch_size
    rng = numpy_rng("finetune", *identity)
    chosen = rng.integers(len(data), size=count)
    view = int(rng.integers(data.latents.shape[0]))
    tint = rng.integers(data.latents.shape[1], size=count)
    clean = data.latents[view, tint, chosen].to(device)
    shown = turn(data.conditions[chosen], view)
    masks = turn(data.masks[chosen], view)
    keep = rng.random((count, 2)) >= (settings.mask_dropout, settings.depth_dropout)
    shown = (shown * torch.from_numpy(keep).float()[:, :, None, None]).to(device)
    text = data.text[(rng.random(count) >= settings.prompt_dropout).astype(int)]
    t = torch.from_numpy(rng.integers(schedule.timesteps, size=count)).to(device)
    noise = torch.randn(clean.shape, generator=torch_rng("finetune noise", *identity)).to(device)
    noisy = schedule.add_noise(clean, noise, t)
    down, middle = control(noisy, t, text, shown, return_dict=False)
    prediction = base.unet(
        noisy, t, text, down_block_additional_residuals=down, mid_block_additional_residual=middle
    ).sample
    error = (prediction.float() - schedule.target(clean, noise, t)).square().mean(dim=1)
    emphasis = lesion_emphasis(masks, (error.shape[-2], error.shape[-1]), settings.lesion_weight).to(device)
    return ((error * emphasis).mean(dim=(1, 2)) * schedule.min_snr_weight(t, settings.min_snr_gamma)).mean()


def lesion_emphasis(masks: Tensor, size: tuple[int, int], weight: float) -> Tensor:
    """Weights B,h,w of mean 1 that count a place under the mask `weight` times as much as one outside.

    Args:
        masks: B,H,W in {0, 1}.
        size: h and w of the latents.
        weight: 1 counts all places alike.
    """
    covered = F.adaptive_avg_pool2d(masks[:, None], size)[:, 0]
    emphasis = 1 + (weight - 1) * covered
    return emphasis / emphasis.mean(dim=(1, 2), keepdim=True)
